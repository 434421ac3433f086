"""The tightest cut of a network: ranks that cannot send more to the rest than some links let through.

Ranks inside a set of vertices hold bytes that ranks outside need, and only the edges that leave the set can bring them
there. That takes at least the bytes over the bandwidth of those edges, and no schedule can be faster. The worst set is
found exactly: a maximum flow falls short wherever a guess at the time is too low, its minimum cut is a worse set, and
the time of that set is the next guess (Dinkelbach). The last cut is the proof: anybody can add up its links.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _native
from ...collectives import find_collective
from ...errors import UsageError
from ...wording import counted, name_ranks, ranges
from ..topology.network import Network, Vertices
from .certificate import LinkPrices
from .divisions import worst_division


@dataclass(frozen=True, eq=False)
class TightestCut:
    """A set of vertices, the edges that leave it, and the least time that this means."""

    network: Network
    inside: NDArray[np.bool_]
    """By vertex."""
    edges: NDArray[np.int64]
    """The edges that leave the set."""
    share: float
    """The bytes that must cross it, as a multiple of those of the buffer."""
    transposed: bool = False
    """The edges enter the set: what is inside must receive."""
    together: bool = False
    """Not a set, but all ranks taken together: the edges are all edges that leave any rank."""

    @property
    def bandwidth(self) -> float:
        return float(self.network.bandwidth[self.edges].sum())

    def prices(self, collective: str, root: int | None) -> LinkPrices:
        """The same as prices: each of its links costs 1."""
        ranks = self.network.ranks
        links = dict.fromkeys(self.network.link[self.edges].tolist(), 1)
        if self.together:
            return LinkPrices(self.network.topology, links, (), Fraction(2 * (ranks - 1)), str(self), self)
        inside = np.flatnonzero(self.inside[:ranks] ^ self.transposed).tolist()
        demand = find_collective(collective).must_leave(ranks, root, inside)
        return LinkPrices(self.network.topology, links, ((inside, Fraction(1)),), demand, str(self), self)

    @property
    def ranks(self) -> list[int]:
        return np.flatnonzero(self.inside[: self.network.ranks]).tolist()

    @cached_property
    def links(self) -> list[str]:
        return [self.network.name(int(edge)) for edge in self.edges]

    def time(self, size: float) -> float:
        """Seconds that nothing can beat with a buffer of `size` bytes."""
        return self.share * size / self.bandwidth

    def __str__(self) -> str:
        ranks, names = self.ranks, self.links
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"
        can = "can receive no more than {} from the rest" if self.transposed else "can send no more than {} to the rest"
        if self.together:
            who, can = f"all {len(ranks)} ranks together", "can send no more than {}"
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return f"{who} {can.format(f'{self.bandwidth / 1e9:.4g} GB/s')}: {counted(len(names), 'link')} ({shown})"

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "links": self.links,
            "bandwidth": self.bandwidth,
            "share": self.share,
            "receives": self.transposed,
            "sentence": str(self),
        }


MOST_RANKS = 2048  # beyond, the flows take minutes, and the named cuts of large topologies are good
_FINEST = 2**30
_LARGEST = 2**61  # of what flows add up


@lru_cache(maxsize=64)
def tightest_cut(collective: str, network: Network, root: int | None = None) -> TightestCut | None:
    """The cut that bounds a collective on a network; None where cuts say nothing, or the network is too large."""
    ranks = network.ranks
    promise = find_collective(collective)
    if not 2 <= ranks <= MOST_RANKS or not promise.carries_data:
        return None
    if promise.exchanges:
        return _divided(network)
    everyone, each = np.arange(ranks), np.ones(ranks, np.int64)
    first = (everyone == (root or 0)).astype(np.int64)
    if promise.sliced and not promise.rooted:
        weight, sinks = each, everyone
    elif promise.sliced:
        weight, sinks = each - first, everyone[first == 1]
    else:
        weight, sinks = first, everyone[first == 0]
    spreads = not promise.combines_all and not promise.ends.sliced  # also a scan: what rank 0 has reaches everybody
    whole = not promise.sliced
    found = [
        _worst(graph, weight, sinks, transposed, None if whole else ranks)
        for graph, transposed in ((network, False), (network.transposed(), True))
        if promise.round_trip or transposed != spreads
    ]
    if promise.round_trip and not network.topology.folding:
        # With one-way messages, P ranks need at least 2(P−1) of them to inform all of all.
        out = np.flatnonzero(network.tail < ranks)
        found.append(TightestCut(network, np.arange(network.vertices) < ranks, out, 2.0 * (ranks - 1), False, True))
    return max(filter(_is_limited, found), key=lambda cut: cut.time(1.0), default=None)


def _is_limited(cut: TightestCut) -> bool:
    """A link without a limit limits nothing: where the worst set has one, the graph says nothing."""
    return bool(np.isfinite(cut.network.topology.bandwidth[cut.network.link[cut.edges]]).all())


def _divided(network: Network) -> TightestCut | None:
    narrow = [tightest_cut(one, network) for one in ("all_gather", "reduce_scatter")]
    inside = worst_division(network, (cut.inside ^ cut.transposed for cut in narrow if cut is not None))
    there = int(inside[: network.ranks].sum())
    edges = np.flatnonzero(inside[network.tail] & ~inside[network.head])
    cut = TightestCut(network, inside, edges, there * (network.ranks - there) / network.ranks)
    return cut if _is_limited(cut) else None


def _worst(
    network: Network, weight: NDArray[np.int64], sinks: NDArray[np.int64], transposed: bool, parts: int | None
) -> TightestCut:
    """The worst cut of a graph, where every rank has `weight` of `parts` parts of the buffer, or the root has all of it."""
    weights = np.zeros(network.vertices, np.int64)
    weights[: network.ranks] = weight
    capacity = _capacities(network, int(weight.sum()))
    demand = Demand(network.vertices, network.tail, network.head, capacity, weights, sinks.astype(np.int32))
    inside = worst_set(demand)
    edges = np.flatnonzero(inside[network.tail] & ~inside[network.head])
    if not len(edges):
        there = np.flatnonzero(inside[: network.ranks]).tolist()
        missing = np.flatnonzero(~inside[: network.ranks]).tolist()
        way = "from" if transposed else "to"
        raise UsageError(
            f"topology {network.topology.name}: no path leads {way} {name_ranks(missing)} "
            f"{'to' if transposed else 'from'} {name_ranks(there)}"
        )
    share = 1.0 if parts is None else float(weights[inside].sum()) / parts
    return TightestCut(network, inside, edges, share, transposed)


def _capacities(network: Network, weight: int) -> NDArray[np.int64]:
    """Bandwidths as whole numbers. A link without a limit gets enough that no set it leaves is the worst."""
    limited = np.isfinite(network.topology.bandwidth[network.link])
    if limited.all() or not limited.any():
        return whole_numbers(network.bandwidth)
    capacity = np.empty(network.edges, np.int64)
    capacity[limited] = whole_numbers(network.bandwidth[limited], _LARGEST // (weight * weight * network.edges))
    capacity[~limited] = weight * int(capacity[limited].sum()) + 1
    return capacity


def whole_numbers(bandwidth: NDArray[np.float64], finest: int = _FINEST) -> NDArray[np.int64]:
    """Bandwidths as whole numbers without a common divisor: exact, unless they have nothing in common.

    Rounding can only make another cut look worst; the bound is computed from the bandwidths of its links.
    """
    if not len(bandwidth):
        return np.zeros(0, np.int64)
    finest = max(1, min(finest, _FINEST))
    if (bandwidth < 2**62).all() and (bandwidth == np.round(bandwidth)).all():
        exact: NDArray[np.int64] = bandwidth.astype(np.int64)
        exact //= np.gcd.reduce(exact)
        if exact.max() <= finest:
            return exact
    rounded: NDArray[np.int64] = np.maximum(1, np.round(bandwidth / bandwidth.max() * finest)).astype(np.int64)
    return rounded


def least_leaving(network: Network, inside: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The edges of the narrowest cut between some ranks and the others; None if one of them has no limit."""
    number = np.arange(network.vertices)
    number[: network.ranks] = np.where(inside, 0, 1)
    number[network.ranks :] = 2 + np.arange(network.vertices - network.ranks)
    tail, head = number[network.tail].astype(np.int32), number[network.head].astype(np.int32)
    between = tail != head
    vertices = 2 + network.vertices - network.ranks
    weight = np.eye(1, vertices, 0, np.int64)[0]
    capacity = _capacities(network, 1)[between]
    sinks = np.ones(1, np.int32)
    chosen = worst_set(Demand(vertices, tail[between], head[between], capacity, weight, sinks))
    edges = np.flatnonzero(between & chosen[tail] & ~chosen[head])
    return edges if np.isfinite(network.topology.bandwidth[network.link[edges]]).all() else None


