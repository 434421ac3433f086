"""Proof of compiled programs: no wait can deadlock, and no two unordered accesses touch the same memory.

Nothing here knows how programs are made. Two accesses to a slot, one of them a write, must be ordered by
happens-before, which `clocks` computes from the programs' own order and their waits alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ScheduleError
from .clocks import Clocks, rounds_of
from .lists import Ints, Lists, lists_of
from .program import WORK, Programs


def check(programs: Programs, segments: int = 1) -> None:
    """Raise `ScheduleError` unless the programs, run for that many segments one after the other, are sound."""
    unrolled = _unroll(programs, segments)
    try:
        rounds = rounds_of(unrolled.starts, unrolled.waits)
    except ScheduleError as error:
        raise ScheduleError(f"{programs.schedule.title}: {error}", rank=error.rank) from None
    clocks = Clocks(unrolled.starts, unrolled.waits, rounds)
    earlier, later = _conflicts(unrolled, clocks)
    order = np.argsort(clocks.when[later], kind="stable")
    earlier, later = earlier[order], later[order]
    bounds = np.searchsorted(clocks.when[later], np.arange(len(rounds) + 1))
    row_in_round = np.zeros(programs.schedule.ranks, np.int64)
    for number, rows in enumerate(rounds):
        clock = clocks.advance(number)
        a, b = (part[bounds[number] : bounds[number + 1]] for part in (earlier, later))
        row_in_round[clocks.rank[rows]] = np.arange(len(rows))
        first = clocks.rank[a]
        unordered = clock[row_in_round[clocks.rank[b]], first] <= a - unrolled.starts[first]
        if unordered.any():
            _refuse(programs, unrolled.starts, clocks.rank, int(a[unordered.argmax()]), int(b[unordered.argmax()]))


@dataclass(frozen=True)
class _Unrolled:
    """All instructions of all segments, and what they access; instruction i of rank r is row `starts[r] + i`."""

    starts: Ints
    waits: Lists
    row: Ints
    place: Ints
    writes: NDArray[np.bool_]


def _unroll(programs: Programs, segments: int) -> _Unrolled:
    ranks, length = programs.schedule.ranks, np.diff(programs.starts)
    starts = programs.starts * segments
    slots = (WORK + 2) * programs.width

    def rows(original: Ints, segment: int) -> Ints:
        owner = programs.rank[original]
        here: Ints = starts[owner] + segment * length[owner] + original - programs.starts[owner]
        return here

    waits: list[tuple[Ints, Ints, Ints]] = []
    accesses: list[tuple[Ints, Ints, NDArray[np.bool_]]] = []
    for segment in range(segments):
        for lists, back in ((programs.waits, 0), (programs.reuse, 2)):
            if segment >= back:
                count = lists.value + (segment - back) * length[lists.rank]
                waits.append((rows(lists.row, segment), lists.rank, count))
        for lists, is_write in ((programs.sources, False), (programs.destinations, True)):
            # The work area exists twice, for segments in turn, or once. A segment of an array is memory of its own.
            work = 0 if programs.one_area else segment % 2
            area = np.where(lists.value >= WORK * programs.width, work, segment)
            place = (area * ranks + lists.rank) * slots + lists.value
            accesses.append((rows(lists.row, segment), place, np.full(len(place), is_write)))
    wait_row, wait_rank, wait_count = (np.concatenate(part) for part in zip(*waits, strict=True))
    row, place, writes = (np.concatenate(part) for part in zip(*accesses, strict=True))
    return _Unrolled(starts, lists_of(wait_row, wait_rank, wait_count, int(starts[-1])), row, place, writes)


def _conflicts(unrolled: _Unrolled, clocks: Clocks) -> tuple[Ints, Ints]:
    """The pairs of instructions of different ranks that must be ordered, the one of the earlier round first.

    It is enough to look at each access together with the writes next to it: the rest follows from those.
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


def _refuse(programs: Programs, starts: Ints, rank: Ints, earlier: int, later: int) -> None:
    def name(row: int) -> str:
        return f"instruction {row - int(starts[rank[row]])} of rank {rank[row]}"

    message = (
        f"{programs.schedule.title}: unordered access: {name(earlier)} and {name(later)} touch the same memory and "
        f"nothing orders them"
    )
    raise ScheduleError(message, rank=int(rank[later]))
