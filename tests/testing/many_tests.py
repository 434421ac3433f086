"""A thousand tests with ranks under `pytest -n 4`, of which some fail, crash, exit or hang. Every outcome is compared.

    python tests/testing/many_tests.py [--tests 1000] [--workers 4] [--seed 0]

`make test-many-ranks` runs this. The exit status is 1 if a test ends otherwise than it should, if the run is stuck, or if
processes are left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

_PR_SET_CHILD_SUBREAPER = 36
_SECONDS = 3600  # by then the run is stuck

HEAD = """
import ctypes, os, subprocess, time
import numpy as np
import pytest
import torch
import torch.distributed as dist

def of_torch():
    x = torch.ones(8)
    dist.all_reduce(x)
    assert x.tolist() == [float(dist.get_world_size())] * 8

def of_allfold(comm):
    x = np.full(8, comm.rank)
    comm.all_reduce(x)
    assert x.tolist() == [sum(range(comm.size))] * 8
"""
# The mark's options, the arguments, and the statement of each kind; what a failure says; how often it is chosen.
KINDS = {
    "plain": ("timeout=300", "comm, rank", "of_allfold(comm)", "", 30),
    "kept": ("timeout=300, keep=True", "comm, rank", "of_allfold(comm)", "", 12),
    "threads": ("timeout=300, threads=True", "comm, rank", "of_allfold(comm)", "", 8),
    "gloo": ("timeout=300, backend='gloo'", "process_group, rank", "of_torch()", "", 20),
    "gloo_kept": ("timeout=300, backend='gloo', keep=True", "process_group, rank", "of_torch()", "", 12),
    "backend": ("timeout=300, backend='allfold'", "process_group, rank", "of_torch()", "", 4),
    "wrong": (
        "timeout=300",
        "comm, rank",
        "of_allfold(comm); assert rank != 1",
        "raised AssertionError: assert 1 != 1",
        4,
    ),
    "gloo_wrong": (
        "timeout=300, backend='gloo', keep=True",
        "process_group, rank",
        "of_torch(); assert rank != 1",
        "raised AssertionError: assert 1 != 1",
        2,
    ),
    "differing": (
        "timeout=300, backend='gloo'",
        "process_group, rank",
        "dist.all_reduce(torch.ones(4 + rank))",
        "raised MismatchError",
        2,
    ),
    "crash": ("timeout=300", "comm, rank", "rank or ctypes.string_at(0); comm.barrier()", "was killed by SIGSEGV", 2),
    "killed": (
        "timeout=300, backend='gloo'",
        "process_group, rank",
        "rank or os.kill(os.getpid(), 9); of_torch()",
        "was killed by SIGKILL",
        1,
    ),
    "exit": ("timeout=300", "comm, rank", "rank or os._exit(3); comm.barrier()", "exited with status 3", 1),
    "hang": ("timeout=3", "comm, rank", "rank or time.sleep(3600); comm.barrier()", "had not finished after 3 s", 1),
    "leaves": ("timeout=300", "rank", "rank or subprocess.Popen(['sleep', '3600'])", "left behind: child process", 1),
}


def file_of_tests(tests: int, seed: int) -> str:
    draw = random.Random(seed)
    lines = [HEAD]
    for number, kind in enumerate(draw.choices(list(KINDS), [one[-1] for one in KINDS.values()], k=tests)):
        options, arguments, statement, _, _ = KINDS[kind]
        mark = f"@pytest.mark.ranks({draw.choice((2, 4))}, {options})"
        lines.append(f"{mark}\ndef test_{number}_{kind}({arguments}):\n    {statement}\n")
    return "\n".join(lines)


def wrong_outcomes(results: Path) -> tuple[Counter[str], list[str]]:
    """How many tests of each kind there were, and a line about each that ended otherwise than it should."""
    counts: Counter[str] = Counter()
    wrong = []
    for case in ElementTree.parse(results).iter("testcase"):
        name = case.attrib["name"]
        kind = name.split("_", 2)[2]
        counts[kind] += 1
        failure = next(iter(case), None)
        said = "" if failure is None else failure.attrib.get("message", "") + (failure.text or "")
        expected = KINDS[kind][3]
        if (failure is None) != (not expected) or expected not in said:
            wrong.append(f"{name}: {said[:500] or 'passed'}")
    return counts, wrong


def left_processes() -> list[str]:
    """The processes that the run has left; they are children of this one. They have some seconds to end."""
    deadline = time.monotonic() + 5
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        pids = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
        if not pids or time.monotonic() > deadline:
            return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:100] for pid in pids]
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        file, results = Path(folder, "test_many.py"), Path(folder, "results.xml")
        file.write_text(file_of_tests(options.tests, options.seed))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            str(options.workers),
            "--tb=short",
            "-p",
            "no:cacheprovider",
        ]
        begin = time.monotonic()
        with open(Path(folder, "said"), "w+") as said:
            run = subprocess.Popen(
                [*command, f"--junitxml={results}", str(file)],
                cwd=folder,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                run.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                print(f"stuck after {_SECONDS} s:\n{Path(folder, 'said').read_text()[-2000:]}")
                return 1
        seconds = time.monotonic() - begin
        if not results.exists():
            print(Path(folder, "said").read_text()[-4000:])
            return 1
        counts, wrong = wrong_outcomes(results)
    left = left_processes()
    print(", ".join(f"{number} {kind}" for kind, number in counts.most_common()))
    print(
        f"{counts.total()} tests, {options.workers} workers: {seconds:.0f} s, {1000 * seconds / options.tests:.0f} ms per test"
    )
    print(
        "\n".join([*wrong, *(f"left behind: {one}" for one in left)])
        or "every test ended as it should; nothing was left"
    )
    return 1 if wrong or left or counts.total() != options.tests else 0


if __name__ == "__main__":
    sys.exit(main())
