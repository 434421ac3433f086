"""A schedule as every chunk sees it: what is folded into it in each step, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ..schedules import Schedule
from ..symbolic import Cells, State

Cell = tuple[int, int]
"""A rank and a chunk."""


class ChunkFold(NamedTuple):
    """A chunk becomes the left-to-right fold of its operands (its old content may be one); one operand is a copy."""

    rank: int
    chunk: int
    operands: tuple[Cell, ...]


def folds_of(schedule: Schedule) -> Iterator[list[ChunkFold]]:
    """The folds of every step, by chunk and rank. Raises `ScheduleError` where a step makes no sense."""
    state = State(schedule)
    while not state.done:
        done = state.advance()
        operands = _cells(done.operands, state.width)
        bounds = done.starts.tolist()
        found = [
            ChunkFold(rank, chunk, tuple(operands[first:last]))
            for (rank, chunk), first, last in zip(
                _cells(done.target, state.width), bounds[:-1], bounds[1:], strict=True
            )
        ]
        yield sorted(found, key=itemgetter(1, 0))


def _cells(numbers: Cells, width: int) -> list[Cell]:
    rank, chunk = np.divmod(numbers, width)
    return list(zip(rank.tolist(), chunk.tolist(), strict=True))
