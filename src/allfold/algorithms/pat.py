"""PAT, parallel aggregated trees: Bruck's trees with far ranks first, and messages of a limited size.

(Jeaugey: "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252; NCCL 2.23.)

Every chunk spreads along the same binomial tree, shifted so that it begins at the chunk's owner. A rank's *offset* in
the tree of a chunk is its distance to the right of the owner; its parent's offset lacks the lowest one bit. So the first
message, a single chunk, goes far, and the long messages at the end go to neighbours. Bruck's all_gather does the
opposite.

A library that stages messages in buffers of its own cannot make them as long as it likes. `aggregation` is the most
chunks in one message. That many trees go on together: first they fan out, in a logarithmic number of steps, to offsets
that are equally far apart; from there each walks through its part of the tree, branch by branch, in a linear number of
steps. A chunk has to be kept until it was passed on to all children. Because branches are finished one after the other,
what is kept at any time is a logarithmic number of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..errors import UsageError
from ..patterns import Messages, Pattern, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .tree import log_down, log_up


def walk(offset: int, reach: int) -> Iterator[tuple[int, int]]:
    """The branches below an offset, far ones first and each to its end: (offset, distance to its parent)."""
    distance = reach // 2
    while distance:
        yield offset + distance, distance
        yield from walk(offset + distance, distance)
        distance //= 2


def hops(ranks: int, aggregation: int | None) -> list[tuple[int, range]]:
    """Step by step of an all_gather: how far everybody sends, and the offsets at which its chunks arrive."""
    if aggregation is not None and (type(aggregation) is not int or aggregation < 1):
        raise UsageError(f"aggregation must be a positive whole number of chunks, not {aggregation!r:.40}")
    whole = 1 << log_up(ranks)
    together = whole if aggregation is None else min(whole, 1 << log_down(aggregation))
    apart = whole // together
    fan_out = [whole >> level for level in range(1, log_up(ranks) + 1) if whole >> level >= apart]
    steps = [(distance, range(distance, ranks, 2 * distance)) for distance in fan_out]
    return steps + [(distance, range(offset, ranks, apart)) for offset, distance in walk(0, apart) if offset < ranks]


def trees(ranks: int, aggregation: int | None, messages: Messages) -> Iterator[Pattern]:
    """The patterns of an all_gather; those of a reduce_scatter are the same, backwards."""
    everyone = np.arange(ranks)
    for distance, offsets in hops(ranks, aggregation):
        there = (everyone + distance) % ranks
        ends = (everyone, there) if messages is copies else (there, everyone)
        yield messages(*ends, len(offsets) / ranks)


@algorithm(
    "all_gather",
    "pat",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, aggregation=None: trees(p, aggregation, copies),
    phases=[
        Phase("hand out", "Every rank passes chunks on to the right: few of them far away first, then more, nearer.")
    ],
)
def pat_all_gather(ranks: int, aggregation: int | None = None) -> Iterator[list[Move]]:
    """Every chunk spreads to the right along a binomial tree, far ranks first; the trees of all chunks go on together.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port. With `aggregation` a message has at most that many chunks, rounded
    down to a power of two; if that is a and P is a power of two, the number of steps is log₂a + P/a − 1.
    """
    return (
        [
            copy(chunk=(r - offset + distance) % ranks, source=r, destination=(r + distance) % ranks)
            for r in range(ranks)
            for offset in offsets
        ]
        for distance, offsets in hops(ranks, aggregation)
    )


@algorithm(
    "reduce_scatter",
    "pat",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, aggregation=None: reversed([*trees(p, aggregation, reductions)]),
    phases=[
        Phase("add up", "Every rank sends partial sums to the left: many of them to neighbours first, then fewer.")
    ],
)
def pat_reduce_scatter(ranks: int, aggregation: int | None = None) -> Iterator[list[Move]]:
    """The same trees upwards: leaves send to their parents, which add, until each chunk is complete at its owner.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port. `aggregation` is as in all_gather.
    """
    return (
        [
            reduce(chunk=(r - offset) % ranks, source=r, destination=(r - distance) % ranks)
            for r in range(ranks)
            for offset in offsets
        ]
        for distance, offsets in reversed(hops(ranks, aggregation))
    )
