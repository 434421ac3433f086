"""Message programs in the extension.

A program is passed as columns of numbers. The extension runs it as `wire.MessageRun` does, with the same messages and tags.
`wire.MessageRun` is for operations that are Python functions; the headers are the same.

Once the extension has a plan, it makes calls without Python: small all_reduces of all lengths and barriers after the first
one, others after the first one with the same signature. All calls are numbered together, and signatures, messages and
errors are the same. Some calls are always made in Python: those in the background, those on slices that differ in length,
and all calls while another call is open, a trace is on, a rank has left or the group has failed.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .... import _native
from ....collectives import COLLECTIVES
from ....division import Division, Lengths
from ....fabrics import tags
from ....fabrics.fabric import Disconnected
from ....programs.messages import (
    ARRIVED,
    ChunkPlace,
    InstructionKind,
    MessagePrograms,
    ProgramMessage,
    are_side_by_side,
)
from ....programs.versions import INPUT, OUTPUT
from ...buffer import Flat
from ..agreement import Difference
from ..job import Job
from ..roster import Roster, Shared

_CODES = {name: code for code, name in enumerate(COLLECTIVES)}
_OPS = {name: number for number, name in enumerate(_native.OPS)}
_MOST_KNOWN = 1000
ANY_LENGTH = "all_reduce", "barrier"
"""The collectives of which all calls whose data are sent with headers have one plan."""
_SENDS = InstructionKind.SEND, InstructionKind.SENT
_BEGINS = InstructionKind.POST, InstructionKind.SEND
_Ints = np.ndarray[Any, np.dtype[np.int64]]


class Stage(NamedTuple):
    """A part of a call's array, in segments: each is a run of the programs."""

    made: MessagePrograms
    first: int
    """Its first element in the array."""
    elements: int
    """Of the whole buffer."""
    segment: int
    """Elements of a segment."""
    ahead: int | None
    """The number of segments that are begun before one is finished (None: all)."""
    starts: bool = False
    """A segment begins with everything up to its first wait for a message, not only with the island's first part."""

    @property
    def late(self) -> int:
        return -1 if self.ahead is None else self.ahead

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The first element and the length of every segment."""
        starts = range(0, max(1, self.elements), max(1, self.segment))
        return [(self.first + start, min(self.segment, self.elements - start)) for start in starts]


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method, as a function that does not keep its object alive. For the extension."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = found()
        assert alive is not None, "a caller keeps its communicator alive"
        return alive(*arguments)

    return call


class NativeRuns:
    """Runs the calls of one rank in the extension."""

    def __init__(self, wire: _native.Wire, roster: Roster, shared: Shared) -> None:
        self.turn = threading.Lock()  # held by the call that is being made
        self.on_failure: Callable[[_native.DirectCall, Any], None] | None = None
        self.check_group: Callable[[], None] | None = None
        local = [roster.local.get(rank, -1) for rank in range(roster.size)]
        numbers = tags.CALLS, tags.INDICES
        self.links = _native.PeerLinks(wire, shared.collectives.messages, shared.collectives.native, local, *numbers)
        told = weakly(self._failed), weakly(self._check)
        codes = _CODES["all_reduce"], _CODES["barrier"]
        self.direct = _native.DirectCalls(self.links, roster.rank, self.turn, *told, roster.timeout, *codes)
        self._rank = roster.rank
        self._known: dict[int, tuple[MessagePrograms, _native.MessageProgram]] = {}  # by id(programs)

    def known(self, job: Job) -> _native.CallPlan | None:
        """The plan for a call, if there is one."""
        name = _name(job)
        return None if name is None else self.direct.plan(job.packed, name)

    def plan(
        self,
        job: Job,
        stages: Sequence[Stage],
        work: Sequence[Flat],
        *,
        along: bool,
        waits_for_leader: bool,
    ) -> _native.CallPlan:
        """Make a plan for calls like this one, with a built-in operation. From now on the extension makes them itself."""
        counts, first = job.call.counts, stages[0].made.schedule
        bounds = [] if counts is None else [*_bounds(first.ranks, first.chunks, counts, self._rank)]
        rows = [
            (self._program(one.made), one.first, one.elements, max(1, one.segment), one.late, one.starts)
            for one in stages
        ]
        made = _native.CallPlan.of(rows, along, waits_for_leader, list(work), bounds)
        name = _name(job)
        if along and first.collective == "all_reduce":
            self.direct.reduces = made
        elif along and first.collective == "barrier":
            self.direct.barriers = made
        elif name is not None:
            self.direct.keep(job.packed, name, made)
        return made

    def perform(self, plan: _native.CallPlan, job: Job) -> Difference | None:
        """Make a call. Returns how the leader of another island differs, if one does."""
        op = 0 if job.call.op is None else _OPS[job.call.op.name]
        arrays = job.input, job.output, job.dtype.name
        return _native.perform_between_islands(self.links, plan, *arrays, op, job.digest + job.packed, job.deadline)

    def settle(self, within: float) -> None:
        """Wait until what this rank has sent has arrived: others may still be in calls that it has left."""
        with contextlib.suppress(Disconnected):
            self.links.settle(time.monotonic() + within)

    def _failed(self, call: _native.DirectCall, trouble: Any) -> None:
        assert self.on_failure is not None
        self.on_failure(call, trouble)

    def _check(self) -> None:
        assert self.check_group is not None
        self.check_group()

    def _program(self, made: MessagePrograms) -> _native.MessageProgram:
        if id(made) not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[id(made)] = made, _native.MessageProgram.of(facts(made, self._rank))
        return self._known[id(made)][1]


def _name(job: Job) -> str | None:
    """The name of a call's algorithm, or "" if it has none; None if the extension cannot keep plans for such calls."""
    name = job.call.algorithm or ""
    return name if isinstance(name, str) and job.call.counts is None else None