class Demand(NamedTuple):
    """Edges with their capacities; by vertex, how much it has for all sinks."""

    vertices: int
    tail: Vertices
    head: Vertices
    capacity: NDArray[np.int64]
    weight: NDArray[np.int64]
    sinks: Vertices


_SCALE = 2**24  # of amounts in flows
_CLOSE = 1e-6


def short_sets(
    ranks: int,
    source: Vertices,
    destination: Vertices,
    amount: NDArray[np.float64],
    weight: NDArray[np.int64],
    sinks: NDArray[np.integer[Any]],
) -> NDArray[np.bool_]:
    """Sets of ranks from which less leaves than their weight, where these amounts go from source to destination."""
    capacity = np.round(np.maximum(amount, 0) * _SCALE).astype(np.int64)
    wanted = int(_SCALE * int(weight.sum()) * (1 - _CLOSE))
    found: Any = _native.cuts_below(
        ranks, source, destination, capacity, weight * _SCALE, sinks.astype(np.int32), wanted, inf
    )
    return np.asarray(found, bool)


def worst_set(demand: Demand) -> NDArray[np.bool_]:
    """Of all sets of vertices that lack a sink, the one with the most weight per capacity of the edges that leave it."""
    found = _native.tightest_cut(*demand, inf)
    assert found is not None  # no time limit
    inside: NDArray[np.bool_] = found[2][0].astype(bool)
    return inside
