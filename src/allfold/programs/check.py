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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..collectives import NOTHING
from ..division import longer_by
from ..errors import ScheduleError
from ..symbolic import State, combined, rounded
from .compile import INPUT, OUTPUT, WORK, Programs
from .happens_before import Clocks, rounds_of
from .rows import Ints, Lists, by_round, lists_of

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
    unrolled = _unroll(programs, segments)
    try:
        rounds = rounds_of(unrolled.starts, unrolled.waits)
    except ScheduleError as error:
        raise ScheduleError(f"{programs.schedule.title}: {error}", rank=error.rank) from None
    clocks = Clocks(unrolled.starts, unrolled.waits, rounds)
    _check_order(programs, unrolled, clocks)
    _check_publications(programs)
    if segments > 1:
        unrolled = _unroll(programs, 1)
        rounds = rounds_of(unrolled.starts, unrolled.waits)
    _check_results(programs, unrolled, rounds, state)


# 1: what exists, and what may be touched ------------------------------------------------------------------------------


def _check_tables(programs: Programs) -> None:
    ranks, width, length = programs.schedule.ranks, programs.width, np.diff(programs.starts)
    spaces = WORK * width
    for lists, what in ((programs.sources, "source"), (programs.destinations, "destination")):
        _need(programs, ((lists.rank >= 0) & (lists.rank < ranks)).all(), f"a {what} is on a rank that does not exist")
        top = spaces + programs.work_slots[lists.rank]
        _need(programs, ((lists.value >= 0) & (lists.value < top)).all(), f"a {what} is in a slot that does not exist")
        _need(programs, (np.diff(lists.starts) > 0).all(), f"an instruction has no {what}")
        in_array = lists.value < spaces
        held = _arrays(programs)[lists.rank[in_array], lists.value[in_array]]
        _need(programs, held.all(), f"a {what} is in a part of an array that the rank does not have")
        foreign = in_array & (lists.rank != programs.rank[lists.row])
        reached = programs.memory == "shared" or (programs.memory == "readable" and what == "source")
        _need(programs, reached or not foreign.any(), f"a {what} is in an array that peers cannot reach")
    for lists in (programs.waits, programs.reuse, programs.leave):
        owner = programs.rank[lists.row] if lists is not programs.leave else lists.row
        _need(programs, ((lists.rank >= 0) & (lists.rank < ranks)).all(), "a wait is for a rank that does not exist")
        _need(programs, (lists.rank != owner).all(), "a rank waits for itself")
        counts = (lists.value >= 1) & (lists.value <= length[lists.rank])
        _need(programs, counts.all(), "a wait is for an instruction that does not exist")


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
    """What an instruction reads from and writes to a chunk of an array is never longer than the chunk."""
    schedule = programs.schedule
    if not schedule.promise.carries_data:
        return
    part = schedule.chunks // schedule.promise.slices(schedule.ranks)
    for lists in (programs.sources, programs.destinations):
        array = np.flatnonzero(lists.value < WORK * programs.width)
        piece, place = programs.length_of[lists.row[array]] % part, lists.value[array] % programs.width % part
        for pair in {*zip(piece[piece != place].tolist(), place[piece != place].tolist(), strict=True)}:
            _need(programs, longer_by(*pair, part) is None, f"chunk {pair[0]} does not fit into chunk {pair[1]}")


# 2: nobody waits forever ----------------------------------------------------------------------------------------------


def _check_publications(programs: Programs) -> None:
    """Every instruction that is waited for is published; nobody waits for the end of a rank that does not publish it.

    Then a wait is met as soon as its instruction is done, and `rounds_of` may treat the two as one. The last
    instruction of a call is published a little later, with the call's end, but then nothing is waited for in between.
    """
    ranks, starts = programs.schedule.ranks, programs.starts
    last = starts[1:] - 1
    has_leave = np.diff(programs.leave.starts) > 0
    for lists in (programs.waits, programs.reuse, programs.leave):
        awaited = starts[lists.rank] + lists.value - 1
        _need(programs, programs.announce[awaited].all(), "an instruction is waited for and not published")
        if lists is not programs.reuse:
            with_the_end = (awaited == last[lists.rank]) & ~has_leave[lists.rank]
            _need(
                programs, not (with_the_end & programs.silent[lists.rank]).any(), "an end is waited for and kept silent"
            )
    for rank in np.flatnonzero(programs.silent).tolist():
        rows = np.arange(starts[rank], starts[rank + 1] - (not has_leave[rank]))
        _need(programs, programs.announce[rows].any(), f"rank {rank} keeps silent all through a call")
        if programs.memory == "private":
            own = slice(programs.waits.starts[starts[rank]], programs.waits.starts[starts[rank + 1]])
            heard = {*programs.waits.rank[own].tolist(), *(peer for peer, _ in programs.leave.of(rank))}
            _need(programs, len(heard) == ranks - 1, f"rank {rank} keeps its end from ranks that it has not heard from")


