"""The prices of links that prove most, on a small network, by a linear program.

Let x be how much every pair of ranks sends in all. Whatever the algorithm, what others need leaves every set of ranks.
In an all_reduce, besides, G groups of ranks send each other at least 2(G−1) messages for every element, because with
fewer one-way messages G parties cannot all reach all others. By Nash-Williams' theorem that is so for every division
if and only if half of what pairs send both ways together holds a spanning tree: if some y, from one pair's end to the other,
can bring something from rank 0 to every rank, with y both ways together at most half of x both ways together.

The least time in which links can carry such an x on the routes of the topology is a bound. The sets are too many to write
down; those that are violated are found by flows. Every program on the way is a bound, too, so the time may run out. The
program's dual solution is a price for every link and a weight for every set. Rounded to whole numbers, and corrected where
rounding made sets weigh more than messages pay, it is a proof in exact numbers, whatever the solver did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...collectives import find_collective
from ...errors import SolverMissing
from ..topology.pairs import crossing, needed_pairs
from ..topology.seen import Seen, seen_from
from ..topology.topology import Topology
from .certificate import LinkPrices, Weights, demand_of, paid_by_pair, weighed_by_pair
from .cuts import short_sets

WHY = "however the ranks share the links, nothing is faster (by a linear program)"

_MOST_RANKS = 64
_MOST_PAIRS = 272  # with a variable each: all pairs of 17 ranks
_MOST_TOGETHER = 1000  # the same for groups
_BOUND = "the least time where messages share links"  # needs a solver
_GRIDS = (60, 5040, 10**6, 10**9)
"""Prices are rounded to whole multiples of the highest price divided by one of these."""

Set = NDArray[np.bool_]


def least_by_program(
    collective: str, topology: Topology, ranks: int, root: int | None, seconds: float
) -> LinkPrices | None:
    """None if the network is too large, if no link has a limit, or if there was no time."""
    promise = find_collective(collective)
    if not promise.trees or not 2 <= ranks <= _MOST_RANKS:
        return None
    pairs = needed_pairs(topology, ranks)
    if len(pairs[0]) > _MOST_PAIRS:
        return None
    links, crossed = crossing(topology, pairs)
    if not len(links):
        return None
    if not promise.round_trip and (np.count_nonzero(crossed, axis=0) == 1).all() and (crossed <= 1).all():
        return None  # every pair has links of its own, and the tightest cut says as much
    program = _LinearProgram(collective, ranks, root, pairs, crossed, topology.bandwidth[links])
    found = _solve([program], time.monotonic() + seconds)
    if found is None:
        return None
    prices, [sets], least = found
    return best_rounding(lambda grid: _exact(collective, topology, ranks, root, links, prices, sets, grid), least)


def least_together(
    collective: str, topology: Topology, groups: Sequence[Sequence[int]], root: int | None, seconds: float
) -> list[LinkPrices] | None:
    """Prices of links that prove most for groups of ranks that share them, the same for all; None as above.

    There is one `LinkPrices` per group, on the network as the group sees it. What they say adds up.
    """
    if not find_collective(collective).trees:
        return None
    seen = [seen_from(topology, group) for group in groups]
    pairs = [needed_pairs(one, len(group)) for one, group in zip(seen, groups, strict=True)]
    if sum(len(ends[0]) for ends in pairs) > _MOST_TOGETHER:
        return None
    limited = np.flatnonzero(np.isfinite(topology.bandwidth))
    numbers = [one.router.number[limited] for one in seen if isinstance(one.router, Seen)]
    programs = []
    for one, group, ends, number in zip(seen, groups, pairs, numbers, strict=True):
        links, crossed = crossing(one, ends)
        table = np.zeros((len(ends[0]), len(limited)))
        order = np.argsort(number)
        table[:, order[np.searchsorted(number, links, sorter=order)]] = crossed
        programs.append(_LinearProgram(collective, len(group), root, ends, table, topology.bandwidth[limited]))
    found = _solve(programs, time.monotonic() + seconds)
    if found is None:
        return None
    prices, sets, _ = found
    best: list[LinkPrices] | None = None
    for grid in _GRIDS:
        exact = [
            _exact(collective, one, len(group), root, number.astype(np.int64), prices, own, grid, True)
            for one, group, number, own in zip(seen, groups, numbers, sets, strict=True)
        ]
        known = [one for one in exact if one is not None]
        if best is None or sum(one.per_byte for one in known) > sum(one.per_byte for one in best):
            best = known
    return best


def rounded_prices(prices: NDArray[np.float64], grid: int) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.round(prices / prices.max() * grid).astype(np.int64)
    return whole


def best_rounding(exact: Callable[[int], LinkPrices | None], least: float) -> LinkPrices | None:
    """The best bound over all grids; the first, whose numbers are the smallest, that is as good as the solver's `least`."""
    best: LinkPrices | None = None
    for found in map(exact, _GRIDS):
        if found is not None and (best is None or found.per_byte > best.per_byte):
            best = found
            if found.per_byte >= least * (1 - 1e-9):
                break
    return best


