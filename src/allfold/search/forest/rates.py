"""Rates at which ranks may send to each other, all at the same time, so that the least time is met.

Where ranks are connected directly, that is the bandwidth of their links. Where switches or shared links lie between
them, a linear program divides the bandwidth among pairs of ranks: the bytes of a pair cross the links of its route, no
link carries more than it can, and for every set of ranks, what the ranks outside need can leave it. There are too many
sets to write down; those that a solution violates are found by maximum flows and added until none is. Pairs whose
routes are alike share one variable, so that 1,024 ranks under switches need a handful; where that costs time, every pair
gets its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...price.cost.cuts import Demand, short_sets, tightest_cut, whole_numbers, worst_set
from ...price.cost.program import solver
from ...price.topology.pairs import every_pair
from ...price.topology.topology import Topology
from ..found import Task
from ..neighbours import Neighbours, neighbours_of

Index = NDArray[np.int32]
Floats = NDArray[np.float64]

MOST_PAIRS = 272  # with a variable each: 17 ranks
_CLOSE = 1e-6
_MOST_SECONDS = 10.0  # for one linear program
_HALF = {True: "reduce_scatter", False: "all_gather"}  # of an all_reduce


class TooLong(UsageError):
    """There is not enough time to share the links among pairs."""


@dataclass(frozen=True, eq=False)
class Rates:
    """Pair i may send `rate[i]` from `source[i]` to `destination[i]`.

    Rates are such that every root can just spread `weight` (1, or 0 where it has nothing to spread) to all ranks. If
    `collects`, everything runs backwards: the bytes go from destination to source, to be combined there.
    """

    ranks: int
    source: Index
    destination: Index
    rate: Floats
    weight: NDArray[np.int64]
    collects: bool
    time: float
    """Seconds per byte of weight."""


def rates_of(task: Task, collects: bool) -> list[Rates]:
    """Rates that are worth trying; the most regular ones first, and others only if they are faster."""
    weight = np.ones(task.ranks, np.int64)
    if task.root is not None:
        weight = (np.arange(task.ranks) == task.root).astype(np.int64)
    near = neighbours_of(task.topology, task.ranks)
    if near.direct:
        return [_direct(near.reversed() if collects else near, weight, collects)]
    regular = _shared(task, weight, collects, by_class=True)
    cut = tightest_cut(_HALF[collects] if task.promise.round_trip else task.collective, task.network, task.root)
    least = 0.0 if cut is None else cut.time(float(weight.sum()))
    if task.ranks * (task.ranks - 1) > MOST_PAIRS or regular.time <= least * (1 + _CLOSE):
        return [regular]
    with suppress(TooLong):
        free = _shared(task, weight, collects, by_class=False)
        return [regular] if regular.time <= free.time * (1 + _CLOSE) else [free, regular]
    return [regular]


def _direct(near: Neighbours, weight: NDArray[np.int64], collects: bool) -> Rates:
    """Neighbours with links of their own: the links as they are."""
    ranks = near.ranks
    limits = near.narrowest(near.bandwidth, np.inf)
    bandwidth = np.where(np.isfinite(limits), limits, near.bandwidth.sum() * ranks or 1.0)
    everyone = np.arange(ranks, dtype=np.int32)
    demand = Demand(ranks, near.source, near.destination, whole_numbers(bandwidth), weight, everyone[_needs(weight)])
    inside = worst_set(demand)
    leaves = inside[near.source] & ~inside[near.destination]
    worst = float(weight[inside].sum()) / float(bandwidth[leaves].sum())
    rate = np.minimum(bandwidth * worst, float(weight.sum()))  # nothing crosses a link twice
    return Rates(ranks, near.source, near.destination, rate, weight, collects, worst)


def _needs(weight: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The ranks that need something of others: all, or all but the only root."""
    only = int(np.count_nonzero(weight)) == 1
    return weight == 0 if only else np.ones(len(weight), bool)


