"""Rooted collectives for long buffers: cut the buffer up, so that not the root alone carries all of it.

(van de Geijn's broadcast and Rabenseifner's reduce.)
"""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move
from .recursive import halving
from .ring import ring_all_gather
from .tree import tree_gather, tree_scatter


@algorithm("broadcast")
def scatter_all_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """The root scatters its buffer along a tree, then all gather the slices around a ring.

    ⌈log₂P⌉+P−1 steps, 2(P−1)/P·S through the busiest port.
    """
    yield from tree_scatter(ranks, root)
    yield from ring_all_gather(ranks)


@algorithm("reduce")
def scatter_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """A reduce_scatter by halving, then the root gathers the slices along a tree.

    2·log₂P steps and 2(P−1)/P·S through the busiest port; with guests ⌊log₂P⌋+⌈log₂P⌉+2 steps and less than 3¼·S.
    """
    yield from halving(ranks)
    yield from tree_gather(ranks, root)
