"""The time until `allfold run --check` raises an error or names a late rank, in seeded trials on three ranks.

Run it with one core per rank: python benchmarks/check_limits.py [--trials 30] [--backend gloo]. It prints the least, the median
and the most milliseconds until the last rank has the error, counted from when the last rank began its call; for a late rank,
until the line on stderr, counted from the end of the time that `ALLFOLD_CHECK_LATE` sets. Calls are blocking, or in the
background with `work.wait()`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import cloudpickle

RANKS, LATE_SECONDS = 3, 0.5
LIMIT = timedelta(seconds=30)
FAULTS = ("mismatch", "deadlock", "late")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--backend", default="gloo")
    arguments = parser.parse_args()
    import contextlib

    from allfold.launch.spawn import run_everywhere

    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    for fault in FAULTS:
        for background in (False, True):
            given = fault, background, arguments.trials, arguments.backend
            found = run_everywhere(contextlib.nullcontext, _trials, RANKS, args=given, timeout=600)
            added = [max(ends) - max(begins) for begins, ends in zip(*_by_trial(found), strict=True)]
            milliseconds = [round(1000 * seconds, 1) for seconds in sorted(added)]
            print(
                json.dumps(
                    {
                        "fault": fault,
                        "calls": "background" if background else "blocking",
                        "trials": len(added),
                        "ms": [milliseconds[0], statistics.median(milliseconds), milliseconds[-1]],
                    }
                ),
                flush=True,
            )


def _by_trial(found: list[list[tuple[float, float]]]) -> tuple[list[list[float]], list[list[float]]]:
    """The times of all ranks by trial, without those that a rank does not have."""
    trials = [*zip(*found, strict=True)]
    return [[begin for begin, _ in one if begin] for one in trials], [[end for _, end in one if end] for one in trials]


def _trials(_: Any, fault: str, background: bool, trials: int, backend: str) -> list[tuple[float, float]]:
    """One rank's part: when it began its call, and when it had the error; 0.0 if that does not count."""
    import random

    import torch
    import torch.distributed as dist

    os.environ |= {"ALLFOLD_CHECK": "1", "ALLFOLD_CHECK_LATE": str(LATE_SECONDS)}
    from allfold.check.install import install

    install()
    rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.TCPStore(*place, is_master=rank == 0, wait_for_workers=False)
    draw = random.Random(trials)  # the same on all ranks
    found, kept = [], []
    for number in range(trials):
        dist.init_process_group(
            backend,
            rank=rank,
            world_size=RANKS,
            store=dist.PrefixStore(str(number), store),
            timeout=LIMIT,
        )
        groups = [dist.new_group([*range(RANKS)], LIMIT) for _ in range(2)]
        kept.append(groups)  # the end of a gloo group waits for a call that never ends, until its timeout
        faulty, delays = draw.randrange(RANKS), [draw.random() / 20 for _ in range(RANKS)]
        small = torch.ones(4 + (fault == "mismatch" and rank == faulty))

        def call(group: Any, small: Any = small) -> None:
            work = dist.all_reduce(small, group=group, async_op=background)
            if background:
                work.wait()

        dist.barrier()
        time.sleep(delays[rank])
        begin = time.monotonic()
        if fault == "late":
            found.append(_late(call, store, number, rank == faulty))
        else:
            error = ""
            try:
                for group in groups[::-1] if fault == "deadlock" and rank == faulty else groups:
                    call(group)
            except Exception as raised:
                error = type(raised).__name__
            found.append((begin, time.monotonic()))
            assert error == "MismatchError", error
        dist.destroy_process_group()
        store.set(f"done {number} {rank}", "1")
        store.wait([f"done {number} {other}" for other in range(RANKS)])
    store.set(f"all {rank}", "1")
    if rank == 0:  # the store ends with it
        store.wait([f"all {other}" for other in range(RANKS)])
    return found


class _Said:
    """stderr of a rank that waits: when it named the late rank, with its line."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key, self.when = store, key, 0.0

    def write(self, text: str) -> int:
        if "is late: it is at" in text:
            self.when = time.monotonic()
            self._store.set(self._key, "1")
        return len(text)

    def flush(self) -> None:
        pass


def _late(call: Any, store: Any, number: int, is_late: bool) -> tuple[float, float]:
    if is_late:
        store.wait([f"named {number}"], LIMIT)
        call(None)
        return 0.0, 0.0
    own, sys.stderr = sys.stderr, _Said(store, f"named {number}")  # type: ignore[assignment]
    said: Any = sys.stderr
    begin = time.monotonic()
    try:
        call(None)
    finally:
        sys.stderr = own
    return begin + LATE_SECONDS, said.when


if __name__ == "__main__":
    main()
