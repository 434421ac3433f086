from allfold import copy, reduce


def count(steps, ranks, chunks):
    """Messages in all, bytes in all, bytes through the busiest port; bytes as multiples of S."""
    messages = sum(len(moves) for moves in steps)  # not quite: what if a message has several chunks?
    return messages, 0.0, 0.0


def thrifty(ranks):
    """This is the driver. Beat it: as few messages, but at most 2 S through any port."""
    yield [reduce(chunk=0, source=r, destination=0) for r in range(1, ranks)]
    yield [copy(chunk=0, source=0, destination=r) for r in range(1, ranks)]
