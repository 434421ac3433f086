from allfold import copy, reduce


def tree_broadcast(ranks, root):
    """Everybody who has the buffer sends it to somebody who does not."""
    yield [copy(chunk=0, source=root, destination=(root + 1) % ranks)]  # and then?


def tree_all_reduce(ranks):
    """Up the tree to rank 0 and down again. Right for 2, 4, 8, 16 ranks; repair it for all."""
    distance = 1
    while distance < ranks:
        yield [reduce(chunk=0, source=r + distance, destination=r) for r in range(0, ranks, 2 * distance)]
        distance *= 2
    while distance > 1:
        distance //= 2
        yield [copy(chunk=0, source=r, destination=r + distance) for r in range(0, ranks, 2 * distance)]
