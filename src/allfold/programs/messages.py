"""From a schedule to message programs: what each rank sends, receives and folds where ranks share no memory.

A program is a row of instructions. POST begins a receive, SEND begins a send, AWAIT waits until a message has come,
SENT until the memory of a send may be used again, FOLD folds its sources (one source: a copy) into its destination.
Everything that one rank reads of another in one step travels in one message. Receives are posted a step ahead.

`check_messages` proves of the result, knowing nothing of how it was made: every receive is met by its send, in the
order of the pair; nobody waits forever, even if a send ends only after its receive was posted; no memory is touched
while a message is in it; and every rank ends with what the schedule says, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..collectives import NOTHING
from ..division import longer_by
from ..errors import ScheduleError
from ..pure.hashes import folded
from ..schedules import Schedule
from ..symbolic import State
from .versions import INPUT, OUTPUT, WORK

ARRIVED = 3  # the space of messages that were received into memory of their own
_AHEAD = 1  # how many steps before its own a receive is posted


class ChunkPlace(NamedTuple):
    """Where one chunk lies: in an array (`at`: the chunk), a work slot, or in a message that came (`part` of it)."""

    space: int
    at: int
    part: int = 0


class ProgramMessage(NamedTuple):
    """What one rank sends to another in one step: one part per chunk. `lengths`: the data that parts are as long as.

    `places`: where the sender has the parts; `into`: where the receiver puts them, if not into memory of their own.
    """

    source: int
    destination: int
    step: int
    lengths: tuple[int, ...]
    places: tuple[ChunkPlace, ...]
    into: tuple[ChunkPlace, ...]


class Kind(IntEnum):
    POST, SEND, AWAIT, SENT, FOLD = range(5)


class Instruction(NamedTuple):
    kind: Kind
    message: int = -1
    sources: tuple[ChunkPlace, ...] = ()
    destination: ChunkPlace = ChunkPlace(WORK, -1)
    length_of: int = 0
    complete: bool = False
    """The result holds every rank's contribution: here an average divides."""


@dataclass(frozen=True)
class MessagePrograms:
    """The programs of all ranks, and the messages between them."""

    schedule: Schedule
    messages: tuple[ProgramMessage, ...]
    programs: tuple[tuple[Instruction, ...], ...]
    work_slots: tuple[int, ...]

    def describe(self, rank: int) -> str:
        """One rank's program, one line per instruction."""
        spaces = ("in", "out", "work", "message")

        def name(place: ChunkPlace) -> str:
            part = f".{place.part}" if place.space == ARRIVED else ""
            return f"{spaces[place.space]}[{place.at}{part}]"

        lines = []
        for number, one in enumerate(self.programs[rank]):
            if one.kind == Kind.FOLD:
                text = f"{name(one.destination)} ← {' ⊕ '.join(map(name, one.sources))}"
            else:
                message = self.messages[one.message]
                sends = one.kind in (Kind.SEND, Kind.SENT)
                peer = f"to {message.destination}" if sends else f"from {message.source}"
                places = ", ".join(map(name, message.places if sends else message.into))
                text = f"{one.kind.name.lower()} {one.message} {peer}" + (f": {places}" if places else "")
            lines.append(f"{number}: {text}")
        return "\n".join(lines)


def lower(schedule: Schedule) -> MessagePrograms:
    """The message programs of a schedule that is known to be right: `verify` it first."""
    return _Lowering(schedule).run()


class _Fold(NamedTuple):
    cells: list[int]
    target: int
    length_of: int
    complete: bool


class _Step:
    """What one rank does in one step."""

    def __init__(self) -> None:
        self.sends: list[int] = []
        self.receives: list[int] = []
        self.folds: list[_Fold] = []
        self.sent: set[int] = set()  # the cells that it sends

    # What follows is asked when the step is complete.

    @cached_property
    def targets(self) -> set[int]:
        return {fold.target for fold in self.folds}

    @cached_property
    def uses(self) -> dict[int, list[_Fold]]:
        """By cell: the folds that read it, as often as they do."""
        found: dict[int, list[_Fold]] = defaultdict(list)
        for fold in self.folds:
            for cell in fold.cells:
                found[cell].append(fold)
        return found

    def reads(self, cell: int) -> bool:
        return cell in self.sent or cell in self.uses