def _shared(task: Task, weight: NDArray[np.int64], collects: bool, by_class: bool) -> Rates:
    ranks = task.ranks
    source, destination = every_pair(ranks)
    program = _RateProgram(task.whole, ranks, source, destination, weight, collects, by_class)
    task.say(f"sharing links among {len(program.crossing)} kinds of pairs" if by_class else "sharing links among pairs")
    shares, time = program.solve(task)
    rate = shares[program.kind]
    used = rate > _CLOSE
    return Rates(ranks, source[used], destination[used], rate[used], weight, collects, time)


class _RateProgram:
    """min T, so that the pairs of each kind send x[kind], no link l carries more than T · b[l], and no set is short."""

    def __init__(
        self,
        topology: Topology,
        ranks: int,
        source: Index,
        destination: Index,
        weight: NDArray[np.int64],
        collects: bool,
        by_class: bool,
    ) -> None:
        self.ranks, self.source, self.destination, self.weight = ranks, source, destination, weight
        routes = topology.routes(*((destination, source) if collects else (source, destination)))
        limited = np.isfinite(topology.bandwidth)
        kind = _like_pairs(topology, source, destination, routes) if by_class else np.arange(len(source))
        self.kind, kinds = kind, int(kind.max()) + 1
        crossed = np.repeat(kind, routes.lengths)
        load = routes.loads(np.ones(len(source)))
        place = (routes.links * np.int64(kinds) + crossed).astype(np.intp)
        counts = np.bincount(place, load, len(limited) * kinds)
        used = limited & (counts.reshape(-1, kinds).sum(axis=1) > 0)
        self.unit = float(topology.bandwidth[used].max()) if used.any() else 1.0
        rows = np.hstack([counts.reshape(-1, kinds)[used], -topology.bandwidth[used, None] / self.unit])
        self.links = np.unique(rows, axis=0)
        self.crossing = np.bincount(kind, minlength=kinds)
        # Shorter routes are preferred, and of equal ones those of fewer pairs: they have a chance of whole shares.
        hops = np.bincount(kind, weights=routes.lengths, minlength=kinds)
        self.effort = hops * (1 + 1e-3 * np.log(self.crossing)) / hops.sum()
        needs = np.flatnonzero(_needs(weight)).astype(np.int32)
        # Equivalent ranks lack the same: of ranks that have pairs of the same kinds, only one is checked.
        # (With a root, ranks also differ in where they are as seen from it.)
        alike = by_class and bool(weight.all())
        self.sinks = needs[_unlike(ranks, source, destination, kind, needs)] if alike else needs
        self.cuts: dict[bytes, tuple[Floats, float]] = {}
        everyone, host = np.arange(ranks), topology.host[:ranks]
        for rank in self.sinks:
            self.add(everyone != rank)
            self.add(everyone == rank)
        for one in np.unique(host[self.sinks]):
            self.add(host != one)
            self.add(host == one)

    def add(self, inside: NDArray[np.bool_]) -> bool:
        """Add a set of ranks whose weight must be able to leave it; True if it is new."""
        needed = float(self.weight[inside].sum())
        if not needed or not _needs(self.weight)[~inside].any():
            return False
        leaves = inside[self.source] & ~inside[self.destination]
        row = np.bincount(self.kind[leaves], minlength=len(self.crossing)).astype(np.float64)
        key = np.append(row, needed).tobytes()
        new = key not in self.cuts
        self.cuts[key] = row, needed
        return new

    def solve(self, task: Task) -> tuple[Floats, float]:
        linprog = solver("find").linprog
        kinds = len(self.crossing)
        none, own = np.zeros((len(self.links), kinds)), np.eye(kinds)
        # First the least time. Then, within it, as many bytes as possible straight from their root: of every pair's
        # share, up to 1 counts. Last, short routes.
        first = np.concatenate([np.zeros(kinds), [1.0], np.zeros(kinds)])
        second = np.concatenate([0.01 * self.effort, [0.0], -self.crossing / self.crossing.sum()])
        time: float | None = None
        while True:
            rows = np.stack([row for row, _ in self.cuts.values()])
            needed = np.asarray([one for _, one in self.cuts.values()])
            above = np.vstack(
                [
                    np.hstack([self.links, none]),
                    np.hstack([-rows, np.zeros((len(rows), 1 + kinds))]),
                    np.hstack([-own, np.zeros((kinds, 1)), own]),
                ]
            )
            least = np.concatenate([np.zeros(len(self.links)), -needed, np.zeros(kinds)])
            most = None if time is None else time * (1 + 1e-9)
            limits = [(0, None)] * kinds + [(0, most)] + [(0, 1)] * kinds
            # A program that takes long is one that is not worth it: trees of the shares before may do.
            most_seconds = {"time_limit": min(task.left / 2, _MOST_SECONDS)}
            answer = linprog(first if time is None else second, above, least, bounds=limits, options=most_seconds)
            if answer.status == 1:
                raise TooLong(f"sharing the links of {task.topology.name} takes longer than the time that is left")
            if answer.x is None:
                raise UsageError(f"sharing the links of {task.topology.name} failed: {answer.message}")
            shares = np.maximum(answer.x[:kinds], 0.0)
            if not any([self.add(inside) for inside in self._short(shares)]):
                if time is not None:
                    return shares, time / self.unit
                time = float(answer.x[kinds])
            if not task.left:
                raise TooLong(f"time ran out before the links of {task.topology.name} were shared; allow more seconds")

    def _short(self, shares: Floats) -> NDArray[np.bool_]:
        rate = shares[self.kind]
        used = rate > 0
        graph = self.source[used], self.destination[used], rate[used]
        return short_sets(self.ranks, *graph, self.weight, self.sinks)


