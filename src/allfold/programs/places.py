"""Slices with lengths of their own: which schedules and programs can move them.

Where slices differ in length, every piece of data has one place in a rank's input or output that is as long as itself:
its own. So no other piece may be written there or read from there. Scratch chunks, work slots and messages hold pieces
of any length. Whatever keeps to this rule is right for all lengths, zero included, since nothing else depends on them.
"""

from __future__ import annotations

import numpy as np

from ..collectives import NOTHING
from ..errors import ScheduleError
from ..schedules import Schedule
from .compile import Programs
from .messages import ChunkPlace, InstructionKind, MessagePrograms
from .rows import Ints
from .versions import INPUT, OUTPUT, WORK, Versions


def check_places(versions: Versions) -> None:
    """Refuse a schedule that puts one slice into the place of another, by the move that does it first."""
    schedule, state = versions.schedule, versions.state
    wanted = versions.wanted[versions.cell]
    elsewhere = (wanted != NOTHING) & (versions.datum != wanted)
    elsewhere[: versions.initial] = False
    if not schedule.promise.sliced or not elsewhere.any():
        return
    first = int(elsewhere.argmax())
    rank, chunk, step = (int(column[first]) for column in (versions.rank, versions.chunk, versions.step))
    here = slice(*schedule.starts[step : step + 2].tolist())
    columns = schedule.columns
    at = (columns["destination"][here] == rank) & (columns["into"][here] == chunk)
    site = schedule.where(int(at.argmax()) + here.start)
    raise ScheduleError(
        f"{schedule.title} cannot move slices with lengths of their own: step {step + 1} puts "
        f"{state.name_of(int(versions.datum[first]))} into chunk {chunk} of rank {rank}, the place of "
        f"{state.name_of(int(wanted[first]))} ({site}); a scratch chunk holds any length",
        rank=rank,
        chunk=chunk,
        step=step,
        site=site,
    )


def check_program_places(programs: Programs) -> None:
    """Refuse compiled programs that access a piece of data in the place of another one."""
    if not programs.schedule.promise.sliced:
        return
    own = _own(programs.schedule)
    for lists in (programs.sources, programs.destinations):
        array = (lists.value < WORK * programs.width).nonzero()[0]
        space, chunk = np.divmod(lists.value[array], programs.width)
        if (own[space, lists.rank[array], chunk] != programs.length_of[lists.row[array]]).any():
            raise ScheduleError(f"{programs.schedule.title}: the compiled programs put slices into each other's places")


def check_message_places(made: MessagePrograms) -> None:
    """The same for message programs."""
    if not made.schedule.promise.sliced:
        return
    own = _own(made.schedule)

    def check(rank: int, place: ChunkPlace, datum: int) -> None:
        if place.space in (INPUT, OUTPUT) and own[place.space, rank, place.at] != datum:
            raise ScheduleError(
                f"{made.schedule.title}: the message program of rank {rank} puts slices into each other's places",
                rank=rank,
            )

    for message in made.messages:
        for rank, places in ((message.source, message.places), (message.destination, message.into)):
            for place, datum in zip(places, message.lengths, strict=False):  # `into` may be empty
                check(rank, place, datum)
    for rank, program in enumerate(made.programs):
        for one in program:
            if one.kind == InstructionKind.FOLD:
                for place in (*one.sources, one.destination):
                    check(rank, place, one.length_of)


def _own(schedule: Schedule) -> Ints:
    """By space, rank and chunk: the datum whose place it is."""
    promise, chunks = schedule.promise, schedule.chunks
    layouts = [layout(schedule.ranks, schedule.root, chunks) for layout in (promise.starts_with, promise.ends_with)]
    return np.stack(layouts).astype(np.int64)
