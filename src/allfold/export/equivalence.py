"""Two schedules that do the same: an export is read back and compared with its schedule before it is handed out."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..collectives import NOTHING
from ..errors import ScheduleError
from ..schedules import Schedule
from ..symbolic import State


def check_equivalent(schedule: Schedule, other: Schedule) -> None:
    """Raise `ScheduleError` unless both leave the same in every chunk that the collective makes a promise about.

    For a reduction that means the same expression, parentheses included. A fold of several operands may have become
    several folds of two; types that are computed in a wider type (float16, bfloat16) then round more often. For each
    pair of ranks, both must send the same number of chunks.
    """
    head = ("collective", "ranks", "root", "chunks")
    for name in head:
        if getattr(schedule, name) != getattr(other, name):
            raise ScheduleError(
                f"{other.title}: {name} is {getattr(other, name)!r} and was {getattr(schedule, name)!r} in {schedule.title}"
            )
    before, after = _traffic(schedule), _traffic(other)
    for ends in sorted({*before, *after}):
        if before[ends] != after[ends]:
            raise ScheduleError(
                f"{other.title}: rank {ends[0]} sends {after[ends]} chunks to rank {ends[1]}, and {before[ends]} in "
                f"{schedule.title}"
            )
    first, second = State(schedule).run_to_end(), State(other).run_to_end()
    promised = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
    rank, chunk = np.nonzero(promised)
    here, there = rank * first.width + chunk, rank * second.width + chunk
    wrong = first.datum[here] != second.datum[there]
    if schedule.promise.reduces:
        wrong |= first.expression[here] != second.expression[there]
    if wrong.any():
        at = int(wrong.argmax())
        raise ScheduleError(
            f"{other.title}: rank {rank[at]} chunk {chunk[at]} ends with another result than in {schedule.title}",
            rank=int(rank[at]),
            chunk=int(chunk[at]),
        )


def _traffic(schedule: Schedule) -> Counter[tuple[int, int]]:
    ends = zip(schedule.columns["source"].tolist(), schedule.columns["destination"].tolist(), strict=True)
    return Counter((source, destination) for source, destination in ends if source != destination)
