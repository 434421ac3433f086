"""From a schedule to message programs: what each rank sends, receives and folds where ranks share no memory.

A program is a row of instructions. POST begins a receive, SEND begins a send, AWAIT waits until a message has come,
SENT until the memory of a send may be used again, FOLD folds its sources (one source: a copy) into its destination.
Everything that one rank reads of another in one step travels in one message. Receives are posted a step ahead.

Of a schedule in two levels (`two_level`), what islands do inside becomes one more kind of instruction: COLLECTIVE, a
collective of an island in its shared memory. What crosses between islands stays messages.

`check_messages` proves the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..collectives import COLLECTIVES, NOTHING
from ..schedules import Schedule
from ..symbolic import State
from .two_level import IslandPhase, Islands, advance_inside, phases
from .versions import INPUT, OUTPUT, WORK

ARRIVED = 3  # the space of messages that were received into memory of their own
_AHEAD = 1  # how many steps before its own a receive is posted


class ChunkPlace(NamedTuple):
    """The place of one chunk: in an array (`at`: the chunk), a work slot, or a message that arrived (`part` of it)."""

    space: int
    at: int
    part: int = 0

    def behind(self, chunks: int) -> ChunkPlace:
        """The place this many chunks further on, where chunks are contiguous."""
        if self.space == ARRIVED:
            return self._replace(part=self.part + chunks)
        return self._replace(at=self.at + chunks)


class ProgramMessage(NamedTuple):
    """All that one rank sends to another in one step: one part per chunk. `lengths`: by part, the datum that it holds.

    `places`: where the sender has the parts; `into`: where the receiver puts them, if not into memory of their own.
    """

    source: int
    destination: int
    step: int
    lengths: tuple[int, ...]
    places: tuple[ChunkPlace, ...]
    into: tuple[ChunkPlace, ...]


class InstructionKind(IntEnum):
    POST, SEND, AWAIT, SENT, FOLD, COLLECTIVE = range(6)


class Instruction(NamedTuple):
    """A fold of no sources clears its destination. A COLLECTIVE takes `sources`, which lie side by side, and puts its
    result `into` places side by side; one that has one array on every rank has it there."""

    kind: InstructionKind
    message: int = -1
    """Its number among the messages; of a COLLECTIVE, among the collectives."""
    sources: tuple[ChunkPlace, ...] = ()
    destination: ChunkPlace = ChunkPlace(WORK, -1)
    length_of: int = 0
    complete: bool = False
    """The result holds every rank's contribution: here an average divides."""
    into: tuple[ChunkPlace, ...] = ()
    chunks: int = 1
    """Of a fold: it is the same for this many chunks, equally long, that lie side by side in every source and in the
    destination."""

    def goes_on(self, after: Instruction) -> bool:
        """True if `after` is the same fold for the chunks right behind those of this one."""
        ours, theirs = (*self.sources, self.destination), (*after.sources, after.destination)
        if (
            self.kind != InstructionKind.FOLD
            or after.kind != InstructionKind.FOLD
            or len(ours) != len(theirs)
            or len(ours) < 2
        ):
            return False
        follows = all(one.behind(self.chunks) == other for one, other in zip(ours, theirs, strict=True))
        return follows and after.length_of == self.length_of + self.chunks and after.complete == self.complete


class IslandCall(NamedTuple):
    """A collective of an island, which all of its ranks make. `root`: its number in the island."""

    island: tuple[int, ...]
    name: str
    root: int | None


