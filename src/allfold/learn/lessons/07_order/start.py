from allfold import algorithm, copy, reduce


@algorithm("all_reduce", chunks=1)  # only chunk 0 is the buffer; chunk 1 is room for what passes
def carousel(ranks):
    """Every buffer goes around whole. Right, but every rank adds in another order. Repair that."""
    own, passing = 0, 1
    right = [(r + 1) % ranks for r in range(ranks)]
    source = own
    for _ in range(ranks - 1):
        yield [copy(chunk=source, source=r, destination=right[r], into=passing) for r in range(ranks)]
        yield [reduce(chunk=passing, source=r, destination=r, into=own) for r in range(ranks)]
        source = passing


def ordered_tree(ranks):
    """Up a tree to rank 0 and down again. Right, but not in rank order. Repair that."""
    top = 1
    while top < ranks:
        top *= 2
    distance = top // 2
    while distance:  # rank r takes what rank r + distance has
        yield [reduce(chunk=0, source=r + distance, destination=r) for r in range(distance) if r + distance < ranks]
        distance //= 2
    distance = 1
    while distance < ranks:
        yield [copy(chunk=0, source=r, destination=r + distance) for r in range(distance) if r + distance < ranks]
        distance *= 2
