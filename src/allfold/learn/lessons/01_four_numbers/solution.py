from allfold import copy, reduce


def tell_everyone(ranks):
    """One step, in which every rank sends its number to every other one."""
    yield [reduce(chunk=0, source=s, destination=d) for d in range(ranks) for s in range(ranks) if s != d]


def ask_one(ranks):
    """Rank 0 adds up all numbers, then sends the sum back to everyone."""
    yield [reduce(chunk=0, source=r, destination=0) for r in range(1, ranks)]
    yield [copy(chunk=0, source=0, destination=r) for r in range(1, ranks)]
