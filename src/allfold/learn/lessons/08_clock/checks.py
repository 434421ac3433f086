"""Judges of lesson 8: both compare with the price of the product, on a network where all pairs are equally far apart."""

from collections import Counter

from allfold import schedule
from allfold.learn.checks import Wrong
from allfold.learn.figures import flat, price
from allfold.price.cost.plan import duration

NAMES = ("ring", "tree", "recursive_doubling")
NETWORKS = ((3e-6, 12.5e9), (40e-6, 1.25e9), (0.5e-6, 200e9))  # α in seconds, bandwidth in bytes per second
RANKS = (3, 2, 8, 17)
SIZES = (8, 10_000, 1_000_000, 10**9)


def check_seconds(seconds):
    for ranks in RANKS:
        for name in (*NAMES, "halving_doubling", "direct", "driver"):
            made = schedule("all_reduce", name, ranks)
            steps = [[(move.source, move.destination, move.chunk) for move in step] for step in made]
            for alpha, bandwidth in NETWORKS:
                for size in (SIZES[-1], SIZES[0]):
                    real = price("all_reduce", name, ranks, size, flat(alpha, bandwidth)).time
                    said = seconds(steps, made.chunks, size, alpha, 1 / bandwidth)
                    if not isinstance(said, int | float):
                        raise Wrong(f"seconds returns {said!r:.40}; expected a number", kind="shape")
                    if abs(said - real) > 1e-6 * real:
                        word = "short" if said < real else "long"
                        what = f"{size:,} bytes by {name} with {ranks} ranks"
                        otherwise = "too_short" if said < real else "too_long"
                        kind = _kind(steps, made.chunks, size, alpha, 1 / bandwidth, said, otherwise)
                        raise Wrong(f"{what}: {said:.6g} s is too {word}; it takes {real:.6g} s", kind=kind)
    return "the same times as those of allfold plan"


def _kind(steps, chunks, size, alpha, beta, said, otherwise):
    """What was computed instead, if it is a mistake that is known."""
    sides = [[Counter(move[side] for move in step) for side in (0, 1)] for step in steps]
    busiest = [max([*sent.values(), *received.values()]) for sent, received in sides]
    latency, bytes_ = len(steps) * alpha, size / chunks * beta
    known = {
        "no_bytes": latency,
        "no_alpha": sum(busiest) * bytes_,
        "all_ports": latency + sum(sent.total() for sent, _ in sides) * bytes_,
        "one_side": latency + sum(max(sent.values()) for sent, _ in sides) * bytes_,
    }
    return next((kind for kind, time in known.items() if abs(said - time) <= 1e-9 * time), otherwise)


def check_pick(pick):
    for ranks in RANKS:
        for alpha, bandwidth in NETWORKS:
            for size in SIZES:
                said = pick(ranks, size, alpha, 1 / bandwidth)
                if said not in NAMES:
                    raise Wrong(f"pick returns {said!r:.40}; expected one of {', '.join(NAMES)}", kind="shape")
                times = {name: price("all_reduce", name, ranks, size, flat(alpha, bandwidth)).time for name in NAMES}
                best = min(times, key=times.__getitem__)
                if times[said] > times[best] * (1 + 1e-6):
                    case = f"{size:,} bytes, where the number of ranks is {ranks} and α is {duration(alpha)}"
                    took = f"{said} takes {duration(times[said])}, {best} {duration(times[best])}"
                    raise Wrong(f"{case}: {took}", kind="slower")
    return f"the fastest in {len(RANKS) * len(NETWORKS) * len(SIZES)} cases"
