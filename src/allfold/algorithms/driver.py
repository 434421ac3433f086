"""The driver: one rank does all the work, and its port carries all the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce


def spokes(ranks: int, root: int) -> tuple[Seats, Seats]:
    """All ranks but the root, and the root once for each of them."""
    return np.delete(np.arange(ranks), root), np.full(ranks - 1, root)


@algorithm(
    "reduce",
    "driver",
    steps=lambda p: 1,
    port=lambda p: p - 1,
    patterns=lambda p, root: [reductions(*spokes(p, root), 1.0)],
    phases=[Phase("add up", "Every rank sends all it has to the root, which adds it up.")],
)
def driver_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """Everyone sends its buffer to the root, which adds them up.

    1 step, (P−1)·S through the busiest port.
    """
    yield [reduce(chunk=0, source=r, destination=root) for r in range(ranks) if r != root]


@algorithm(
    "broadcast",
    "driver",
    steps=lambda p: 1,
    port=lambda p: p - 1,
    patterns=lambda p, root: [copies(*spokes(p, root)[::-1], 1.0)],
    phases=[Phase("hand out", "The root sends all it has to every rank.")],
)
def driver_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root sends its buffer to everyone.

    1 step, (P−1)·S through the busiest port.
    """
    yield [copy(chunk=0, source=root, destination=r) for r in range(ranks) if r != root]


@algorithm(
    "gather",
    "driver",
    steps=lambda p: 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: [copies(*spokes(p, root), 1 / p)],
    phases=[Phase("collect", "Every rank sends its slice to the root.")],
)
def driver_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """Everyone sends its slice to the root.

    1 step, (P−1)/P·S through the busiest port.
    """
    yield [copy(chunk=r, source=r, destination=root) for r in range(ranks) if r != root]


@algorithm(
    "scatter",
    "driver",
    steps=lambda p: 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: [copies(*spokes(p, root)[::-1], 1 / p)],
    phases=[Phase("hand out", "The root sends every rank its slice.")],
)
def driver_scatter(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root sends everyone its slice.

    1 step, (P−1)/P·S through the busiest port.
    """
    yield [copy(chunk=r, source=root, destination=r) for r in range(ranks) if r != root]


@algorithm(
    "all_reduce",
    "driver",
    steps=lambda p: 2,
    port=lambda p: p - 1,
    patterns=lambda p: [reductions(*spokes(p, 0), 1.0), copies(*spokes(p, 0)[::-1], 1.0)],
    phases=[
        Phase("add up", "Every rank sends all it has to rank 0, which adds it up.", lambda p: 1),
        Phase("hand out", "Rank 0 sends the result to every rank.", lambda p: 1),
    ],
)
def driver_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Rank 0 collects and adds up all buffers, then sends the result back to everyone.

    2 steps, (P−1)·S through the busiest port.
    """
    yield from driver_reduce(ranks, root=0)
    yield from driver_broadcast(ranks, root=0)
