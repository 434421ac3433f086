"""Where the chunks of a rank lie in the caller's buffers: the input, the output, and scratch."""

from __future__ import annotations

from dataclasses import dataclass

from ..schedule import Schedule

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
        gathers = self.schedule.collective in ("all_gather", "gather")
        return "i", chunk - self.rank * self._part if gathers else chunk

    def home(self, chunk: int) -> Place | None:
        """The place of a chunk in the output, if it has one."""
        collective = self.schedule.collective
        if chunk >= self.schedule.chunks:
            return None
        if collective in ("reduce_scatter", "scatter"):
            return ("o", chunk - self.rank * self._part) if self._owns(chunk) else None
        everywhere = collective in ("all_reduce", "all_gather", "all_to_all", "broadcast")
        return ("o", chunk) if everywhere or self.rank == self.schedule.root else None

    def sizes(self) -> tuple[int, int]:
        """The number of chunks of the input and of the output."""
        at_root, whole = self.rank == self.schedule.root, self.schedule.chunks
        return {
            "all_reduce": (whole, whole),
            "reduce": (whole, whole if at_root else 0),
            "broadcast": (whole if at_root else 0, whole),
            "gather": (self._part, whole if at_root else 0),
            "scatter": (whole if at_root else 0, self._part),
            "all_gather": (self._part, whole),
            "reduce_scatter": (whole, self._part),
            "all_to_all": (whole, whole),
        }[self.schedule.collective]
