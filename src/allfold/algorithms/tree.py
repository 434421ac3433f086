"""Binomial trees: every step doubles the ranks that have the data (broadcast) or halves those left to ask (reduce).

Ranks are counted from the root: `r` below is the distance to it. Rank r's subtree at distance d is the interval
[r, r+d), so what a rank holds is always an interval of ranks, and from root 0 a reduction keeps rank order.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, Seats, Share, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce


def log_up(ranks: int) -> int:
    """⌈log₂P⌉"""
    return (ranks - 1).bit_length()


def log_down(ranks: int) -> int:
    """⌊log₂P⌋"""
    return ranks.bit_length() - 1


def doublings(ranks: int) -> list[int]:
    """1, 2, 4, … below `ranks`: the distances of ⌈log₂P⌉ steps."""
    return [1 << bit for bit in range(log_up(ranks))]


def edges(ranks: int, root: int, distance: int) -> list[tuple[int, int]]:
    """The pairs (parent, child) that are `distance` apart in the binomial tree."""
    return [((root + r) % ranks, (root + r + distance) % ranks) for r in range(0, ranks - distance, 2 * distance)]


def subtree(ranks: int, root: int, child: int, distance: int) -> list[int]:
    """The ranks below and including `child`, whose parent is `distance` away."""
    r = (child - root) % ranks
    return [(root + i) % ranks for i in range(r, min(r + distance, ranks))]


def levels(ranks: int, root: int, down: bool = False) -> Iterator[tuple[Seats, Seats, Share]]:
    """Step by step, up the tree or down: parents, their children, and the share of S in each child's subtree."""
    for distance in sorted(doublings(ranks), reverse=down):
        parent, child = np.array(edges(ranks, root, distance)).T
        yield parent, child, np.minimum(distance, ranks - (child - root) % ranks) / ranks


ADD = Phase("add up", "Pairs of ranks, twice as far apart every time: one adds what the other one has.", log_up)
HAND = Phase("hand out", "Every rank that has the result passes it on to one that has not.", log_up)
COLLECT = Phase(
    "collect", "Pairs of ranks, twice as far apart every time: one takes over all that the other has.", log_up
)
SPREAD = Phase("hand out", "Every rank that has slices of others passes on half of them.", log_up)


def up_and_down(ranks: int, share: float) -> Iterator[Pattern]:
    for parent, child, _ in levels(ranks, root=0):
        yield reductions(child, parent, share)
    for parent, child, _ in levels(ranks, root=0, down=True):
        yield copies(parent, child, share)


@algorithm(
    "reduce",
    "tree",
    steps=log_up,
    port=log_up,
    patterns=lambda p, root: (reductions(child, parent, 1.0) for parent, child, _ in levels(p, root)),
    phases=[ADD],
)
def tree_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """Neighbours pair up, one of each pair adds up both and goes on; after ⌈log₂P⌉ steps only the root is left.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [reduce(chunk=0, source=child, destination=parent) for parent, child in edges(ranks, root, distance)]


@algorithm(
    "broadcast",
    "tree",
    steps=log_up,
    port=log_up,
    patterns=lambda p, root: (copies(parent, child, 1.0) for parent, child, _ in levels(p, root, down=True)),
    phases=[HAND],
)
def tree_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """Every rank that has the buffer sends it to one that does not, far ones first.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for distance in reversed(doublings(ranks)):
        yield [copy(chunk=0, source=parent, destination=child) for parent, child in edges(ranks, root, distance)]


@algorithm(
    "gather",
    "tree",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: (copies(child, parent, slices) for parent, child, slices in levels(p, root)),
    phases=[COLLECT],
)
def tree_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """Like the tree reduce, but each child hands over the slices of its whole subtree.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [
            copy(chunk=slice_, source=child, destination=parent)
            for parent, child in edges(ranks, root, distance)
            for slice_ in subtree(ranks, root, child, distance)
        ]


@algorithm(
    "scatter",
    "tree",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: (copies(parent, child, slices) for parent, child, slices in levels(p, root, down=True)),
    phases=[SPREAD],
)
def tree_scatter(ranks: int, root: int) -> Iterator[list[Move]]:
    """Like the tree broadcast, but each child gets the slices of its own subtree only.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for distance in reversed(doublings(ranks)):
        yield [
            copy(chunk=slice_, source=parent, destination=child)
            for parent, child in edges(ranks, root, distance)
            for slice_ in subtree(ranks, root, child, distance)
        ]


@algorithm(
    "all_reduce",
    "tree",
    steps=lambda p: 2 * log_up(p),
    port=log_up,
    patterns=lambda p: up_and_down(p, share=1.0),
    phases=[ADD, HAND],
)
def tree_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Reduce to rank 0 along a binomial tree, then broadcast back along the same tree.

    2⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    yield from tree_reduce(ranks, root=0)
    yield from tree_broadcast(ranks, root=0)
