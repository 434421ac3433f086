"""Where the chunks of a rank lie in the caller's buffers: the input, the output, and scratch."""

from __future__ import annotations

from dataclasses import dataclass

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
        """Where a chunk lies at the start."""
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
