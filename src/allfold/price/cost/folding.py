"""Switches that combine and copy messages on the way (NVLink SHARP, SHARP): the part of a message that crosses each link.

Copies of one chunk that a rank sends to several others in one step travel as one as far as their routes are the same and
part at a switch that folds. What is combined into one chunk in one step is combined at the first such switch where
routes meet, and goes on as one. So of several messages each counts with its share of what crosses a link together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...division import Lengths
from ...errors import UsageError
from ...patterns import Pattern, fold
from ...schedules import Schedule
from ..topology.routing import ABSENT, Graph
from ..topology.topology import Topology

Shares = dict[tuple[int, int], NDArray[np.float64]]
"""By the source and the destination of a message: how much of it crosses each link of its route."""
Way = list[tuple[int, int]]
"""Links, each with the node where it leads to."""


def patterns_on(schedule: Schedule, topology: Topology, lengths: Lengths | None = None) -> list[Pattern]:
    """The patterns of a schedule on a topology; where switches fold, with what crosses each link.

    `lengths`: those of the slices, where they differ.
    """
    if not topology.folding:
        return fold(schedule, lengths)
    if lengths is not None:
        raise UsageError(f"{topology.name}: slices with lengths of their own are not priced where switches fold")
    return [*_patterns(schedule, topology)]


def _patterns(schedule: Schedule, topology: Topology) -> Iterator[Pattern]:
    one = 1 / schedule.chunks if schedule.promise.carries_data else 0.0
    table = {key: column.astype(np.int64) for key, column in schedule.columns.items()}
    for step, (start, end) in enumerate(pairwise(schedule.starts.tolist())):
        source, destination = table["source"][start:end], table["destination"][start:end]
        pair, which = np.unique(source * schedule.ranks + destination, return_inverse=True)
        moves = np.bincount(which, minlength=len(pair)).astype(np.float64)
        reduced = np.bincount(which, table["reduces"][start:end], len(pair))
        here, there = np.divmod(pair, schedule.ranks)
        stays = here == there
        shares = shares_of(schedule, topology)[step]
        crossing = [shares[ends] for ends in zip(here[~stays].tolist(), there[~stays].tolist(), strict=True)]
        arrives = np.asarray([part[-1] for part in crossing])
        yield Pattern(
            1,
            here[~stays].astype(np.int32),
            there[~stays].astype(np.int32),
            moves[~stays] * one,
            reduced[~stays] * one * arrives if len(arrives) else np.zeros(0),
            here[stays].astype(np.int32),
            moves[stays] * one,
            crossing=np.concatenate([np.zeros(0), *crossing]),
        )


@lru_cache(maxsize=4)
def shares_of(schedule: Schedule, topology: Topology) -> list[Shares]:
    """For every step, the part of each message that crosses each link of its route."""
    router = topology.router
    assert isinstance(router, Graph)
    table = {key: column.tolist() for key, column in schedule.columns.items()}
    ways: dict[tuple[int, int], Way] = {}

    def way(source: int, destination: int) -> Way:
        if (source, destination) not in ways:
            node, found = source, [(source, source)]
            while node != destination:
                edge = int(router.step[node, destination])
                node = int(router.edge_end[edge])
                found.append((int(router.edge_link[edge]), node))
            ways[source, destination] = [*found, (topology.ranks + destination, destination)]
        return ways[source, destination]

    steps: list[Shares] = []
    for start, end in pairwise(schedule.starts.tolist()):
        groups: dict[tuple[bool, int, int], list[tuple[int, int]]] = defaultdict(list)
        moves: dict[tuple[int, int], int] = defaultdict(int)
        for move in range(start, end):
            source, destination = table["source"][move], table["destination"][move]
            if source == destination:
                continue
            moves[source, destination] += 1
            reduces = bool(table["reduces"][move])
            key = (destination, table["into"][move]) if reduces else (source, table["chunk"][move])
            groups[reduces, *key].append((source, destination))
        found: dict[tuple[int, int], list[float]] = {ends: [0.0] * len(way(*ends)) for ends in moves}
        for (reduces, _, _), members in groups.items():
            together = [_backwards(way(*ends), ends[0]) if reduces else way(*ends) for ends in members]
            for ends, parts in zip(members, _copies(together, topology.folding), strict=True):
                mine = found[ends]
                for at, part in enumerate(reversed(parts) if reduces else parts):
                    mine[at] += part / moves[ends]
        steps.append(
            {
                ends: np.asarray([part for part, (link, _) in zip(parts, way(*ends), strict=True) if link != ABSENT])
                for ends, parts in found.items()
            }
        )
    return steps


def _backwards(way: Way, start: int) -> Way:
    nodes = [start, *(node for _, node in way)]
    return [(link, node) for (link, _), node in zip(reversed(way), reversed(nodes[:-1]), strict=True)]


def _copies(ways: Sequence[Way], folding: frozenset[int]) -> list[list[float]]:
    """The share of each of several copies on each link, where those with a common start may travel as one."""
    shares = [[1.0] * len(way) for way in ways]

    def below(members: list[int], at: int) -> int:
        """The number of copies that must reach the node after link `at` of these ways."""
        after: dict[tuple[int, int], list[int]] = defaultdict(list)
        ends = 0
        for member in members:
            if len(ways[member]) == at:
                ends += 1
            else:
                after[ways[member][at]].append(member)
        needed = ends
        for (_, node), some in after.items():
            copies = below(some, at + 1)
            copies = 1 if node in folding else copies
            for member in some:
                shares[member][at] = copies / len(some)
            needed += copies
        return needed

    if len(ways) > 1:
        below(list(range(len(ways))), 0)
    return shares
