"""A topology as a directed graph: ranks first, then switches, and an edge for every link that a route crosses.

A topology only says which links the message of a pair crosses. Where link b follows link a on some route, the end of a
and the start of b are one vertex; a rank is where its outgoing port starts and its incoming port ends. A port of
infinite bandwidth vanishes, so that on a torus the vertices are the ranks themselves. A link that several pairs share,
such as a bus, is one edge between two vertices.

The graph may have paths that no route takes. So whatever the topology can run, the graph can, and what its cuts say
holds for the topology.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .topology import Topology

Vertices = NDArray[np.int32]

_BATCH = 2**16  # pairs whose routes are held at once
_DENSE = 2**26  # pairs of links that are marked in a table of this many bytes; more are collected and sorted


@dataclass(frozen=True, eq=False)
class Network:
    """Edge i leads from `tail[i]` to `head[i]` and is link `link[i]` of the topology. Vertices below `ranks` are ranks."""

    topology: Topology
    ranks: int
    vertices: int
    tail: Vertices
    head: Vertices
    link: Vertices
    bandwidth: NDArray[np.float64]
    """Bytes per second; finite (a link without a limit has that of all others together)."""
    latency: NDArray[np.float64]

    @property
    def edges(self) -> int:
        return len(self.tail)

    def name(self, edge: int) -> str:
        return self.topology.links[int(self.link[edge])].name

    def transposed(self) -> Network:
        """Every edge the other way round: what can be spread there can be collected here."""
        return replace(self, tail=self.head, head=self.tail)


@lru_cache(maxsize=16)
def network_of(topology: Topology, ranks: int | None = None) -> Network:
    """The graph over which the first `ranks` ranks of a topology (all unless given) reach each other."""
    ranks = topology.ranks if ranks is None else ranks
    topology.require(ranks)
    many = len(topology.links)
    follows, first, last = _met(topology, ranks)
    # Ends of links: that of link l starts at 2l and ends at 2l + 1; after them the ranks.
    before, after = np.divmod(follows, many)
    own = 2 * many + np.arange(ranks)
    has = np.flatnonzero(first != many)
    joined = _components(
        2 * many + ranks,
        np.concatenate([2 * before + 1, own[has], own[has]]),
        np.concatenate([2 * after, 2 * first[has], 2 * last[has] + 1]),
    )
    joined = _without_free_ports(topology, joined, own, first, last)
    used = np.unique(np.concatenate([before, after, first[has], last[has]])).astype(np.int64)
    tail, head = joined[2 * used], joined[2 * used + 1]
    stays = tail == head
    used, tail, head = used[~stays], tail[~stays], head[~stays]
    # Ranks keep their numbers; switches are numbered in the order of their first link.
    numbers = np.full(len(joined), -1, np.int64)
    numbers[joined[own]] = np.arange(ranks)
    ends = np.stack([tail, head], axis=1).ravel()
    switches = ends[numbers[ends] < 0]
    names, place = np.unique(switches, return_index=True)
    numbers[names[np.argsort(place)]] = ranks + np.arange(len(names))
    bandwidth, every = topology.bandwidth[used], topology.bandwidth
    limited = np.isfinite(bandwidth)
    bandwidth = np.where(limited, bandwidth, every[np.isfinite(every)].sum() or 1.0)
    return Network(
        topology,
        ranks,
        ranks + len(names),
        numbers[tail].astype(np.int32),
        numbers[head].astype(np.int32),
        used.astype(np.int32),
        bandwidth,
        topology.latency[used],
    )


def _met(topology: Topology, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of links a, b where b follows a on a route, as a · links + b; every rank's first link, and its last."""
    many = len(topology.links)
    first, last = np.full(ranks, many, np.int64), np.full(ranks, many, np.int64)
    dense = many * many <= _DENSE
    seen = np.zeros(many * many if dense else 0, bool)
    found: list[NDArray[np.int64]] = []
    everyone = np.arange(ranks, dtype=np.int32)
    for source in np.array_split(everyone, max(1, -(-ranks * ranks // _BATCH))):
        pairs = np.repeat(source, ranks), np.tile(everyone, len(source))
        other = pairs[0] != pairs[1]
        start, end = pairs[0][other], pairs[1][other]
        if not len(start):
            continue
        routes = topology.routes(start, end)
        first[start], last[end] = routes.links[routes.offsets[:-1]], routes.links[routes.offsets[1:] - 1]
        inner = np.ones(max(0, len(routes.links) - 1), bool)
        begins = routes.offsets if routes.paths is None else routes.paths
        inner[begins[1:-1] - 1] = False  # from the last link of a path to the first of the next
        code = routes.links[:-1].astype(np.int64) * many + routes.links[1:]
        if dense:
            seen[code[inner]] = True
        else:
            found.append(np.unique(code[inner]))
    follows = np.flatnonzero(seen) if dense else np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    return follows, first, last


def _components(many: int, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest member of the component of every node, where `one[i]` and `other[i]` are joined."""
    lowest = np.arange(many)
    while True:
        least = np.minimum(lowest[one], lowest[other])
        after = lowest.copy()
        np.minimum.at(after, lowest[one], least)
        np.minimum.at(after, lowest[other], least)
        after = after[after]
        if (after == lowest).all():
            return lowest
        lowest = after


def _without_free_ports(
    topology: Topology,
    joined: NDArray[np.int64],
    own: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Ports of infinite bandwidth become one with their rank, unless that would join two ranks."""
    many = len(topology.links)
    rank = np.flatnonzero(first != many)
    inner = np.concatenate([joined[2 * first[rank] + 1], joined[2 * last[rank]]])
    owner = np.concatenate([rank, rank])
    free = np.isinf(np.concatenate([topology.bandwidth[first[rank]], topology.bandwidth[last[rank]]]))
    inner, owner = inner[free], owner[free]
    lowest, highest = np.full(len(joined), len(own)), np.full(len(joined), -1)
    np.minimum.at(lowest, inner, owner)
    np.maximum.at(highest, inner, owner)
    single = (lowest[inner] == highest[inner]) & ~np.isin(inner, joined[own])
    merged = joined.copy()
    merged[inner[single]] = joined[own[owner[single]]]
    return merged[joined]
