"""How building, proving and compiling a schedule grow with the number of ranks.

python benchmarks/growth.py                       # ring, naive, halving_doubling up to 1,024 ranks
python benchmarks/growth.py --algorithms swing --ranks 64,128,256
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import allfold as af
from allfold.programs.check import check
from allfold.programs.compile import compile


def measure(algorithm: str, ranks: int) -> dict[str, float]:
    """One row, in its own process, so that the peak of memory is its own too."""
    times = [time.perf_counter()]

    def lap() -> None:
        times.append(time.perf_counter())

    schedule = af.schedule("all_reduce", algorithm, ranks)
    lap()
    af.verify(schedule, programs=False)
    lap()
    programs = compile(schedule)
    lap()
    check(programs)
    lap()
    names = ("build", "prove", "compile", "check programs")
    spans = {name: end - start for name, start, end in zip(names, times, times[1:], strict=False)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"ranks": ranks, "moves": schedule.moves, **spans, "peak GiB": peak}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", default="ring,naive,halving_doubling")
    parser.add_argument("--ranks", default="16,64,256,512,1024")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return 0
    rows = []
    if not arguments.json:
        print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, seconds; all_reduce")
        print(
            f"{'algorithm':18}{'ranks':>6}{'moves':>10}{'build':>9}{'prove':>9}{'compile':>9}{'check':>9}{'peak GiB':>10}"
        )
    for algorithm in arguments.algorithms.split(","):
        for ranks in arguments.ranks.split(","):
            command = [sys.executable, __file__, "--one", algorithm, ranks]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"algorithm": algorithm, **row})
            if not arguments.json:
                spans = "".join(f"{row[name]:9.3f}" for name in ("build", "prove", "compile", "check programs"))
                print(f"{algorithm:18}{row['ranks']:6d}{row['moves']:10d}{spans}{row['peak GiB']:10.2f}", flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
