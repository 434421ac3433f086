from allfold import copy, reduce


def straight_reduce_scatter(ranks):
    """Everybody sends each slice to its owner, who adds up."""
    yield [reduce(chunk=c, source=r, destination=c) for c in range(ranks) for r in range(ranks) if r != c]


def straight_all_gather(ranks):
    """Every owner sends its slice to everybody else."""
    yield [copy(chunk=c, source=c, destination=r) for c in range(ranks) for r in range(ranks) if r != c]


def two_steps(ranks):
    """An all_reduce, made of both."""
    yield from straight_reduce_scatter(ranks)
    yield from straight_all_gather(ranks)
