"""Rooted collectives for long buffers: the buffer is cut up, so that the root does not carry all of it alone.

(van de Geijn's broadcast and Rabenseifner's reduce.)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, copies
from ..registry import Phase, algorithm
from ..schedules import Move
from .recursive import FOLD_IN, FOLD_OUT, HALVE, halving, halving_patterns, has_guests
from .ring import around, ring_all_gather
from .tree import COLLECT, SPREAD, levels, log_down, log_up, tree_gather, tree_scatter


def scatter_all_gather_patterns(ranks: int, root: int) -> Iterator[Pattern]:
    for parent, child, slices in levels(ranks, root, down=True):
        yield copies(parent, child, slices)
    yield from around(np.arange(ranks), copies, 1 / ranks)


@algorithm(
    "broadcast",
    steps=lambda p: log_up(p) + p - 1,
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=scatter_all_gather_patterns,
    phases=[SPREAD, Phase("hand around", "Every rank passes a slice on to the next rank.", lambda p: p - 1)],
)
def scatter_all_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root scatters its buffer along a tree, then everyone collects all slices around a ring.

    ⌈log₂P⌉+P−1 steps, 2(P−1)/P·S through the busiest port.
    """
    yield from tree_scatter(ranks, root)
    yield from ring_all_gather(ranks)


def scatter_gather_patterns(ranks: int, root: int) -> Iterator[Pattern]:
    yield from halving_patterns(ranks)
    for parent, child, slices in levels(ranks, root):
        yield copies(child, parent, slices)


@algorithm(
    "reduce",
    steps=lambda p: log_down(p) + log_up(p) + 2 * has_guests(p),
    port=lambda p: None if has_guests(p) else Fraction(2 * (p - 1), p),
    patterns=scatter_gather_patterns,
    phases=[FOLD_IN, HALVE, FOLD_OUT, COLLECT],
)
def scatter_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """A reduce_scatter by halving, then the root gathers the slices along a tree.

    2·log₂P steps and 2(P−1)/P·S through the busiest port; with guests ⌊log₂P⌋+⌈log₂P⌉+2 steps and less than 3¼·S.
    """
    yield from halving(ranks)
    yield from tree_gather(ranks, root)
