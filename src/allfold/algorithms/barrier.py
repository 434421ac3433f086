"""Barriers: no data, only the knowledge that every rank has arrived."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..patterns import Everybody, Pattern, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, reduce
from .groups import Groups, checked
from .hierarchical import falling, hierarchical, leader_chunks, rising, tree_across, tree_inside, two_trees
from .naive import naive
from .tree import doublings, log_up, tree_all_reduce, up_and_down


def signals(ranks: int) -> Iterator[Pattern]:
    everyone = np.arange(ranks)
    for distance in doublings(ranks):
        yield reductions(everyone, (everyone + distance) % ranks, 0.0)


@algorithm("barrier", steps=log_up, port=lambda p: 0, patterns=signals, phases=[Phase("signal")])
def dissemination(ranks: int) -> Iterator[list[Move]]:
    """In step k every rank signals the rank 2^k to its right, with all arrivals it knows of, so these double.

    ⌈log₂P⌉ steps. Some signals arrive twice, which is harmless.
    """
    for distance in doublings(ranks):
        yield [reduce(chunk=0, source=r, destination=(r + distance) % ranks) for r in range(ranks)]


@algorithm(
    "barrier",
    "direct",
    steps=lambda p: 1,
    port=lambda p: 0,
    patterns=lambda p: [Everybody(0.0, 0.0)],
    phases=[Phase("signal")],
)
def direct_barrier(ranks: int) -> Iterator[list[Move]]:
    """Everybody signals everybody.

    1 step, P(P−1) messages: the fastest where a signal is a read of another rank's memory.
    """
    yield from naive(ranks)


@algorithm(
    "barrier",
    "tree",
    steps=lambda p: 2 * log_up(p),
    port=lambda p: 0,
    patterns=lambda p: up_and_down(p, share=0.0),
    phases=[
        Phase("arrive", "Ranks report up the tree that they, and all below them, have arrived.", log_up),
        Phase("release", "The signal that all have arrived goes down the tree.", log_up),
    ],
)
def tree_barrier(ranks: int) -> Iterator[list[Move]]:
    """Signals go up a binomial tree to rank 0, and the signal that all ranks have arrived goes down again.

    2⌈log₂P⌉ steps, the fewest messages: 2(P−1).
    """
    yield from tree_all_reduce(ranks)


def leader_signals(ranks: int, groups: Groups | None = None) -> Iterator[Pattern]:
    first = checked(ranks, groups)[0][0]
    for one in (*rising(ranks, first, groups, reductions), *falling(ranks, first, groups, whole=True)):
        yield reductions(one.source, one.destination, 0.0)


@algorithm(
    "barrier",
    "hierarchical",
    chunks=lambda ranks, across="tree", **others: leader_chunks(ranks, across=across, **others),
    steps=lambda p: 2 * two_trees(p),
    port=lambda p: 0,
    patterns=leader_signals,
    phases=[
        Phase("arrive", "Inside each group, ranks report to the leader, along a tree.", tree_inside),
        Phase("leaders", "The leaders signal each other.", lambda p, groups=None: 2 * tree_across(p, groups)),
        Phase("release", "Each leader signals its group, along a tree.", tree_inside),
    ],
)
def hierarchical_barrier(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "tree", down: str = "tree"
) -> Iterator[list[Move]]:
    """Signals go up to the leader of each group, the leaders signal each other, and signals go down in each group.

    As in the all_reduce, `up`, `across` and `down` name the algorithms of the three phases. With the default ones, for G
    groups of at most g ranks: 2⌈log₂g⌉+2⌈log₂G⌉ steps.
    """
    yield from hierarchical(ranks, groups, up, across, down)
