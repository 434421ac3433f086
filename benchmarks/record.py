"""The cost of `allfold record`: steps of DDP and small calls, plain and recorded, in turns in one process.

Run it with one core per rank: python benchmarks/record.py [--ranks 2] [--rounds 9] [--keep digests]. It prints medians in
microseconds, and what recording adds in percent: the median of the differences between neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from intercepted import in_turns, workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", default="digests", help="digests, window=CALLS or all (default: digests)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        measure(arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "allfold", "run", "-n", str(arguments.ranks), __file__, "--rank"]
        variables = {"ALLFOLD_RECORD": folder, "ALLFOLD_RECORD_KEEP": arguments.keep, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--rounds", str(arguments.rounds)], env=os.environ | variables, check=True)


def measure(rounds: int) -> None:
    """One rank's part; rank 0 prints."""
    import torch.distributed as dist

    own_wait = dist.Work.wait
    dist.init_process_group("gloo")
    for what, work, count in workloads():
        times = in_turns("record", work, count, rounds, ["plain", "recorded"], own_wait)
        medians = {name: round(statistics.median(found), 1) for name, found in times.items()}
        added = statistics.median(b - a for a, b in zip(times["plain"], times["recorded"], strict=True))
        if dist.get_rank() == 0:
            percent = round(100 * added / medians["plain"], 1)
            print(json.dumps({"what": what, "us": medians, "added": round(added, 1), "percent": percent}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
