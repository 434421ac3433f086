from allfold import copy


def both_ways(ranks):
    """To the right goes what came from the left, to the left what came from the right."""
    for step in range(ranks // 2):
        right = [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
        left = [copy(chunk=(r + step) % ranks, source=r, destination=(r - 1) % ranks) for r in range(ranks)]
        # With an even number of ranks, the slice from the opposite side comes from the left only.
        yield right + (left if step < (ranks - 1) // 2 else [])