class _Lowering:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.state = State(schedule)
        self.width = self.state.width
        promise, ranks, chunks = schedule.promise, schedule.ranks, schedule.chunks
        self.in_place = promise.in_place
        ends = np.full((ranks, self.width), NOTHING, np.int64)
        ends[:, :chunks] = promise.ends_with(ranks, schedule.root, chunks)
        self.wanted: list[bool] = (ends.reshape(-1) != NOTHING).tolist()
        self.steps: list[dict[int, _Step]] = [defaultdict(_Step) for _ in range(ranks)]
        self.cells: list[tuple[int, ...]] = []  # by message: what it carries
        self.messages: list[ProgramMessage] = []
        self.started = (self.state.datum != NOTHING).tolist()

    def run(self) -> MessagePrograms:
        while not self.state.done:
            self._collect()
        ranks = range(self.schedule.ranks)
        made = [_RankProgram(self, rank) for rank in ranks]
        programs = tuple(tuple(one.program()) for one in made)
        for one in made:  # where the parts lie is each rank's own decision
            for number, places in one.sent_from.items():
                self.messages[number] = self.messages[number]._replace(places=places)
            for number, places in one.into.items():
                self.messages[number] = self.messages[number]._replace(into=places)
        return MessagePrograms(self.schedule, tuple(self.messages), programs, tuple(len(one.slots) for one in made))

    def _collect(self) -> None:
        """Take one step, and note who sends what to whom, and who folds what."""
        step, before = self.state.step, self.state.datum.copy()
        folds = self.state.advance()
        starts, operands, targets = folds.starts.tolist(), folds.operands.tolist(), folds.target.tolist()
        reduces = self.schedule.promise.reduces
        carried: dict[tuple[int, int], set[int]] = defaultdict(set)
        for number, target in enumerate(targets):
            rank, cells = target // self.width, operands[starts[number] : starts[number + 1]]
            for cell in cells:
                if cell // self.width != rank:
                    carried[cell // self.width, rank].add(cell)
            complete = len(cells) > 1 and reduces and int(self.state.count[target]) == self.schedule.ranks
            length = int(self.state.datum[target])
            self.steps[rank][step].folds.append(_Fold(cells, target, length, complete))
        for (source, destination), some in sorted(carried.items()):
            number, cells = len(self.messages), sorted(some)
            lengths = tuple(int(before[cell]) for cell in cells)
            self.messages.append(ProgramMessage(source, destination, step, lengths, (), ()))
            self.cells.append(tuple(cells))
            self.steps[source][step].sends.append(number)
            self.steps[source][step].sent.update(cells)
            self.steps[destination][step].receives.append(number)


class _RankProgram:
    """One rank's program in the making."""

    def __init__(self, whole: _Lowering, rank: int) -> None:
        self.whole, self.rank = whole, rank
        self.steps = [whole.steps[rank][step] for step in sorted(whole.steps[rank])]
        self.slots: dict[tuple[int, int], int] = {}
        self.lies: dict[int, ChunkPlace] = {}
        for cell in range(rank * whole.width, (rank + 1) * whole.width):
            if whole.started[cell]:
                self.lies[cell] = ChunkPlace(OUTPUT if whole.in_place else INPUT, cell % whole.width)
        self.leaving: dict[ChunkPlace, list[int]] = defaultdict(list)  # sends whose memory is not free yet
        self.sent_from: dict[int, tuple[ChunkPlace, ...]] = {}
        self.into: dict[int, tuple[ChunkPlace, ...]] = {}

    def program(self) -> Iterator[Instruction]:
        whole = self.whole
        last_use: dict[ChunkPlace, int] = {}  # by place in the output array: the last step in which it was used
        posted = 0
        for now, step in enumerate(self.steps):
            while posted < min(len(self.steps), now + _AHEAD + 1):
                for number in self.steps[posted].receives:
                    into = self._directly(number, self.steps[posted], last_use, now)
                    if into:
                        self.into[number] = into
                        for place in into:
                            yield from self._free(place)
                            last_use[place] = posted
                    yield Instruction(Kind.POST, number)
                posted += 1
            for number in step.sends:
                places = tuple(self.lies[cell] for cell in whole.cells[number])
                self.sent_from[number] = places
                for place in places:
                    self.leaving[place].append(number)
                    last_use[place] = now
                yield Instruction(Kind.SEND, number)
            arrived: dict[int, ChunkPlace] = {}
            for number in step.receives:
                into = self.into.get(number, ())
                for part, cell in enumerate(whole.cells[number]):
                    arrived[cell] = into[part] if into else ChunkPlace(ARRIVED, number, part)
                yield Instruction(Kind.AWAIT, number)
            yield from self._fold(step, arrived, last_use, now)
        for cell in range(self.rank * whole.width, (self.rank + 1) * whole.width):
            home = ChunkPlace(OUTPUT, cell % whole.width)
            if whole.wanted[cell] and self.lies[cell] != home:
                yield from self._free(home)
                length = int(whole.state.datum[cell])
                yield Instruction(Kind.FOLD, sources=(self.lies[cell],), destination=home, length_of=length)
        for place in list(self.leaving):
            yield from self._free(place)

    def _fold(
        self, step: _Step, arrived: dict[int, ChunkPlace], last_use: dict[ChunkPlace, int], now: int
    ) -> Iterator[Instruction]:
        """All folds of a step read what was there before it."""
        readers: dict[ChunkPlace, int] = defaultdict(int)
        for fold in step.folds:
            for cell in set(fold.cells):
                readers[arrived.get(cell) or self.lies[cell]] += 1
        moved: dict[int, ChunkPlace] = {}
        for cells, target, length, complete in step.folds:
            sources = tuple(arrived.get(cell) or self.lies[cell] for cell in cells)
            for place in set(sources):
                last_use[place] = now
            if len(sources) == 1 and sources[0] == self._home(target):  # it was received there
                moved[target] = sources[0]
                continue
            own = self._home(target)
            others = readers[own] - (own in sources)
            if others:  # somebody else still reads what lies there: take the other place of this chunk
                own = self._slot(target, 1)
            yield from self._free(own)
            last_use[own] = now
            moved[target] = own
            yield Instruction(Kind.FOLD, -1, sources, own, length, complete)
        self.lies.update(moved)

    def _home(self, cell: int) -> ChunkPlace:
        chunk = cell % self.whole.width
        in_array = chunk < self.whole.schedule.chunks and (self.whole.in_place or self.whole.wanted[cell])
        return ChunkPlace(OUTPUT, chunk) if in_array else self._slot(cell, 0)

    def _slot(self, cell: int, second: int) -> ChunkPlace:
        key = cell % self.whole.width, second
        return ChunkPlace(WORK, self.slots.setdefault(key, len(self.slots)))

    def _free(self, place: ChunkPlace) -> Iterator[Instruction]:
        """Wait until no send reads a place any more."""
        for number in self.leaving.pop(place, ()):
            for other in self.sent_from[number]:
                if other != place:
                    self.leaving[other].remove(number)
            yield Instruction(Kind.SENT, number)

    def _directly(self, number: int, step: _Step, last_use: dict[ChunkPlace, int], now: int) -> tuple[ChunkPlace, ...]:
        """Where a message may be received without a copy: every part is copied to one place in the output array.

        The places must be next to each other, hold what is as long as themselves, and be used by nobody between now
        and the step of the message.
        """
        between = self.steps[now : self.steps.index(step)]
        places = []
        for cell, length in zip(self.whole.cells[number], self.whole.messages[number].lengths, strict=True):
            uses = step.uses[cell]
            if len(uses) > 1 or len(uses[0].cells) > 1:
                return ()
            target = uses[0].target
            place = self._home(target)
            if (
                place.space != OUTPUT
                or place.at != length % self.whole.schedule.chunks
                or last_use.get(place, -1) >= now
            ):
                return ()
            if any(target in one.targets for one in between):
                return ()
            if self.lies.get(target, place) == place and any(one.reads(target) for one in (*between, step)):
                return ()
            places.append(place)
        first = places[0].at
        return tuple(places) if [place.at for place in places] == list(range(first, first + len(places))) else ()


# The proof ------------------------------------------------------------------------------------------------------------

Value = tuple[int, int]  # a datum, and the hash of the expression that made it


def check_messages(made: MessagePrograms, state: State | None = None) -> None:
    """Raise `ScheduleError` unless the programs are sound. `state`: the schedule's symbolic execution, run to its end.

    Each rank's program is a row, each pair of ranks a queue, and every wait is for one named message. So how far the
    ranks come, and what they compute, does not depend on their speeds: one run tells of all.
    """
    if state is None:
        state = State(made.schedule).run_to_end()
    _check_queues(made)
    start, results = State(made.schedule), _results(made.schedule)
    ranks = [_Follower(made, rank, start, results) for rank in range(made.schedule.ranks)]
    begun: dict[int, list[Value]] = {}  # by message: what was sent
    posted: set[int] = set()
    while any(rank.advance(begun, posted) for rank in ranks):
        pass
    for rank in ranks:
        if not rank.done:
            raise rank.wrong(f"waits forever: {rank.waits_for()}")
        rank.check_end(state)


def _check_queues(made: MessagePrograms) -> None:
    """Messages of a pair are matched in their order, so both ranks must begin them in the same order, and once."""
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    posted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, program in enumerate(made.programs):
        for one in program:
            if one.kind in (Kind.SEND, Kind.POST):
                message = made.messages[one.message]
                queue = sent if one.kind == Kind.SEND else posted
                if (message.source if one.kind == Kind.SEND else message.destination) != rank:
                    raise ScheduleError(f"{made.schedule.title}: message {one.message} is not rank {rank}'s", rank=rank)
                queue[message.source, message.destination].append(one.message)
    if sent != posted:
        pair = next(pair for pair in {**sent, **posted} if sent.get(pair) != posted.get(pair))
        raise ScheduleError(
            f"{made.schedule.title}: rank {pair[0]} sends messages {sent.get(pair, [])} to rank {pair[1]}, which "
            f"receives {posted.get(pair, [])}",
            rank=pair[0],
        )


class _Follower:
    """Follows one rank's program with symbols for data."""

    def __init__(self, made: MessagePrograms, rank: int, start: State, results: frozenset[Value]) -> None:
        self.made, self.rank, self.results, self.at = made, rank, results, 0
        self.program = made.programs[rank]
        schedule = made.schedule
        self.holds: dict[ChunkPlace, Value] = {}
        space = OUTPUT if schedule.promise.in_place else INPUT
        for chunk in range(schedule.chunks):
            cell = rank * start.width + chunk
            if start.datum[cell] != NOTHING:
                self.holds[ChunkPlace(space, chunk)] = int(start.datum[cell]), int(start.bits[cell])
        ends = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)[rank] != NOTHING
        self.may_write = {
            ChunkPlace(OUTPUT, chunk) for chunk in np.flatnonzero(ends | schedule.promise.in_place).tolist()
        }
        self.may_write |= {ChunkPlace(WORK, slot) for slot in range(made.work_slots[rank])}
        self.part = schedule.chunks // schedule.promise.slices(schedule.ranks)
        self.leaving: dict[ChunkPlace, int] = defaultdict(int)
        self.arriving: set[ChunkPlace] = set()
        self.receives: set[int] = set()  # begun, and not awaited yet
        self.sends: set[int] = set()

    @property
    def done(self) -> bool:
        return self.at == len(self.program)

    def advance(self, begun: dict[int, list[Value]], posted: set[int]) -> bool:
        """Go on until a wait; whether anything was done."""
        before = self.at
        while not self.done:
            one = self.program[self.at]
            if one.kind == Kind.AWAIT and one.message not in begun:
                break
            if one.kind == Kind.SENT and one.message not in posted:
                break
            self._do(one, begun, posted)
            self.at += 1
        return self.at > before

    def _do(self, one: Instruction, begun: dict[int, list[Value]], posted: set[int]) -> None:
        if one.kind == Kind.FOLD:
            values = [self._read(source, one.length_of) for source in one.sources]
            result = self._folded(values)
            self._write(one.destination, result, one.length_of)
            # Every rank that gets a result gets a complete one, by the promise: what equals a result is complete.
            reduces = len(values) > 1 and self.made.schedule.promise.reduces
            if one.complete != (reduces and result in self.results):
                raise self.wrong("divides an average at the wrong place")
            return
        message = self.made.messages[one.message]
        if one.kind == Kind.POST:
            posted.add(one.message)
            self.receives.add(one.message)
            for place, length in zip(message.into, message.lengths, strict=bool(message.into)):
                self._free_to_write(place, length)
                self.arriving.add(place)
            first = message.lengths[0] % self.made.schedule.chunks
            if any(place != (OUTPUT, first + i, 0) for i, place in enumerate(message.into)):
                raise self.wrong("receives into places that are not side by side")
        elif one.kind == Kind.SEND:
            begun[one.message] = [
                self._read(place, length) for place, length in zip(message.places, message.lengths, strict=True)
            ]
            self.sends.add(one.message)
            for place in message.places:
                self.leaving[place] += 1
        elif one.kind == Kind.SENT:
            if one.message not in self.sends:
                raise self.wrong("waits for the end of what it does not send")
            self.sends.remove(one.message)
            for place in message.places:
                self.leaving[place] -= 1
        else:
            if one.message not in self.receives:
                raise self.wrong("awaits what it has not asked for")
            self.receives.remove(one.message)
            parts = message.into or [ChunkPlace(ARRIVED, one.message, part) for part in range(len(message.lengths))]
            for place, value in zip(parts, begun[one.message], strict=True):
                self.arriving.discard(place)
                self.holds[place] = value

    def _read(self, place: ChunkPlace, length_of: int) -> Value:
        if place in self.arriving or place not in self.holds:
            raise self.wrong(f"reads {place}, which holds nothing yet")
        value = self.holds[place]
        if value[0] != length_of:
            raise self.wrong(f"takes datum {value[0]} to be as long as datum {length_of}")
        return value

    def _write(self, place: ChunkPlace, value: Value, length_of: int) -> None:
        self._free_to_write(place, length_of)
        if value[0] != length_of:
            raise self.wrong(f"writes datum {value[0]} as if it were datum {length_of}")
        self.holds[place] = value

    def _free_to_write(self, place: ChunkPlace, length_of: int) -> None:
        if place not in self.may_write:
            raise self.wrong(f"writes to {place}, which is not its own")
        chunks = length_of % self.part, place.at % self.part
        if place.space == OUTPUT and chunks[0] != chunks[1] and longer_by(*chunks, self.part) is not None:
            raise self.wrong(f"writes datum {length_of} to {place}, which can be shorter")
        if self.leaving[place] or place in self.arriving:
            raise self.wrong(f"writes to {place} while a message is in it")

    def _folded(self, values: Sequence[Value]) -> Value:
        if len({datum for datum, _ in values}) > 1:
            raise self.wrong("folds different pieces of data")
        if len(values) == 1:
            return values[0]
        return values[0][0], folded(bits for _, bits in values)

    def check_end(self, state: State) -> None:
        schedule = self.made.schedule
        if self.sends or self.receives:
            raise self.wrong("ends while messages are on their way")
        wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)[self.rank]
        for chunk in np.flatnonzero(wanted != NOTHING).tolist():
            cell = self.rank * state.width + chunk
            value = int(state.datum[cell]), int(state.bits[cell])
            if self.holds.get(ChunkPlace(OUTPUT, chunk)) != value:
                raise ScheduleError(
                    f"{schedule.title}: the message program of rank {self.rank} ends with something else in chunk {chunk} "
                    "than the schedule",
                    rank=self.rank,
                    chunk=chunk,
                )

    def waits_for(self) -> str:
        one = self.program[self.at]
        message = self.made.messages[one.message]
        if one.kind == Kind.AWAIT:
            return f"message {one.message} from rank {message.source} (step {message.step + 1})"
        return f"rank {message.destination} to take message {one.message} (step {message.step + 1})"

    def wrong(self, what: str) -> ScheduleError:
        title = self.made.schedule.title
        return ScheduleError(
            f"{title}: instruction {self.at} of rank {self.rank}'s message program {what}", rank=self.rank
        )


def _results(schedule: Schedule) -> frozenset[Value]:
    """The complete values of a schedule that reduces: all that hold every rank's contribution."""
    state, found = State(schedule), set[Value]()
    while not state.done:
        targets = state.advance().target
        full = targets[state.count[targets] == schedule.ranks]
        found.update(zip(state.datum[full].tolist(), state.bits[full].tolist(), strict=True))
    return frozenset(found)
