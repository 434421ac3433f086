"""The same all_reduce in allfold's simulation and in SimGrid's SMPI, on the same platform.

apt-get install simgrid libsimgrid-dev             # Debian's packages: smpicc and smpirun
python benchmarks/simgrid/compare.py               # every number of ranks, size and setting below
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from math import inf
from pathlib import Path

import allfold as af
from allfold.price.simulate.simulate import simulate
from allfold.price.topology.machines import one_host

BANDWIDTH, LATENCY = 1.25e9, 5e-6  # per port; a route has two
SIZES = [1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 26]
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="all" routing="Full">
    <cluster id="cluster" prefix="rank" suffix="" radical="0-{last}" speed="1Gf"
             bw="{bandwidth}Bps" lat="{latency}s" sharing_policy="SPLITDUPLEX"/>
  </zone>
</platform>
"""
QUIET = ["--log=root.thres:critical", "--cfg=smpi/simulate-computation:no", "--cfg=smpi/privatization:dlopen"]
PLAIN = [
    "--cfg=network/model:CM02",  # no empirical factors on latency and bandwidth
    "--cfg=network/TCP-gamma:0",  # no TCP window
    "--cfg=network/crosstraffic:0",  # no acknowledgements on the way back
    *(f"--cfg=smpi/{what}:0:0:0:0:0" for what in ("os", "ois", "or")),  # no CPU time per message
]
# SMPI's name of an algorithm (None: our own ring of sends and receives) and ours.
PAIRS = [(None, "ring"), ("lr", "ring"), ("rdb", "recursive_doubling"), ("rab_rdb", "halving_doubling")]


def simgrid(program: Path, ranks: int, algorithm: str | None, settings: list[str]) -> dict[int, float]:
    folder = program.parent
    platform, hosts = folder / "platform.xml", folder / "hosts"
    platform.write_text(PLATFORM.format(last=ranks - 1, bandwidth=BANDWIDTH, latency=LATENCY))
    hosts.write_text("".join(f"rank{rank}\n" for rank in range(ranks)))
    chosen = [f"--cfg=smpi/allreduce:{algorithm}"] if algorithm else []
    command = ["smpirun", "-np", str(ranks), "-platform", str(platform), "-hostfile", str(hosts)]
    words = [*command, *QUIET, *settings, *chosen, str(program), "own" if algorithm else "ring", *map(str, SIZES)]
    out = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout
    rows = (line.split() for line in out.splitlines() if line[:1].isdigit())
    return {int(size): float(seconds) for size, seconds in rows}


def ours(ranks: int, algorithm: str) -> dict[int, float]:
    topology = one_host(ranks, BANDWIDTH, LATENCY, inf, overhead=0.0, reduction=inf)
    schedule = af.schedule("all_reduce", algorithm, ranks)
    return {size: simulate(schedule, topology, size).duration for size in SIZES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4,8,16")
    arguments = parser.parse_args()
    version = subprocess.run(["smpirun", "--version"], capture_output=True, text=True).stdout.splitlines()
    print(version[0] if version else "SimGrid", f"; ports of {BANDWIDTH / 1e9} GB/s and {LATENCY * 1e6} µs")
    print("µs; in brackets SMPI ÷ allfold")
    print(f"{'ranks':>5} {'algorithm':22} {'bytes':>9} {'allfold':>11} {'SMPI, plain':>20} {'SMPI, as it comes':>20}")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "allreduce"
        source = Path(__file__).parent / "allreduce.c"
        subprocess.run(["smpicc", "-O2", str(source), "-o", str(program)], check=True)
        for ranks in map(int, arguments.ranks.split(",")):
            for theirs, name in PAIRS:
                mine = ours(ranks, name)
                plain, usual = (simgrid(program, ranks, theirs, settings) for settings in (PLAIN, []))
                for size in SIZES:
                    words = [f"{one[size] * 1e6:12.1f} ({one[size] / mine[size]:.3f})" for one in (plain, usual)]
                    title = f"{name} / {theirs or 'send, recv'}"
                    print(f"{ranks:5} {title:22} {size:9} {mine[size] * 1e6:11.1f} {words[0]:>20} {words[1]:>20}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
