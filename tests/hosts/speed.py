"""How long all_reduce of float32 takes between hosts of a laboratory: allfold and gloo in turns. Needs root.

    python tests/hosts/speed.py                               2 hosts × 4 ranks at 10 Gbit/s, 2 × 2 at 1 Gbit/s
    python tests/hosts/speed.py --shapes 4x2@10gbit --mpi     another shape, and Open MPI, in runs of its own in between
    python tests/hosts/speed.py --backends gloo --json

The backends have process groups in the same processes and take turns, size by size and round by round; a turn takes as
long as it takes the slowest rank. Figures are medians over the rounds; "× gloo" is the median, over the rounds, of gloo's
time divided by the other's. "Simulated" is what `allfold simulate` says of what allfold does, on the hosts as a topology
with the figures that `allfold tune` fits to what it measures after the rounds. "Wire" is the time in which the slowest
cable could carry what it must, 2(H−1)/H of the array for H hosts; the kernels of a laboratory's hosts share this
machine's cores, so small arrays have no such limit.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import launchers
import numpy as np
from checking import INTERFACE, RANKS
from lab import Lab, bits_per_second, missing
from processes import Result

from allfold.bench.environment import describe_environment, environment_lines
from allfold.engines.islands.crossing import BUILT_IN
from allfold.price.simulate.simulate import simulate
from allfold.price.topology.topology import Topology
from allfold.registry import schedule
from allfold.tune.hosts import HostsRun, fitted

SHAPES = "2x4@10gbit,2x2@1gbit"
SIZES = "8,4K,64K,1M,16M,64M"
RUN_SECONDS = 900.0
OPEN_MPI = ("--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "mpi_yield_when_idle", "1")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Shape:
    hosts: int
    ranks: int  # per host
    rate: str | None

    @classmethod
    def parse(cls, text: str) -> Shape:
        found = re.fullmatch(r"(\d+)x(\d+)(?:@(\w+))?", text)
        if found is None:
            raise SystemExit(f"a shape is written like 2x4@10gbit (hosts, ranks per host, rate), and {text!r} is not")
        return cls(int(found[1]), int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.hosts} hosts × {self.ranks} ranks, {self.rate or 'no limit'}"

    def wire(self, size: int) -> float | None:
        if self.rate is None or self.hosts == 1:
            return None
        return 2 * (self.hosts - 1) / self.hosts * size * 8 / bits_per_second(self.rate)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, help=f"HOSTSxRANKS[@RATE], separated by commas (default: {SHAPES})")
    parser.add_argument("--sizes", default=SIZES, help=f"in bytes, separated by commas (default: {SIZES})")
    parser.add_argument("--backends", default="allfold,gloo", help="of torch (default: allfold,gloo)")
    parser.add_argument("--mpi", action="store_true", help="Open MPI too (make bench-peers), in runs of its own")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each backend per size in a run (default: 7)")
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of the backends, and of Open MPI in between (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    options = parser.parse_args(arguments)
    if reason := missing():
        print(f"tests/hosts/speed.py {reason}", file=sys.stderr)
        return 2
    shapes = [Shape.parse(text) for text in options.shapes.split(",")]
    sizes, backends = [_bytes(text) for text in options.sizes.split(",")], options.backends.split(",")
    most = max(shape.hosts * shape.ranks for shape in shapes)
    facts = describe_environment(most, {"torch": _torch_version()})
    if not options.json:
        print("\n".join(environment_lines(facts)).replace(" bench,", " between hosts,"), flush=True)
    tables, failed = [], False
    for shape in shapes:
        table = measure(shape, sizes, backends, options.rounds, options.runs, options.mpi)
        failed |= bool(table["failures"])
        tables.append(table)
        if not options.json:
            _print(table)
    if options.json:
        print(json.dumps({"environment": facts, "tables": tables}, indent=1))
    return int(failed)


def measure(
    shape: Shape, sizes: Sequence[int], backends: Sequence[str], rounds: int, turns: int, mpi: bool
) -> dict[str, Any]:
    """Per size, the seconds of every turn of every backend; and what failed, in sentences."""
    every = ",".join(map(str, sizes))
    with Lab(hosts=shape.hosts, rate=shape.rate) as lab:
        spread = [shape.ranks] * shape.hosts
        environment = {INTERFACE: "eth0"}  # gloo does not find out by itself
        runs = []
        for _ in range(turns):
            given = [",".join(backends), every, str(rounds)]
            runs.append(lab.run(launchers.ranks, RANKS / "timing.py", spread, environment, RUN_SECONDS, given))
            if mpi:
                given = [every, str(rounds)]
                launcher = launchers.mpirun(OPEN_MPI)
                runs.append(lab.run(launcher, RANKS / "timing_mpi.py", spread, None, RUN_SECONDS, given))
    rows: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    failures = []
    topology = None
    for run in runs:
        for line in run.reports.get(0, ()):
            if line["event"] == "times":
                for name, seconds in line["seconds"].items():
                    rows[line["size"]].setdefault(name, []).extend(seconds)
            if line["event"] == "tuned":
                topology = fitted(HostsRun.from_json(line["run"])).topology()
            if line["event"] == "missing":
                failures.append(f"{line['backend']}: {line['text']}")
        failures += _failure(run)
    return {
        "shape": str(shape),
        "rows": [
            {"bytes": size, "seconds": found, "simulated": _simulated(size, topology), "wire": shape.wire(size)}
            for size, found in rows.items()
        ],
        "topology": None if topology is None else topology.to_json(),
        "failures": failures,
    }


def _simulated(size: int, topology: Topology | None) -> float | None:
    """The seconds of what allfold does by default, simulated."""
    if topology is None:
        return None
    islands = [np.flatnonzero(topology.host == host).tolist() for host in range(int(topology.host.max()) + 1)]
    name, parameters = BUILT_IN.schedule("all_reduce", islands, size)
    made = schedule("all_reduce", name, topology.ranks, **parameters)
    return simulate(made, topology, size, segments=BUILT_IN.segments(size)).duration


def _failure(run: Result) -> list[str]:
    return [] if run.good else [run.complaint]


# What is printed ------------------------------------------------------------------------------------------------------


def _print(table: dict[str, Any]) -> None:
    names = list(dict.fromkeys(name for row in table["rows"] for name in row["seconds"]))
    others = [name for name in names if name != "gloo"] if "gloo" in names else []
    print(f"\n{table['shape']}: µs per all_reduce of float32, median")
    head = [f"{'bytes':>10}", *(f"{name:>12}" for name in names), *(f"{name + ' × gloo':>16}" for name in others)]
    print(" ".join([*head, f"{'simulated':>10} {'÷ allfold':>10} {'wire':>10}"]))
    for row in table["rows"]:
        seconds = row["seconds"]
        cells = [f"{row['bytes']:>10}"]
        cells += [
            f"{statistics.median(seconds[name]) * 1e6:>12.0f}" if name in seconds else f"{'–':>12}" for name in names
        ]
        cells += [f"{_times_faster(seconds, name):>16}" for name in others]
        wire = f"{row['wire'] * 1e6:>10.0f}" if row["wire"] is not None else f"{'–':>10}"
        simulated, share = f"{'–':>10}", f"{'–':>10}"
        if row["simulated"] is not None and "allfold" in seconds:
            simulated = f"{row['simulated'] * 1e6:>10.0f}"
            share = f"{row['simulated'] / statistics.median(seconds['allfold']):>10.2f}"
        print(" ".join([*cells, simulated, share, wire]))
    if "openmpi" in names:
        print("openmpi had runs of its own, each after one of the others")
    for sentence in table["failures"]:
        print(sentence)
    sys.stdout.flush()


def _times_faster(seconds: dict[str, list[float]], name: str) -> str:
    if name not in seconds or "gloo" not in seconds:
        return "–"
    ratios = [theirs / ours for theirs, ours in zip(seconds["gloo"], seconds[name], strict=True)]
    return f"{statistics.median(ratios):.2f}"


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if found is None or int(found[1]) * _UNITS[found[2]] % 4:
        raise SystemExit(f"a size is written like 8, 64K or 16M, of whole float32, and {text!r} is not")
    return int(found[1]) * _UNITS[found[2]]


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
