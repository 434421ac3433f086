"""The processor time of a small all_reduce on its thread: plain, with an empty kernel in Python, checked, and recorded.

Run it on any machine: python benchmarks/one_call.py [--rounds 5]. One rank, gloo, 8 floats; a process per way, in turns. It
prints the least of all rounds in microseconds, and what each way adds to the plain call. The kernel is the bound of whatever is
written in Python: torch makes Python objects of a call's arguments, and converts them back.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

CALLS, REPEATS = 500, 20
WAYS = ("plain", "kernel", "checked", "recorded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(measured(arguments.way))
        return
    least = dict.fromkeys(WAYS, float("inf"))
    for number in range(arguments.rounds):
        for way in WAYS[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                variables = {"ALLFOLD_CHECK": "1"} if way == "checked" else {}
                variables |= {"ALLFOLD_RECORD": folder} if way == "recorded" else {}
                words = [sys.executable, __file__, "--way", way]
                said = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=True)
            least[way] = min(least[way], float(said.stdout))
    for way, found in least.items():
        print(f"{way:9} {found:6.1f} µs  +{found - least['plain']:.1f}")


def measured(way: str) -> float:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if way == "kernel":
        from allfold.intercept import dispatch

        dispatch.watch("check", lambda made, go: go())
        dispatch.watch("check", None)
    small = torch.ones(8)
    found = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        for _ in range(CALLS):
            dist.all_reduce(small)
        found.append((time.thread_time() - begin) / CALLS * 1e6)
    dist.destroy_process_group()
    return min(found)


if __name__ == "__main__":
    main()
