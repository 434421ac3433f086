"""The parts of this machine (cores, caches, memory nodes, GPUs and their links, network cards), and its topology.

Read from /proc, /sys and, where it is there, `nvidia-smi`. Nothing here fails: what cannot be read is left out and
listed as missing. Nothing identifies the machine or its user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ...engines.shared_memory.processor import processor_name
from .gpus import InstalledGpu, ask, gpus_of, mps_runs
from .machines import one_host
from .topology import Topology


@dataclass(frozen=True)
class Cache:
    level: int
    size: int
    cpus: tuple[int, ...]
    """The CPUs that share it."""


@dataclass(frozen=True)
class Core:
    package: int
    cpus: tuple[int, ...]
    """Its hardware threads that this process may use."""


@dataclass(frozen=True)
class MemoryNode:
    """A memory node (NUMA): memory with the CPUs that are near it."""

    number: int
    cpus: tuple[int, ...]
    memory: int


@dataclass(frozen=True)
class Card:
    name: str
    kind: str
    speed: float | None
    """Bytes per second, if the card reports it."""


@dataclass(frozen=True)
class Machine:
    processor: str
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...]
    nodes: tuple[MemoryNode, ...]
    memory: int
    limit: float | None
    """The CPU limit of the container, in CPUs, if it sets one."""
    gpus: tuple[InstalledGpu, ...]
    mps: bool
    """True if NVIDIA's Multi-Process Service runs, which lets kernels of several processes run at the same time."""
    cards: tuple[Card, ...]
    absent: tuple[str, ...]
    """The parts that were not found, one sentence each."""

    @property
    def usable(self) -> int:
        """The number of ranks that can run at the same time: that of cores, or the container's limit."""
        cores = max(1, len(self.cores))
        return cores if self.limit is None else max(1, min(cores, ceil(self.limit)))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "usable_cores": self.usable}


def read_machine(
    root: Path = Path("/"), topology_of_gpus: str | None = None, names_of_gpus: str | None = None
) -> Machine:
    """Read the files below `root` and the output of nvidia-smi, which is run unless its output is given."""
    cpus = _affinity()
    system = root / "sys/devices/system"
    cores = _cores(system / "cpu", cpus)
    nodes = tuple(_nodes(system / "node", cpus))
    memory = _memory(_text(root / "proc/meminfo"), "MemTotal")
    if topology_of_gpus is None:
        topology_of_gpus = ask("nvidia-smi", "topo", "-m")
        names_of_gpus = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    gpus = tuple(gpus_of(topology_of_gpus, names_of_gpus or ""))
    caches = tuple(_caches(system / "cpu", cpus))
    cards = (*_ethernet(root / "sys/class/net"), *_infiniband(root / "sys/class/infiniband"))
    looked_for = {
        "no GPU was found (nvidia-smi is not there, or lists none)": gpus,
        "no network card was found in /sys/class/net": cards,
        "the kernel does not say what caches there are": caches,
        "the kernel does not say what memory nodes there are": nodes,
    }
    return Machine(
        processor=processor_name(_text(root / "proc/cpuinfo")),
        cores=cores,
        caches=caches,
        nodes=nodes,
        memory=memory,
        limit=_limit(root),
        gpus=gpus,
        mps=mps_runs(root),
        cards=cards,
        absent=tuple(sentence for sentence, found in looked_for.items() if not found),
    )


def topology_of_this_machine(ranks: int, machine: Machine | None = None) -> Topology:
    """The cores of this machine as a topology for this many ranks, with built-in figures.

    Where ranks outnumber cores they take turns: each gets a share of a core, and waits for its turn to start a message.

    >>> price.topology_of_this_machine(ranks=4).ranks
    4
    """
    machine = read_machine() if machine is None else machine
    crowd = max(1.0, ranks / machine.usable)
    plain = one_host(1).recipe["parameters"]
    figures = {
        "bandwidth": plain["bandwidth"] / crowd,
        "latency": plain["latency"],
        "bus": plain["bus"],
        "overhead": plain["overhead"] * crowd,
        "reduction": plain["reduction"] / crowd,
    }
    near = [node for node in machine.nodes if node.cpus]
    if len(near) < 2:
        return one_host(ranks, **figures)
    return _with_nodes(ranks, machine, near, figures)


def topology_of_the_gpus(machine: Machine) -> Topology | None:
    """The GPUs as a topology of one rank each, or None where there are fewer than two."""
    if len(machine.gpus) < 2:
        return None
    wires = {
        (gpu.number, other): int(word[2:])
        for gpu in machine.gpus
        for other, word in gpu.links.items()
        if _is_nvlink(word)
    }
    many = len(machine.gpus)
    port = 25e9 * max([1, *wires.values()])
    routes = [
        {"from": a, "to": b, "links": [] if (a, b) in wires else [f"GPU {a} PCIe out", f"GPU {b} PCIe in"]}
        for a in range(many)
        for b in range(many)
        if a != b
    ]
    return Topology.from_json(
        {
            "format": "allfold-topology",
            "version": 1,
            "name": "the GPUs of this machine",
            "ranks": many,
            "overhead": 1.5e-6,
            "reduction": 1e12,
            "source": "NVLink: 25 GB/s per link and direction (NVLink 2 to 4); PCIe: 25 GB/s (4.0 x16); latencies of dgx_h100",
            "port": {"latency": 0.2e-6, "bandwidth": port},
            "links": [
                {"name": f"GPU {gpu} PCIe {way}", "kind": "pcie", "latency": 1e-6, "bandwidth": 25e9}
                for gpu in range(many)
                for way in ("out", "in")
            ],
            "routes": routes,
        }
    )


