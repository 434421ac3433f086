from allfold import copy, reduce


def tree_broadcast(ranks, root):
    """Everybody who has the buffer sends it to somebody who does not."""
    have = 1  # the ranks at distances 0 to have - 1 from the root
    while have < ranks:
        yield [
            copy(chunk=0, source=(root + i) % ranks, destination=(root + i + have) % ranks)
            for i in range(have)
            if i + have < ranks
        ]
        have *= 2


def tree_all_reduce(ranks):
    """Up the tree to rank 0 and down again."""
    distance = 1
    while distance < ranks:
        pairs = range(0, ranks - distance, 2 * distance)  # those that have a partner
        yield [reduce(chunk=0, source=r + distance, destination=r) for r in pairs]
        distance *= 2
    while distance > 1:
        distance //= 2
        yield [copy(chunk=0, source=r, destination=r + distance) for r in range(0, ranks - distance, 2 * distance)]