@lru_cache(maxsize=64)
def _bounds(ranks: int, chunks: int, counts: Lengths, rank: int) -> tuple[Any, Any]:
    """The bounds of the chunks in all ranks' inputs (only once if they are the same), and in this rank's output."""
    division = Division(ranks, chunks, counts.elements, counts)
    inputs = [division.bounds(owner, of_output=False) for owner in range(ranks if counts.exchanges else 1)]
    return np.array(inputs, np.uint64).ravel(), np.array(division.bounds(rank, of_output=True), np.uint64)


def facts(made: MessagePrograms, rank: int) -> dict[str, Any]:
    """One rank's program as the fields of the extension's `MessageProgram`."""
    schedule, program = made.schedule, made.programs[rank]
    promise, part = schedule.promise, schedule.chunks // schedule.promise.slices(schedule.ranks)
    own = rank * part, (rank + 1) * part
    numbers = {one.message: one.kind in _SENDS for one in program if one.kind in _BEGINS}
    at = {message: number for number, message in enumerate(numbers)}  # the messages of this rank, numbered from 0
    islands = list(dict.fromkeys(one.message for one in program if one.kind == InstructionKind.COLLECTIVE))

    def place(one: ChunkPlace) -> tuple[int, int, int]:
        return one.space, at[one.at] if one.space == ARRIVED else one.at, one.part

    instructions: list[int] = []
    for one in program:
        number = {InstructionKind.FOLD: 0, InstructionKind.COLLECTIVE: -1}.get(one.kind)
        if number is None:
            number = at[one.message]
        elif number < 0:
            number = islands.index(one.message)
        target = place(one.destination) if one.kind == InstructionKind.FOLD else (0, 0, 0)
        instructions += (one.kind, one.complete, number, one.length_of, one.chunks, *target)
    messages: list[int] = []
    places: list[list[tuple[int, int, int]]] = []
    for number, sends in numbers.items():
        message = made.messages[number]
        messages += (sends, sends and _lies_together(made, message), message.destination if sends else message.source)
        places.append([place(one) for one in (message.places if sends else message.into)])
    calls = [made.collectives[number] for number in islands]
    return {
        "rank": rank,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "work_slots": made.work_slots[rank],
        "begins": made.begins[rank] if made.begins else 0,
        "even": made.even,
        "carries_data": promise.carries_data,
        "input": _ints(own if promise.starts.sliced else (0, schedule.chunks)),
        "output": _ints(own if promise.ends.sliced else (0, schedule.chunks)),
        "instructions": _ints(instructions),
        **_rows("source_starts", "sources", [[place(one) for one in row.sources] for row in program]),
        **_rows("into_starts", "into", [[place(one) for one in row.into] for row in program]),
        "messages": _ints(messages),
        **_rows("part_starts", "parts", [[(datum,) for datum in made.messages[number].lengths] for number in numbers]),
        **_rows("place_starts", "places", places),
        "inside": _ints([number for call in calls for number in (_CODES[call.name], call.root or 0)]),
    }


def _lies_together(made: MessagePrograms, message: ProgramMessage) -> bool:
    """True if the data of a message are contiguous, whatever the lengths of its parts."""
    if len(message.places) == 1:
        return True
    chunks = (datum % made.schedule.chunks for datum in message.lengths)
    in_place = all(place.at == chunk for place, chunk in zip(message.places, chunks, strict=True))
    whole = (in_place and message.places[0].space in (INPUT, OUTPUT)) or made.even
    return whole and message.places[0].space != ARRIVED and are_side_by_side(message.places)


def _ints(numbers: Sequence[int]) -> _Ints:
    return np.array(numbers, np.int64).ravel()


def _rows(starts: str, name: str, rows: Iterable[Sequence[tuple[int, ...]]]) -> dict[str, _Ints]:
    kept = list(rows)
    return {
        starts: np.cumsum([0, *map(len, kept)], dtype=np.int64),
        name: _ints([number for row in kept for one in row for number in one]),
    }
