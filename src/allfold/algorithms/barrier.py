"""Barriers: nothing but the knowledge that everybody has come."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move, reduce
from .naive import naive
from .tree import doublings, tree_all_reduce


@algorithm("barrier")
def dissemination(ranks: int) -> Iterator[list[Move]]:
    """In step k everybody signals the rank 2^k to its right all that it knows; what is known doubles.

    ⌈log₂P⌉ steps. Some signals arrive twice, which does no harm to a signal.
    """
    for distance in doublings(ranks):
        yield [reduce(chunk=0, source=r, destination=(r + distance) % ranks) for r in range(ranks)]


@algorithm("barrier", "direct")
def direct_barrier(ranks: int) -> Iterator[list[Move]]:
    """Everybody signals everybody.

    1 step, P(P−1) messages: the fastest where a signal is a look at somebody's memory.
    """
    yield from naive(ranks)


@algorithm("barrier", "tree")
def tree_barrier(ranks: int) -> Iterator[list[Move]]:
    """Signals go up a binomial tree to rank 0, and the word that all have come goes down again.

    2⌈log₂P⌉ steps, the fewest messages: 2(P−1).
    """
    yield from tree_all_reduce(ranks)
