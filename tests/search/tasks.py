"""A search for one method, without the frame around it."""

from __future__ import annotations

import time

from allfold.collectives import find_collective
from allfold.price import Topology
from allfold.price.cost.certificate import LinkPrices, rounded_down
from allfold.price.cost.program import least_by_program
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


def seconds_of(task: Task, prices: LinkPrices | None) -> float:
    """The bound of prices of links; 0 if there are none."""
    return 0.0 if prices is None else rounded_down(prices.per_byte * task.size)


def least_all_reduce(task: Task) -> float:
    """The bound of an all_reduce by the linear program alone; 0 if the network is too large."""
    return seconds_of(task, least_by_program("all_reduce", task.topology, task.ranks, None, 2.0))
