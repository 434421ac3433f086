"""`allfold topo`: the hardware of this machine, and what it means for the choice of an algorithm."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from math import inf

from ..errors import UsageError
from ..files import write_whole
from ..launch.environment import launched_place
from ..launch.spawn import init
from ..price.cost.plan import duration, plan
from ..price.topology.measured_hosts import hosts_as_measured
from ..price.topology.this_machine import Machine, read_machine, topology_of_the_gpus, topology_of_this_machine
from ..price.topology.topology import Topology
from ..view.topology import amount, drawing_as_svg, drawing_as_text, rate, tree_of
from ..wording import format_size, name_ranks, one_rank_count
from .terminal import width, write_json, write_lines, write_table

_SMALL, _LARGE = 1024, 64 * 2**20


def run(arguments: argparse.Namespace) -> int:
    if (place := launched_place()) is not None and place.size > 1:
        return _across_hosts(arguments)
    machine = read_machine()
    ranks = max(2, machine.usable) if arguments.ranks is None else one_rank_count(arguments.ranks)
    if arguments.gpus and arguments.emit is None:
        raise UsageError("--gpus changes what --emit writes; add --emit FILE")
    topology = _emitted(machine, ranks, arguments.gpus)
    if arguments.emit is not None:
        write_json(topology.to_json(), arguments.emit)
    if arguments.svg is not None:
        write_whole(arguments.svg, drawing_as_svg(machine))
    meaning = list(means(machine))
    if arguments.json:
        write_json({**machine.to_json(), "means": meaning, "topology": topology.to_json()})
        return 0
    write_lines(tree_of(machine), arguments.color)
    write_lines([""], arguments.color)
    write_table(("what", "how many", "each", "shared by"), _rows(machine), arguments.color, left=4)
    write_lines(["", *drawing_as_text(machine, min(width(), 100)), ""], arguments.color)
    write_lines(textwrap.wrap(" ".join(meaning), min(width(), 100)), arguments.color)
    return 0


def _across_hosts(arguments: argparse.Namespace) -> int:
    """Measure the network between hosts; all ranks of a launcher's run take part, and rank 0 prints."""
    if arguments.gpus or arguments.svg is not None or arguments.ranks is not None:
        raise UsageError("inside the ranks of a launcher, topo takes --emit and --json only")
    with init() as comm:
        hosts = comm.engine.hosts()
        if len(hosts) == 1:
            if comm.rank:
                return 0
            raise UsageError(
                f"all {comm.size} ranks share the memory of this host, so there is no network to measure; run allfold topo "
                "without a launcher"
            )
        network = comm.engine.network(by_size=True)
        comm.barrier()
    if comm.rank:
        return 0
    topology = hosts_as_measured(hosts, network)
    if arguments.emit is not None:
        if topology is None:
            raise UsageError(
                f"--emit: a topology of hosts needs the same number of ranks on each host, not {[len(one) for one in hosts]}"
            )
        write_json(topology.to_json(), arguments.emit)
    if arguments.json:
        emitted = None if topology is None else topology.to_json()
        write_json({"hosts": hosts, **network.to_json(), "topology": emitted})
        return 0
    rows = [
        [
            *(name_ranks(list(ranks)) for ranks in wire.hosts),
            duration(wire.latency),
            duration(wire.overhead),
            f"{wire.bandwidth / 1e9:.2f} GB/s",
            f"{wire.all_ranks / 1e9:.2f} GB/s",
        ]
        for wire in network.wires
    ]
    head = ("ranks of a host", "and of another", "latency", "to begin a send", "two ranks", "all ranks")
    write_table(head, rows, arguments.color, left=2)
    sizes = sorted(set.intersection(*(set(dict(wire.sizes)) for wire in network.wires)))
    slowest = [max(dict(wire.sizes)[bytes] for wire in network.wires) for bytes in sizes]
    write_lines(["", "A message between the slowest two, while all ranks of both exchange in pairs:"], arguments.color)
    rows = [[format_size(bytes), duration(seconds)] for bytes, seconds in zip(sizes, slowest, strict=True)]
    write_table(("size", "time"), rows, arguments.color, left=0)
    if network.bus < inf:
        text = f"Inside a host its ranks move {network.bus / 1e9:.1f} GB/s together, measured on all hosts at once."
        write_lines(["", text], arguments.color)
    return 0


