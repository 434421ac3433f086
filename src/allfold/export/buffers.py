"""The places of a rank's chunks in the caller's buffers: the input, the output, and scratch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..collectives import NOTHING
from ..schedules import Schedule

Place = tuple[str, int]
"""A buffer (i, o or s) and an offset in it."""


@dataclass(frozen=True)
class Buffers:
    """One rank's buffers. Chunks begin in the input, and whatever is written to them goes to the output or to scratch.

    So the same algorithm works in place, where input and output are the same memory, and out of place, where the input
    is not changed.
    """

    schedule: Schedule
    rank: int

    @property
    def _part(self) -> int:
        return self.schedule.chunks // self.schedule.ranks

    def _owns(self, chunk: int) -> bool:
        return chunk // self._part == self.rank

    def begin(self, chunk: int) -> Place:
        """The place of a chunk at the start."""
        return "i", chunk - self.rank * self._part if self.schedule.promise.starts.sliced else chunk

    def home(self, chunk: int) -> Place | None:
        """The place of a chunk in the output, if it has one."""
        promise = self.schedule.promise
        if chunk >= self.schedule.chunks:
            return None
        if promise.ends.sliced:
            return ("o", chunk - self.rank * self._part) if self._owns(chunk) else None
        return ("o", chunk) if not promise.ends.root_only or self.rank == self.schedule.root else None

    def sizes(self) -> tuple[int, int]:
        """The number of chunks of the input and of the output."""
        schedule, at_root = self.schedule, self.rank == self.schedule.root
        given, taken = (
            part.length(schedule.chunks, schedule.ranks, at_root)
            for part in (schedule.promise.starts, schedule.promise.ends)
        )
        return given, taken


class RankMemory:
    """The places of one rank's chunks, while its part of a schedule is written step by step."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank, self.buffers = schedule, rank, Buffers(schedule, rank)
        starts, ends = (
            layout(schedule.ranks, schedule.root, schedule.chunks)[rank] != NOTHING
            for layout in (schedule.promise.starts_with, schedule.promise.ends_with)
        )
        self.at = {chunk: self.buffers.begin(chunk) for chunk in np.flatnonzero(starts).tolist()}
        """By chunk, before this step."""
        self.arriving: dict[int, Place] = {}
        self.saved: dict[int, Place] = {}
        """Copies of chunks that another chunk of this rank needs, because they are replaced in the same step."""
        self.promised: list[int] = np.flatnonzero(ends).tolist()
        self.scratch = 0
        self._scratch_of: dict[int, Place] = {}

    def slot(self) -> Place:
        """A new place in scratch."""
        self.scratch += 1
        return "s", self.scratch - 1

    def home(self, chunk: int) -> Place:
        """The place of data written to a chunk: in the output if the chunk has a place there, otherwise in scratch."""
        home = self.buffers.home(chunk) or self._scratch_of.get(chunk)
        if home is None:
            home = self._scratch_of[chunk] = self.slot()
        return home

    def settle(self) -> None:
        """End the step: from now on, reads see what arrived."""
        self.at.update(self.arriving)
        self.arriving.clear()
        self.saved.clear()
