"""The proof of message programs, which knows nothing of how they were made.

Every receive is met by its send, in the order of the pair; nobody waits forever, even if a send ends only after its
receive was posted; no memory is touched while a message is in it; and every rank ends with what the schedule says, bit
for bit. Of programs in two levels, also: the ranks of an island make the same collectives in the same order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np

from ..collectives import COLLECTIVES, NOTHING
from ..division import longer_by
from ..errors import ScheduleError
from ..pure.hashes import folded
from ..schedules import Schedule
from ..symbolic import State
from .messages import ARRIVED, ChunkPlace, Instruction, InstructionKind, MessagePrograms
from .versions import INPUT, OUTPUT, WORK

Value = tuple[int, int]  # a datum, and the hash of the expression that made it


def check_messages(made: MessagePrograms, state: State | None = None) -> None:
    """Raise `ScheduleError` unless the programs are sound. `state`: the schedule's symbolic execution, run to its end.

    Each rank's program is a row, each pair of ranks a queue, and every wait is for one named message. So how far the
    ranks come, and what they compute, does not depend on their speeds: one run stands for all.
    """
    if state is None:
        state = State(made.schedule).run_to_end()
    _check_queues(made)
    start, results = State(made.schedule), _results(made.schedule)
    ranks = [_Follower(made, rank, start, results) for rank in range(made.schedule.ranks)]
    begun: dict[int, list[Value]] = {}  # by message: what was sent
    posted: set[int] = set()
    while any(rank.advance(begun, posted) for rank in ranks) or any(
        [_meet(made, ranks, one) for one in _islands(made)]
    ):
        pass
    for rank in ranks:
        if not rank.done:
            raise rank.wrong(f"waits forever: {rank.waits_for()}")
        rank.check_end(state)


def check_segments(made: MessagePrograms, state: State, ahead: int | None) -> int:
    """Raise `ScheduleError` unless a buffer may be cut anywhere, and each segment be given to these programs of its own.

    A rank begins segments one after the other, and ends each when it has begun `ahead` more (None: all). Segments share
    no memory, and their messages have different tags. Two things remain to be shown: no wait lasts forever, and every
    element is computed by the same expression, wherever the buffer is cut. Its hash is returned.
    """
    count = 3 + (ahead or 0)  # from then on, every segment finds what the one before it found
    late = count if ahead is None else ahead
    turns = [(number, end) for at in range(count + late) for number, end in ((at, False), (at - late, True))]
    turns = [(number, end) for number, end in turns if 0 <= number < count]
    rows = [
        [(number, one) for number, end in turns for one in (program[begins:] if end else program[:begins])]
        for program, begins in zip(made.programs, made.begins, strict=True)
    ]
    at, done = [0] * len(rows), set[tuple[int, InstructionKind, int]]()

    def goes_on(rank: int) -> bool:
        if at[rank] == len(rows[rank]):
            return False
        segment, one = rows[rank][at[rank]]
        if one.kind == InstructionKind.COLLECTIVE:
            members = made.collectives[one.message].island
            there = [rows[peer][at[peer]] for peer in members if at[peer] < len(rows[peer])]
            if [(number, other[:2]) for number, other in there] != [(segment, one[:2])] * len(members):
                return False
            for peer in members:
                at[peer] += 1
            return True
        needs = {InstructionKind.AWAIT: InstructionKind.SEND, InstructionKind.SENT: InstructionKind.POST}.get(one.kind)
        if needs is not None and (segment, needs, one.message) not in done:
            return False
        done.add((segment, one.kind, one.message))
        at[rank] += 1
        return True

    ranks = deque(range(len(rows)))
    waiting = 0  # ranks in a row that could not go on
    while waiting < len(ranks):
        waiting += 1
        while goes_on(ranks[0]):
            waiting = 0
        ranks.rotate(-1)
    stuck = [rank for rank, row in enumerate(rows) if at[rank] < len(row)]
    if stuck:
        raise ScheduleError(f"{made.schedule.title}: in segments, rank {stuck[0]} waits forever", rank=stuck[0])
    schedule = made.schedule
    wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
    bits = set(state.bits.reshape(schedule.ranks, state.width)[:, : schedule.chunks][wanted].tolist())
    if len(bits) > 1 or not schedule.promise.in_place:
        raise ScheduleError(f"{schedule.title}: cutting the buffer into segments would change its results")
    return int(bits.pop())


def goes_along(made: MessagePrograms, leaders: Sequence[int]) -> bool:
    """True if all messages can travel with the headers that leaders exchange in every call.

    That is at most one message from each leader to each other one, which none of them sends after it has waited for one:
    so every header is sent, whatever calls the others make. Messages that are sent one after the other have the same data
    if they have the same place.
    """
    pairs = [(message.source, message.destination) for message in made.messages]
    good = len(set(pairs)) == len(pairs) and {rank for pair in pairs for rank in pair} <= set(leaders)
    for program in made.programs:
        kinds = [one.kind for one in program]
        sends = [at for at, kind in enumerate(kinds) if kind == InstructionKind.SEND]
        between = kinds[sends[0] : sends[-1]] if sends else []
        good = good and set(between) <= {InstructionKind.SEND, InstructionKind.POST}
        good = good and InstructionKind.AWAIT not in kinds[: sends[-1] if sends else 0]
    return good


def _check_queues(made: MessagePrograms) -> None:
    """Messages of a pair are matched in their order, so both ranks must begin them in the same order, and once."""
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    posted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, program in enumerate(made.programs):
        for one in program:
            if one.kind in (InstructionKind.SEND, InstructionKind.POST):
                message = made.messages[one.message]
                queue = sent if one.kind == InstructionKind.SEND else posted
                if (message.source if one.kind == InstructionKind.SEND else message.destination) != rank:
                    raise ScheduleError(f"{made.schedule.title}: message {one.message} is not rank {rank}'s", rank=rank)
                queue[message.source, message.destination].append(one.message)
    if sent != posted:
        pair = next(pair for pair in {**sent, **posted} if sent.get(pair) != posted.get(pair))
        raise ScheduleError(
            f"{made.schedule.title}: rank {pair[0]} sends messages {sent.get(pair, [])} to rank {pair[1]}, which "
            f"receives {posted.get(pair, [])}",
            rank=pair[0],
        )


# Collectives of islands -----------------------------------------------------------------------------------------------


def _islands(made: MessagePrograms) -> set[tuple[int, ...]]:
    return {call.island for call in made.collectives}


def _meet(made: MessagePrograms, ranks: Sequence[_Follower], island: tuple[int, ...]) -> bool:
    """Carry out the collective that all ranks of an island have reached; False if there is none."""
    members = [ranks[rank] for rank in island]
    if any(member.done or member.program[member.at].kind != InstructionKind.COLLECTIVE for member in members):
        return False
    numbers = {member.program[member.at].message for member in members}
    if len(numbers) > 1 or made.collectives[min(numbers)].island != island:
        raise members[0].wrong("is a collective that others of its island do not make now")
    call = made.collectives[min(numbers)]
    promise, size = COLLECTIVES[call.name], len(island)
    places = [_operands(member, promise.in_place) for member in members]
    whole = len(places[0][1])
    if promise.sliced:
        whole = size * max(len(one[0 if promise.starts.sliced else 1]) for one in places)
    starts, ends = promise.starts_with(size, call.root, whole), promise.ends_with(size, call.root, whole)
    brought: dict[int, list[Value | None]] = defaultdict(list)  # by datum of this collective: what the ranks have of it
    for number, (member, (taken, _)) in enumerate(zip(members, places, strict=True)):
        data = starts[number][starts[number] != NOTHING].tolist()
        if len(data) != len(taken) and not promise.in_place:
            raise member.wrong("brings another length to a collective of its island")
        for datum, place in zip(data, taken, strict=False):
            brought[datum].append(member.brings(place))
    results = {datum: members[0].combined(values) for datum, values in brought.items()}
    for number, (member, (_, into)) in enumerate(zip(members, places, strict=True)):
        data = ends[number][ends[number] != NOTHING].tolist()
        is_workspace = promise.in_place and not data
        if not is_workspace and len(data) != len(into):
            raise member.wrong("gets another length from a collective of its island")
        if promise.writes(number == call.root) or is_workspace:
            for at, place in enumerate(into):
                member.gets(place, None if is_workspace else results[data[at]])
        member.at += 1
    return True


def _operands(member: _Follower, in_place: bool) -> tuple[tuple[ChunkPlace, ...], tuple[ChunkPlace, ...]]:
    """The places that a collective of an island takes from and writes to."""
    one, even = member.program[member.at], member.made.even
    if in_place and one.sources:
        raise member.wrong("has two arrays in a collective that has one")
    for places in (one.sources, one.into):
        if any(place != (places[0].space, places[0].at + number, 0) for number, place in enumerate(places)):
            raise member.wrong("has places that are not side by side in a collective of its island")
        if (
            places
            and not even
            and not (in_place and places[0] == ChunkPlace(OUTPUT, 0) and len(places) == member.whole)
        ):
            raise member.wrong("takes chunks to be equally long")
    if set(one.sources) & set(one.into):
        raise member.wrong("has its result where it is still read")
    return (one.into, one.into) if in_place else (one.sources, one.into)


class _Follower:
    """Follows one rank's program with symbols for data."""

    def __init__(self, made: MessagePrograms, rank: int, start: State, results: frozenset[Value]) -> None:
        self.made, self.rank, self.results, self.at = made, rank, results, 0
        self.program = made.programs[rank]
        schedule = made.schedule
        self.whole = schedule.chunks
        # Of signals it matters who has sent them, not in which order they are combined inside islands.
        self.signals = bool(made.collectives) and not schedule.promise.carries_data
        self.holds: dict[ChunkPlace, Value] = {}
        space = OUTPUT if schedule.promise.in_place else INPUT
        for chunk in range(schedule.chunks):
            cell = rank * start.width + chunk
            if start.datum[cell] != NOTHING:
                bits = 1 << rank if self.signals else int(start.bits[cell])
                self.holds[ChunkPlace(space, chunk)] = int(start.datum[cell]), bits
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
            if one.kind == InstructionKind.AWAIT and one.message not in begun:
                break
            if one.kind == InstructionKind.SENT and one.message not in posted:
                break
            if one.kind == InstructionKind.COLLECTIVE:  # until all of its island have come
                break
            self._do(one, begun, posted)
            self.at += 1
        return self.at > before

    def _do(self, one: Instruction, begun: dict[int, list[Value]], posted: set[int]) -> None:
        if one.kind == InstructionKind.FOLD and not one.sources:
            self._free_to_write(one.destination, one.length_of)
            self.holds.pop(one.destination, None)
            return
        if one.kind == InstructionKind.FOLD and one.chunks > 1:
            if not self.made.even:
                raise self.wrong("takes chunks to be equally long")
            for number in range(one.chunks):
                moved = [
                    ChunkPlace(place.space, place.at, place.part + number)
                    if place.space == ARRIVED
                    else ChunkPlace(place.space, place.at + number)
                    for place in (*one.sources, one.destination)
                ]
                part = one._replace(sources=tuple(moved[:-1]), destination=moved[-1], chunks=1)
                self._do(part._replace(length_of=one.length_of + number), begun, posted)
            return
        if one.kind == InstructionKind.FOLD:
            values = [self._read(source, one.length_of) for source in one.sources]
            result = self._folded(values)
            self._write(one.destination, result, one.length_of)
            # Every rank that gets a result gets a complete one, by the promise: what equals a result is complete.
            reduces = len(values) > 1 and self.made.schedule.promise.reduces
            if one.complete != (reduces and result in self.results) and not self.signals:
                raise self.wrong("divides an average at the wrong place")
            return
        message = self.made.messages[one.message]
        if one.kind == InstructionKind.POST:
            posted.add(one.message)
            self.receives.add(one.message)
            for place, length in zip(message.into, message.lengths, strict=bool(message.into)):
                self._free_to_write(place, length)
                self.arriving.add(place)
            # Slices are equally long here; that those that are not also fit is for `places` to show.
            alike = all(
                place.at % self.part == datum % self.part
                for place, datum in zip(message.into, message.lengths, strict=False)
            )
            at = message.lengths[0] % self.made.schedule.chunks
            first = message.into[0] if message.into and (self.made.even or alike) else ChunkPlace(OUTPUT, at)
            if any(place != (first.space, first.at + i, 0) for i, place in enumerate(message.into)):
                raise self.wrong("receives into places that are not side by side")
        elif one.kind == InstructionKind.SEND:
            begun[one.message] = [
                self._read(place, length) for place, length in zip(message.places, message.lengths, strict=True)
            ]
            self.sends.add(one.message)
            for place in message.places:
                self.leaving[place] += 1
        elif one.kind == InstructionKind.SENT:
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
        if self.signals:
            return values[0][0], reduce(or_, (bits for _, bits in values))
        return values[0][0], folded(bits for _, bits in values)

    def brings(self, place: ChunkPlace) -> Value | None:
        """The value that a collective of the island reads from a place; None if the place is empty and only pads a slice."""
        if place in self.arriving:
            raise self.wrong(f"reads {place} while a message is in it")
        return self.holds.get(place)

    def combined(self, values: Sequence[Value | None]) -> Value | None:
        """The result of a collective of the island for one datum, from the values of its ranks, in their order."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        if len(there) < len(values):
            raise self.wrong("folds what some ranks of the island have not")
        result = self._folded(there)
        if len(there) > 1 and self.made.schedule.promise.takes_op and result in self.results:
            raise self.wrong("completes a result inside an island, where averages are not divided")
        return result

    def gets(self, place: ChunkPlace, value: Value | None) -> None:
        """A collective of the island writes to a place; None: nothing that can be used."""
        self._free_to_write(place, place.at if value is None else value[0] % self.whole)
        self.holds.pop(place, None)
        if value is not None:
            self.holds[place] = value

    def check_end(self, state: State) -> None:
        schedule = self.made.schedule
        if self.sends or self.receives:
            raise self.wrong("ends while messages are on their way")
        wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)[self.rank]
        for chunk in np.flatnonzero(wanted != NOTHING).tolist():
            cell = self.rank * state.width + chunk
            everyone = (1 << schedule.ranks) - 1
            value = int(state.datum[cell]), everyone if self.signals else int(state.bits[cell])
            if self.holds.get(ChunkPlace(OUTPUT, chunk)) != value:
                raise ScheduleError(
                    f"{schedule.title}: the message program of rank {self.rank} ends with something else in chunk {chunk} "
                    "than the schedule",
                    rank=self.rank,
                    chunk=chunk,
                )

    def waits_for(self) -> str:
        one = self.program[self.at]
        if one.kind == InstructionKind.COLLECTIVE:
            return f"the others of its island, in {self.made.collectives[one.message].name}"
        message = self.made.messages[one.message]
        if one.kind == InstructionKind.AWAIT:
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
