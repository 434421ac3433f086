"""Named topologies of GPU servers, one or several of them; every GPU is a rank.

Cables between GPUs and to NVSwitches are links of their own; the ports of the ranks are no limit. Where a pair of GPUs
has several cables, they are one link of their joint bandwidth.
"""

from __future__ import annotations

from math import inf

import numpy as np

from .machines import named
from .shapes import check_whole, switched
from .topology import Ranks, Topology
from .wired import MOST_NODES, Cable, between, card, one_way, to_switch, wired

_HOP, _NETWORK_HOP = 0.4e-6, 1.25e-6
_STARTS = (
    "A hop takes 1.9 µs over NVLink and 4.0 µs over the network, 1.5 µs of it to start "
    "(NCCL, src/graph/tuning.cc: ring, LL128)"
)
_NVLINK_2 = 25e9
_DGX1_TWICE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_DGX1_ONCE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
_DGX1 = (
    "V100 GPUs with six NVLinks of 25 GB/s each, wired as in NVIDIA's DGX-1 (SCCL: Cai et al., PPoPP 2021, figure 1). "
    f"{_STARTS}. Combining runs at a third of the 900 GB/s of HBM2 (NVIDIA V100 data sheet)"
)


@named
def dgx1(nodes: int = 1) -> Topology:
    """DGX-1 systems: 8 V100 GPUs, each wired to four others by NVLink; a 100 Gb/s card for every two GPUs.

    >>> price.dgx1().ranks
    8
    """
    host = _hosts("dgx1", nodes, 8)
    ranks = 8 * nodes
    cables = [cable for box in range(nodes) for cable in _cables_of_dgx1(8 * box)]
    for pair in range(ranks // 2) if nodes > 1 else ():
        for rank in (2 * pair, 2 * pair + 1):
            cables += to_switch(rank, "PCIe switch", pair, ranks + pair, 16e9, 0.0)
        for way in ("out", "in"):
            cables += card(pair // 4, pair % 4, way, [ranks + pair], ranks + ranks // 2, 12.5e9, _NETWORK_HOP)
    source = (
        f"{_DGX1}. Two GPUs and a ConnectX-4 of 100 Gb/s under a PCIe 3 switch with 16 lanes each (NVIDIA DGX-1 system "
        "architecture), all cards under a switch that never blocks"
    )
    switches = [*(pair // 4 for pair in range(ranks // 2)), None] if nodes > 1 else []
    return wired("dgx1", host, switches, cables, 1.5e-6, 300e9, source)


@named
def ndv2(nodes: int) -> Topology:
    """Azure NDv2 machines: a DGX-1 each, with one 100 Gb/s card, from which GPU 0 sends and at which GPU 1 receives.

    >>> price.ndv2(nodes=2).ranks
    16
    """
    host = _hosts("ndv2", nodes, 8)
    cables = [cable for box in range(nodes) for cable in _cables_of_dgx1(8 * box)]
    if nodes == 2:
        cables += [
            *one_way(0, 9, 12.5e9, 2 * _NETWORK_HOP, "nic"),
            *one_way(8, 1, 12.5e9, 2 * _NETWORK_HOP, "nic"),
        ]
    for box in range(nodes) if nodes > 2 else ():
        cables += card(box, 0, "out", [8 * box], 8 * nodes, 12.5e9, _NETWORK_HOP)
        cables += card(box, 0, "in", [8 * box + 1], 8 * nodes, 12.5e9, _NETWORK_HOP)
    source = f"{_DGX1}. One card of 100 Gb/s a machine, used as TACCL does (Shah et al., NSDI 2023, NDv2 relays)"
    return wired("ndv2", host, [None] if nodes > 2 else [], cables, 1.5e-6, 300e9, source)


@named
def dgx2(nodes: int) -> Topology:
    """DGX-2 systems: 16 V100 GPUs behind NVSwitches; odd GPUs send to the even ones of other systems, at 100 Gb/s.

    >>> price.dgx2(nodes=2).ranks
    32
    """
    host = _hosts("dgx2", nodes, 16)
    ranks = 16 * nodes
    cables = _nvswitches(nodes, 16, 125e9)
    for odd in range(1, 16, 2):
        if nodes == 2:
            cables += one_way(odd, 16 + odd - 1, 12.5e9, 2 * _NETWORK_HOP, "nic")
            cables += one_way(16 + odd, odd - 1, 12.5e9, 2 * _NETWORK_HOP, "nic")
        for box in range(nodes) if nodes > 2 else ():
            cables += card(box, odd // 2, "out", [16 * box + odd], ranks + nodes, 12.5e9, _NETWORK_HOP)
            cables += card(box, odd // 2, "in", [16 * box + odd - 1], ranks + nodes, 12.5e9, _NETWORK_HOP)
    source = (
        "Six NVLinks of 25 GB/s a GPU, of which 125 GB/s are taken, and a 100 Gb/s card for every two GPUs, from which the "
        "odd one sends and at which the even one receives (TACCL: Shah et al., NSDI 2023; TE-CCL: Liu et al., SIGCOMM "
        f"2024). {_STARTS}. Combining runs at a third of the 900 GB/s of HBM2 (NVIDIA V100 data sheet)"
    )
    switches = [*range(nodes), *([None] if nodes > 2 else [])]
    return wired("dgx2", host, switches, cables, 1.5e-6, 300e9, source)


@named
def dgx_a100(nodes: int) -> Topology:
    """DGX A100 systems: 8 GPUs behind NVSwitches, a 200 Gb/s card a GPU; even and odd GPUs have a network each.

    >>> price.dgx_a100(nodes=2).ranks
    16
    """
    host = _hosts("dgx_a100", nodes, 8)
    ranks = 8 * nodes
    cables = _nvswitches(nodes, 8, 300e9)
    for rank in range(ranks) if nodes > 1 else ():
        leaf = rank % 2
        for way in ("out", "in"):
            cables += card(rank // 8, rank % 8, way, [rank], ranks + nodes + leaf, 25e9, _NETWORK_HOP, leaf)
    source = (
        "NVLink 3: 600 GB/s a GPU, both directions together, and a ConnectX-6 of 200 Gb/s a GPU (NVIDIA DGX A100 data "
        "sheet), GPU i under InfiniBand switch i mod 2 (ForestColl: Zhao et al., arXiv 2402.06787). "
        f"{_STARTS}. Combining runs at a third of the 1.6 TB/s of HBM2 (NVIDIA A100 data sheet)"
    )
    switches = [*range(nodes), *([None, None] if nodes > 1 else [])]
    return wired("dgx_a100", host, switches, cables, 1.5e-6, 500e9, source)


_MI250 = {
    4: ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)),
    2: ((0, 4), (3, 7), (8, 12), (11, 15)),
    1: (
        (0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11), (4, 6), (5, 6), (5, 7), (9, 13), (10, 14),
        (12, 14), (13, 14), (13, 15),
    ),
}  # fmt: skip
"""Pairs of GCDs by how many Infinity Fabric links they have."""


@named
def mi250(nodes: int) -> Topology:
    """Servers with 8 AMD MI250: 16 GCDs wired by Infinity Fabric, 128 Gb/s of network for each of them.

    >>> price.mi250(nodes=2).ranks
    32
    """
    host = _hosts("mi250", nodes, 16)
    ranks = 16 * nodes
    cables = [
        cable
        for box in range(nodes)
        for many, pairs in _MI250.items()
        for one, other in pairs
        for cable in between(16 * box + one, 16 * box + other, 50e9 * many, _HOP)
    ]
    for rank in range(ranks) if nodes > 1 else ():
        for way in ("out", "in"):
            cables += card(rank // 16, rank % 16, way, [rank], ranks, 16e9, _NETWORK_HOP)
    source = (
        "Infinity Fabric links of 50 GB/s and direction, wired as measured by ForestColl (Zhao et al., arXiv 2402.06787), "
        "16 GB/s of InfiniBand for every GCD, under a switch that never blocks. Latencies are assumed to be those of "
        "NVLink and InfiniBand in NCCL (src/graph/tuning.cc). Combining runs at a third of the 1.6 TB/s that a GCD has of "
        "HBM2e (AMD MI250 data sheet)"
    )
    return wired("mi250", host, [None] if nodes > 1 else [], cables, 1.5e-6, 500e9, source)


@named
def dgx_h100(nodes: int) -> Topology:
    """DGX H100 systems: 8 GPUs behind NVLink switches, a 400 Gb/s card a GPU, rails of 32 systems a leaf, full fat tree.

    >>> price.dgx_h100(nodes=128).ranks
    1024
    """
    return switched(
        "dgx_h100",
        hosts=nodes,
        ranks_per_host=8,
        port=450e9,
        port_latency=0.2e-6,
        bus=inf,
        overhead=1.5e-6,
        reduction=1.1e12,
        source=(
            "NVLink 4: 900 GB/s a GPU, both directions together (NVIDIA DGX H100 data sheet; of the 450 GB/s one way "
            "NVIDIA/nccl#1264 measures 380). A ConnectX-7 of 400 Gb/s for every GPU, rail-optimised full fat tree, units of "
            "32 systems (NVIDIA DGX SuperPOD H100 reference architecture). A hop takes 1.9 µs over NVLink and 4.0 µs over the "
            "network (NCCL, src/graph/tuning.cc: ring, LL128), a Quantum-2 switch 0.33 µs. Combining runs at a third of the "
            "3.35 TB/s of HBM3 (NVIDIA H100 data sheet)"
        ),
        cards=8,
        bandwidth=50e9,
        latency=1.05e-6,
        hosts_per_leaf=32,
        switch_latency=0.33e-6,
        rails=True,
    )


def _hosts(name: str, nodes: int, ranks_per_node: int) -> Ranks:
    check_whole(name, "nodes", nodes)
    check_whole(name, "the number of ranks", ranks_per_node * nodes, MOST_NODES)
    return np.arange(ranks_per_node * nodes, dtype=np.int32) // np.int32(ranks_per_node)


def _cables_of_dgx1(first: int) -> list[Cable]:
    """The NVLinks of one DGX-1 whose GPU 0 is rank `first`."""
    both = ((_DGX1_TWICE, 2 * _NVLINK_2), (_DGX1_ONCE, _NVLINK_2))
    return [
        cable
        for pairs, bandwidth in both
        for one, other in pairs
        for cable in between(first + one, first + other, bandwidth, _HOP)
    ]


def _nvswitches(nodes: int, ranks_per_node: int, bandwidth: float) -> list[Cable]:
    """All ranks of a node under its NVSwitches, which count as one."""
    ranks = nodes * ranks_per_node
    return [
        cable
        for rank in range(ranks)
        for box in (rank // ranks_per_node,)
        for cable in to_switch(rank, "NVSwitch", box, ranks + box, bandwidth, _HOP / 2)
    ]
