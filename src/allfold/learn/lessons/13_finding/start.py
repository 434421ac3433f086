from allfold import copy


def both_ways(ranks):
    """Everybody hands on to the right what came from the left. Use the other cables, too."""
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