@dataclass(frozen=True)
class MessagePrograms:
    """The programs of all ranks, and the messages between them."""

    schedule: Schedule
    messages: tuple[ProgramMessage, ...]
    programs: tuple[tuple[Instruction, ...], ...]
    work_slots: tuple[int, ...]
    collectives: tuple[IslandCall, ...] = ()
    begins: tuple[int, ...] = ()
    """By rank, in two levels: how many instructions come before it waits for other islands. When several segments of a
    buffer are under way, the next one may begin there."""
    even: bool = False
    """All chunks must be equally long."""

    def describe(self, rank: int) -> str:
        """One rank's program, one line per instruction."""
        spaces = ("in", "out", "work", "message")

        def name(place: ChunkPlace) -> str:
            part = f".{place.part}" if place.space == ARRIVED else ""
            return f"{spaces[place.space]}[{place.at}{part}]"

        lines = []
        for number, one in enumerate(self.programs[rank]):
            if one.kind == InstructionKind.COLLECTIVE:
                call = self.collectives[one.message]
                root = "" if call.root is None else f" root {call.island[call.root]}"
                arrays = [", ".join(map(name, places)) for places in (one.sources, one.into) if places]
                text = f"{call.name} of {list(call.island)}{root}: {' → '.join(arrays)}"
            elif one.kind == InstructionKind.FOLD:
                text = f"{name(one.destination)} ← {' ⊕ '.join(map(name, one.sources)) or 'nothing'}"
                text += f", and {one.chunks - 1} more" if one.chunks > 1 else ""
            else:
                message = self.messages[one.message]
                sends = one.kind in (InstructionKind.SEND, InstructionKind.SENT)
                peer = f"to {message.destination}" if sends else f"from {message.source}"
                places = ", ".join(map(name, message.places if sends else message.into))
                text = f"{one.kind.name.lower()} {one.message} {peer}" + (f": {places}" if places else "")
            lines.append(f"{number}: {text}")
        return "\n".join(lines)


def lower(schedule: Schedule, islands: Islands = ()) -> MessagePrograms:
    """The message programs of a schedule that is known to be right: `verify` it first.

    `islands`: the ranks that share memory. If given, the schedule must be in two levels, these islands being its groups.
    """
    return _Lowering(schedule, islands).run()


class _Fold(NamedTuple):
    cells: list[int]
    target: int
    length_of: int
    complete: bool


class _Step:
    """The work of one rank in one step."""

    def __init__(self) -> None:
        self.sends: list[int] = []
        self.receives: list[int] = []
        self.folds: list[_Fold] = []
        self.sent: set[int] = set()  # the cells that it sends
        self.inside: IslandPhase | None = None  # what its island does; nothing else happens in such a step
        self.number = -1  # of that collective
        self.takes: list[int | None] = []  # the cells that it brings to it, and those that it gets
        self.gives: list[int | None] = []

    # What follows is asked when the step is complete.

    @cached_property
    def targets(self) -> set[int]:
        return {fold.target for fold in self.folds} | {cell for cell in self.gives if cell is not None}

    @cached_property
    def uses(self) -> dict[int, list[_Fold]]:
        """By cell: the folds that read it, as often as they do."""
        found: dict[int, list[_Fold]] = defaultdict(list)
        for fold in self.folds:
            for cell in fold.cells:
                found[cell].append(fold)
        return found

    def reads(self, cell: int) -> bool:
        return cell in self.sent or cell in self.uses or cell in self.takes