# 3: the order of accesses ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unrolled:
    """All instructions of all segments, each rank's followed by its return, and what they access.

    Instruction i of rank r is row `starts[r] + i`. A place is a slot of a rank, and of one segment where each segment
    has memory of its own. Places are numbered from 0.
    """

    starts: Ints
    waits: Lists
    row: Ints
    place: Ints
    writes: NDArray[np.bool_]
    original: Ints
    """By row: which instruction it is, −1 for a return."""
    key: Ints
    """By place: (area · ranks + rank) · slots + slot, where the area is a segment or one of the work areas."""


def _unroll(programs: Programs, segments: int) -> _Unrolled:
    ranks, length = programs.schedule.ranks, np.diff(programs.starts)
    starts = programs.starts * segments + np.arange(ranks + 1)
    floor = WORK * programs.width
    slots = _slots(programs)

    def rows(instruction: Ints, segment: int) -> Ints:
        owner = programs.rank[instruction]
        here: Ints = starts[owner] + segment * length[owner] + instruction - programs.starts[owner]
        return here

    original = np.full(starts[-1], -1)
    everything = np.arange(programs.starts[-1])
    waits: list[tuple[Ints, Ints, Ints]] = []
    accesses: list[tuple[Ints, Ints, NDArray[np.bool_]]] = []
    for segment in range(segments):
        original[rows(everything, segment)] = everything
        for lists, back in ((programs.waits, 0), (programs.reuse, 2)):
            if segment >= back:
                count = lists.value + (segment - back) * length[lists.rank]
                waits.append((rows(lists.row, segment), lists.rank, count))
        for lists, is_write in ((programs.sources, False), (programs.destinations, True)):
            # There are two work areas, used by segments in turn, or one. Each segment of an array is memory of its own.
            work = 0 if programs.one_area else segment % 2
            area = np.where(lists.value >= floor, work, segment)
            key = (area * ranks + lists.rank) * slots + lists.value
            row = rows(lists.row, segment)
            accesses.append((row, key, np.full(len(key), is_write)))
            foreign = (lists.value < floor) & (lists.rank != programs.rank[lists.row])
            returns, key = starts[lists.rank[foreign] + 1] - 1, key[foreign]
            accesses.append((returns, key, np.ones(len(key), bool)))
    leave = programs.leave
    waits.append((starts[leave.row + 1] - 1, leave.rank, leave.value + (segments - 1) * length[leave.rank]))
    wait_row, wait_rank, wait_count = (np.concatenate(part) for part in zip(*waits, strict=True))
    row, key, writes = (np.concatenate(part) for part in zip(*accesses, strict=True))
    # Where a rank's result must be is a place too, even if nobody touches it.
    rank, chunk = np.nonzero(_wanted(programs))
    ends = [(segment * ranks + rank) * slots + OUTPUT * programs.width + chunk for segment in range(segments)]
    keys = np.unique(np.concatenate([key, *ends]))
    return _Unrolled(
        starts=starts,
        waits=lists_of(wait_row, wait_rank, wait_count, int(starts[-1])),
        row=row,
        place=np.searchsorted(keys, key),
        writes=writes,
        original=original,
        key=keys,
    )


def _check_order(programs: Programs, unrolled: _Unrolled, clocks: Clocks) -> None:
    earlier, later = _conflicts(unrolled, clocks)
    order = np.argsort(clocks.when[later], kind="stable")
    earlier, later = earlier[order], later[order]
    bounds = np.searchsorted(clocks.when[later], np.arange(len(clocks.rounds) + 1))
    row_in_round = np.zeros(programs.schedule.ranks, np.int64)
    for number, rows in enumerate(clocks.rounds):
        clock = clocks.advance(number)
        a, b = (part[bounds[number] : bounds[number + 1]] for part in (earlier, later))
        row_in_round[clocks.rank[rows]] = np.arange(len(rows))
        first = clocks.rank[a]
        unordered = clock[row_in_round[clocks.rank[b]], first] <= a - unrolled.starts[first]
        if unordered.any():
            _refuse_order(programs, unrolled, clocks.rank, int(a[unordered.argmax()]), int(b[unordered.argmax()]))


def _conflicts(unrolled: _Unrolled, clocks: Clocks) -> tuple[Ints, Ints]:
    """The pairs of instructions of different ranks that must be ordered, the one of the earlier round first.

    It is enough to compare each access with the last write before it and the next write after it: the rest follows.
    """
    when = clocks.when[unrolled.row]
    order = np.argsort((unrolled.place * (int(when.max(initial=0)) + 1) + when) * 2 + unrolled.writes)
    row, place, writes = unrolled.row[order], unrolled.place[order], unrolled.writes[order]
    position = np.arange(len(row))
    last_write = np.maximum.accumulate(np.where(writes, position, -1)) if len(row) else position
    before = np.append(-1, last_write)[:-1]
    next_write = np.minimum.accumulate(np.where(writes, position, len(row))[::-1])[::-1] if len(row) else position
    after = np.append(next_write, len(row))[1:]
    left = np.flatnonzero((before >= 0) & (place[before] == place))
    right = np.flatnonzero(~writes & (after < len(row)) & (place[np.minimum(after, len(row) - 1)] == place))
    earlier = np.concatenate([row[before[left]], row[right]])
    later = np.concatenate([row[left], row[after[right]]])
    apart = clocks.rank[earlier] != clocks.rank[later]
    return earlier[apart], later[apart]


