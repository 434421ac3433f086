"""How long the simulation takes: regular schedules, and such as have no symmetry to use.

python benchmarks/simulation.py                   # all rows below
python benchmarks/simulation.py --only ring       # those whose algorithm is that
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
from allfold.price.simulate.noise import Noise
from allfold.price.simulate.simulate import simulate
from allfold.price.topology.parse import find_topology

# algorithm, ranks, topology, segments, noise
ROWS = [
    ("ring", 1024, "fat_tree", 1, 0.0),
    ("ring", 1024, "dgx_h100", 1, 0.0),
    ("ring", 1024, "ring", 1, 0.0),
    ("ring", 256, "fat_tree", 1, 0.1),
    ("ring", 512, "fat_tree", 1, 0.1),
    ("halving_doubling", 1024, "fat_tree", 1, 0.0),
    ("double_tree", 256, "fat_tree", 64, 0.1),
    ("naive", 64, "fat_tree", 1, 0.0),
    ("naive", 1024, "one_host", 1, 0.0),
]


def measure(algorithm: str, ranks: int, topology: str, segments: int, noise: float) -> dict[str, float]:
    """One row, in its own process, so that the peak of memory is its own too."""
    wall, begin = time.perf_counter(), time.process_time()
    schedule = af.schedule("all_reduce", algorithm, ranks)
    built = time.process_time()
    timeline = simulate(
        schedule, find_topology(topology, ranks), 1 << 30, segments, Noise(noise, noise) if noise else None
    )
    return {
        "messages": timeline.messages,
        "build": built - begin,
        "simulate": time.process_time() - built,
        "wall": time.perf_counter() - wall,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "duration": timeline.duration,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="A", help="rows of this algorithm")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return 0
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}; all_reduce of 1 GiB")
    print("seconds of processor time (wall: of the clock, which other work on the machine lengthens)")
    head = ("algorithm", "ranks", "topology", "segments", "noise", "messages", "build", "simulate", "wall", "peak GiB")
    print("{:18}{:>6} {:10}{:>9}{:>7}{:>10}{:>8}{:>10}{:>8}{:>10}  µs a message".format(*head))
    for row in ROWS:
        if arguments.only not in (None, row[0]):
            continue
        command = [sys.executable, __file__, "--one", json.dumps(row)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        numbers = f"{found['messages']:10d}{found['build']:8.1f}{found['simulate']:10.1f}{found['wall']:8.1f}"
        each = found["simulate"] / found["messages"] * 1e6
        print(
            f"{row[0]:18}{row[1]:6d} {row[2]:10}{row[3]:9d}{row[4]:7.1f}{numbers}{found['peak GiB']:10.2f}{each:14.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