def solver(what: str) -> Any:
    """`scipy.optimize`. Without it `what` raises: a different bound in its place would go unnoticed."""
    try:
        from scipy import optimize
    except ImportError as error:
        raise SolverMissing(
            f"{what} needs scipy, which cannot be imported ({error}): pip install 'allfold[find]'"
        ) from None
    return optimize


class _LinearProgram:
    """min T, so that pairs send x, no link carries more than T times its bandwidth, and no set is short."""

    def __init__(
        self,
        collective: str,
        ranks: int,
        root: int | None,
        pairs: tuple[NDArray[np.int32], NDArray[np.int32]],
        crossed: NDArray[np.float64],
        bandwidth: NDArray[np.float64],
    ) -> None:
        self.ranks, (self.source, self.destination) = ranks, pairs
        promise = find_collective(collective)
        self.trees = promise.round_trip
        self.slices = promise.slices(ranks)
        self.fastest = float(bandwidth.max())
        first = np.eye(1, ranks, root or 0, np.int64)[0]
        self.weight = first if root is not None or self.trees else np.ones(ranks, np.int64)
        self.ways = tuple(sorted(promise.trees))
        many = self.many = len(self.source)
        ends, which = np.unique(np.sort(np.stack(pairs, axis=1), axis=1), axis=0, return_inverse=True)
        self.tree_ends = (
            np.concatenate([ends, ends[:, ::-1]]).astype(np.int32) if self.trees else np.zeros((0, 2), np.int32)
        )
        directions = len(self.tree_ends)
        # Variables: x of every pair, y of every pair and of its reverse (which need not be a pair), the time.
        self.columns = many + directions + 1
        loads = np.zeros((len(bandwidth), self.columns))
        loads[:, :many] = crossed.T
        loads[:, -1] = -bandwidth / bandwidth.max()
        halves = np.zeros((len(ends) if self.trees else 0, self.columns))
        if self.trees:
            halves[which.ravel(), np.arange(many)] = -0.5
            for half in (0, len(ends)):
                halves[np.arange(len(ends)), many + half + np.arange(len(ends))] = 1.0
        self.links, self.fixed = len(bandwidth), np.vstack([loads, halves])
        self.rows: list[NDArray[np.float64]] = []
        self.least: list[float] = []
        self.sets: list[Set | None] = []  # None: of the tree
        self.known: set[bytes] = set()
        everyone = np.arange(ranks)
        for rank in range(ranks):
            for inside in (everyone == rank, everyone != rank):
                self._add(inside)
        if self.trees:
            self._add_tree(everyone == 0)

    def _add(self, inside: Set) -> bool:
        """Add a set that others' data must leave; True if it is new."""
        least = 1.0
        if not self.trees:
            backwards = self.ways[0]
            least = float(self.weight[~inside if backwards else inside].sum())
            wants = self.weight[inside if backwards else ~inside]
            if self.weight.sum() == 1 and not (wants == 0).any():
                least = 0.0
        key = inside.tobytes()
        if not least or key in self.known:
            return False
        self.known.add(key)
        row = np.zeros(self.columns)
        row[: self.many] = -(inside[self.source] & ~inside[self.destination]).astype(float)
        self._append(row, least, inside)
        return True

    def _add_tree(self, inside: Set) -> bool:
        key = b"tree" + inside.tobytes()
        if key in self.known:
            return False
        self.known.add(key)
        row = np.zeros(self.columns)
        row[self.many : -1] = -(inside[self.tree_ends[:, 0]] & ~inside[self.tree_ends[:, 1]]).astype(float)
        self._append(row, 1.0, None)
        return True

    def _append(self, row: NDArray[np.float64], least: float, inside: Set | None) -> None:
        self.rows.append(row)
        self.least.append(least)
        self.sets.append(inside)

    def _violated(self, solution: NDArray[np.float64]) -> Iterator[bool]:
        sent = solution[: self.many]
        for backwards in self.ways:
            ends = (self.destination, self.source) if backwards else (self.source, self.destination)
            sinks = np.flatnonzero(self.weight == 0) if self.weight.sum() == 1 else np.arange(self.ranks)
            for inside in short_sets(self.ranks, *ends, sent, self.weight, sinks):
                yield self._add(~inside if backwards else inside)
        if self.trees:
            ends = self.tree_ends[:, 0].copy(), self.tree_ends[:, 1].copy()
            first = np.eye(1, self.ranks, 0, np.int64)[0]
            for inside in short_sets(self.ranks, *ends, solution[self.many : -1], first, np.flatnonzero(first == 0)):
                yield self._add_tree(inside)


