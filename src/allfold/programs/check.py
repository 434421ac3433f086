"""Proof of compiled programs: what each rank executes does what the schedule says, whatever the ranks' speeds.

Nothing here knows how programs are made. For the programs themselves, with as many segments as asked for, it proves:

1. They touch only what they may: ranks, slots and counts that exist, arrays that the memory mode lets peers reach, and
   no more elements than there are, whatever the length of the buffer.
2. Nobody waits forever: every wait is for an instruction that is published when it is done, and the waits have no
   cycle.
3. Two accesses to the same place, one of them a write, are ordered by happens-before (`happens_before`). Returning from
   the call counts as a write to one's own arrays: whatever peers do with them is done by then. So the result does not
   depend on timing, and it is enough to look at one order.
4. In that order, every rank ends with the expression that the symbolic execution of the schedule gives it; every fold
   combines parts of the same piece of data; and an average divides where the last part comes in. It is enough to check
   one segment: no wait leads from a later segment to an earlier one, so between a segment's write to a place and its
   own read of it, no other segment can have changed the place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..collectives import NOTHING
from ..division import longer_by
from ..errors import ScheduleError
from ..symbolic import State, at_start
from .compile import INPUT, OUTPUT, WORK, Programs
from .happens_before import first_unordered, rounds_of
from .rows import Ints, Lists, lists_of

SEGMENTS = 3
"""Enough for any number: there are two work areas, so two segments that are further apart have one between them that
uses the same slots, and so the same instructions (docs/proof.md)."""


def check(programs: Programs, state: State | None = None, segments: int | None = None) -> None:
    """Raise `ScheduleError` unless the programs, run for that many segments one after the other, are sound.

    `state` is the schedule's symbolic execution, run to its end, if the caller has it.
    """
    if state is None:
        state = State(programs.schedule).run_to_end()
    if segments is None:  # without a work area a call is one segment
        segments = SEGMENTS if programs.work_slots.any() else 1
    _check_tables(programs)
    _check_lengths(programs)
    starts, waits = _unroll(programs, segments)
    try:
        when = rounds_of(starts, waits)
    except ScheduleError as error:
        raise ScheduleError(f"{programs.schedule.title}: {error}", rank=error.rank) from None
    _check_order(programs, segments, starts, waits, when)
    _check_publications(programs)
    # No wait makes the first segment depend on a later one.
    first_segment = when[_rows(programs, segments, np.arange(int(programs.starts[-1])))]
    _check_results(programs, first_segment, state)


# 1: what exists, and what may be touched ------------------------------------------------------------------------------


def _check_tables(programs: Programs) -> None:
    ranks, width, length = programs.schedule.ranks, programs.width, programs.length
    spaces = WORK * width
    rank_of, arrays = programs.rank, _arrays(programs)
    for lists, what in ((programs.sources, "source"), (programs.destinations, "destination")):
        _need(programs, _within(lists.rank, 0, ranks), f"a {what} is on a rank that does not exist")
        top = spaces + programs.work_slots[lists.rank]
        _need(programs, ((lists.value >= 0) & (lists.value < top)).all(), f"a {what} is in a slot that does not exist")
        _need(programs, (lists.starts[1:] > lists.starts[:-1]).all(), f"an instruction has no {what}")
        in_array = (lists.value < spaces).nonzero()[0]
        owner = lists.rank[in_array]
        held = arrays[owner, lists.value[in_array]]
        _need(programs, held.all(), f"a {what} is in a part of an array that the rank does not have")
        if not (programs.memory == "shared" or (programs.memory == "readable" and what == "source")):
            foreign = owner != rank_of[lists.row[in_array]]
            _need(programs, not foreign.any(), f"a {what} is in an array that peers cannot reach")
    for lists in (programs.waits, programs.reuse, programs.leave):
        waiting = rank_of[lists.row] if lists is not programs.leave else lists.row
        _need(programs, _within(lists.rank, 0, ranks), "a wait is for a rank that does not exist")
        _need(programs, (lists.rank != waiting).all(), "a rank waits for itself")
        counts = (lists.value >= 1) & (lists.value <= length[lists.rank])
        _need(programs, counts.all(), "a wait is for an instruction that does not exist")


def _within(values: Ints, least: int, end: int) -> bool:
    return not len(values) or (int(values.min()) >= least and int(values.max()) < end)


def _arrays(programs: Programs) -> NDArray[np.bool_]:
    """By rank and slot below the work area: whether the rank's arrays have that chunk."""
    schedule, width = programs.schedule, programs.width
    held = np.zeros((schedule.ranks, WORK * width), bool)
    for space, layout in ((INPUT, schedule.promise.starts_with), (OUTPUT, schedule.promise.ends_with)):
        chunks = layout(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
        if schedule.promise.in_place:  # one array for both, and every rank has it
            chunks = np.full(chunks.shape, space == OUTPUT)
        held[:, space * width : space * width + schedule.chunks] = chunks
    return held


def _check_lengths(programs: Programs) -> None:
    """Check that no instruction reads or writes more of a chunk than there is."""
    schedule = programs.schedule
    if not schedule.promise.carries_data:
        return
    part = schedule.chunks // schedule.promise.slices(schedule.ranks)
    if part == 1:  # all chunks are equally long
        return
    for lists in (programs.sources, programs.destinations):
        array = (lists.value < WORK * programs.width).nonzero()[0]
        piece, place = programs.length_of[lists.row[array]] % part, lists.value[array] % programs.width % part
        other = (piece != place).nonzero()[0]
        for pair in {*zip(piece[other].tolist(), place[other].tolist(), strict=True)}:
            _need(programs, longer_by(*pair, part) is None, f"chunk {pair[0]} does not fit into chunk {pair[1]}")


# 2: nobody waits forever ----------------------------------------------------------------------------------------------


def _check_publications(programs: Programs) -> None:
    """Every instruction that is waited for is published; nobody waits for the end of a rank that does not publish it.

    Then a wait is met as soon as its instruction is done, and `rounds_of` may treat the two as one. The last
    instruction of a call is published a little later, with the call's end, but then nothing is waited for in between.
    """
    ranks, starts = programs.schedule.ranks, programs.starts
    last = starts[1:] - 1
    has_leave = programs.leave.sizes > 0
    for lists in (programs.waits, programs.reuse, programs.leave):
        awaited = starts[lists.rank] + lists.value - 1
        _need(programs, programs.announce[awaited].all(), "an instruction is waited for and not published")
        if lists is not programs.reuse:
            with_the_end = (awaited == last[lists.rank]) & ~has_leave[lists.rank]
            _need(
                programs,
                not (with_the_end & programs.silent[lists.rank]).any(),
                "an end is waited for and not published",
            )
    for rank in np.flatnonzero(programs.silent).tolist():
        rows = np.arange(starts[rank], starts[rank + 1] - (not has_leave[rank]))
        _need(programs, programs.announce[rows].any(), f"rank {rank} publishes nothing in a whole call")
        if programs.memory == "private":
            own = slice(programs.waits.starts[starts[rank]], programs.waits.starts[starts[rank + 1]])
            peers = {*programs.waits.rank[own].tolist(), *(peer for peer, _ in programs.leave.of(rank))}
            _need(programs, len(peers) == ranks - 1, f"rank {rank} keeps its end from ranks that it has not waited for")


# 3: the order of accesses ---------------------------------------------------------------------------------------------


def _unroll(programs: Programs, segments: int) -> tuple[Ints, Lists]:
    """All instructions of all segments, each rank's followed by its return: where each rank's rows begin, the waits."""
    ranks, length = programs.schedule.ranks, programs.length
    starts = programs.starts * segments + np.arange(ranks + 1)
    row, rank, count = [], [], []
    for lists, back in ((programs.waits, 0), (programs.reuse, 2)):
        first = _rows(programs, segments, lists.row)
        for segment in range(back, segments):
            row.append(first + segment * length[programs.rank[lists.row]])
            rank.append(lists.rank)
            count.append(lists.value + (segment - back) * length[lists.rank])
    leave = programs.leave
    row.append(starts[leave.row + 1] - 1)
    rank.append(leave.rank)
    count.append(leave.value + (segments - 1) * length[leave.rank])
    return starts, lists_of(np.concatenate(row), np.concatenate(rank), np.concatenate(count), int(starts[-1]))


def _rows(programs: Programs, segments: int, instruction: Ints) -> Ints:
    """The rows of instructions of the first segment among those of all segments."""
    owner = programs.rank[instruction]
    rows: Ints = instruction + programs.starts[owner] * (segments - 1) + owner
    return rows


def _check_order(programs: Programs, segments: int, starts: Ints, waits: Lists, when: Ints) -> None:
    """Accesses of different ranks to the same place are ordered, if one of them writes."""
    earlier, later = _native.conflicts(*_accesses(programs, segments), when, starts)
    pair = first_unordered(starts, waits, when, earlier, later)
    if pair is not None:
        _refuse_order(programs, starts, int(earlier[pair]), int(later[pair]))


def _accesses(programs: Programs, segments: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """The accesses of the instructions of all segments: rows, places, and whether they write.

    A place is a slot of a rank, and of one segment where each segment has memory of its own. It is numbered
    (area · ranks + rank) · slots + slot, where the area is a segment or one of the work areas.
    """
    ranks, length = programs.schedule.ranks, programs.length
    starts = programs.starts * segments + np.arange(ranks + 1)
    floor, slots = WORK * programs.width, _slots(programs)
    rows, places, writes = [], [], []
    for lists, is_write in ((programs.sources, False), (programs.destinations, True)):
        owner = programs.rank[lists.row]
        first = _rows(programs, segments, lists.row)
        slot = lists.rank * slots + lists.value
        in_work = lists.value >= floor
        foreign = (~in_work & (lists.rank != owner)).nonzero()[0]
        returns = starts[lists.rank[foreign] + 1] - 1
        place = slot
        if segments > 1:
            # There are two work areas, used by segments in turn, or one. Each segment of an array is memory of its own.
            segment = np.arange(segments)[:, None]
            place = slot + np.where(in_work, 0 if programs.one_area else segment % 2, segment) * (ranks * slots)
            first = (first + segment * length[owner]).reshape(-1)
            foreign, place = (foreign + segment * len(slot)).reshape(-1), place.reshape(-1)
            returns = np.tile(returns, segments)
        rows += [first, returns]
        places += [place, place[foreign]]
        writes += [np.full(len(place), is_write), np.ones(len(foreign), bool)]
    return np.concatenate(rows), np.concatenate(places), np.concatenate(writes)


def _refuse_order(programs: Programs, starts: Ints, earlier: int, later: int) -> None:
    rank = np.arange(programs.schedule.ranks).repeat(np.diff(starts).astype(np.intp))

    def name(row: int) -> str:
        if row + 1 == starts[rank[row] + 1]:
            return f"the return of rank {rank[row]}"
        return f"instruction {row - int(starts[rank[row]])} of rank {rank[row]}"

    message = (
        f"{programs.schedule.title}: unordered access: {name(earlier)} and {name(later)} touch the same memory and "
        f"nothing orders them"
    )
    raise ScheduleError(message, rank=int(rank[later]))


# 4: the results -------------------------------------------------------------------------------------------------------


def _check_results(programs: Programs, when: Ints, state: State) -> None:
    """Run the programs of one segment in symbols, round by round; instructions of one round do not conflict."""
    schedule, width, ranks = programs.schedule, programs.width, programs.schedule.ranks
    slots = _slots(programs)
    first, _, expression = at_start(schedule)
    datum = np.full(ranks * slots, NOTHING, np.int32)
    bits, count = np.zeros(ranks * slots, np.uint64), np.zeros(ranks * slots, np.int32)
    space = (OUTPUT if schedule.promise.in_place else INPUT) * width
    for held_by, initial in ((datum, first), (bits, expression), (count, first != NOTHING)):
        held_by.reshape(ranks, slots)[:, space : space + width] = initial.reshape(ranks, width)
    held, parts, mixed = _native.follow(
        when, *programs.sources.columns, *programs.destinations.columns, ranks, datum, bits, count
    )
    complete = (parts == ranks) & (programs.sources.sizes > 1) & schedule.promise.reduces
    faults = {
        "an instruction folds different pieces of data": mixed,
        "an instruction reads what nobody has written": held == NOTHING,
        "an instruction has another length than its data": held != programs.length_of,
        "an average divides in the wrong place": complete != programs.complete,
    }
    found = [(int(when[at].min()), what) for what, at in faults.items() if at.any()]
    if found:
        _need(programs, False, min(found, key=lambda fault: fault[0])[1])  # of the first round
    rank, chunk = np.nonzero(_wanted(programs))
    place = rank * slots + OUTPUT * width + chunk
    cell = rank * width + chunk
    right = (datum[place] == state.datum[cell]) & (bits[place] == state.bits[cell])
    if not right.all():
        wrong = int(np.flatnonzero(~right)[0])
        where = f"rank {rank[wrong]} does not end with chunk {chunk[wrong]} as the schedule makes it"
        message = f"{schedule.title}: the compiled programs are wrong: {where}"
        raise ScheduleError(message, rank=int(rank[wrong]), chunk=int(chunk[wrong]))


def _slots(programs: Programs) -> int:
    """The number of slots that a rank can have: those of its arrays, then its work slots."""
    return WORK * programs.width + int(programs.work_slots.max(initial=0))


def _wanted(programs: Programs) -> NDArray[np.bool_]:
    """By rank and chunk: whether the collective promises something there."""
    schedule = programs.schedule
    wanted = np.zeros((schedule.ranks, programs.width), bool)
    wanted[:, : schedule.chunks] = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
    return wanted


def _need(programs: Programs, condition: bool | np.bool_, what: str) -> None:
    if not condition:
        raise ScheduleError(f"{programs.schedule.title}: the compiled programs are wrong: {what}")
