"""A topology from the point of view of a group: its ranks renumbered, and links partly used by other groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .topology import Block, Links, Ranks, Routes, Topology

_MOST = 4096  # ranks


@dataclass(frozen=True, eq=False)
class Seen:
    """The routes of a topology whose ranks have other numbers."""

    whole: Topology
    order: Ranks
    """By the new number of a rank, the old one."""
    number: NDArray[np.int32]
    """By the old number of a link, the new one: the ports go with their ranks."""

    def __call__(self, source: Ranks, destination: Ranks) -> Routes:
        found = self.whole.router(self.order[source], self.order[destination])
        return replace(found, links=self.number[found.links])

    @property
    def splits(self) -> bool:
        return self.whole.splits


def seen_from(topology: Topology, group: Sequence[int]) -> Topology:
    """The topology with the ranks of a group first, in this order; the others follow."""
    check_groups(topology, [group])
    if topology.folding:
        raise UsageError(f"topology {topology.name} has switches that fold; groups are for networks without them")
    ranks = topology.ranks
    order = np.asarray([*group, *sorted(set(range(ranks)) - set(group))], np.int32)
    number = np.arange(len(topology.links), dtype=np.int32)
    number[order], number[ranks + order] = np.arange(ranks), ranks + np.arange(ranks)
    ports = [Block.alone(topology.links[int(side + rank)]) for side in (0, ranks) for rank in order]
    others = [Block.alone(topology.links[link]) for link in range(2 * ranks, len(topology.links))]
    return replace(
        topology,
        host=topology.host[order],
        links=Links([*ports, *others]),
        router=Seen(topology, order, number),
        recipe={"name": topology.name},
        cuts=tuple(replace(cut, group=cut.group[order]) for cut in topology.cuts),
    )


def slowed(topology: Topology, free: NDArray[np.float64]) -> Topology:
    """The topology with only a part of each link's bandwidth; other groups have the rest."""
    blocks = [Block.alone(link, part) for link, part in zip(topology.links, free.tolist(), strict=True)]
    return replace(topology, links=Links(blocks))


def check_groups(topology: Topology, groups: Sequence[Sequence[int]]) -> None:
    """Raise for groups that do not fit this topology, or that share a rank."""
    taken: set[int] = set()
    if topology.ranks > _MOST:
        raise UsageError(f"topology {topology.name}: {topology.ranks} ranks; groups are taken from at most {_MOST}")
    for group in groups:
        if not len(group):
            raise UsageError("a group without ranks; expected at least one in each")
        for rank in group:
            if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < topology.ranks:
                raise UsageError(f"a group has the rank {rank!r:.40}; {topology.name} has 0–{topology.ranks - 1}")
            if rank in taken:
                raise UsageError(f"rank {rank} is in two groups, or twice in one; expected each rank once")
            taken.add(int(rank))
