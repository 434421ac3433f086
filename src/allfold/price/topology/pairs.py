"""The pairs of ranks over which all messages may be thought to go.

If the route of a message is that of two or more other messages, one after the other, it may as well be these: no link
carries more, and the ranks in between know more. Whatever holds for all schedules that only use the other pairs then
holds for all schedules. On a torus without limits at its ports, only the pairs at the two ends of a cable are left.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .topology import Routes, Topology

Pairs = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Sources and destinations."""

_MOST_RANKS = 128  # beyond, all pairs are taken


def every_pair(ranks: int) -> Pairs:
    everyone = np.arange(ranks, dtype=np.int32)
    source, destination = np.repeat(everyone, ranks), np.tile(everyone, ranks)
    other = source != destination
    return source[other], destination[other]


@lru_cache(maxsize=16)
def needed_pairs(topology: Topology, ranks: int) -> Pairs:
    """All pairs but those whose routes are those of others, one after the other."""
    source, destination = every_pair(ranks)
    if not 2 < ranks <= _MOST_RANKS:
        return source, destination
    routes = topology.routes(source, destination)
    limited = np.isfinite(topology.bandwidth)
    single = np.ones(len(source), bool)
    if routes.paths is not None:
        single = np.bincount(np.searchsorted(routes.offsets, routes.paths[:-1], side="right") - 1) == 1
    rows = [tuple(links[limited[links]].tolist()) for links in np.split(routes.links, routes.offsets[1:-1])]
    ends = list(zip(source.tolist(), destination.tolist(), strict=True))
    after: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}  # by rank and first link
    kept = np.zeros(len(source), bool)
    for pair in np.argsort([len(row) for row in rows], kind="stable").tolist():
        (start, end), row = ends[pair], rows[pair]
        kept[pair] = not row or not single[pair] or not _leads(after, start, end, row)
        if row and kept[pair] and single[pair]:
            after.setdefault((start, row[0]), []).append((end, row))
    return source[kept], destination[kept]


def _leads(
    after: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]], start: int, end: int, row: tuple[int, ...]
) -> bool:
    """True if the row consists of rows of pairs that lead from start to end, one after the other."""
    ahead = [(start, 0)]
    while ahead:
        rank, at = ahead.pop()
        if at == len(row):
            if rank == end:
                return True
            continue
        for there, part in after.get((rank, row[at]), ()):
            if row[at : at + len(part)] == part:
                ahead.append((there, at + len(part)))
    return False


def crossing(topology: Topology, pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The links with a limit that the pairs cross, and by pair and link how much of a message crosses it."""
    routes: Routes = topology.routes(*pairs)
    limits = np.isfinite(topology.bandwidth[routes.links])
    used, which = np.unique(routes.links[limits], return_inverse=True)
    table = np.zeros((len(pairs[0]), len(used)))
    pair = np.repeat(np.arange(len(pairs[0])), routes.lengths)[limits]
    np.add.at(table, (pair, which), routes.loads(np.ones(len(routes)))[limits])
    return used.astype(np.int64), table