def means(machine: Machine) -> Iterator[str]:
    """Conclusions for the user, in sentences."""
    usable, cores = machine.usable, max(1, len(machine.cores))
    limited = f", because the container is limited to {machine.limit:g} CPUs" if usable < cores else ""
    if usable > 1:
        yield f"Up to {usable} ranks run at the same time{limited}; with more they take turns, and every step waits for that."
    else:
        yield f"Only one rank runs at a time{limited}: ranks take turns, and the algorithm with the fewest steps wins."
    ranks = max(2, usable)
    topology = topology_of_this_machine(ranks, machine)
    small, large = (plan("all_reduce", topology, ranks, size).winner for size in (_SMALL, _LARGE))
    second = "" if small.algorithm == large.algorithm else f"{large.algorithm} "
    yield (
        f"Between {ranks} ranks, by built-in figures, {small.algorithm} is the fastest all_reduce of 1 KiB "
        f"({_because(small.limit.kind)}) and {second}of 64 MiB ({_because(large.limit.kind)})."
    )
    last = max((cache.level for cache in machine.caches), default=0)
    size = max((cache.size for cache in machine.caches if cache.level == last), default=0)
    if size:
        yield f"Buffers of all ranks that fit into the {amount(size)} of L{last} together never cross the memory bus."
    in_nodes = sum(node.memory for node in machine.nodes)
    if machine.nodes and abs(in_nodes - machine.memory) > 0.02 * machine.memory:
        yield (
            f"The kernel reports {amount(machine.memory)} of memory in all (/proc/meminfo), but {amount(in_nodes)} in its "
            "memory nodes: the total is that of a virtual machine or container, or some memory is in no node."
        )
    near = [node for node in machine.nodes if node.cpus]
    if len(near) > 1:
        yield (
            f"Memory has {len(near)} nodes: messages between them cross a slower link, so algorithms that take groups "
            "(two_level, hierarchical) should get one group per node."
        )
    yield from _on_gpus(machine)
    wired = [gpu for gpu in machine.gpus if any(word.startswith("NV") for word in gpu.links.values())]
    if len(machine.gpus) > 1 and wired:
        yield f"{len(wired)} of {len(machine.gpus)} GPUs have NVLink; --emit FILE --gpus writes them as a topology."
    elif len(machine.gpus) > 1:
        yield "The GPUs reach each other over PCIe only, which they share with everything else."


def _on_gpus(machine: Machine) -> Iterator[str]:
    """Advice for several ranks on one GPU (figures: docs/gpu.md)."""
    if not machine.gpus:
        return
    if len(machine.gpus) > 1:
        yield "With a GPU for every rank NCCL is faster: init_process_group('cpu:allfold,cuda:nccl')."
    if machine.mps:
        yield "Several ranks may share a GPU (docs/gpu.md); MPS runs, so their kernels run at the same time."
    else:
        yield (
            "Several ranks may share a GPU (docs/gpu.md). MPS does not run, so they take turns; with it "
            "(nvidia-cuda-mps-control -d) an all_reduce of 1 MiB between 4 ranks took a sixth of the time on an H200."
        )


def _because(kind: str) -> str:
    words = {"latency": "it waits least", "reduction": "combining limits it", "bus": "the memory bus limits it"}
    return words.get(kind, "the ports limit it")


def _emitted(machine: Machine, ranks: int, gpus: bool) -> Topology:
    if not gpus:
        return topology_of_this_machine(ranks, machine)
    found = topology_of_the_gpus(machine)
    if found is None:
        raise UsageError(f"--gpus: a topology needs two GPUs, and {len(machine.gpus) or 'none'} was found")
    return found


def _rows(machine: Machine) -> Iterator[list[str]]:
    threads = sum(len(core.cpus) for core in machine.cores)
    packages = len({core.package for core in machine.cores})
    yield ["processor", str(packages), machine.processor, ""]
    each = (
        f"{threads // max(1, len(machine.cores))} hardware threads"
        if threads > len(machine.cores)
        else "1 hardware thread"
    )
    yield ["core", str(len(machine.cores)), each, ""]
    if machine.limit is not None:
        yield ["limit of the container", f"{machine.limit:g}", "CPUs of time", ""]
    for level in sorted({cache.level for cache in machine.caches}):
        alike = [cache for cache in machine.caches if cache.level == level]
        shared = f"{len(alike[0].cpus)} CPUs" if len(alike[0].cpus) > 1 else "nobody"
        yield [f"cache L{level}", str(len(alike)), amount(alike[0].size), shared]
    if machine.nodes:
        sizes = sorted({node.memory for node in machine.nodes})
        each = amount(sizes[0]) if len(sizes) == 1 else f"{amount(sizes[0])} to {amount(sizes[-1])}"
        yield ["memory node", str(len(machine.nodes)), each, "all cores"]
    else:
        yield ["memory", "1", amount(machine.memory), "all cores"]
    names = [gpu.name for gpu in machine.gpus]
    for name in dict.fromkeys(names):
        links = {word for gpu in machine.gpus for word in gpu.links.values()}
        yield ["GPU", str(names.count(name)), name, ", ".join(sorted(links))]
    if machine.gpus:
        yield ["MPS", "", "runs" if machine.mps else "does not run", ""]
    if not machine.gpus:
        yield ["GPU", "0", "none found", ""]
    for card in machine.cards:
        yield [f"network card {card.name}", "1", f"{card.kind}, {rate(card.speed)}", "all ranks"]
    if not machine.cards:
        yield ["network card", "0", "none found", ""]
