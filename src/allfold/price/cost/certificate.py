"""Certificates of lower bounds, in exact numbers, so that anybody can check them: `allfold check-bound` does.

Most bounds are prices of links. If every link charges its price per byte, then whatever the algorithm, all messages
together pay at least `demand` times the bytes of the buffer, and in one second links earn no more than the sum of their
prices times their bandwidths. A cut is the simplest case: the links that leave a set of ranks cost 1, all others nothing.
What must be paid is argued with sets of ranks that have a weight each (`must_leave`): the weights of the sets that a
message leaves are never more than what it pays. Where nothing can be copied or combined on the way (all_to_all, scatter,
gather), every byte pays at least the cheapest way to where it is needed, and no sets are necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...collectives import find_collective
from ..topology.pairs import every_pair
from ..topology.topology import Topology

if TYPE_CHECKING:
    from .cuts import TightestCut

Weights = Sequence[tuple[Sequence[int], Fraction]]
"""Sets of ranks with their weights."""


@dataclass(frozen=True, eq=False)
class LinkPrices:
    """A bound by prices of links, for a buffer of any size."""

    topology: Topology
    prices: Mapping[int, int]
    """By the number of a link; links that cost nothing are left out."""
    sets: Weights
    demand: Fraction
    """The least that all messages together pay, per byte of the buffer."""
    why: str
    cut: TightestCut | None = None
    """If it is one."""

    @property
    def per_byte(self) -> Fraction:
        """Seconds per byte of the buffer that nothing can beat."""
        bandwidth = self.topology.bandwidth
        earned = sum((price * Fraction(float(bandwidth[link])) for link, price in self.prices.items()), Fraction(0))
        return self.demand / earned if earned else Fraction(0)


@dataclass(frozen=True, eq=False)
class Certificate:
    """A lower bound for one collective on one topology, and why it holds; `to_json` is what `allfold check-bound` takes.

    >>> found = af.find("broadcast", "ring", ranks=4, size=10**6, seconds=2)
    >>> found.certificate.kind, float(found.certificate.seconds) >= found.bound
    ('links', True)
    """

    collective: str
    topology: str
    ranks: int
    root: int | None
    size: int
    kind: str
    """`links` (prices), `distance`, `spread`, `combining` or `nothing`."""
    seconds: Fraction
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> float:
        """The seconds as a float, never rounded up."""
        return rounded_down(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "allfold-bound",
            "version": 1,
            "collective": self.collective,
            "topology": self.topology,
            "ranks": self.ranks,
            "root": self.root,
            "size": self.size,
            "kind": self.kind,
            "seconds": str(self.seconds),
            **self.facts,
        }


def rounded_down(number: Fraction) -> float:
    near = float(number)
    return near if Fraction(near) <= number else nextafter(near, -inf)


def facts_of_prices(bound: LinkPrices) -> dict[str, Any]:
    names = bound.topology.links
    return {
        "prices": {names[link].name: str(price) for link, price in bound.prices.items()},
        "sets": [{"ranks": list(map(int, inside)), "weight": str(weight)} for inside, weight in bound.sets],
        "demand": str(bound.demand),
    }


def demand_of(
    collective: str, topology: Topology, ranks: int, root: int | None, prices: Mapping[int, int], sets: Weights = ()
) -> Fraction:
    """The least that is paid, per byte of the buffer. Sets must not weigh more than messages pay."""
    promise = find_collective(collective)
    if promise.one_way:
        return _cheapest_ways(collective, topology, ranks, root, prices)
    paid = sum((weight * promise.must_leave(ranks, root, inside) for inside, weight in sets), Fraction(0))
    if not promise.round_trip:
        return paid
    # What messages pay beyond the sets, whichever way they go. G groups of ranks need 2(G−1) messages between them to
    # reach each other; so half of these prices form a spanning tree at least.
    rest = paid_by_pair(topology, ranks, prices) - weighed_by_pair(ranks, sets)
    return paid + 2 * _spanning_tree(np.minimum(rest, rest.T))


def paid_by_pair(topology: Topology, ranks: int, prices: Mapping[int, int]) -> Any:
    """The price of a byte from every rank to every other, as exact numbers in a square array."""
    source, destination = every_pair(ranks)
    charge = np.zeros(len(topology.links), object)
    for link, price in prices.items():
        charge[link] = price
    found = np.zeros((ranks, ranks), object)
    if not len(source):
        return found
    routes = topology.routes(source, destination)
    each = charge[routes.links]
    if routes.share is not None:
        part, which = np.unique(routes.share, return_inverse=True)
        each = each * np.asarray([Fraction(float(one)) for one in part], object)[which]
    found[source, destination] = np.add.reduceat(each, routes.offsets[:-1])
    return found


def weighed_by_pair(ranks: int, sets: Weights) -> Any:
    """The weight of the sets that a message leaves, from every rank to every other."""
    found = np.zeros((ranks, ranks), object)
    for inside, weight in sets:
        within = np.isin(np.arange(ranks), np.asarray(inside, np.int64))
        found[np.ix_(within, ~within)] += weight
    return found


def _spanning_tree(cost: Any) -> Fraction:
    """The cost of a minimum spanning tree of all ranks (Prim); a square array holds the cost of each pair."""
    least = cost[0].copy()
    outside = np.arange(len(cost)) > 0
    total = Fraction(0)
    while outside.any():
        where = np.flatnonzero(outside)
        nearest = int(where[np.argmin(least[where])])
        total += least[nearest]
        outside[nearest] = False
        least = np.minimum(least, cost[nearest])
    return total


def _cheapest_ways(
    collective: str, topology: Topology, ranks: int, root: int | None, prices: Mapping[int, int]
) -> Fraction:
    way = paid_by_pair(topology, ranks, prices)
    if way.max() < 2**40 and all(type(one) is int for one in way.flat):
        way = way.astype(np.int64)
    for over in range(ranks):
        way = np.minimum(way, way[:, over, None] + way[over])
    promise = find_collective(collective)
    used = way[root] if promise.starts.root_only else way[:, root] if promise.ends.root_only else way
    total = used.sum()
    return Fraction(int(total) if isinstance(total, np.integer) else total) / ranks
