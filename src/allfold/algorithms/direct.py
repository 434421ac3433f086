"""Direct: no rank forwards for another. Each rank owns one chunk, collects it from all ranks, and sends it to all.

As many bytes as the ring, in one step where the ring takes P−1; the price is that every port talks to everyone. On
shared memory, where there are no ports to crowd, this is the fastest way to move a large buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Everybody, Seats, copies
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .driver import driver_gather, spokes

ADD = Phase("add up", "Every rank sends each chunk to the rank that owns it, which adds up what comes.", lambda p: 1)
HAND = Phase("hand out", "Every rank sends its own chunk to all others.", lambda p: 1)


def pairs(ranks: int) -> tuple[Seats, Seats]:
    """Every rank with every other: (0, 1), (0, 2), … as two arrays."""
    one, other = np.indices((ranks, ranks)).reshape(2, -1)
    return one[one != other], other[one != other]


@algorithm(
    "reduce_scatter",
    "direct",
    steps=lambda p: 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: [Everybody(1 / p, 1 / p)],
    phases=[ADD],
)
def direct_reduce_scatter(ranks: int) -> Iterator[list[Move]]:
    """Everyone sends each chunk to the rank that owns it; the owner adds up what arrives.

    1 step, (P−1)/P·S through the busiest port.
    """
    owner, other = pairs(ranks)
    yield [reduce(chunk=owner, source=other, destination=owner)]


@algorithm(
    "reduce",
    "direct",
    steps=lambda p: 2,
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=lambda p, root: [Everybody(1 / p, 1 / p), copies(*spokes(p, root), 1 / p)],
    phases=[ADD, Phase("collect", "Every rank sends its finished chunk to the root.")],
)
def direct_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """Each rank collects and adds up the chunk it owns, then sends it to the root.

    2 steps, 2(P−1)/P·S through the busiest port.
    """
    yield from direct_reduce_scatter(ranks)
    yield from driver_gather(ranks, root)


@algorithm(
    "all_gather",
    "direct",
    steps=lambda p: 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: [Everybody(1 / p, 0.0)],
    phases=[HAND],
)
def direct_all_gather(ranks: int) -> Iterator[list[Move]]:
    """Everyone sends its chunk to everyone.

    1 step, (P−1)/P·S through the busiest port.
    """
    owner, other = pairs(ranks)
    yield [copy(chunk=owner, source=owner, destination=other)]


@algorithm(
    "all_reduce",
    "direct",
    steps=lambda p: 2,
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=lambda p: [Everybody(1 / p, 1 / p), Everybody(1 / p, 0.0)],
    phases=[ADD, HAND],
)
def direct_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Each rank collects and adds up the chunk it owns, then sends it to everyone.

    2 steps, 2(P−1)/P·S through the busiest port.
    """
    yield from direct_reduce_scatter(ranks)
    yield from direct_all_gather(ranks)


@algorithm(
    "all_to_all",
    "direct",
    steps=lambda p: 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: [Everybody(1 / p, 0.0)],
    phases=[Phase("exchange", "Every rank sends every slice straight to the rank that it is for.")],
)
def direct_all_to_all(ranks: int) -> Iterator[list[Move]]:
    """Everyone sends every slice straight to where it belongs.

    1 step, (P−1)/P·S through the busiest port.
    """
    source, destination = pairs(ranks)
    yield [copy(chunk=destination, source=source, destination=destination, into=source)]
