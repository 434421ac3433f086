"""Chains: a tree with one branch. Slow for one small buffer, and unbeatable when a long one is cut into segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..patterns import Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce


def hops(ranks: int, root: int) -> tuple[Seats, Seats]:
    """All ranks but the farthest, and for each of them the next."""
    near = (root + np.arange(ranks - 1)) % ranks
    return near, (near + 1) % ranks


@algorithm(
    "reduce",
    "chain",
    steps=lambda p: p - 1,
    port=lambda p: 1,
    patterns=lambda p, root: [replace(reductions(*hops(p, root)[::-1], 1.0), apart=True)],
    phases=[Phase("add up")],
)
def chain_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """The farthest rank hands its buffer to the next, which adds its own and hands it on, until the root has it.

    P−1 steps, S through the busiest port.
    """
    for r in range(ranks - 1, 0, -1):
        yield [reduce(chunk=0, source=(root + r) % ranks, destination=(root + r - 1) % ranks)]


@algorithm(
    "broadcast",
    "chain",
    steps=lambda p: p - 1,
    port=lambda p: 1,
    patterns=lambda p, root: [replace(copies(*hops(p, root), 1.0), apart=True)],
    phases=[Phase("hand out")],
)
def chain_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root sends its buffer to the next rank, which passes it on to the next, and so on.

    P−1 steps, S through the busiest port.
    """
    for r in range(ranks - 1):
        yield [copy(chunk=0, source=(root + r) % ranks, destination=(root + r + 1) % ranks)]
