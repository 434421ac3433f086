"""all_reduce on every rank by MPI, measured as in timing.py, in a run of its own.

timing_mpi.py SIZES ROUNDS
"""

from __future__ import annotations

import sys
import time
from importlib import import_module

import numpy as np
from report import say, say_here
from timing import MOST_CALLS, TURN_SECONDS


def main(sizes: str, rounds: str) -> int:
    say_here()
    mpi = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    say("library", version=mpi.Get_library_version().partition("\n")[0].partition(",")[0])
    for size in map(int, sizes.split(",")):
        array, seconds = np.empty(size // 4, np.float32), 0.0
        for _ in range(2):
            array.fill(world.rank + 1)
            world.Barrier()
            began = time.perf_counter()
            world.Allreduce(mpi.IN_PLACE, array)
            seconds = time.perf_counter() - began
            assert (array == world.size * (world.size + 1) / 2).all()
        calls = world.bcast(max(1, min(MOST_CALLS, int(TURN_SECONDS / seconds))))
        times = []
        for _ in range(int(rounds)):
            array.fill(0)
            world.Barrier()
            began = time.perf_counter()
            for _ in range(calls):
                world.Allreduce(mpi.IN_PLACE, array)
            times.append((time.perf_counter() - began) / calls)
        slowest = [max(turn) for turn in zip(*world.allgather(times), strict=True)]
        say("times", size=size, seconds={"openmpi": slowest}, calls={"openmpi": calls})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
