"""A search for one method, without the frame around it."""

from __future__ import annotations

import time

from allfold.collectives import find_collective
from allfold.price import Topology
from allfold.price.topology.network import network_of
from allfold.search.found import Task


def task_for(
    collective: str,
    topology: Topology,
    size: int = 2**24,
    ranks: int | None = None,
    root: int = 0,
    chunks: int | None = None,
    seed: int = 0,
    seconds: float = 250.0,  # twenty on an idle machine
) -> Task:
    many = topology.ranks if ranks is None else ranks
    rooted = find_collective(collective).rooted
    deadline = time.monotonic() + seconds
    network = network_of(topology, many) if many <= 64 else network_of(topology, 2)  # these methods look at routes only
    return Task(collective, topology, network, many, root % many if rooted else None, size, chunks, seed, deadline)
