"""Prefix reductions: rank r ends with what ranks 0 to r make together (scan), or ranks 0 to r−1 (exscan).

Every algorithm here combines neighbouring intervals of ranks, so rank order is kept. An exscan is a scan one rank
further on: first every rank hands its buffer to the next one, then ranks 1 to P−1 scan what they got. Rank 0, which has
nobody below, keeps its buffer, and what rank P−1 brings is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..patterns import Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .tree import doublings, log_down, log_up

SHIFT = Phase("shift", "Every rank hands its buffer to the next rank.", lambda p: 1)

Pairs = tuple[Seats, Seats]
"""The ranks that send in a step, and the rank that each of them sends to."""


def chain_pairs(ranks: int) -> Iterator[Pairs]:
    for r in range(ranks - 1):
        yield np.array([r]), np.array([r + 1])


def doubling_pairs(ranks: int) -> Iterator[Pairs]:
    for distance in doublings(ranks):
        source = np.arange(ranks - distance)
        yield source, source + distance


def direct_pairs(ranks: int) -> Iterator[Pairs]:
    if ranks > 1:
        destination, source = np.tril_indices(ranks, -1)
        yield source, destination


def tree_pairs(ranks: int) -> Iterator[Pairs]:
    """Up the tree, the last rank of each block of 2d ranks adds what its first half has; then down, from the largest."""
    for distance in doublings(ranks):
        last = np.arange(2 * distance - 1, ranks, 2 * distance)
        if len(last):
            yield last - distance, last
    for distance in reversed(doublings(ranks)):
        middle = np.arange(3 * distance - 1, ranks, 2 * distance)
        if len(middle):
            yield middle - distance, middle


def tree_steps(ranks: int) -> int:
    return sum(1 for _ in tree_pairs(ranks))


def scanning(ranks: int, pairs: Callable[[int], Iterator[Pairs]], first: int = 0) -> Iterator[list[Move]]:
    """Scan ranks `first` to P−1."""
    for source, destination in pairs(ranks - first):
        yield [reduce(chunk=0, source=first + source, destination=first + destination)]


def shifting(ranks: int) -> Iterator[list[Move]]:
    if ranks > 1:
        yield [copy(chunk=0, source=r, destination=r + 1) for r in range(ranks - 1)]


MOST_IN_PAIRS = 4096
"""Ranks up to which all pairs of ranks are listed: of 100,000 they would fill 37 GiB."""


def if_few(patterns: Callable[[int], Iterator[Pattern]]) -> Callable[[int], Iterator[Pattern] | None]:
    return lambda ranks: patterns(ranks) if ranks <= MOST_IN_PAIRS else None


def scan_patterns(pairs: Callable[[int], Iterator[Pairs]]) -> Callable[[int], Iterator[Pattern]]:
    return lambda ranks: (reductions(source, destination, 1.0) for source, destination in pairs(ranks))


def exscan_patterns(pairs: Callable[[int], Iterator[Pairs]]) -> Callable[[int], Iterator[Pattern]]:
    def patterns(ranks: int) -> Iterator[Pattern]:
        yield copies(np.arange(ranks - 1), np.arange(1, ranks), 1.0)
        for source, destination in pairs(ranks - 1):
            yield reductions(1 + source, 1 + destination, 1.0)

    return patterns


def one_chain(ranks: int, first: int = 0) -> Pattern:
    near = np.arange(first, ranks - 1)
    return replace(reductions(near, near + 1, 1.0), apart=True)


ADD_ALONG = Phase("add up", "Each rank adds what the rank before it has, and the next one goes on from there.")
ADD_DOUBLED = Phase("add up", "Every rank sends all it has to a rank twice as far on as before, which adds it.")
UP = "Pairs of ranks, twice as far apart every time: the upper one adds what the lower one has."
DOWN = "A rank that has its prefix sends it to one further on, which lacks just that."
ADD_BELOW = Phase("add up", "Every rank sends its buffer to all ranks above it, which add up what comes.")


@algorithm(
    "scan",
    "direct",
    steps=lambda p: 1,
    port=lambda p: p - 1,
    patterns=if_few(scan_patterns(direct_pairs)),
    phases=[ADD_BELOW],
)
def direct_scan(ranks: int) -> Iterator[list[Move]]:
    """Every rank sends its buffer to all ranks above it, which add up what comes.

    1 step, (P−1)·S through the busiest port.
    """
    yield from scanning(ranks, direct_pairs)


@algorithm(
    "scan",
    "chain",
    steps=lambda p: p - 1,
    port=lambda p: 1,
    patterns=lambda p: [one_chain(p)],
    phases=[ADD_ALONG],
)
def chain_scan(ranks: int) -> Iterator[list[Move]]:
    """Rank 0 sends its buffer to rank 1, which adds its own and sends both on, and so on: a prefix at every stop.

    P−1 steps, S through the busiest port: the fewest bytes there can be.
    """
    yield from scanning(ranks, chain_pairs)


@algorithm(
    "scan",
    "hillis_steele",
    steps=log_up,
    port=log_up,
    patterns=scan_patterns(doubling_pairs),
    phases=[ADD_DOUBLED],
)
def hillis_steele_scan(ranks: int) -> Iterator[list[Move]]:
    """In step k every rank sends all it has to the rank 2^k further on, which adds it: what a rank has doubles.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    yield from scanning(ranks, doubling_pairs)


