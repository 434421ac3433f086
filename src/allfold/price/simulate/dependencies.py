"""Who waits for whom: the messages of a schedule, and the contents of chunks that they need and make.

A message is what a rank sends to another within one step, however many chunks that are. A *version* is what a chunk of
a rank holds between two changes of it: the initial content, or what the moves of one step have made of it. A message
may leave when the versions that it reads are there. It may land when the version before the one it makes is there and
everybody who reads that one has sent it: moves of a step read the state from before the step, and the chunk exists
once. What has come too early waits beside the buffer.

There may be as many as a million readers and writers of versions, but each move is one reader and one writer, so that
the tables below are as long as the schedule, however dense the dependencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schedule import Schedule
from .fairness import Ints


@dataclass(frozen=True)
class Rows:
    """Lists of unequal lengths, one after the other: list i is `values[starts[i]:starts[i + 1]]`."""

    starts: Ints
    values: Ints

    @staticmethod
    def group(key: NDArray[np.integer], values: NDArray[np.integer], many: int) -> Rows:
        """List k holds those of `values` whose key is k, in their order."""
        if len(key) and (key[1:] < key[:-1]).any():
            order = np.argsort(key, kind="stable")
            key, values = key[order], values[order]
        starts = np.searchsorted(key, np.arange(many + 1))
        return Rows(starts.astype(np.int64), values.astype(np.int64))


@dataclass(frozen=True)
class Moves:
    """The moves of a schedule, or of the part of it that has to be looked at, in order of steps.

    `reads` and `writes` name a chunk of a rank by one number, `message` what travels together.
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
        step = np.repeat(np.arange(schedule.steps, dtype=np.int64), np.diff(schedule.starts))
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
    """The first move of every message; `moves` and `reduces` count those it carries, and those that combine."""
    moves: Ints
    reduces: Ints
    reads: Rows
    """Of every message, a version a move."""
    writes: Rows
    readers: Rows
    """Of every version, a message a move."""
    writers: Rows
    followed: NDArray[np.bool_]
    given: NDArray[np.bool_]
    """Versions that are there from the start."""


def find_dependencies(moves: Moves) -> Dependencies:
    message, move, many = group_messages(moves)
    reduces = np.bincount(message[moves.reduces], minlength=len(move))
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
    """The message of every move, and of every message its first move and how many it carries; in order of first moves."""
    _, move, message, many = np.unique(moves.message, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(move, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[message.reshape(-1)], move[order].astype(np.int64), many[order]
