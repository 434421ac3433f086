"""Processor time of one small call of mpi4py's API, with one rank: on allfold, and on an MPI.

    python benchmarks/mpi_one_call.py [--rounds 3] [--mpi ENVIRONMENT/bin/python]

With one rank nothing waits, so this is what a call costs its processor. Both take turns. A figure is the least of all
rounds, in microseconds per call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS, BLOCKS = 1000, 7


def rank() -> None:
    import numpy as np
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    world = MPI.COMM_WORLD
    own, other = np.ones(1), np.ones(1)
    message = {"step": 1, "loss": 0.5}

    def to_itself() -> None:
        world.Isend(own, 0)
        world.Recv(other, 0)

    def with_objects() -> None:
        world.isend(message, 0)
        world.recv(None, 0)

    calls: dict[str, Callable[[], Any]] = {
        "Barrier": world.Barrier,
        "Bcast": lambda: world.Bcast(own, root=0),
        "Reduce": lambda: world.Reduce(own, other, op=MPI.SUM, root=0),
        "Allreduce in place": lambda: world.Allreduce(MPI.IN_PLACE, own),
        "Allreduce": lambda: world.Allreduce(own, other),
        "Allreduce [array, type]": lambda: world.Allreduce([own, MPI.DOUBLE], [other, MPI.DOUBLE], op=MPI.MAX),
        "Allgather": lambda: world.Allgather(own, other),
        "Alltoall": lambda: world.Alltoall(own, other),
        "Gather": lambda: world.Gather(own, other, root=0),
        "Scatter": lambda: world.Scatter(own, other, root=0),
        "Reduce_scatter_block": lambda: world.Reduce_scatter_block(own, other),
        "Scan": lambda: world.Scan(own, other),
        "Isend, Recv": to_itself,
        "Sendrecv": lambda: world.Sendrecv(own, dest=0, recvbuf=other, source=0),
        "Irecv, Isend, Waitall": lambda: MPI.Request.Waitall([world.Irecv(other, 0), world.Isend(own, 0)]),
        "isend, recv of a dict": with_objects,
        "bcast of a number": lambda: world.bcast(1, root=0),
        "allreduce of a number": lambda: world.allreduce(1),
        "allgather of a dict": lambda: world.allgather(message),
    }
    print(json.dumps({name: measured(call) for name, call in calls.items()}))


def measured(call: Callable[[], Any]) -> float:
    found = []
    for _ in range(BLOCKS):
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        found.append((time.thread_time() - began) / CALLS * 1e6)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mpi", default=sys.executable, metavar="PYTHON", help="an environment with mpi4py and an MPI")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank()
    commands = {
        "allfold": [sys.executable, "-m", "allfold.mpi4py", __file__, "--rank"],
        "MPI": [arguments.mpi, __file__, "--rank"],
    }
    least: dict[str, dict[str, float]] = {way: {} for way in commands}
    for _ in range(arguments.rounds):
        for way, command in commands.items():
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for name, took in json.loads(output.strip().splitlines()[-1]).items():
                least[way][name] = min(took, least[way].get(name, took))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"# {arguments.rounds} rounds, load {load}, {time.strftime('%Y-%m-%d')}")
    print(f"{'call':<26} {'allfold µs':>11} {'MPI µs':>8}")
    for name, took in least["allfold"].items():
        print(f"{name:<26} {took:>11.2f} {least['MPI'][name]:>8.2f}")


if __name__ == "__main__":
    main()
