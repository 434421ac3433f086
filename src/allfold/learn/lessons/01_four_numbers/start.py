from allfold import copy, reduce


def tell_everyone(ranks):
    """One step, in which every rank sends its number to every other one."""
    yield [reduce(chunk=0, source=1, destination=0)]  # one move of many: which are missing?


def ask_one(ranks):
    """Rank 0 adds up all numbers, then sends the sum back to everyone."""
    yield []  # first step: everybody to rank 0
    yield []  # second step: rank 0 to everybody
