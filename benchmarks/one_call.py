"""The processor time of a small all_reduce on its thread: plain, with an empty kernel in Python, checked, and recorded.

Run it on any machine: python benchmarks/one_call.py [--rounds 100]. One rank, gloo, 8 floats. The kernel, the check and the
record take turns in one process; the plain calls have a process of their own, because the kernel stays once it is registered.
It prints the least of all rounds in microseconds, and what the check and the record add to the kernel. The kernel is the
bound of whatever is written in Python: torch makes Python objects of a call's arguments, and converts them back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

CALLS, WARM_CALLS = 200, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--watched", choices=("yes", "no"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watched:
        print(json.dumps(measured(arguments.rounds)))
        return
    least: dict[str, float] = {}
    for watched in ("no", "yes"):
        with tempfile.TemporaryDirectory() as folder:
            variables = {"ALLFOLD_CHECK": "1", "ALLFOLD_RECORD": folder} if watched == "yes" else {}
            words = [sys.executable, __file__, "--rounds", str(arguments.rounds), "--watched", watched]
            said = subprocess.run(words, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
        least |= json.loads(said.stdout)
    for way, found in least.items():
        added = "" if way == "plain" else f"  +{found - least['plain' if way == 'kernel' else 'kernel']:.1f}"
        print(f"{way:7} {found:6.1f} µs{added}")


def measured(rounds: int) -> dict[str, float]:
    """Microseconds per call, by way."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    own_wait = dist.Work.wait
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from allfold.intercept import dispatch

    small, watchers, wait = torch.ones(8), dict(dispatch._watchers), dist.Work.wait
    ways = ["kernel", *watchers] if watchers else ["plain"]
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for way in ways:
            for name, watcher in watchers.items():
                dispatch.watch(name, watcher if name == way else None)
            dist.Work.wait = wait if way in watchers else own_wait
            for _ in range(WARM_CALLS):
                dist.all_reduce(small)
            begin = time.thread_time()
            for _ in range(CALLS):
                dist.all_reduce(small)
            least[way] = min(least[way], (time.thread_time() - begin) / CALLS * 1e6)
    dist.destroy_process_group()
    return least


if __name__ == "__main__":
    main()
