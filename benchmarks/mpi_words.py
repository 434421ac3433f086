"""The same mpi4py program on allfold and on Open MPI (or MPICH): messages, and collectives on buffers.

    python benchmarks/mpi_words.py                                      2 ranks, five rounds in turns
    python benchmarks/mpi_words.py --ranks 4 --mpi ENVIRONMENT/bin/python
    python benchmarks/mpi_words.py --mpirun FOLDER/bin/mpirun           if it is not beside that Python

In every round, allfold and then MPI run the whole program. A figure is the median of the rounds, each the median of many
calls; the ratio is the median of the ratios of the rounds, MPI's time divided by allfold's. Only ratios mean anything on a
machine that does other work; with --bind, every rank of both stays on one core there. With --fresh, every rank writes what it
sends before every call, as programs do; that time counts, for both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
BLOCKS = 15
Row = tuple[str, int, float]


def rank(largest: int, bind: bool, fresh: bool) -> None:
    import numpy as np
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    world = MPI.COMM_WORLD
    me, size = world.rank, world.size
    if bind:
        cores = range(os.cpu_count() or 1)
        os.sched_setaffinity(0, {cores[me % len(cores)]})

    def measure(call: Callable[[], Any], bytes: int) -> float:
        turns = max(1, min(200, (4 << 20) // max(bytes, 1)))
        blocks = []
        call()
        for _ in range(BLOCKS if bytes < 1 << 24 else 5):
            world.Barrier()
            began = time.perf_counter()
            for _ in range(turns):
                call()
            blocks.append((time.perf_counter() - began) / turns)
        slowest = np.empty(size)
        world.Allgather(np.array([statistics.median(blocks)]), slowest)
        return float(slowest.max())

    rows: list[Row] = [("Barrier", 0, measure(world.Barrier, 0))]
    for bytes in (one for one in SIZES if one <= largest):
        many = bytes // 8
        own, other, parts = np.ones(many), np.ones(many), np.ones(max(size, many // size * size))
        into = np.ones(parts.size)
        part = np.ones(parts.size // size)
        sent = {"Allgather": part, "Gather": part, "Alltoall": parts, "Reduce_scatter_block": parts, "Scatter": into}

        def writing(call: Callable[[], Any], array: Any) -> Callable[[], Any]:
            def both() -> None:
                array.fill(1)
                call()

            return both if fresh else call

        def to_and_fro(own: Any = own, other: Any = other) -> None:
            if me == 0:
                world.Send(own, 1)
                world.Recv(other, 1)
            elif me == 1:
                world.Recv(other, 0)
                world.Send(own, 0)

        calls: dict[str, Callable[[], Any]] = {
            "Send/Recv": to_and_fro,
            "Isend/Irecv": lambda own=own, other=other: MPI.Request.Waitall(
                [world.Irecv(other, (me - 1) % size), world.Isend(own, (me + 1) % size)]
            ),
            "Bcast": lambda own=own: world.Bcast(own, 0),
            "Reduce": lambda own=own, other=other: world.Reduce(own, other),
            "Allreduce": lambda own=own, other=other: world.Allreduce(own, other),
            "Allreduce in place": lambda own=own: world.Allreduce(MPI.IN_PLACE, own, MPI.MAX),
            "Allgather": lambda part=part, into=into: world.Allgather(part, into),
            "Alltoall": lambda parts=parts, into=into: world.Alltoall(parts, into),
            "Reduce_scatter_block": lambda parts=parts, part=part: world.Reduce_scatter_block(parts, part),
            "Gather": lambda part=part, into=into: world.Gather(part, into),
            "Scatter": lambda part=part, into=into: world.Scatter(into, part),
            "Scan": lambda own=own, other=other: world.Scan(own, other),
        }
        rows += [(name, bytes, measure(writing(call, sent.get(name, own)), bytes)) for name, call in calls.items()]
        if bytes == 1 << 10:
            rows.append(("allreduce of an object", bytes, measure(lambda: world.allreduce(me), 4096)))
            rows.append(("bcast of an object", bytes, measure(lambda: world.bcast({"me": 1}), 4096)))
    if me == 0:
        print(json.dumps(rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=SIZES[-1], metavar="BYTES")
    parser.add_argument("--mpi", default=sys.executable, metavar="PYTHON", help="an environment with mpi4py and an MPI")
    parser.add_argument(
        "--mpirun", metavar="PATH", help="its launcher; without it, the one beside that Python, or on PATH"
    )
    parser.add_argument("--bind", action="store_true", help="keep every rank on one core")
    parser.add_argument("--fresh", action="store_true", help="write what is sent before every call")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments.largest, arguments.bind, arguments.fresh)
    flags = [f"--{name}" for name in ("bind", "fresh") if getattr(arguments, name)]
    own = [__file__, "--rank", "--largest", str(arguments.largest), *flags]
    many = str(arguments.ranks)
    allfold = [sys.executable, "-m", "allfold", "run", "-n", many, "--", sys.executable, "-m", "allfold.mpi4py", *own]
    mpirun = arguments.mpirun or shutil.which("mpirun", path=str(Path(arguments.mpi).parent)) or shutil.which("mpirun")
    if mpirun is None:
        parser.error(
            f"there is no mpirun beside {arguments.mpi}: make bench-peers installs one; --mpirun names another"
        )
    mpi = (
        subprocess.run([mpirun, "--version"], check=True, capture_output=True, text=True).stdout.strip().splitlines()[0]
    )
    options = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in mpi else []
    theirs = [mpirun, "-n", many, *options, arguments.mpi, *own]
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(arguments.rounds):
        found = []
        for command in (allfold, theirs):
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found.append({(name, size): took for name, size, took in json.loads(output.strip().splitlines()[-1])})
        for key, took in found[0].items():
            times.setdefault(key, []).append((took, found[1][key]))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    cores, day = len(os.sched_getaffinity(0)), time.strftime("%Y-%m-%d")
    print(f"# {mpi}; {many} ranks, {arguments.rounds} rounds, {cores} cores, load {load}, {day}")
    print(f"{'call':<24} {'bytes':>10} {'allfold µs':>12} {'MPI µs':>12} {'MPI ÷ allfold':>14}")
    for (name, size), pairs in times.items():
        ours, others = (statistics.median(pair[which] for pair in pairs) * 1e6 for which in (0, 1))
        ratio = statistics.median(other / our for our, other in pairs)
        print(f"{name:<24} {size:>10} {ours:>12.2f} {others:>12.2f} {ratio:>14.2f}")


if __name__ == "__main__":
    main()
