"""Schedules from rounds in which chunks spread from one rank to all: forwards, backwards, or one after the other.

A schedule that brings every chunk from one rank to all, each to each rank once, read backwards combines every chunk on
that rank: what was copied from a to b is reduced from b to a. So a method need only spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..collectives import COLLECTIVES
from ..schedules import Move, Schedule, build, copy, reduce
from .found import Task
from .neighbours import Neighbours

KNOWN = tuple(name for name, promise in COLLECTIVES.items() if promise.trees)
"""The collectives that trees can carry."""


@dataclass(frozen=True, eq=False)
class Rounds:
    """Moves of chunks; those of step t are `starts[t]` to `starts[t + 1] - 1`."""

    starts: NDArray[np.int64]
    chunk: NDArray[np.int32]
    source: NDArray[np.int32]
    destination: NDArray[np.int32]


@dataclass(frozen=True)
class Direction:
    """Spread chunks; or collect them, which is to spread them on the reversed network and to read that backwards."""

    collects: bool

    def among(self, neighbours: Neighbours) -> Neighbours:
        return neighbours.reversed() if self.collects else neighbours

    def holders(self, task: Task, chunks: int) -> NDArray[np.int32]:
        """The rank that each chunk spreads from, or is combined on, with this many chunks per slice."""
        everyone = np.arange(task.ranks) if task.root is None else np.asarray([task.root])
        return np.repeat(everyone, chunks).astype(np.int32)


def phases(task: Task) -> list[Direction]:
    return [Direction(collects) for collects in COLLECTIVES[task.collective].trees]


def schedule_of(task: Task, method: str, chunks: int, rounds: Sequence[Rounds]) -> Schedule:
    """The schedule of the rounds of each phase, with this many chunks per slice (or in all, if there is a root)."""
    steps = (
        step
        for phase, found in zip(phases(task), rounds, strict=False)
        for step in (_collecting(found) if phase.collects else _spreading(found))
    )
    slices = task.ranks if task.root is None else 1
    name = f"{method}_{task.topology.name}".replace(" ", "_")
    return build(task.collective, name, task.ranks, task.root, steps, slices * chunks)


def _spreading(rounds: Rounds) -> Iterator[Iterable[Move]]:
    for start, end in zip(rounds.starts[:-1], rounds.starts[1:], strict=True):
        yield [copy(rounds.chunk[start:end], rounds.source[start:end], rounds.destination[start:end])]


def _collecting(rounds: Rounds) -> Iterator[Iterable[Move]]:
    for start, end in zip(rounds.starts[-2::-1], rounds.starts[:0:-1], strict=True):
        yield [reduce(rounds.chunk[start:end], rounds.destination[start:end], rounds.source[start:end])]
