from allfold import copy, reduce


def carousel(ranks):
    """One buffer goes around and everybody adds to it; then the sum goes around, and everybody copies it."""
    for r in range(ranks - 1):
        yield [reduce(chunk=0, source=r, destination=r + 1)]
    for r in range(ranks - 1, 0, -1):
        yield [copy(chunk=0, source=r, destination=r - 1)]


def ordered_tree(ranks):
    """Neighbours first, so that what a rank holds is always a row of neighbours."""
    distance = 1
    while distance < ranks:
        yield [reduce(chunk=0, source=r + distance, destination=r) for r in range(0, ranks - distance, 2 * distance)]
        distance *= 2
    while distance > 1:
        distance //= 2
        yield [copy(chunk=0, source=r, destination=r + distance) for r in range(0, ranks - distance, 2 * distance)]
