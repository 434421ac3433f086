from collections import Counter

import allfold


def seconds(steps, chunks, size, alpha, beta):
    """How long a schedule takes: every step lasts as long as its busiest port."""
    total = 0.0
    for moves in steps:
        sent = Counter(source for source, _, _ in moves)
        received = Counter(destination for _, destination, _ in moves)
        busiest = max([*sent.values(), *received.values()])
        total += alpha + busiest * size / chunks * beta
    return total


def pick(ranks, size, alpha, beta):
    """The fastest of "ring", "tree" and "recursive_doubling"."""

    def time_of(name):
        made = allfold.schedule("all_reduce", name, ranks)
        steps = [[(move.source, move.destination, move.chunk) for move in step] for step in made]
        return seconds(steps, made.chunks, size, alpha, beta)

    return min(("ring", "tree", "recursive_doubling"), key=time_of)
