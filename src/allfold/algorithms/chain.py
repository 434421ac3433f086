"""Chains: a tree with one branch. Slow for one small buffer, and unbeatable when a long one is cut into segments."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move, copy, reduce


@algorithm("reduce", "chain")
def chain_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """The farthest rank hands its buffer to the next, which adds its own and hands it on, until the root has it.

    P−1 steps, S through the busiest port.
    """
    for r in range(ranks - 1, 0, -1):
        yield [reduce(chunk=0, source=(root + r) % ranks, destination=(root + r - 1) % ranks)]


@algorithm("broadcast", "chain")
def chain_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root tells the next rank, which tells the next, and so on.

    P−1 steps, S through the busiest port.
    """
    for r in range(ranks - 1):
        yield [copy(chunk=0, source=(root + r) % ranks, destination=(root + r + 1) % ranks)]