def _like_pairs(topology: Topology, source: Index, destination: Index, routes: Any) -> NDArray[np.int64]:
    """A number per pair: pairs with the same number cross links of the same kinds and speeds, in the same order.

    Whether both ranks have the same place in their hosts counts too: such pairs are on one rail.
    """
    links = topology.links
    blocks = np.repeat(np.arange(len(links.blocks)), [block.count for block in links.blocks])
    kinds = np.unique([f"{block.kind} {block.common.get('way')}" for block in links.blocks], return_inverse=True)[1]
    figures = np.stack([kinds[blocks], links.bandwidth, links.latency], axis=1)
    like = np.unique(figures, axis=0, return_inverse=True)[1].ravel()
    position = np.arange(len(routes.links)) - np.repeat(routes.offsets[:-1], routes.lengths)
    random = np.random.default_rng(0).integers(1, 2**62, (int(position.max()) + 1, int(like.max()) + 1), np.uint64)
    sign = np.add.reduceat(random[position, like[routes.links]], routes.offsets[:-1])
    order = np.argsort(topology.host, kind="stable")
    sorted_hosts = topology.host[order]
    place = np.empty(topology.ranks, np.int64)
    place[order] = np.arange(topology.ranks) - np.searchsorted(sorted_hosts, sorted_hosts)
    sign = sign * np.uint64(2) + (place[source] == place[destination]).astype(np.uint64)
    return np.unique(sign, return_inverse=True)[1].ravel()


def _unlike(ranks: int, source: Index, destination: Index, kind: NDArray[np.int64], needs: Index) -> NDArray[np.int64]:
    """The index in `needs` of the first rank of each sort, by the kinds of its pairs."""
    kinds = int(kind.max()) + 1
    out, into = (
        np.bincount((side * np.int64(kinds) + kind).astype(np.intp), minlength=ranks * kinds).reshape(ranks, kinds)
        for side in (source, destination)
    )
    return np.unique(np.hstack([out, into])[needs], axis=0, return_index=True)[1]
