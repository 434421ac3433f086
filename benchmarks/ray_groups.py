"""Collectives between Ray actors on this machine: groups of allfold, and Ray's own on gloo, in turns.

    python benchmarks/ray_groups.py                     # 2 and 4 actors on one host
    python benchmarks/ray_groups.py --hosts 2           # on two simulated hosts, which share no memory
    python benchmarks/ray_groups.py --collectives allreduce,allgather --sizes 8,64K

Needs ray and torch. The actors are in a group of each, and take turns, size by size and round by round. A turn takes as
long as it takes the slowest actor; figures are medians over the rounds. The size is that of the array of one actor (in
allgather and reducescatter, of one array in the list).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from typing import Any

import numpy as np
import ray
from ray.util import collective

import allfold
import allfold.ray
from allfold.wording import format_size, parse_sizes

GROUPS = {"gloo": "default", "allfold": "allfold"}  # the names of the groups, by backend
COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reducescatter", "barrier")
TURN_SECONDS = 0.1  # about as long as one turn takes


@ray.remote(num_cpus=0)
class Member:
    def join(self, rank: int, size: int) -> None:
        import allfold.ray  # registers the backend in this process

        assert allfold.ray
        self.rank, self.size = rank, size
        for backend, name in GROUPS.items():
            collective.init_collective_group(size, rank, backend, name)

    def turn(self, what: str, backend: str, bytes: int, repeats: int) -> float:
        """Seconds per call, after one that is not counted."""
        group = GROUPS[backend]
        x = np.ones(max(1, bytes // 4), np.float32)
        listed = [np.ones_like(x) for _ in range(self.size)] if what in ("allgather", "reducescatter") else []
        call: Any = {
            "allreduce": lambda: collective.allreduce(x, group),
            "reduce": lambda: collective.reduce(x, 0, group),
            "broadcast": lambda: collective.broadcast(x, 0, group),
            "allgather": lambda: collective.allgather(listed, x, group),
            "reducescatter": lambda: collective.reducescatter(x, listed, group),
            "barrier": lambda: collective.barrier(group),
        }[what]
        call()
        collective.barrier(group)
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        collective.barrier(group)  # a root of a broadcast may be far ahead
        return (time.perf_counter() - began) / repeats


def measure(members: list[Any], what: str, bytes: int, rounds: int) -> dict[str, float]:
    def turn(backend: str, repeats: int) -> float:
        return max(ray.get([member.turn.remote(what, backend, bytes, repeats) for member in members]))

    repeats = {backend: max(1, min(2000, int(TURN_SECONDS / turn(backend, 2)))) for backend in GROUPS}
    times: dict[str, list[float]] = {backend: [] for backend in GROUPS}
    for number in range(rounds):
        for backend in (*GROUPS,) if number % 2 else reversed((*GROUPS,)):
            times[backend].append(turn(backend, repeats[backend]))
    return {backend: statistics.median(found) for backend, found in times.items()}


def in_words(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", default="2,4")
    parser.add_argument("--hosts", type=int, default=1, help="simulated hosts that the actors are divided among")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", default="8,64K,4M,64M")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        print(
            f"ray {ray.__version__}, allfold {allfold.__version__}, {platform.machine()}, {os.cpu_count()} cores, float32"
        )
        print(f"{'actors':>6} {'hosts':>5} {'collective':14}{'size':>6}{'gloo':>12}{'allfold':>12}{'× gloo':>8}")
        for count in map(int, arguments.actors.split(",")):
            members = [
                Member.options(
                    runtime_env={"env_vars": {"ALLFOLD_HOSTID": f"host{rank * arguments.hosts // count}"}}
                ).remote()
                for rank in range(count)
            ]
            ray.get([member.join.remote(rank, count) for rank, member in enumerate(members)])
            for what in arguments.collectives.split(","):
                for bytes in [0] if what == "barrier" else parse_sizes(arguments.sizes):
                    found = measure(members, what, bytes, arguments.rounds)
                    print(
                        f"{count:6} {arguments.hosts:5} {what:14}{'' if what == 'barrier' else format_size(bytes):>6}"
                        f"{in_words(found['gloo']):>12}{in_words(found['allfold']):>12}{found['gloo'] / found['allfold']:8.1f}",
                        flush=True,
                    )
            for member in members:
                ray.kill(member)
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