@algorithm(
    "scan",
    "tree",
    steps=tree_steps,
    port=lambda p: max(1, log_down(p)),
    patterns=scan_patterns(tree_pairs),
    phases=[
        Phase("up", UP, log_down),
        Phase("down", DOWN),
    ],
)
def tree_scan(ranks: int) -> Iterator[list[Move]]:
    """Up a binomial tree the sums of blocks of 2, 4, 8, … ranks; down again, what is left of each block is filled in.

    ⌊log₂P⌋+⌊log₂(P/3)⌋+1 steps, ⌊log₂P⌋·S through the busiest port: nearly twice the steps of doubling, but less than 2P
    messages in all instead of about P·log₂P.
    """
    yield from scanning(ranks, tree_pairs)


@algorithm(
    "exscan",
    "direct",
    steps=lambda p: 1 + (p > 2),
    port=lambda p: max(1, p - 1),
    patterns=if_few(exscan_patterns(direct_pairs)),
    phases=[SHIFT, ADD_BELOW],
)
def direct_exscan(ranks: int) -> Iterator[list[Move]]:
    """Every rank hands its buffer to the next one, which sends it to all ranks above, and adds up what comes.

    2 steps, (P−1)·S through the busiest port. Between two ranks, 1 step.
    """
    yield from shifting(ranks)
    yield from scanning(ranks, direct_pairs, first=1)


@algorithm(
    "exscan",
    "chain",
    steps=lambda p: p - 1,
    port=lambda p: min(2, p - 1),
    patterns=lambda p: [copies(np.arange(p - 1), np.arange(1, p), 1.0), *([one_chain(p, 1)] if p > 2 else [])],
    phases=[SHIFT, ADD_ALONG],
)
def chain_exscan(ranks: int) -> Iterator[list[Move]]:
    """Every rank hands its buffer to the next one; then a chain from rank 1 on, with a prefix at every stop.

    P−1 steps, 2·S through the busiest port; between two ranks, 1·S through the busiest port.
    """
    yield from shifting(ranks)
    yield from scanning(ranks, chain_pairs, first=1)


@algorithm(
    "exscan",
    "hillis_steele",
    steps=lambda p: 1 + log_up(p - 1),
    port=lambda p: 1 + log_up(p - 1),
    patterns=exscan_patterns(doubling_pairs),
    phases=[SHIFT, ADD_DOUBLED],
)
def hillis_steele_exscan(ranks: int) -> Iterator[list[Move]]:
    """Every rank hands its buffer to the next one; then every rank sends all it has 1, 2, 4, … ranks further on.

    1+⌈log₂(P−1)⌉ steps, (1+⌈log₂(P−1)⌉)·S through the busiest port.
    """
    yield from shifting(ranks)
    yield from scanning(ranks, doubling_pairs, first=1)


@algorithm(
    "exscan",
    "tree",
    steps=lambda p: 1 + tree_steps(p - 1),
    port=lambda p: 1 + log_down(p - 1),
    patterns=exscan_patterns(tree_pairs),
    phases=[
        SHIFT,
        Phase("up", UP, lambda p: log_down(p - 1)),
        Phase("down", DOWN),
    ],
)
def tree_exscan(ranks: int) -> Iterator[list[Move]]:
    """Every rank hands its buffer to the next one; then up a binomial tree of ranks 1 to P−1, and down again.

    ⌊log₂(P−1)⌋+⌊log₂((P−1)/3)⌋+2 steps (between two ranks, 1 step), (1+⌊log₂(P−1)⌋)·S through the busiest port.
    """
    yield from shifting(ranks)
    yield from scanning(ranks, tree_pairs, first=1)
