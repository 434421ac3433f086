from allfold import copy, reduce


def ring(ranks):
    """Everybody sends to its right neighbour: once around to add up, once more to hand out."""
    for step in range(ranks - 1):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
