"""What `allfold find` finds on the networks of the papers, beside what the papers report.

python benchmarks/find.py                     # all_gather of 1 GiB on all of them, without latency
python benchmarks/find.py --only dgx1,mi250:nodes=2 --collective all_reduce
python benchmarks/find.py --latency           # with the latencies of the topologies: what depth costs
python benchmarks/find.py --run 2             # finds for this machine, runs it natively, beside the built-in algorithms
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

import numpy as np

import allfold as af
from allfold.price import Topology, find_topology
from allfold.price.topology.topology import Links

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class Figure:
    """A network, the exact cut of its all_gather, and what is known of it."""

    topology: str
    cut: Fraction
    """Ranks inside over bytes per second out: of the tightest cut."""
    within: float
    """How close to the bound the found schedule must come, without latency."""
    published: str = ""
    size: int = GIB


FIGURES = (
    Figure("dgx1", Fraction(7, 150 * GB), 1.01, "SCCL, ForestColl 171.43"),
    Figure("ndv2:nodes=2", Fraction(8, 12_500_000_000), 1.03, "TE-CCL 22.86, TACCL 18.60"),
    Figure("ndv2:nodes=4", Fraction(24, 12_500_000_000), 1.03, "TE-CCL 15.38"),
    Figure("dgx2:nodes=2", Fraction(31, 125 * GB), 1.03, "TE-CCL 129.03"),
    Figure("dgx_a100:nodes=1", Fraction(7, 300 * GB), 1.03, "ForestColl 342.86"),
    Figure("dgx_a100:nodes=2", Fraction(15, 325 * GB), 1.03, "ForestColl 346.67"),
    Figure("dgx_a100:nodes=4", Fraction(24, 200 * GB), 1.03, "ForestColl 266.67"),
    Figure("mi250:nodes=1", Fraction(14, 300 * GB), 1.04, "ForestColl 342.86"),
    Figure("mi250:nodes=2", Fraction(30, 332 * GB), 1.10, "ForestColl 354.13"),
    Figure(
        "mesh:shape=5x5,bandwidth=53687091200,latency=0.5us,overhead=0", Fraction(24, 100 * GIB), 1.01, "TACOS 9,606 µs"
    ),
    Figure(
        "torus:shape=3x3x3,bandwidth=53687091200,latency=0.5us,overhead=0",
        Fraction(26, 300 * GIB),
        1.01,
        "TACOS 3,706 µs",
    ),
    Figure(
        "torus:shape=3x4x5,bandwidth=53687091200,latency=0.5us,overhead=0",
        Fraction(59, 300 * GIB),
        1.01,
        "TACOS 6,677 µs",
        2 * GIB,
    ),
    Figure(
        "mesh:shape=10x10,bandwidth=107374182400,latency=1us,overhead=0",
        Fraction(99, 200 * GIB),
        1.01,
        "TACOS 5,049 µs",
    ),
    Figure("dgx_h100:nodes=16", Fraction(120, 400 * GB), 1.03),
    Figure("dgx_h100:nodes=128", Fraction(1016, 400 * GB), 1.03, "ForestColl: 1,024 GPUs in 36 min"),
)


def without_latency(topology: Topology) -> Topology:
    blocks = [replace(block, latency=0.0) for block in topology.links.blocks]
    return replace(topology, links=Links(blocks), overhead=0.0, reduction=inf)


def row(figure: Figure, collective: str, latency: bool, seconds: float) -> str:
    topology = find_topology(figure.topology)
    if not latency:
        topology = without_latency(topology)
    found = af.find(collective, topology, size=figure.size, seconds=seconds)
    bandwidths = [figure.size / time / GB for time in (found.bound, found.time)]
    return (
        f"{figure.topology.partition(',')[0]:22}{bandwidths[0]:9.2f}{bandwidths[1]:9.2f}{found.ratio:8.4f}"
        f"{found.time * 1e6:11,.0f}{found.method:>12}{found.schedule.chunks // found.schedule.ranks:7}"
        f"{found.schedule.steps:7,}{found.seconds:8.2f}{found.proving:8.2f}  {figure.published}"
    )


def run_here(ranks: int, size: int) -> None:
    """What was found for this machine, and every built-in algorithm, on this machine."""
    from allfold.price import topology_of_this_machine

    topology = topology_of_this_machine(ranks)
    for collective in ("all_gather", "all_reduce"):
        found = af.find(collective, topology, size=size)
        print(
            f"{collective} of {size:,} bytes, {ranks} ranks: found {found.schedule.title}, {found.time * 1e6:,.0f} µs"
        )
        choices = [found.schedule, *af.algorithms(collective)]
        times = af.spawn(timed, ranks, args=(collective, size, choices))[0]
        for choice, seconds in sorted(zip(choices, times, strict=True), key=lambda pair: pair[1]):
            name = choice if isinstance(choice, str) else f"{choice.title} (found)"
            print(f"  {name:40}{seconds * 1e6:11,.0f} µs")


def timed(comm: object, collective: str, size: int, choices: list[object]) -> list[float]:
    """The best of several calls of each, checked."""
    size_of_part = size // 4 // comm.size  # type: ignore[attr-defined]
    part = np.full(size_of_part, comm.rank + 1, np.float32)  # type: ignore[attr-defined]
    times = []
    for choice in choices:
        best = inf
        for _ in range(10):
            whole = np.repeat(part, comm.size)  # type: ignore[attr-defined]
            comm.barrier()  # type: ignore[attr-defined]
            start = time.perf_counter()
            if collective == "all_gather":
                comm.all_gather(part, whole, algorithm=choice)  # type: ignore[attr-defined]
            else:
                comm.all_reduce(whole, algorithm=choice)  # type: ignore[attr-defined]
            best = min(best, time.perf_counter() - start)
            total = comm.size * (comm.size + 1) / 2  # type: ignore[attr-defined]
            each = size_of_part if collective == "all_gather" else len(whole)
            assert float(whole.sum(dtype=np.float64)) == total * each, f"{choice} is wrong"
        times.append(best)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="T,…", help="these topologies, by the start of their name")
    parser.add_argument("--collective", default="all_gather")
    parser.add_argument("--latency", action="store_true", help="with latencies")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each search (default: 60)")
    parser.add_argument("--run", type=int, metavar="N", help="run what is found for N ranks of this machine")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, allfold {af.__version__}")
    if arguments.run is not None:
        run_here(arguments.run, 2**24)
        return 0
    print(f"{arguments.collective}; GB/s are the size of the result over the time; seconds to search and to prove")
    head = ("bound", "found", "ratio", "µs", "method", "chunks", "steps", "search", "proof")
    print(
        f"{'topology':22}"
        + "".join(f"{word:>{size}}" for word, size in zip(head, (9, 9, 8, 11, 12, 7, 7, 8, 8), strict=True))
    )
    for figure in FIGURES:
        wanted = arguments.only is None or any(figure.topology.startswith(one) for one in arguments.only.split(","))
        if wanted:
            print(row(figure, arguments.collective, arguments.latency, arguments.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
