"""Bruck's algorithms: ⌈log₂P⌉ steps for any number of ranks, not only for powers of two.

On paper they begin and end with a rotation of the buffer, so that what travels is contiguous. Here moves name chunks,
so all_gather needs no rotation, and all_to_all only the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, copies, local
from ..registry import Phase, algorithm
from ..schedules import Move, copy
from .tree import doublings, log_up


def fetches(ranks: int) -> Iterator[Pattern]:
    everyone = np.arange(ranks)
    for distance in doublings(ranks):
        yield copies((everyone + distance) % ranks, everyone, min(distance, ranks - distance) / ranks)


@algorithm(
    "all_gather",
    "bruck",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=fetches,
    phases=[Phase("double", "Every rank fetches all that a rank to its right has, twice as far away every time.")],
)
def bruck_all_gather(ranks: int) -> Iterator[list[Move]]:
    """In step k everybody fetches all that the rank 2^k to its right has: that rank's own chunk and those that follow.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [
            copy(chunk=(r + distance + i) % ranks, source=(r + distance) % ranks, destination=r)
            for r in range(ranks)
            for i in range(min(distance, ranks - distance))
        ]


def bundles(ranks: int) -> Iterator[Pattern]:
    everyone = np.arange(ranks)
    for distance in doublings(ranks):
        yield copies(everyone, (everyone + distance) % ranks, np.count_nonzero(everyone & distance) / ranks)
    if ranks > 2:
        yield local(everyone, (ranks - 1 - (ranks % 2 == 0)) / ranks)


@algorithm(
    "all_to_all",
    "bruck",
    steps=lambda p: log_up(p) + (p > 2),
    port=lambda p: Fraction(sum(d.bit_count() for d in range(p)), p),
    patterns=bundles,
    phases=[
        Phase("travel", "Slices travel in bundles, along the binary digits of the way that they have to go.", log_up),
        Phase("sort", "Every rank puts its slices in order; nothing is sent."),
    ],
)
def bruck_all_to_all(ranks: int) -> Iterator[list[Move]]:
    """A slice that must go d ranks to the right travels along the binary digits of d; slices travel in bundles.

    While it travels, a slice whose whole way is d lies in chunk r+d of the rank r that holds it; at the end everybody
    sorts its chunks, since what came from rank r−d belongs in chunk r−d.
    ⌈log₂P⌉+1 steps (the last one local, and 1 step for two ranks), about ½·log₂P·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [
            copy(chunk=(r + d) % ranks, source=r, destination=(r + distance) % ranks, into=(r + distance + d) % ranks)
            for r in range(ranks)
            for d in range(ranks)
            if d & distance
        ]
    yield [
        copy(chunk=(r + d) % ranks, source=r, destination=r, into=(r - d) % ranks)
        for r in range(ranks)
        for d in range(1, ranks)
        if 2 * d != ranks
    ]
