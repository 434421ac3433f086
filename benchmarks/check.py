"""The cost of `allfold run --check`: small calls and steps of DDP, plain, checked and with torch's own DETAIL, in turns.

Run it with one core per rank: python benchmarks/check.py [--ranks 2] [--rounds 7]. The plain and the checked measurement
alternate in one process, in which the check is switched off and on. DETAIL is a mode of a whole process, so its processes
alternate with those without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from intercepted import in_turns, workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        measure(arguments.rounds)
        return
    for detail in (False, True):
        variables = {"ALLFOLD_CHECK": "0" if detail else "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL" if detail else "OFF"}
        command = [sys.executable, "-m", "allfold", "run", "-n", str(arguments.ranks), __file__, "--rank"]
        ended = subprocess.run(
            [*command, "--rounds", str(arguments.rounds)], env=os.environ | variables | {"OMP_NUM_THREADS": "1"}
        )
        if detail and ended.returncode > 128:  # torch 2.13 on CPUs: DDP with DETAIL crashes without allfold, too
            print("torch crashed in DDP with TORCH_DISTRIBUTED_DEBUG=DETAIL: no figures of it", file=sys.stderr)
        elif ended.returncode:
            raise SystemExit(ended.returncode)


def measure(rounds: int) -> None:
    """One rank's part; rank 0 prints medians in microseconds."""
    import torch.distributed as dist

    own_wait = dist.Work.wait
    dist.init_process_group("gloo")
    detail = os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
    names = ["DETAIL"] if detail else ["plain", "checked"]
    for what, work, count in workloads():
        times = in_turns("check", work, count, rounds, names, own_wait)
        medians = {name: round(statistics.median(found), 1) for name, found in times.items()}
        added = [b - a for a, b in zip(times[names[0]], times[names[-1]], strict=True)]
        if dist.get_rank() == 0:
            print(json.dumps({"what": what, "us": medians, "added": round(statistics.median(added), 1)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