def _with_nodes(ranks: int, machine: Machine, nodes: list[MemoryNode], figures: dict[str, float]) -> Topology:
    """Ranks on the cores of several memory nodes, each with a bus of its own and a link to every other."""
    order = sorted(core.cpus[0] for core in machine.cores)
    node_of = {cpu: place for place, node in enumerate(nodes) for cpu in node.cpus}
    seats = [node_of.get(order[rank * len(order) // max(ranks, len(order))], 0) for rank in range(ranks)]
    pairs = [(a, b) for a in range(len(nodes)) for b in range(len(nodes)) if a != b]
    names = [f"node {node.number}" for node in nodes]
    links = [{"name": f"{name} memory bus", "kind": "bus", "bandwidth": figures["bus"]} for name in names]
    links += [
        {"name": f"{names[a]} to {names[b]}", "kind": "bus", "latency": 0.1e-6, "bandwidth": figures["bus"] / 2}
        for a, b in pairs
    ]
    edges: list[dict[str, Any]] = [
        {"from": rank, "to": names[seat], "link": f"{names[seat]} memory bus"} for rank, seat in enumerate(seats)
    ]
    edges += [{"from": names[seat], "to": rank} for rank, seat in enumerate(seats)]
    edges += [{"from": names[a], "to": names[b], "link": f"{names[a]} to {names[b]}"} for a, b in pairs]
    return Topology.from_json(
        {
            "format": "allfold-topology",
            "version": 1,
            "name": "this machine",
            "ranks": ranks,
            "overhead": figures["overhead"],
            "reduction": figures["reduction"],
            "source": f"{one_host(1).source}. Half of a bus between memory nodes and 0.1 µs more are assumed",
            "port": {"latency": figures["latency"], "bandwidth": figures["bandwidth"]},
            "links": links,
            "graph": {"nodes": names, "edges": edges},
        }
    )


# Reading --------------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    """`0-3,8` → 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _inside(folder: Path, pattern: str) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []
    return sorted(
        found, key=lambda path: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]
    )


def _affinity() -> frozenset[int]:
    known = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset(known)


def _cores(folder: Path, cpus: frozenset[int]) -> tuple[Core, ...]:
    threads: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    there = [int(path.name[3:]) for path in _inside(folder, r"cpu\d+")]
    for cpu in [cpu for cpu in there if cpu in cpus] or sorted(cpus):
        topology = folder / f"cpu{cpu}/topology"
        siblings = _numbers(_text(topology / "thread_siblings_list")) or (cpu,)
        package = _text(topology / "physical_package_id")
        threads.setdefault((int(package) if package.isdecimal() else 0, siblings), []).append(cpu)
    return tuple(Core(package, tuple(mine)) for (package, _), mine in threads.items())


def _caches(folder: Path, cpus: frozenset[int]) -> Iterable[Cache]:
    seen = set()
    for path in _inside(folder, r"cpu\d+"):
        for index in _inside(path / "cache", r"index\d+"):
            level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
            match = re.fullmatch(r"(\d+)([KMG]?)", size)
            shared = tuple(cpu for cpu in _numbers(_text(index / "shared_cpu_list")) if cpu in cpus)
            if kind == "Instruction" or not level.isdecimal() or match is None or not shared:
                continue
            cache = Cache(int(level), int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]], shared)
            if cache not in seen:
                seen.add(cache)
                yield cache


def _nodes(folder: Path, cpus: frozenset[int]) -> Iterable[MemoryNode]:
    for path in _inside(folder, r"node\d+"):
        mine = tuple(cpu for cpu in _numbers(_text(path / "cpulist")) if cpu in cpus)
        yield MemoryNode(int(path.name[4:]), mine, _memory(_text(path / "meminfo"), "MemTotal"))


def _memory(text: str, key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _limit(root: Path) -> float | None:
    """The lowest CPU limit in our control group and those above it (cgroup v1 or v2)."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if number == "0" else controllers)
        here = mount / path.lstrip("/")
        for folder in (here, *here.parents):
            both = (
                _text(folder / "cpu.max")
                or f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
            )
            quota = re.fullmatch(r"(\d+) (\d+)", both.strip())
            if quota and int(quota[2]):
                limits.append(int(quota[1]) / int(quota[2]))
            if folder == mount:
                break
    return min(limits, default=None)


def _is_nvlink(word: str) -> bool:
    return re.fullmatch(r"NV\d+", word) is not None


def _ethernet(folder: Path) -> Iterable[Card]:
    for path in _inside(folder, r".+"):
        # An interface without a device behind it (lo, bridges, veth pairs of containers) is not a card.
        if path.name != "lo" and (path / "device").exists():
            speed = _text(path / "speed")
            yield Card(path.name, "ethernet", int(speed) * 1e6 / 8 if speed.isdecimal() and int(speed) > 0 else None)


def _infiniband(folder: Path) -> Iterable[Card]:
    for path in _inside(folder, r".+"):
        rates = [re.match(r"([\d.]+) Gb/sec", _text(port / "rate")) for port in _inside(path / "ports", r"\d+")]
        known = [float(rate[1]) * 1e9 / 8 for rate in rates if rate]
        yield Card(path.name, "infiniband", max(known, default=None))
