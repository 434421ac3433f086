"""Hosts as a topology, with the figures that were measured between them and inside."""

from __future__ import annotations

from collections.abc import Sequence

from ...engines.engine import Network
from .machines import hosts as hosts_under_a_switch
from .topology import Topology


def hosts_as_measured(hosts: Sequence[Sequence[int]], network: Network) -> Topology | None:
    """Hosts under one switch, as slow as the slowest two of them; None where they have different numbers of ranks."""
    if len({len(ranks) for ranks in hosts}) > 1:
        return None
    overhead = max(wire.overhead for wire in network.wires)
    latency = max(wire.latency for wire in network.wires)
    return hosts_under_a_switch(
        len(hosts),
        ranks_per_host=len(hosts[0]),
        port=network.bus,
        bus=network.bus,
        bandwidth=min(wire.all_ranks for wire in network.wires),
        latency=max(0.0, latency - overhead) / 2,  # two cards are on the way
        overhead=overhead,
        reduction=network.reduction,
    )
