"""The processor time that compiling each source of the last build takes, and the ratio of the engine's to nanobind's.

Compiles every source again, one after the other and without ccache. Of several rounds it takes the least time of each.
Times vary with what else runs: beside a busy machine's other programs they double. Compare the ratio only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources(build: Path) -> dict[str, list[str]]:
    """Each source with the command that compiles it."""
    ninja = [str(Path(sys.executable).parent / "ninja"), "-C", str(build), "-t", "compdb"]
    entries = json.loads(subprocess.run(ninja, check=True, capture_output=True).stdout)
    found = {entry["file"]: shlex.split(entry["command"]) for entry in entries if " -c " in entry["command"]}
    return {file: command[Path(command[0]).name == "ccache" :] for file, command in found.items()}


def seconds(command: list[str], build: Path) -> float:
    """The processor time of the command, with everything that it starts."""
    # Where the results go, so that ninja finds everything as it left it.
    elsewhere = {"-o": "/dev/null", "-MF": "/dev/null"}
    command = [elsewhere.get(before, word) for before, word in zip(["", *command], command, strict=False)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=build, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="compile each source this often (default: 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only sources with this in their path")
    arguments = parser.parse_args()
    build = max(ROOT.glob("build/cp*/build.ninja"), key=lambda file: file.stat().st_mtime).parent
    commands = {file: command for file, command in sources(build).items() if arguments.only in file}
    os.nice(10)
    times: dict[str, list[float]] = {file: [] for file in commands}
    for number in range(arguments.rounds):
        # In another order each time: what else runs changes while one after the other is compiled.
        for file, command in random.sample(list(commands.items()), len(commands)):
            times[file].append(seconds(command, build))
            print(f"round {number + 1}: {times[file][-1]:6.2f} s  {Path(file).name}", file=sys.stderr, flush=True)
    totals = {"engine": 0.0, "nanobind": 0.0}
    for file, command in commands.items():
        totals["nanobind" if "/nanobind/" in file else "engine"] += min(times[file])
        flags = " ".join(word for word in command if word.startswith(("-O", "-m")))
        print(f"{min(times[file]):6.2f} s  {'/'.join(Path(file).parts[-2:]):28} {flags}")
    for name, total in totals.items():
        print(f"{total:6.2f} s  {name}")
    if totals["nanobind"]:
        print(f"{totals['engine'] / totals['nanobind']:6.2f}    engine ÷ nanobind")


if __name__ == "__main__":
    main()
