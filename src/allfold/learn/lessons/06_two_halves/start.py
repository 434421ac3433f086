from allfold import copy, reduce


def straight_reduce_scatter(ranks):
    """Everybody sends each slice to its owner, who adds up."""
    yield []


def straight_all_gather(ranks):
    """Every owner sends its slice to everybody else."""
    yield []


def two_steps(ranks):
    """An all_reduce, made of both."""
    yield from straight_reduce_scatter(ranks)
