"""The learner's all_reduce between real processes of this machine, timed beside built-in ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ..communicator.communicator import Communicator
from ..launch.spawn import spawn
from ..price.cost.plan import duration
from ..registry import AnyAlgorithm
from ..schedules import Schedule
from ..wording import format_size
from .figures import Rows

RANKS = 4
SIZES = (2**10, 2**16, 2**21)
_BATCH = 2**23  # bytes reduced in a batch, at most _MOST calls
_MOST = 20
_ROUNDS = 3
_TIMEOUT = 60.0  # seconds


def timed_beside(schedule: Schedule, names: Sequence[str]) -> Rows:
    """A table: the best time of a call by each algorithm, for a few sizes. Every result is checked."""
    subjects: list[AnyAlgorithm] = [schedule, *names]
    seconds = np.max(spawn(_on_a_rank, RANKS, args=(subjects,), timeout=_TIMEOUT), axis=0)  # the slowest rank's
    head = ["all_reduce", *(format_size(size) for size in SIZES)]
    labels = [f"{schedule.algorithm} (yours)", *names]
    return [head, *([label, *map(duration, row)] for label, row in zip(labels, seconds.tolist(), strict=True))]


def _on_a_rank(comm: Communicator, subjects: Sequence[AnyAlgorithm]) -> list[list[float]]:
    best = np.full((len(subjects), len(SIZES)), np.inf)
    for column, size in enumerate(SIZES):
        array = np.empty(size // 4, np.float32)
        calls = min(_MOST, max(1, _BATCH // size))
        for _ in range(_ROUNDS):  # in turns, so that a disturbance hits all of them
            for row, algorithm in enumerate(subjects):
                best[row, column] = min(best[row, column], _seconds_per_call(comm, array, algorithm, calls))
    return best.tolist()


def _seconds_per_call(
    comm: Communicator, array: np.ndarray[tuple[int], np.dtype[np.float32]], algorithm: AnyAlgorithm, calls: int
) -> float:
    array[:] = comm.rank + 1
    comm.all_reduce(array, algorithm=algorithm)  # also compiles it, the first time
    if not (array == comm.size * (comm.size + 1) / 2).all():
        raise AssertionError(f"rank {comm.rank}: the sum is wrong, although the schedule was proved")
    array[:] = 0  # zeros stay zeros: reduced over and over, anything else would become infinite
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        comm.all_reduce(array, algorithm=algorithm)
    return (time.perf_counter() - start) / calls