def _solve(
    programs: list[_LinearProgram], end: float
) -> tuple[NDArray[np.float64], list[list[tuple[list[int], float]]], float] | None:
    """Solve the programs of groups that share the links, again and again with the sets that were violated.

    The prices of the links, the sets of each group with weights, and seconds per byte; of the last program that was
    solved in time.
    """
    linprog = solver(_BOUND).linprog
    links, best = programs[0].links, None
    ends = np.cumsum([0, *(one.columns - 1 for one in programs)])
    cost = np.append(np.zeros(ends[-1]), 1.0)
    while True:
        # Programs count in slices of their group's buffer.
        loads = [one.fixed[:links, :-1] / one.slices for one in programs]
        above = [np.hstack([*loads, programs[0].fixed[:links, -1:]])]
        most = [np.zeros(links)]
        for one, start in zip(programs, ends, strict=False):
            rows = np.vstack([one.fixed[links:], *one.rows])
            wide = np.zeros((len(rows), len(cost)))
            wide[:, start : start + one.columns - 1] = rows[:, :-1]
            above.append(wide)
            most.append(np.append(np.zeros(len(one.fixed) - links), -np.asarray(one.least)))
        left = {"time_limit": max(0.1, end - time.monotonic())}
        answer: Any = linprog(cost, np.vstack(above), np.concatenate(most), options=left)
        if answer.status != 0:
            return best
        dual = np.split(np.maximum(-answer.ineqlin.marginals, 0.0), np.cumsum([len(rows) for rows in above])[:-1])
        if not dual[0].any():
            return None
        sets = [
            [
                (np.flatnonzero(inside).tolist(), float(weight) * one.slices)
                for inside, weight in zip(one.sets, own[len(one.fixed) - links :], strict=True)
                if inside is not None and weight > 0
            ]
            for one, own in zip(programs, dual[1:], strict=True)
        ]
        best = dual[0], sets, float(answer.x[-1]) / programs[0].fastest
        solutions = [np.append(answer.x[start:stop], 0.0) for start, stop in pairwise(ends)]
        # All of them, or one kind of sets would never be added.
        violated = [any([*one._violated(x)]) for one, x in zip(programs, solutions, strict=True)]
        if not any(violated) or time.monotonic() > end:
            return best


def _exact(
    collective: str,
    topology: Topology,
    ranks: int,
    root: int | None,
    links: NDArray[np.int64],
    prices: NDArray[np.float64],
    sets: list[tuple[list[int], float]],
    grid: int,
    nothing: bool = False,
) -> LinkPrices | None:
    """The same in whole numbers, so that no message leaves sets of more weight than it pays.

    None if nothing is left, unless `nothing` is all right.
    """
    whole = rounded_prices(prices, grid)
    common = int(np.gcd.reduce(whole))
    charged = {int(link): int(price) // common for link, price in zip(links, whole, strict=True) if price}
    rounded = [(inside, Fraction(round(weight / float(prices.max()) * grid), common)) for inside, weight in sets]
    paid = paid_by_pair(topology, ranks, charged)
    # Drop sets that a message leaves without paying; reduce the weights of the others if they exceed what is paid.
    free = paid == 0
    kept: Weights = [
        (inside, weight)
        for inside, weight in rounded
        if weight and not free[np.ix_(one := np.isin(np.arange(ranks), inside), ~one)].any()
    ]
    weighed = weighed_by_pair(ranks, kept)
    heavy = weighed > paid
    if heavy.any():
        factor = min(Fraction(p) / w for p, w in zip(paid[heavy], weighed[heavy], strict=True))
        kept = [(inside, weight * factor) for inside, weight in kept]
    demand = demand_of(collective, topology, ranks, root, charged, kept)
    return LinkPrices(topology, charged, kept, demand, WHY) if demand or nothing else None