def _refuse_order(programs: Programs, unrolled: _Unrolled, rank: Ints, earlier: int, later: int) -> None:
    def name(row: int) -> str:
        if unrolled.original[row] < 0:
            return f"the return of rank {rank[row]}"
        return f"instruction {row - int(unrolled.starts[rank[row]])} of rank {rank[row]}"

    message = (
        f"{programs.schedule.title}: unordered access: {name(earlier)} and {name(later)} touch the same memory and "
        f"nothing orders them"
    )
    raise ScheduleError(message, rank=int(rank[later]))


# 4: the results -------------------------------------------------------------------------------------------------------


def _check_results(programs: Programs, unrolled: _Unrolled, rounds: list[Ints], state: State) -> None:
    """Run the programs of one segment in symbols, round by round; instructions of one round do not conflict."""
    schedule, width, ranks = programs.schedule, programs.width, programs.schedule.ranks
    owner, slot = np.divmod(unrolled.key, _slots(programs))
    begun = State(schedule)
    space = OUTPUT if schedule.promise.in_place else INPUT
    cell = np.where(slot // width == space, owner * width + slot % width, 0)
    filled = (slot // width == space) & (begun.datum[cell] != NOTHING)
    datum = np.where(filled, begun.datum[cell], NOTHING)
    bits, count = begun.bits[cell], np.where(filled, 1, 0)
    rounds = [rows[unrolled.original[rows] >= 0] for rows in rounds]
    reads, writes = (_by_row(unrolled, kind) for kind in (False, True))
    for rows, (reader, read), (writer, written) in zip(
        rounds, by_round(reads, rounds), by_round(writes, rounds), strict=True
    ):
        operand, instruction = reads.value[read], unrolled.original[rows]
        sizes = np.bincount(reader, minlength=len(rows))
        heads = np.cumsum(sizes) - sizes
        total, held = bits[operand[heads]], datum[operand[heads]]
        parts = np.add.reduceat(count[operand], heads) if len(rows) else sizes
        for depth in range(1, int(sizes.max(initial=1))):
            more = np.flatnonzero(sizes > depth)
            total[more] = combined(total[more], bits[operand[heads[more] + depth]])
        folds = np.flatnonzero(sizes > 1)
        total[folds] = rounded(total[folds])
        complete = (parts == ranks) & (sizes > 1) & schedule.promise.reduces
        _need(programs, (datum[operand] == held[reader]).all(), "an instruction folds different pieces of data")
        _need(programs, (held != NOTHING).all(), "an instruction reads what nobody has written")
        _need(
            programs,
            (held % schedule.chunks == programs.length_of[instruction]).all(),
            "an instruction has another length than its data",
        )
        _need(programs, (complete == programs.complete[instruction]).all(), "an average divides in the wrong place")
        target = writes.value[written]
        datum[target], bits[target], count[target] = held[writer], total[writer], parts[writer]
    rank, chunk = np.nonzero(_wanted(programs))
    place = np.searchsorted(unrolled.key, rank * _slots(programs) + OUTPUT * width + chunk)
    cell = rank * width + chunk
    right = (datum[place] == state.datum[cell]) & (bits[place] == state.bits[cell])
    if not right.all():
        wrong = int(np.flatnonzero(~right)[0])
        where = f"rank {rank[wrong]} does not end with chunk {chunk[wrong]} as the schedule makes it"
        message = f"{schedule.title}: the compiled programs are wrong: {where}"
        raise ScheduleError(message, rank=int(rank[wrong]), chunk=int(chunk[wrong]))


def _slots(programs: Programs) -> int:
    """How many slots a rank can have: those of its arrays, then its work slots."""
    return WORK * programs.width + int(programs.work_slots.max(initial=0))


def _wanted(programs: Programs) -> NDArray[np.bool_]:
    """By rank and chunk: whether the collective promises something there."""
    schedule = programs.schedule
    wanted = np.zeros((schedule.ranks, programs.width), bool)
    wanted[:, : schedule.chunks] = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
    return wanted


def _by_row(unrolled: _Unrolled, writes: bool) -> Lists:
    """The places that each row reads, or writes; a return's writes stand for whatever the caller does."""
    chosen = np.flatnonzero((unrolled.writes == writes) & (unrolled.original[unrolled.row] >= 0))
    row, place = unrolled.row[chosen], unrolled.place[chosen]
    return lists_of(row, row, place, int(unrolled.starts[-1]))


def _need(programs: Programs, condition: bool | np.bool_, what: str) -> None:
    if not condition:
        raise ScheduleError(f"{programs.schedule.title}: the compiled programs are wrong: {what}")
