from allfold import copy, reduce


def ring(ranks):
    """Everybody sends to its right neighbour: once around to add up, once more to hand out."""
    for step in range(ranks):
        yield [reduce(chunk=0, source=r, destination=(r + step) % ranks) for r in range(ranks)]
    for step in range(ranks):
        yield [copy(chunk=0, source=r, destination=(r + step) % ranks) for r in range(ranks)]
