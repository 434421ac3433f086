from collections import Counter

from allfold import copy, reduce


def count(steps, ranks, chunks):
    """Messages in all, bytes in all, bytes through the busiest port; bytes as multiples of S."""
    messages = sum(len({(source, destination) for source, destination, _ in moves}) for moves in steps)
    sent = Counter(source for moves in steps for source, _, _ in moves)
    received = Counter(destination for moves in steps for _, destination, _ in moves)
    busiest = max([0, *sent.values(), *received.values()])
    return messages, sent.total() / chunks, busiest / chunks


def thrifty(ranks):
    """A chain: everybody adds its own part and sends it on to the rank before it; then the sum comes back."""
    for r in range(ranks - 1, 0, -1):
        yield [reduce(chunk=0, source=r, destination=r - 1)]
    for r in range(1, ranks):
        yield [copy(chunk=0, source=r - 1, destination=r)]
