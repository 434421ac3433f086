"""Named topologies: the shapes that networks have, and typical machines with the sources of their figures.

GPU servers are in `gpu_servers`.

Each is a plain function; they can also be named in text (see `parse`). Bandwidths are in bytes per second per
direction, latencies in seconds one way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from math import inf
from typing import ParamSpec

from ...errors import UsageError
from .shapes import grid, groups_of_routers, switched
from .topology import Topology

_P = ParamSpec("_P")

CONSTRUCTORS: dict[str, Callable[..., Topology]] = {}


def named(function: Callable[_P, Topology]) -> Callable[_P, Topology]:
    """Register a constructor, and let its topologies remember their parameters: JSON stores nothing else of them."""
    signature = inspect.signature(function)

    @wraps(function)
    def build(*arguments: _P.args, **keywords: _P.kwargs) -> Topology:
        given = signature.bind(*arguments, **keywords)
        given.apply_defaults()
        plain = {
            "constructor": function.__name__,
            "parameters": {key: _plain(given.arguments[key]) for key in given.arguments},
        }
        return replace(function(*arguments, **keywords), recipe=plain)

    CONSTRUCTORS[function.__name__] = build
    return build


def _plain(value: object) -> object:
    return "inf" if value == inf else list(value) if isinstance(value, tuple) else value


_SHARED_MEMORY = (
    "Shared memory: 8-byte calls and copies by all ranks at once, as measured in docs/performance.md, rounded"
)


@named
def one_host(
    ranks: int,
    bandwidth: float = 12e9,
    latency: float = 0.1e-6,
    bus: float = 40e9,
    overhead: float = 0.4e-6,
    reduction: float = 30e9,
) -> Topology:
    """Processes of one host that talk through shared memory: a port is a core that copies, the memory bus is shared.

    >>> price.one_host(ranks=4, bandwidth=20e9).ranks
    4
    """
    return switched(
        "one_host",
        hosts=1,
        ranks_per_host=ranks,
        port=bandwidth,
        port_latency=latency,
        bus=bus,
        overhead=overhead,
        reduction=reduction,
        source=_SHARED_MEMORY,
    )


@named
def hosts(
    hosts: int,
    ranks_per_host: int = 8,
    port: float = 12e9,
    port_latency: float = 0.1e-6,
    bus: float = 40e9,
    cards: int = 1,
    bandwidth: float = 12.5e9,
    latency: float = 1e-6,
    overhead: float = 0.5e-6,
    reduction: float = 30e9,
) -> Topology:
    """Hosts under one switch that never blocks. The ranks of a host share its memory bus and its network cards.

    >>> price.hosts(4, ranks_per_host=2).ranks
    8
    """
    return switched(
        "hosts",
        hosts,
        ranks_per_host,
        port,
        port_latency,
        bus,
        overhead,
        reduction,
        source=f"{_SHARED_MEMORY}. Cards of 100 Gb/s with 2 µs from host to host, the order of RDMA",
        cards=cards,
        bandwidth=bandwidth,
        latency=latency,
    )


@named
def fat_tree(
    hosts: int,
    ranks_per_host: int = 8,
    hosts_per_leaf: int = 16,
    oversubscription: float = 1.0,
    port: float = 12e9,
    port_latency: float = 0.1e-6,
    bus: float = 40e9,
    cards: int = 1,
    bandwidth: float = 12.5e9,
    latency: float = 1e-6,
    switch_latency: float = 0.33e-6,
    overhead: float = 0.5e-6,
    reduction: float = 30e9,
) -> Topology:
    """Hosts under leaf switches under one row of spines; a leaf passes up 1/`oversubscription` of what its hosts can send.

    >>> price.fat_tree(hosts=32, oversubscription=2).ranks
    256
    """
    return switched(
        "fat_tree",
        hosts,
        ranks_per_host,
        port,
        port_latency,
        bus,
        overhead,
        reduction,
        source=f"{_SHARED_MEMORY}. Cards of 100 Gb/s with 2 µs from host to host, 0.33 µs a switch (NVIDIA Quantum-2)",
        cards=cards,
        bandwidth=bandwidth,
        latency=latency,
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=oversubscription,
        switch_latency=switch_latency,
    )


@named
def ring(
    ranks: int,
    bandwidth: float = 50e9,
    latency: float = 0.5e-6,
    port: float = inf,
    overhead: float = 0.5e-6,
    reduction: float = 100e9,
) -> Topology:
    """Ranks in a circle, a cable in each direction between neighbours; others are reached the shorter way round.

    >>> price.ring(ranks=5).ranks
    5
    """
    return grid("ring", (ranks,), bandwidth, latency, port, overhead, reduction, _CABLES)


@named
def torus(
    shape: tuple[int, ...],
    bandwidth: float = 50e9,
    latency: float = 0.5e-6,
    port: float = inf,
    overhead: float = 0.5e-6,
    reduction: float = 100e9,
) -> Topology:
    """A grid whose rows close to rings, in any number of dimensions; messages travel dimension by dimension.

    >>> price.torus(shape=(4, 4, 4)).ranks
    64
    """
    return grid("torus", shape, bandwidth, latency, port, overhead, reduction, _CABLES)


@named
def mesh(
    shape: tuple[int, ...],
    bandwidth: float = 50e9,
    latency: float = 0.5e-6,
    port: float = inf,
    overhead: float = 0.5e-6,
    reduction: float = 100e9,
) -> Topology:
    """A grid whose rows end at its edges, in any number of dimensions; messages travel dimension by dimension.

    >>> price.mesh(shape=(3, 4)).ranks
    12
    """
    return grid("mesh", shape, bandwidth, latency, port, overhead, reduction, _CABLES, closed=False)


@named
def hypercube(
    dimensions: int,
    bandwidth: float = 50e9,
    latency: float = 0.5e-6,
    port: float = inf,
    overhead: float = 0.5e-6,
    reduction: float = 100e9,
) -> Topology:
    """Two to the power of `dimensions` ranks, with a cable between any two whose numbers differ in one bit.

    >>> price.hypercube(dimensions=4).ranks
    16
    """
    if type(dimensions) is not int or not 0 <= dimensions <= 24:
        raise UsageError(f"topology hypercube: dimensions is {dimensions!r:.40}; expected a whole number from 0 to 24")
    shape = (2,) * dimensions or (1,)
    return grid("hypercube", shape, bandwidth, latency, port, overhead, reduction, _CABLES, closed=False)


_CABLES = (
    "50 GB/s a cable and direction, the order of TPU v4's links (Jouppi et al., ISCA 2023); 0.5 µs a hop is assumed"
)


@named
def dragonfly(
    groups: int,
    routers: int = 8,
    ranks_per_router: int = 4,
    bandwidth: float = 25e9,
    local: float = 25e9,
    across: float = 25e9,
    latency: float = 0.35e-6,
    overhead: float = 0.8e-6,
    reduction: float = 100e9,
) -> Topology:
    """Groups of routers, all connected within a group, one cable between any two groups; messages take the direct way.

    >>> price.dragonfly(groups=4, routers=4, ranks_per_router=2).ranks
    32
    """
    return groups_of_routers(
        "dragonfly",
        groups,
        routers,
        ranks_per_router,
        bandwidth,
        local,
        across,
        latency,
        overhead,
        reduction,
        source="200 Gb/s a port and 0.35 µs a switch, as HPE Slingshot has it (De Sensi et al., SC 2020)",
    )


@named
def ethernet_cloud(nodes: int, ranks_per_node: int = 8, bandwidth: float = 12.5e9, latency: float = 12e-6) -> Topology:
    """Cloud machines with one Ethernet card each, TCP between them and shared memory within.

    >>> price.ethernet_cloud(nodes=4).ranks
    32
    """
    return switched(
        "ethernet_cloud",
        hosts=nodes,
        ranks_per_host=ranks_per_node,
        port=12e9,
        port_latency=0.1e-6,
        bus=40e9,
        overhead=5e-6,
        reduction=30e9,
        source=(
            "100 Gb/s a machine (Amazon EC2 User Guide, instance network bandwidth; one TCP stream gets 5 to 10 Gb/s of it, "
            "so that several ranks must share the card to fill it). About 35 µs from process to process within a placement "
            "group, of which the kernels are assumed to take 10. That the network passes half of it beyond 16 machines is "
            f"assumed as well. {_SHARED_MEMORY}"
        ),
        bandwidth=bandwidth,
        latency=latency,
        hosts_per_leaf=16,
        oversubscription=2.0,
        switch_latency=1e-6,
    )


@named
def laptop(ranks: int = 8) -> Topology:
    """The cores of a laptop: a port is a core that copies, the memory bus is shared.

    >>> price.laptop(6).ranks
    6
    """
    return switched(
        "laptop",
        hosts=1,
        ranks_per_host=ranks,
        port=15e9,
        port_latency=0.05e-6,
        bus=50e9,
        overhead=0.3e-6,
        reduction=40e9,
        source=(
            "LPDDR5-6400 on 128 bits carries 102 GB/s (JEDEC JESD209-5), of which a copy, which reads and writes, gets half; "
            "what one core copies and how long it takes to begin are assumed"
        ),
    )
