"""The tightest cut for an all_to_all: every rank inside has data for every rank outside.

What must cross grows with both sides, so that no flow finds the worst set, as one does for the other collectives. On
small networks all sets are tried. On larger ones the search starts from sets that are likely to be narrow: single
ranks, hosts, the first k vertices for every k, and one side along the slow modes of the network (the eigenvectors of its
Laplacian matrix). A local search then adds or drops a vertex while that tightens the bound. Any result is a valid bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..topology.network import Network

_MOST_VERTICES = 14  # up to here, all sets
_STARTS = 8
_MOST_VIBRATING, _MODES = 600, 4  # vertices up to which the modes are computed, and how many

Set = NDArray[np.bool_]
"""By vertex."""


def worst_division(network: Network, likely: Iterable[Set]) -> Set:
    """A set of vertices for which (ranks inside) · (ranks outside) / (bandwidth that leaves) is as large as was found."""
    bandwidth = network.topology.bandwidth[network.link]  # as it is: a link without a limit makes a set harmless
    if network.vertices <= _MOST_VERTICES:
        sets = np.arange(1, 2**network.vertices - 1)[:, None] >> np.arange(network.vertices) & 1 == 1
        best: Set = sets[_burden(network, bandwidth, sets).argmax()]
        return best
    everyone = np.arange(network.vertices)
    hosts = np.full(network.vertices, -1)
    hosts[: network.ranks] = network.topology.host[: network.ranks]
    first = [everyone == rank for rank in range(network.ranks)]
    first += [hosts == host for host in np.unique(hosts[: network.ranks]) if (hosts[: network.ranks] != host).any()]
    first += [everyone < end for end in range(1, network.vertices)]
    first += list(_along_modes(network))
    sets = np.stack([*first, *(~one for one in first), *likely])
    burden = _burden(network, bandwidth, sets)
    order = np.argsort(-burden, kind="stable")[:_STARTS]
    ends = [_improved(network, sets[start]) for start in order]
    return ends[int(_burden(network, bandwidth, np.stack(ends)).argmax())]


def _along_modes(network: Network) -> Iterator[Set]:
    many = network.vertices
    if many > _MOST_VIBRATING:
        return
    between = np.zeros((many, many))
    np.add.at(between, (network.tail, network.head), network.bandwidth / network.bandwidth.max())
    between += between.T
    modes = np.linalg.eigh(np.diag(between.sum(axis=0)) - between)[1][:, 1 : 1 + _MODES]
    for order in np.argsort(modes, axis=0, kind="stable").T:
        for end in range(1, many):
            yield np.isin(np.arange(many), order[:end])


def _burden(network: Network, bandwidth: NDArray[np.float64], sets: NDArray[np.bool_]) -> NDArray[np.float64]:
    inside = sets[:, : network.ranks].sum(axis=1)
    leaving = np.zeros(len(sets))
    for tail, head, speed in zip(network.tail.tolist(), network.head.tolist(), bandwidth.tolist(), strict=True):
        leaving[sets[:, tail] & ~sets[:, head]] += speed
    return _per_bandwidth(inside * (network.ranks - inside), leaving)


def _per_bandwidth(crossing: NDArray[np.int64], leaving: NDArray[np.float64]) -> NDArray[np.float64]:
    burden: NDArray[np.float64] = np.where(crossing > 0, np.inf, 0.0)
    np.divide(crossing, leaving, out=burden, where=leaving > 0)
    return burden


def _improved(network: Network, start: Set) -> Set:
    """Local search: add or drop the vertex that tightens the bound most, until none does."""
    best, burden, inside = start, -1.0, start.copy()
    sides = np.where(np.arange(network.vertices) < network.ranks, 1, 0)
    while True:
        from_inside, to_outside = inside[network.tail], ~inside[network.head]
        leaving = network.bandwidth[from_inside & to_outside].sum()
        ranks = int(sides[inside].sum())
        now = float(_per_bandwidth(np.array([ranks * (network.ranks - ranks)]), np.array([leaving]))[0])
        if not burden * (1 + 1e-9) < now < np.inf:
            return best
        best, burden = inside.copy(), now
        # What leaves the set if a vertex changes sides.
        on = np.bincount(network.tail, network.bandwidth * to_outside, network.vertices)
        back = np.bincount(network.head, network.bandwidth * from_inside, network.vertices)
        after = np.maximum(leaving + np.where(inside, back - on, on - back), 0.0)
        there = ranks + np.where(inside, -sides, sides)
        inside[_per_bandwidth(there * (network.ranks - there), after).argmax()] ^= True
