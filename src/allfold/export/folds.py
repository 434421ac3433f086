"""A schedule as every chunk sees it: what is folded into it in each step, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..schedule import Schedule
from ..symbolic import State

Cell = tuple[int, int]
"""A rank and a chunk."""


@dataclass(frozen=True)
class Fold:
    """A chunk becomes the left-to-right fold of its operands (its old content may be one); one operand is a copy."""

    rank: int
    chunk: int
    operands: tuple[Cell, ...]


def folds_of(schedule: Schedule) -> Iterator[list[Fold]]:
    """The folds of every step, by chunk and rank. Raises `ScheduleError` where a step makes no sense."""
    state = State(schedule)
    while not state.done:
        done = state.advance()
        found = []
        bounds = done.starts.tolist()
        for target, first, last in zip(done.target.tolist(), bounds[:-1], bounds[1:], strict=True):
            rank, chunk = divmod(target, state.width)
            operands = tuple(divmod(cell, state.width) for cell in done.operands[first:last].tolist())
            found.append(Fold(rank, chunk, operands))
        yield sorted(found, key=lambda fold: (fold.chunk, fold.rank))
