"""Flows from some ranks to all others that keep the busiest link as little busy as possible, by a linear program.

They are where the paths of an all_to_all come from, or of a scatter, and they say what none can beat. The program's
solution comes with a price for every link, from which the bound follows, whatever the solver did: if every link charges
its price per byte, everything that a rank has for another pays at least the cheapest way there, and in one second links
can earn no more than their prices times their bandwidths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...price.cost.certificate import LinkPrices, demand_of
from ...price.cost.program import WHY, best_rounding, rounded_prices, solver
from ...price.topology.routing import unsplit
from ...price.topology.topology import spans
from ..exact import beside
from ..found import Task
from ..neighbours import Neighbours, neighbours_of, pairs_of

_MOST_FLOWS = 40_000  # variables of the linear program
_MOST_EXACT = 200  # ranks up to which exact numbers take next to no time

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Flows:
    """By the rank where they start and by pair; and how many rounds they take, each one chunk on the slowest link."""

    among: Neighbours
    starts: NDArray[np.int64]
    by_pair: Floats
    rounds: float
    least: float
    """Rounds that nothing can beat over these pairs; 0 if the solver did not finish."""
    prices: Floats | None
    """The price of every link, so that all pay as much as links can earn; None if the solver did not finish."""


def flows_of(task: Task) -> Flows | None:
    """The flows over `pairs_of`, or over neighbours where these are too many; None without flows or time.

    A gather is a scatter on the reversed network.
    """
    starts = np.arange(task.ranks) if task.root is None else np.array([task.root])
    among = neighbours_of(task.topology, task.ranks)
    if task.root is not None and len(among.source) > _MOST_FLOWS:
        among = _near_the_root(among, task.topology.host, task.root)
    elif len(starts) * len(among.source) <= _MOST_FLOWS:
        every = pairs_of(task.topology, task.ranks)
        among = every if len(starts) * len(every.source) <= _MOST_FLOWS else among
    if len(starts) * len(among.source) > _MOST_FLOWS or not len(among.names):
        return None
    task.say(f"{task.collective}: the flow that keeps the busiest link least busy")
    return least_busy_flows(among.reversed() if task.promise.ends.root_only else among, starts, task.left / 2)


def _near_the_root(among: Neighbours, host: NDArray[np.int32], root: int) -> Neighbours:
    """Under switches everybody is a neighbour: only pairs inside hosts, and those of ranks of the root's host."""
    source, destination = host[among.source], host[among.destination]
    return among.taken((source == destination) | (source == host[root]) | (destination == host[root]))


def prices_of_flows(task: Task, flows: Flows) -> LinkPrices | None:
    """The bound of the flows; None if they do not say, because they were not looked for over all pairs."""
    among = flows.among
    if flows.prices is None or task.ranks > _MOST_EXACT:
        return None
    # The solver's prices are per chunk. A link that carries at most a part of any message costs more per byte.
    prices = flows.prices * unsplit(task.topology).bandwidth[among.names] / task.topology.bandwidth[among.names]

    def exact(grid: int) -> LinkPrices | None:
        whole = rounded_prices(prices, grid)
        whole //= np.gcd.reduce(whole)
        charged = {int(link): int(price) for link, price in zip(among.names, whole, strict=True) if price}
        demand = demand_of(task.collective, task.topology, task.ranks, task.root, charged)
        return LinkPrices(task.topology, charged, (), demand, WHY) if demand else None

    return best_rounding(exact, flows.least / task.ranks / float(among.bandwidth.min()))


def least_busy_flows(among: Neighbours, starts: NDArray[np.int64], seconds: float) -> Flows | None:
    """The flows by which some ranks send one chunk to every other in the fewest rounds; None if the solver ran out of time."""
    optimize = solver("find")
    from scipy.sparse import csr_array

    ranks, pairs, begin = among.ranks, len(among.source), len(starts)
    speed = among.bandwidth / among.bandwidth.min()
    flow = np.arange(begin * pairs)
    start, pair = np.divmod(flow, pairs)
    # At every rank but the one where a flow starts, one chunk stays.
    balance = csr_array(
        (
            np.concatenate([np.ones(len(flow)), -np.ones(len(flow))]),
            (
                np.concatenate([start * ranks + among.destination[pair], start * ranks + among.source[pair]]),
                np.concatenate([flow, flow]),
            ),
        ),
        shape=(begin * ranks, len(flow) + 1),
    )
    away = np.flatnonzero(starts[:, None] != np.arange(ranks))
    # What crosses a link takes no longer than all rounds together, the last variable.
    lengths = np.diff(among.offsets)[pair]
    entry = spans(among.offsets[pair], lengths)
    link = among.links[entry]
    many = len(speed)
    load = csr_array(
        (
            np.concatenate([among.share[entry], -speed]),
            (
                np.concatenate([link, np.arange(many)]),
                np.concatenate([np.repeat(flow, lengths), np.full(many, len(flow))]),
            ),
        ),
        shape=(many, len(flow) + 1),
    )
    price = np.full(len(flow) + 1, 1e-7)  # of equally good flows, one without detours
    price[-1] = 1.0
    found = beside(
        lambda: optimize.linprog(
            price,
            A_ub=load,
            b_ub=np.zeros(many),
            A_eq=balance[away],
            b_eq=np.ones(len(away)),
            method="highs",
            options={"time_limit": max(0.01, seconds)},
        )
    )
    if found.x is None:
        return None
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    solved = found.status == 0 and bool(prices.any())
    least = _cheapest_ways(among, prices)[starts].sum() / float(prices @ speed) if solved else 0.0
    flows = found.x[:-1].reshape(begin, pairs)
    return Flows(among, starts, flows, float(found.x[-1]), float(least), prices if solved else None)


def _cheapest_ways(among: Neighbours, prices: Floats) -> Floats:
    """The price from every rank to every other, by the cheapest way over the pairs."""
    hop = np.bincount(among.pair, prices[among.links] * among.share, len(among.source))
    way = np.full((among.ranks, among.ranks), np.inf)
    np.minimum.at(way, (among.source, among.destination), hop)
    np.fill_diagonal(way, 0.0)
    for over in range(among.ranks):
        way = np.minimum(way, way[:, over, None] + way[over])
    return way
