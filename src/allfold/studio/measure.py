"""A recording of a real run: one call between processes of this machine, instruction by instruction."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..bench.case import Case, case_of_size, fill, lengths
from ..communicator.communicator import Communicator
from ..errors import UsageError
from ..launch.spawn import pickled_by_value, spawn
from ..registry import Steps
from ..schedules import Schedule
from .recording import fastest_call

MOST_RANKS = 16
MOST_BYTES = 2**29  # all ranks' buffers together
TIMEOUT = 60.0  # seconds
_WARM = 3  # unrecorded calls first: programs get compiled, pages get touched
_CALLS = 9  # recorded calls; the fastest is shown, since ranks that share cores are delayed at random


def record(schedule: Schedule, size: int, algorithm: str | Callable[..., Steps] | None = None) -> dict[str, Any]:
    """Run the schedule's algorithm on buffers of `size` bytes; `algorithm` is the function where it has no known name.

    Returns the trace of the fastest of a few calls, as `Trace.to_json` gives it.
    """
    if schedule.ranks > MOST_RANKS:
        raise UsageError(f"{schedule.ranks} ranks are too many to be measured here; at most {MOST_RANKS}")
    if size * schedule.ranks > MOST_BYTES:
        each = MOST_BYTES // schedule.ranks
        raise UsageError(
            f"buffers of {size} bytes on {schedule.ranks} ranks; at most {each} bytes per rank are measured"
        )
    case = case_of_size(schedule.collective, size, schedule.ranks, root=schedule.root or 0)
    # A function of a file from the command line has a module here, but not in other processes.
    module = sys.modules.get(getattr(algorithm, "__module__", "")) if callable(algorithm) else None
    with pickled_by_value(*([] if module is None else [module])):
        answers = spawn(_on_a_rank, schedule.ranks, args=(case, algorithm or schedule.algorithm), timeout=TIMEOUT)
    trace = answers[0]
    return {**trace, "events": fastest_call(trace["events"], schedule)}


def _on_a_rank(communicator: Communicator, case: Case, algorithm: str | Callable[..., Steps]) -> dict[str, Any]:
    source, target = (
        None if length is None else np.empty(length, case.element.carrier)
        for length in lengths(case, communicator.rank)
    )
    fill(case, communicator.rank, source, target)
    for _ in range(_WARM):
        _call(communicator, case, source, target, algorithm)
    communicator.barrier()
    with communicator.trace() as trace:
        for _ in range(_CALLS):
            _call(communicator, case, source, target, algorithm)
    return trace.to_json()


def _call(communicator: Communicator, case: Case, source: Any, target: Any, algorithm: Any) -> None:
    if not case.kind.carries_data:
        communicator.barrier(algorithm=algorithm)
        return
    arrays = {"array": target} if case.kind.in_place else {"array": source, "output": target}
    rooted = {"root": case.root} if case.kind.rooted else {}
    getattr(communicator, case.collective)(**arrays, algorithm=algorithm, **rooted)
