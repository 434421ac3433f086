"""Programs as streams run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...collectives import COLLECTIVES, NOTHING
from ...errors import UsageError
from ...programs.compile import WORK, Programs
from ...schedules import Schedule
from ..buffer import Buffer
from ..engine import Call

Slot = tuple[int, int, int]  # rank, space, index


class StreamInstruction(NamedTuple):
    waits: list[tuple[int, int]]
    reuse: list[tuple[int, int]]
    sources: list[Slot]
    destinations: list[Slot]
    length_of: int
    complete: bool
    announce: bool


@dataclass(frozen=True)
class StreamProgram:
    """One rank's program, as it is put into a stream."""

    instructions: list[StreamInstruction]
    leave: list[tuple[int, int]]
    stride: int
    work_slots: int
    one_area: bool
    chunks: int
    origins: list[tuple[int, int]]  # by rank: the first chunk of the input, and of the output
    most_arrays: int  # that one instruction of any rank has as sources, or as destinations


def program_of(programs: Programs, rank: int) -> StreamProgram:
    width = programs.width

    def slots(pairs: Sequence[tuple[int, int]]) -> list[Slot]:
        return [
            (owner, value // width, value % width) if value < WORK * width else (owner, WORK, value - WORK * width)
            for owner, value in pairs
        ]

    instructions = [
        StreamInstruction(
            programs.waits.of(row),
            programs.reuse.of(row),
            slots(programs.sources.of(row)),
            slots(programs.destinations.of(row)),
            int(programs.length_of[row]),
            bool(programs.complete[row]),
            bool(programs.announce[row]),
        )
        for row in range(int(programs.starts[rank]), int(programs.starts[rank + 1]))
    ]
    return StreamProgram(
        instructions,
        programs.leave.of(rank),
        int(np.diff(programs.starts).max(initial=0)),
        int(programs.work_slots.max(initial=0)),
        programs.one_area,
        programs.schedule.chunks,
        [_origins(programs.schedule, one) for one in range(programs.schedule.ranks)],
        # Of all ranks, since all of them must come to the same decision.
        int(max(np.diff(programs.sources.starts).max(initial=0), np.diff(programs.destinations.starts).max(initial=0))),
    )


def _origins(built: Schedule, rank: int) -> tuple[int, int]:
    if built.promise.in_place:
        return 0, 0
    held = [
        layout(built.ranks, built.root, built.chunks)[rank] != NOTHING
        for layout in (built.promise.starts_with, built.promise.ends_with)
    ]
    return int(held[0].argmax()), int(held[1].argmax())


def check_overlap(call: Call, source: Buffer | None, target: Buffer | None, rank: int) -> None:
    """An output may lie in its input, or the input in the output, only where the rank's own part is, as with NCCL."""
    if source is None or target is None:
        return
    shorter, longer = sorted((source, target), key=lambda array: array.bytes)
    before = rank * shorter.bytes
    if call.counts is not None and not call.counts.exchanges:
        before = int(call.counts.table[:rank].sum()) * source.dtype.itemsize
    if shorter.overlaps(longer) and (
        COLLECTIVES[call.collective].exchanges or shorter.pointer != longer.pointer + before
    ):
        raise UsageError(
            f"{call.collective}: the input and the output overlap outside the rank's own part; pass a different output"
        )
