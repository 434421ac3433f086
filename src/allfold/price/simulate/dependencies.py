"""Dependencies: the messages of a schedule, and the versions of chunks that they read and make.

A message is everything that a rank sends to another within one step, however many chunks. A *version* is what a chunk
of a rank holds between two writes: the initial content, or the result of the moves of one step. A message may leave
when the versions that it reads exist. It may land when the version before the one it makes exists and all readers of
that one have sent it: moves of a step read the state from before the step, and there is only one copy of the chunk.
What arrives too early waits outside the buffer.

There may be a million readers and writers of versions. But each move is one reader and one writer, so the tables below
are as long as the schedule, however dense the dependencies are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schedules import Schedule, step_of_moves
from .fairness import Ints


@dataclass(frozen=True)
class Rows:
    """Lists of unequal lengths, one after the other: list i is `values[starts[i]:starts[i + 1]]`."""

    starts: NDArray[np.intp]
    values: Ints

    @staticmethod
    def group(key: NDArray[np.integer], values: NDArray[np.integer], many: int) -> Rows:
        """List k holds the `values` whose key is k, in their original order."""
        if len(key) and (key[1:] < key[:-1]).any():
            order = np.argsort(key, kind="stable")
            key, values = key[order], values[order]
        starts = np.searchsorted(key, np.arange(many + 1))
        return Rows(starts, values.astype(np.int64))


@dataclass(frozen=True)
class Moves:
    """The moves of a schedule, or of the part of it that is simulated, in order of steps.

    `reads` and `writes` name a chunk of a rank by one number; `message` is the same for moves that travel together.
    """

    steps: int
    step: Ints
    source: Ints
    destination: Ints
    reads: Ints
    writes: Ints
    message: Ints
    reduces: NDArray[np.bool_]

    @staticmethod
    def of(schedule: Schedule) -> Moves:
        source, destination, chunk, into = (
            schedule.columns[name].astype(np.int64) for name in ("source", "destination", "chunk", "into")
        )
        step = step_of_moves(schedule)
        ranks, width = schedule.ranks, schedule.chunks + schedule.scratch
        return Moves(
            steps=schedule.steps,
            step=step,
            source=source,
            destination=destination,
            reads=source * width + chunk,
            writes=destination * width + into,
            message=(step * ranks + source) * ranks + destination,
            reduces=schedule.columns["reduces"] != 0,
        )


@dataclass(frozen=True)
class Dependencies:
    """The messages of a schedule in order of steps, and the versions that they read and make.

    Version v is followed by version v + 1 of the same chunk where `followed[v]`.
    """

    move: Ints
    """The first move of every message; `moves` counts the moves it carries, `reduces` those that combine."""
    moves: Ints
    reduces: Ints
    reads: Rows
    """For every message: one version per move."""
    writes: Rows
    readers: Rows
    """For every version: one message per move."""
    writers: Rows
    followed: NDArray[np.bool_]
    given: NDArray[np.bool_]
    """Versions that exist from the start."""


def find_dependencies(moves: Moves) -> Dependencies:
    message, move, many = group_messages(moves)
    reduces = np.bincount(message[moves.reduces].astype(np.intp), minlength=len(move))
    # A version is a chunk of a rank and the step that made it, counted from 1; the initial content is that of step 0.
    period = moves.steps + 1
    cells = np.unique(np.concatenate([moves.reads, moves.writes]))
    written = moves.writes * period + moves.step + 1
    versions = np.unique(np.concatenate([cells * period, written]))
    writes = np.searchsorted(versions, written)
    reads = np.searchsorted(versions, moves.reads * period + moves.step, side="right") - 1
    cell = versions // period
    return Dependencies(
        move=move,
        moves=many,
        reduces=reduces,
        reads=Rows.group(message, reads, len(move)),
        writes=Rows.group(message, writes, len(move)),
        readers=Rows.group(reads, message, len(versions)),
        writers=Rows.group(writes, message, len(versions)),
        followed=np.append(cell[1:] == cell[:-1], False)[: len(versions)],
        given=versions % period == 0,
    )


def group_messages(moves: Moves) -> tuple[Ints, Ints, Ints]:
    """The message of every move; for every message its first move and its number of moves. Ordered by first move."""
    _, move, message, many = np.unique(moves.message, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(move, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[message.reshape(-1)], move[order].astype(np.int64), many[order]
