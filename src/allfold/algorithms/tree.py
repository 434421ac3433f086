"""Binomial trees: in every step the number of ranks that know (or no longer need to be asked) doubles.

Ranks are counted from the root: `r` below is the distance to it. Rank r's subtree at distance d is the interval
[r, r+d), so what a rank holds is always an interval of ranks, and from root 0 a reduction keeps rank order.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move, copy, reduce


def doublings(ranks: int) -> list[int]:
    """1, 2, 4, … below `ranks`: the distances of ⌈log₂P⌉ steps."""
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def edges(ranks: int, root: int, distance: int) -> list[tuple[int, int]]:
    """The pairs (parent, child) that are `distance` apart in the binomial tree."""
    return [((root + r) % ranks, (root + r + distance) % ranks) for r in range(0, ranks - distance, 2 * distance)]


def subtree(ranks: int, root: int, child: int, distance: int) -> list[int]:
    """The ranks below and including `child`, whose parent is `distance` away."""
    r = (child - root) % ranks
    return [(root + i) % ranks for i in range(r, min(r + distance, ranks))]


@algorithm("reduce", "tree")
def tree_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """Neighbours pair up and one of each pair goes on; after ⌈log₂P⌉ steps only the root is left.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [reduce(chunk=0, source=child, destination=parent) for parent, child in edges(ranks, root, distance)]


@algorithm("broadcast", "tree")
def tree_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """Everybody who knows tells somebody who does not, far ones first.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for distance in reversed(doublings(ranks)):
        yield [copy(chunk=0, source=parent, destination=child) for parent, child in edges(ranks, root, distance)]


@algorithm("gather", "tree")
def tree_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """As the tree reduce, but each child hands over the slices of its whole subtree.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for distance in doublings(ranks):
        yield [
            copy(chunk=slice_, source=child, destination=parent)
            for parent, child in edges(ranks, root, distance)
            for slice_ in subtree(ranks, root, child, distance)
        ]


@algorithm("scatter", "tree")
def tree_scatter(ranks: int, root: int) -> Iterator[list[Move]]:
    """As the tree broadcast, but each child gets the slices of its own subtree only.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for distance in reversed(doublings(ranks)):
        yield [
            copy(chunk=slice_, source=parent, destination=child)
            for parent, child in edges(ranks, root, distance)
            for slice_ in subtree(ranks, root, child, distance)
        ]


@algorithm("all_reduce", "tree")
def tree_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Reduce to rank 0 along a binomial tree, then broadcast back along the same tree.

    2⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    yield from tree_reduce(ranks, root=0)
    yield from tree_broadcast(ranks, root=0)