class _Lowering:
    def __init__(self, schedule: Schedule, islands: Islands) -> None:
        self.schedule, self.islands = schedule, islands
        self.collectives: list[IslandCall] = []
        self.crosses = schedule.steps  # the first step between islands
        self.state = State(schedule)
        self.width = self.state.width
        promise, ranks, chunks = schedule.promise, schedule.ranks, schedule.chunks
        self.in_place = promise.in_place
        ends = np.full((ranks, self.width), NOTHING, np.int64)
        ends[:, :chunks] = promise.ends_with(ranks, schedule.root, chunks)
        self.promised: list[int] = ends.reshape(-1).tolist()
        self.wanted = [datum != NOTHING for datum in self.promised]
        self.steps: list[dict[int, _Step]] = [defaultdict(_Step) for _ in range(ranks)]
        self.cells: list[tuple[int, ...]] = []  # by message: what it carries
        self.messages: list[ProgramMessage] = []
        self.started_with: list[int] = self.state.datum.tolist()

    def run(self) -> MessagePrograms:
        if self.islands:
            for is_inside, steps in phases(self.schedule, self.islands):
                if is_inside:
                    self._enter(steps)
                else:
                    self.crosses = min(self.crosses, self.state.step)
                    for _ in range(steps):
                        self._collect()
        while not self.state.done:
            self._collect()
        ranks = range(self.schedule.ranks)
        made = [_RankProgram(self, rank) for rank in ranks]
        programs = tuple(tuple(one.program) for one in made)
        for one in made:  # where the parts lie is each rank's own decision
            for number, places in one.sent_from.items():
                self.messages[number] = self.messages[number]._replace(places=places)
            for number, places in one.into.items():
                self.messages[number] = self.messages[number]._replace(into=places)
        return MessagePrograms(
            self.schedule,
            tuple(self.messages),
            programs,
            tuple(len(one.slots) for one in made),
            tuple(self.collectives),
            tuple(one.begins for one in made) if self.islands else (),
            any(one.has_rooms for one in made) or (bool(self.islands) and self.schedule.promise.sliced),
        )

    def _enter(self, steps: int) -> None:
        """Take some steps inside islands, and note what each island does."""
        first = self.state.step
        for inside in advance_inside(self.state, self.islands, steps):
            for rank in inside.island:
                step = self.steps[rank][first]
                step.inside, step.number = inside, len(self.collectives)
                step.takes, step.gives = (
                    [None if chunk is None else rank * self.width + chunk for chunk in chunks]
                    for chunks in (inside.takes(rank), inside.gives(rank))
                )
            self.collectives.append(IslandCall(inside.island, inside.name, inside.root))

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
        keys = sorted(whole.steps[rank])
        self.steps = [whole.steps[rank][step] for step in keys]
        self.entered = [number for number, step in enumerate(self.steps) if step.inside is not None]
        self.slots: dict[tuple[object, int], int] = {}
        self.rooms: dict[int, dict[int, ChunkPlace]] = {}
        self.lies: dict[int, ChunkPlace] = {}
        for cell in range(rank * whole.width, (rank + 1) * whole.width):
            if whole.started_with[cell] != NOTHING:
                self.lies[cell] = ChunkPlace(OUTPUT if whole.in_place else INPUT, cell % whole.width)
        self.leaving: dict[ChunkPlace, list[int]] = defaultdict(list)  # sends whose memory is not free yet
        self.sent_from: dict[int, tuple[ChunkPlace, ...]] = {}
        self.into: dict[int, tuple[ChunkPlace, ...]] = {}
        self.has_rooms = False
        self.copied: set[int] = set()  # cells that are in the output array too
        self.program: list[Instruction] = []
        crosses = [now for now, key in enumerate(keys) if key >= whole.crosses]
        self._first_crossing = crosses[0] if crosses else len(keys)
        self._crosses_itself = bool(crosses) and keys[crosses[0]] == whole.crosses
        self.begins = -1
        together = bool(whole.islands) and whole.schedule.promise.sliced  # then all chunks are equally long
        for one in self._instructions():
            last = self.program[-1] if together and len(self.program) > max(self.begins, 0) else None
            if last is not None and last.goes_on(one):
                self.program[-1] = last._replace(chunks=last.chunks + 1)
            else:
                self.program.append(one)

    def _begin(self, now: int, sent: bool) -> None:
        """Note where the rank first waits for other islands, or for one of its own that does."""
        if self.begins < 0 and now >= self._first_crossing and sent == self._crosses_itself:
            self.begins = len(self.program)

    def _instructions(self) -> Iterator[Instruction]:
        whole = self.whole
        last_use: dict[ChunkPlace, int] = {}  # by place in the output array: the last step in which it was used
        posted, waited = 0, False
        for now, step in enumerate(self.steps):
            self._begin(now, sent=False)
            waits = posted == now > 0  # receives of this step were put off: the places they go to may be free now
            if not waits:
                posted = yield from self._post(posted, now, last_use)
            for number in step.sends:
                places = tuple(self.lies[cell] for cell in whole.cells[number])
                self.sent_from[number] = places
                for place in places:
                    self.leaving[place].append(number)
                    last_use[place] = now
                yield Instruction(InstructionKind.SEND, number)
            if waits:
                posted = yield from self._post(posted, now, last_use)
            self._begin(now, sent=True)
            if step.inside is not None:
                yield from self._enter(step, now, last_use)
                continue
            if step.receives and not waited:
                waited = True
                yield from self._copy_own(now, last_use)
            arrived: dict[int, ChunkPlace] = {}
            for number in step.receives:
                into = self.into.get(number, ())
                for part, cell in enumerate(whole.cells[number]):
                    arrived[cell] = into[part] if into else ChunkPlace(ARRIVED, number, part)
                yield Instruction(InstructionKind.AWAIT, number)
            yield from self._fold(step, arrived, last_use, now)
        self._begin(len(self.steps), sent=self._crosses_itself)
        for cell in range(self.rank * whole.width, (self.rank + 1) * whole.width):
            home = ChunkPlace(OUTPUT, cell % whole.width)
            if whole.wanted[cell] and self.lies[cell] != home and cell not in self.copied:
                yield from self._free(home)
                length = int(whole.state.datum[cell])
                yield Instruction(InstructionKind.FOLD, sources=(self.lies[cell],), destination=home, length_of=length)
        for place in list(self.leaving):
            yield from self._free(place)

    def _copy_own(self, now: int, last_use: dict[ChunkPlace, int]) -> Iterator[Instruction]:
        """Copy what the rank brings and keeps to the output array, while messages are on their way."""
        written = {cell for step in self.steps for cell in step.targets}
        for cell, place in self.lies.items():
            if place.space == INPUT and self.whole.wanted[cell] and cell not in written:
                home = ChunkPlace(OUTPUT, cell % self.whole.width)
                yield Instruction(
                    InstructionKind.FOLD,
                    sources=(place,),
                    destination=home,
                    length_of=int(self.whole.started_with[cell]),
                )
                last_use[home] = now
                self.copied.add(cell)

    def _post(self, posted: int, now: int, last_use: dict[ChunkPlace, int]) -> Generator[Instruction, None, int]:
        """Post the receives of the steps from `posted` on, as far as they may be; returns the first step that is left."""
        while posted < min(len(self.steps), now + _AHEAD + 1):
            step = self.steps[posted]
            # If that saves a copy, wait until the places are no longer used.
            if posted > now and any(
                self._directly(number, step, {}, posted) and not self._directly(number, step, last_use, now)
                for number in step.receives
            ):
                break
            for number in step.receives:
                into = self._directly(number, step, last_use, now)
                if into:
                    self.into[number] = into
                    for place in into:
                        yield from self._free(place)
                        last_use[place] = posted
                yield Instruction(InstructionKind.POST, number)
            posted += 1
        return posted

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
            own = self._destination(target, now)
            if len(sources) == 1 and sources[0] == own:  # it was received there
                moved[target] = sources[0]
                continue
            others = readers[own] - (own in sources)
            if others:  # somebody else still reads what lies there: take the other place of this chunk
                own = self._slot(target, 1)
            yield from self._free(own)
            last_use[own] = now
            moved[target] = own
            yield Instruction(InstructionKind.FOLD, -1, sources, own, length, complete)
        self.lies.update(moved)

    def _enter(self, step: _Step, now: int, last_use: dict[ChunkPlace, int]) -> Iterator[Instruction]:
        """Bring what the island's collective takes to places side by side, and find some for what it gives."""
        assert step.inside is not None
        promise, root = COLLECTIVES[step.inside.name], step.inside.root
        is_root = root is not None and step.inside.island[root] == self.rank
        sources: tuple[ChunkPlace, ...] = ()
        if promise.in_place:
            cells = [cell for cell in step.takes or step.gives if cell is not None]
            into = self._array(cells) or self._room(now, "both", len(cells))
            for cell, place in zip(cells if step.takes else (), into, strict=False):
                yield from self._bring(cell, place)
            if not step.gives:
                for cell in cells:
                    self.lies.pop(cell, None)
            written = promise.writes(is_root) or not step.gives
        else:
            sources = tuple(self.lies[cell] for cell in step.takes if cell is not None)
            if sources and (len(sources) < len(step.takes) or not are_side_by_side(sources)):
                sources = self._room(now, "in", len(step.takes))
                for taken, place in zip(step.takes, sources, strict=True):
                    if taken is not None:
                        yield from self._bring(taken, place)
                    else:
                        yield Instruction(InstructionKind.FOLD, destination=place)
            into = self._array(step.gives) or ()
            if not into or set(into) & set(sources):
                into = self._room(now, "out", len(step.gives))
            written = True
        for place in into if written else ():
            yield from self._free(place)
        for place in (*sources, *into):
            last_use[place] = now
        yield Instruction(InstructionKind.COLLECTIVE, step.number, sources, into=into)
        for got, place in zip(step.gives, into, strict=False):
            if got is not None:
                self.lies[got] = place

    def _bring(self, cell: int, place: ChunkPlace) -> Iterator[Instruction]:
        if self.lies[cell] != place:
            yield from self._free(place)
            length = int(self.whole.state.datum[cell])
            yield Instruction(InstructionKind.FOLD, -1, (self.lies[cell],), place, length)
            self.lies[cell] = place

    def _array(self, cells: Sequence[int | None]) -> tuple[ChunkPlace, ...]:
        """The places of cells, if they are contiguous in the output array; otherwise nothing."""
        homes = [
            ChunkPlace(OUTPUT, cell % self.whole.width)
            for cell in cells
            if cell is not None and self._is_in_array(cell)
        ]
        return tuple(homes) if len(homes) == len(cells) and are_side_by_side(homes) else ()

    def _room(self, now: int, side: str, size: int) -> tuple[ChunkPlace, ...]:
        """Work slots side by side, for a collective of the island."""
        self.has_rooms = True
        return tuple(self._slot_of((now, side), number) for number in range(size))

    def _destination(self, cell: int, now: int) -> ChunkPlace:
        """The place of a new value: where the island's next collective reads it, if that has room for it."""
        for later in self.entered:
            if later > now and cell in self.steps[later].takes:
                return self._room_of(later).get(cell) or self._home(cell)
        return self._home(cell)

    def _room_of(self, later: int) -> dict[int, ChunkPlace]:
        """By cell that a collective of the island takes: its place in a room; nothing if they lie together at home."""
        if later not in self.rooms:
            step = self.steps[later]
            assert step.inside is not None
            homes = self._array(step.takes)
            is_home = homes and not set(homes) & set(self._array(step.gives))
            room = {}
            if not is_home and not COLLECTIVES[step.inside.name].in_place:
                places = self._room(later, "in", len(step.takes))
                room = {cell: place for cell, place in zip(step.takes, places, strict=True) if cell is not None}
            self.rooms[later] = room
        return self.rooms[later]

    def _is_in_array(self, cell: int) -> bool:
        return cell % self.whole.width < self.whole.schedule.chunks and (self.whole.in_place or self.whole.wanted[cell])

    def _home(self, cell: int) -> ChunkPlace:
        chunk = cell % self.whole.width
        return ChunkPlace(OUTPUT, chunk) if self._is_in_array(cell) else self._slot(cell, 0)

    def _slot(self, cell: int, second: int) -> ChunkPlace:
        return self._slot_of(cell % self.whole.width, second)

    def _slot_of(self, key: object, number: int) -> ChunkPlace:
        return ChunkPlace(WORK, self.slots.setdefault((key, number), len(self.slots)))

    def _free(self, place: ChunkPlace) -> Iterator[Instruction]:
        """Wait until no send reads a place any more."""
        for number in self.leaving.pop(place, ()):
            for other in self.sent_from[number]:
                if other != place:
                    self.leaving[other].remove(number)
            yield Instruction(InstructionKind.SENT, number)

    def _directly(self, number: int, step: _Step, last_use: dict[ChunkPlace, int], now: int) -> tuple[ChunkPlace, ...]:
        """The place where a message can be received without a copy: every part goes to one place in the output array.

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
            place = self._destination(target, self.steps.index(step))
            in_room = any(room.get(target) == place for room in self.rooms.values())
            fits = place.at == length % self.whole.schedule.chunks or self.whole.promised[target] == length
            if not in_room and not (place.space == OUTPUT and fits):
                return ()
            if last_use.get(place, -1) >= now:
                return ()
            if any(target in one.targets for one in between):
                return ()
            if self.lies.get(target, place) == place and any(one.reads(target) for one in (*between, step)):
                return ()
            places.append(place)
        return tuple(places) if are_side_by_side(places) else ()


def are_side_by_side(places: Sequence[ChunkPlace]) -> bool:
    """True if the places are one piece of memory, in their order."""
    return all(place == (places[0].space, places[0].at + number, 0) for number, place in enumerate(places))
