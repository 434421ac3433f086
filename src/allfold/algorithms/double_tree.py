"""Two complementary binary trees, each for half of the data.

In one binary tree half of the ranks are leaves and only ever send or receive once: half of the ports are idle. Two
trees in which (nearly) every rank is a leaf of one and an inner node of the other use them all.
(Sanders, Speck, Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from ..patterns import Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .compose import together
from .tree import log_down

Edges = list[tuple[int, int]]  # pairs (child, parent)


def parents(ranks: int) -> list[int | None]:
    """The parent of every node of a binary tree: an in-order walk visits 0, 1, 2, …, and even nodes are leaves.

    Node i has as many levels below it as i has trailing one bits. Where the tree is cut off on the right, a node hangs
    from the nearest ancestor that exists.
    """

    def parent(node: int) -> int:
        level = (~node & node + 1).bit_length() - 1
        return node + (1 << level) if not node >> level + 1 & 1 else node - (1 << level)

    root = (1 << (ranks.bit_length() - 1)) - 1
    above: list[int | None] = []
    for node in range(ranks):
        up = parent(node)
        while node != root and up >= ranks:
            up = parent(up)
        above.append(None if node == root else up)
    return above


def depths(above: list[int | None]) -> list[int]:
    @cache
    def depth(node: int) -> int:
        up = above[node]
        return 0 if up is None else 1 + depth(up)

    return [depth(node) for node in range(len(above))]


def complement(ranks: int) -> list[int]:
    """The rank at each place of the second tree: the first tree mirrored, or shifted by one for an odd number."""
    plain = list(range(ranks))
    return plain[::-1] if ranks % 2 == 0 else plain[1:] + plain[:1]


def tree_levels(ranks: int) -> list[Edges]:
    """The edges between nodes of the tree, the root's first."""
    above = parents(ranks)
    depth = depths(above)
    levels: list[Edges] = [[] for _ in range(max(depth))]
    for node, up in enumerate(above):
        if up is not None:
            levels[depth[node] - 1].append((node, up))
    return levels


def up_and_down(seats: list[int], chunk: int) -> Iterator[list[Move]]:
    """Reduce one chunk up the tree and broadcast it down again; node i of the tree is rank `seats[i]`."""
    levels = [[(seats[node], seats[up]) for node, up in level] for level in tree_levels(len(seats))]
    for level in reversed(levels):
        yield [reduce(chunk=chunk, source=child, destination=parent) for child, parent in level]
    for level in levels:
        yield [copy(chunk=chunk, source=parent, destination=child) for child, parent in level]


def both_trees(ranks: int) -> Iterator[Pattern]:
    both: Seats = np.array([range(ranks), complement(ranks)], np.int64)
    levels = []
    for level in tree_levels(ranks):
        child, parent = both[:, level].reshape(-1, 2).T
        # Where both trees use the same pair, its two halves are one message.
        levels.append(np.unique(child * ranks + parent, return_counts=True))
    for pair, halves in reversed(levels):
        yield reductions(pair // ranks, pair % ranks, halves / 2)
    for pair, halves in levels:
        yield copies(pair % ranks, pair // ranks, halves / 2)


@algorithm(
    "all_reduce",
    steps=lambda p: 2 * log_down(p),
    port=lambda p: min(Fraction(2), Fraction(p, 2)),
    patterns=both_trees,
    phases=[
        Phase(
            "add up", "In both trees, each with its half of the buffer, parents add what their children send.", log_down
        ),
        Phase("hand out", "In both trees parents send the result to their children.", log_down),
    ],
)
def double_tree(ranks: int) -> Iterator[list[Move]]:
    """One half of the buffer goes up and down one binary tree, the other half through the complementary one.

    The second tree is the first one mirrored, or shifted by one rank where the number of ranks is odd.
    2⌊log₂P⌋ steps, at most 2·S through the busiest port.
    """
    yield from together(up_and_down(list(range(ranks)), chunk=0), up_and_down(complement(ranks), chunk=1))
