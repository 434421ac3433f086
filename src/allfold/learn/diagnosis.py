"""Explains what a wrong algorithm really does: which rank got what twice, in which step, from which line.

The prover stops at the first thing that makes no sense, and says it in its own words. Here the same moves are carried
out to the end, however wrong they are. Every place remembers what it holds and how that came there, so that a mistake
can be told as a story and given a name (`kind`), by which hints are chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..collectives import NOTHING, find_collective
from ..schedules import Schedule
from ..wording import counted, name_ranks

_MOST_NUMBERS = 6  # ranks up to which a story ends with numbers


@dataclass(frozen=True)
class Diagnosis:
    kind: str
    says: str
    line: int | None = None


class Act(NamedTuple):
    """A move, with the line of the learner's file that made it."""

    reduces: bool
    chunk: int
    source: int
    destination: int
    into: int
    line: int | None


class _Arrival(NamedTuple):
    """The delivery of one move."""

    step: int
    move: Act
    brought: Counter[int]
    before: tuple[_Arrival, ...]
    """The arrivals by which its content had come to the source."""

    @property
    def place(self) -> str:
        return f"in step {self.step + 1}{_at(self.move)}"


@dataclass
class _Cell:
    """One chunk of one rank: which datum it is, whose contributions are in it, and the moves that brought them."""

    datum: int = NOTHING
    parts: Counter[int] = field(default_factory=Counter)
    came: list[_Arrival] = field(default_factory=list)

    def arrivals_of(self, rank: int) -> list[_Arrival]:
        return [one for one in self.came if one.brought[rank]]


Cells = dict[tuple[int, int], _Cell]


class Story:
    """The moves of an algorithm, carried out whatever they do."""

    def __init__(self, collective: str, ranks: int, root: int | None, steps: list[list[Act]], chunks: int) -> None:
        self.promise, self.ranks, self.root, self.steps = find_collective(collective), ranks, root, steps
        self.chunks = chunks
        starts = self.promise.starts_with(ranks, root, self.chunks)
        self.wanted = self.promise.ends_with(ranks, root, self.chunks)
        self.needed = set().union(*(self._contributors(rank) for rank in range(ranks)))
        self.cells: Cells = {}
        self._log: list[tuple[tuple[int, int], _Arrival]] = []
        for rank in range(ranks):
            for chunk in range(self.chunks):
                datum = int(starts[rank, chunk])
                parts = Counter([rank] if self.promise.reduces else [0])
                self.cells[rank, chunk] = _Cell(datum, parts if datum != NOTHING else Counter())

    def _contributors(self, rank: int) -> set[int]:
        """The ranks whose parts this rank must end with."""
        return set(self.promise.contributors(rank, self.ranks))

    def told(self) -> Diagnosis | None:
        """The first mistake; if every step is fine, what is missing at the end."""
        for number, step in enumerate(self.steps):
            fault = self._unusable(number, step) or self._advance(number, step)
            if fault is not None:
                return fault
        return self._in_the_end()

    # One step --------------------------------------------------------------------------------------------------------

    def _unusable(self, number: int, step: list[Act]) -> Diagnosis | None:
        copied = Counter((move.destination, move.into) for move in step if not move.reduces)
        added = {(move.destination, move.into) for move in step if move.reduces}
        for move in step:
            for rank in (move.source, move.destination):
                if not 0 <= rank < self.ranks:
                    there = f"there are only ranks 0 to {self.ranks - 1}" if self.ranks > 1 else "there is only rank 0"
                    says = f"step {number + 1}{_at(move)} names rank {rank}, and {there}"
                    return Diagnosis("no_such_rank", says, move.line)
            if min(move.chunk, move.into) < 0:
                says = f"step {number + 1}{_at(move)} names chunk {min(move.chunk, move.into)}; chunks begin at 0"
                return Diagnosis("no_such_chunk", says, move.line)
            if move.reduces and self.promise.reduces and (move.source, move.chunk) == (move.destination, move.into):
                says = f"rank {move.source} sends to itself in step {number + 1}{_at(move)}{self._own_twice(move)}"
                return Diagnosis("self_send", says, move.line)
            if move.reduces and not self.promise.reduces:
                says = f"step {number + 1}{_at(move)} adds, and in {_an(self.promise.name)} nothing is added: use copy"
                return Diagnosis("only_copies", says, move.line)
            place = move.destination, move.into
            if not move.reduces and (copied[place] > 1 or place in added):
                sources = sorted(one.source for one in step if (one.destination, one.into) == place)
                what = f"{name_ranks(sources)} all write" if len(sources) > 2 else f"{name_ranks(sources)} both write"
                says = f"in step {number + 1}{_at(move)}, {what} to {self._place(place)}, and one would be lost"
                return Diagnosis("two_writes", says, move.line)
        return None

    def _own_twice(self, move: Act) -> str:
        parts = self.cells[move.source, move.chunk].parts
        if len(parts) == 1:
            return ", so it adds its own part twice"
        return f", so everything that it has (of {name_ranks(sorted(parts))}) is added twice"

    def _advance(self, number: int, step: list[Act]) -> Diagnosis | None:
        arriving: dict[tuple[int, int], list[tuple[Act, _Cell]]] = {}
        for move in step:
            source = self.cells.get((move.source, move.chunk), _Cell())
            if source.datum == NOTHING:
                return self._sends_nothing(number, move)
            arriving.setdefault((move.destination, move.into), []).append((move, source))
        written: Cells = {}
        for place, moves in arriving.items():
            before = self.cells.get(place, _Cell())
            copies = not moves[0][0].reduces
            cell = _Cell() if copies else _Cell(before.datum, Counter(before.parts), list(before.came))
            for move, source in moves:
                if move.reduces and before.datum == NOTHING:
                    says = (
                        f"step {number + 1}{_at(move)} adds to {self._place(place)}, which holds nothing yet: use copy"
                    )
                    return Diagnosis("adds_to_nothing", says, move.line)
                if cell.datum not in (NOTHING, source.datum):
                    what = f"{self._name(source.datum)} of rank {move.source} to {self._name(cell.datum)} of rank {place[0]}"
                    return Diagnosis("mixed", f"step {number + 1}{_at(move)} adds {what}", move.line)
                arrival = _Arrival(number, move, Counter(source.parts), tuple(source.came))
                self._log.append((place, arrival))
                twice = sorted(set(cell.parts) & set(source.parts)) if self.promise.reduces and move.reduces else []
                if twice and not self.promise.idempotent:
                    return self._twice(place, cell, arrival, twice)
                cell.datum = source.datum
                cell.parts += source.parts
                cell.came.append(arrival)
            lost = (set(before.parts) - set(cell.parts)) & self.needed if copies and self.promise.reduces else set()
            if lost and place[1] < self.chunks and not self._kept_elsewhere(lost, place, written):
                return self._lost(place, sorted(lost), cell.came[0])
            written[place] = cell
        self.cells.update(written)
        return None

    def _kept_elsewhere(self, lost: set[int], place: tuple[int, int], written: Cells) -> bool:
        """True if what a copy replaces is still somewhere else, from where it can come back."""
        datum = self.cells[place].datum
        others = [cell for at, cell in self.cells.items() if at != place and cell.datum == datum]
        others += written.values()
        return all(any(rank in cell.parts for cell in others) for rank in lost)

    # What is wrong, as a story ---------------------------------------------------------------------------------------

    def _sends_nothing(self, number: int, move: Act) -> Diagnosis:
        comes = [
            later
            for later in range(number, len(self.steps))
            for one in self.steps[later]
            if (one.destination, one.into) == (move.source, move.chunk)
        ]
        what = self._place((move.source, move.chunk), possessive=True)
        says = f"in step {number + 1}{_at(move)} rank {move.source} sends {what}, which it does not have"
        if comes:
            same = comes[0] == number
            says += f" yet: it comes in {'the same' if same else ''} step {'' if same else comes[0] + 1}".rstrip()
            return Diagnosis("too_early", says, move.line)
        return Diagnosis("sends_nothing", says, move.line)

    def _twice(self, place: tuple[int, int], cell: _Cell, second: _Arrival, twice: list[int]) -> Diagnosis:
        rank, member = place[0], twice[0]
        kind = "twice_sum"
        if len(second.brought) == self.ranks:
            kind = "twice_result"
        elif len(second.brought) == 1:
            kind = "twice_same"
        first = cell.arrivals_of(member)
        where = self._chunk_words(place[1])
        if first and (first[0].step, first[0].move.line) != (second.step, second.move.line):
            again = f"it was added {first[0].place} and again {second.place}"
        elif first:
            again = f"it is added twice {second.place}"
        else:
            again = f"it has it from the start, and gets it again {second.place}"
        who = f"rank {member}'s part" if member != rank else "its own part"
        says = f"rank {rank} has {who}{where} twice: {again}"
        if kind == "twice_result":
            says += f". What rank {second.move.source} sends there is the finished sum"
        elif kind == "twice_sum":
            says += f". What rank {second.move.source} sends there is already a sum, of {name_ranks(sorted(second.brought))}"
        parts = cell.parts + second.brought
        return Diagnosis(kind, says + self._in_numbers(rank, parts, second.step), second.move.line)

    def _lost(self, place: tuple[int, int], lost: list[int], by: _Arrival) -> Diagnosis:
        rank = place[0]
        whose = "its own part" if lost == [rank] else _parts_of(lost)
        brings = f"the copy from rank {by.move.source} brings only {_parts_of(sorted(by.brought))}"
        says = (
            f"rank {rank} loses {whose}{self._chunk_words(place[1])} {by.place}: {brings}, and replaces what was there"
        )
        kind, line = "lost" if len(by.brought) == 1 else "incomplete", by.move.line
        late = self._sent_too_early([by], lost[0])
        if late is not None:
            kind, line = "too_early", late[0].move.line
            says += f". {_too_early(*late).capitalize()}"
        return Diagnosis(kind, says + self._in_numbers(rank, by.brought, by.step), line)

    def _in_the_end(self) -> Diagnosis | None:
        wrong = [
            (rank, chunk)
            for rank in range(self.ranks)
            for chunk in range(self.chunks)
            if (wanted := int(self.wanted[rank, chunk])) != NOTHING and self._lacks(rank, chunk, wanted)
        ]
        if not wrong:
            return None
        rank, chunk = next((one for one in wrong if self.cells[one].came), wrong[0])
        cell = self.cells[rank, chunk]
        if cell.datum != self.wanted[rank, chunk]:
            return self._wrong_datum(rank, chunk, cell)
        missing = sorted(self._contributors(rank) - set(cell.parts))
        if not missing:
            return self._too_much(rank, chunk, cell)
        says = f"rank {rank} never gets {_parts_of(missing)}"
        says += self._chunk_words(chunk)
        kind, line = "missing", None
        late = self._sent_too_early(cell.came, missing[0])
        if late is not None:
            kind = "too_early"
            says += f": {_too_early(*late)}"
            line = late[0].move.line
        elif not any(move.chunk == chunk or move.into == chunk for step in self.steps for move in step):
            kind = "chunk_unmoved" if self.chunks > 1 else "nothing_moved"
            says += ": no move ever names this chunk" if self.chunks > 1 else ": nothing is ever sent"
        elif not cell.came:
            says += ": nothing is ever sent there" if self.chunks > 1 else ": nothing is ever sent to it"
        else:
            line = cell.came[-1].move.line
            says += f". The last that came was {cell.came[-1].place}"
        more = len(wrong) - 1
        says += f" ({counted(more, 'more place')} {'is' if more == 1 else 'are'} incomplete)" if more else ""
        return Diagnosis(kind, says + self._in_numbers(rank, cell.parts, None), line)

    def _lacks(self, rank: int, chunk: int, wanted: int) -> bool:
        cell = self.cells[rank, chunk]
        if cell.datum != wanted:
            return True
        return self.promise.reduces and set(cell.parts) != self._contributors(rank)

    def _too_much(self, rank: int, chunk: int, cell: _Cell) -> Diagnosis:
        extra = sorted(set(cell.parts) - self._contributors(rank))
        came = next((one for one in cell.came if one.brought[extra[0]]), None)
        says = f"rank {rank} ends with {_parts_of(extra)}{self._chunk_words(chunk)}, which must not be in its result"
        they = "it" if len(extra) == 1 else "they"
        says += f": {f'{they} came {came.place}' if came else f'{they} never left'}"
        return Diagnosis("too_much", says + self._in_numbers(rank, cell.parts, None), came and came.move.line)

    def _sent_too_early(self, came: Iterable[_Arrival], member: int) -> tuple[_Arrival, _Arrival] | None:
        """A move that would have brought what is missing, had its source waited; and the move that it did not wait for."""
        for early in came:
            source = early.move.source, early.move.chunk
            for place, after in self._log:
                if place == source and after.step >= early.step and after.brought[member]:
                    return early, after
            found = self._sent_too_early(early.before, member)
            if found is not None:
                return found
        return None

    def _wrong_datum(self, rank: int, chunk: int, cell: _Cell) -> Diagnosis:
        wanted = self._name(int(self.wanted[rank, chunk]))
        if cell.datum == NOTHING:
            says = f"rank {rank} never gets {wanted}"
            if not cell.came:
                says += ": nothing is ever sent to it" if self.chunks == 1 else ": nothing is ever sent there"
            return Diagnosis("missing", says)
        last = cell.came[-1] if cell.came else None
        says = f"rank {rank} ends with {self._name(cell.datum)} where {wanted} belongs"
        return Diagnosis("mixed", says + (f"; it came {last.place}" if last else ""), last.move.line if last else None)

    def _in_numbers(self, rank: int, parts: Counter[int], step: int | None) -> str:
        """The same with numbers whose digits say whose they are."""
        if self.ranks > _MOST_NUMBERS or self.promise.idempotent:
            return ""
        numbers = [10**one for one in range(self.ranks)]
        value = sum(numbers[one] * times for one, times in parts.items())
        when = "ends with" if step is None else f"then has {value:,} after step {step + 1}"
        has = f"rank {rank} {when}" if step is not None else f"rank {rank} {when} {value:,}"
        listed = f"{', '.join(f'{one:,}' for one in numbers[:-1])} and {numbers[-1]:,}"
        wanted = sum(numbers[one] for one in self._contributors(rank))
        goal = f"; {'the sum is' if self.promise.combines_all else 'it should be'} {wanted:,}" if step is None else ""
        return f". If the ranks begin with {listed}, {has}{goal}"

    # Words -----------------------------------------------------------------------------------------------------------

    def _chunk_words(self, chunk: int) -> str:
        return f" of chunk {chunk}" if self.chunks > 1 else ""

    def _place(self, place: tuple[int, int], possessive: bool = False) -> str:
        rank, chunk = place
        what = "slice" if self.promise.sliced and self.chunks == self.ranks else "chunk"
        if possessive:
            return f"{what} {chunk}" if self.chunks > 1 else "the buffer"
        return f"{what} {chunk} of rank {rank}" if self.chunks > 1 else f"rank {rank}"

    def _name(self, datum: int) -> str:
        if datum == NOTHING:
            return "nothing"
        chunk = datum % self.chunks
        if self.promise.sliced and self.chunks == self.ranks:
            return f"slice {chunk}"
        return f"chunk {chunk}" if self.chunks > 1 else "the buffer"


# An algorithm that is right, but does more than the task allows --------------------------------------------------------


def beyond(measure: str, schedule: Schedule, steps: list[list[Act]]) -> Diagnosis | None:
    """The reason why a right algorithm misses a goal, where its moves show it."""
    if measure == "steps":
        return _apart(schedule, steps)
    if measure == "port":
        return _busiest(schedule, steps)
    return None


def _apart(schedule: Schedule, steps: list[list[Act]]) -> Diagnosis | None:
    """Two steps that could be one, or one that changes nothing."""
    for number, (step, after) in enumerate(pairwise(steps)):
        written = {(move.destination, move.into) for move in step}
        copied = {(move.destination, move.into) for move in after if not move.reduces}
        if not written & ({(move.source, move.chunk) for move in after} | copied):
            says = (
                f"steps {number + 1} and {number + 2}{_at(after[0])} do not depend on each other: they can be one step"
            )
            return Diagnosis("split_steps", says, after[0].line)
    for number, step in enumerate(steps):
        rest = steps[:number] + steps[number + 1 :]
        if Story(schedule.collective, schedule.ranks, schedule.root, rest, schedule.chunks).told() is None:
            says = f"step {number + 1}{_at(step[0])} is not needed: the result is the same without it"
            return Diagnosis("extra_step", says, step[0].line)
    return None


def _busiest(schedule: Schedule, steps: list[list[Act]]) -> Diagnosis:
    moves = [move for step in steps for move in step if move.source != move.destination]
    sent, received = Counter(move.source for move in moves), Counter(move.destination for move in moves)
    rank, many = max((sent | received).items(), key=lambda item: item[1])
    verb = "sends" if sent[rank] == many else "receives"
    if schedule.chunks == 1:
        return Diagnosis("whole_buffer", f"rank {rank} {verb} {counted(many, 'whole buffer')}")
    return Diagnosis("port", f"rank {rank} {verb} {counted(many, 'chunk')} of S/{schedule.chunks}")


def _too_early(early: _Arrival, after: _Arrival) -> str:
    if after.step == early.step:
        return f"rank {early.move.source} sent {early.place} what it had before that step, and that part arrived in it"
    return f"rank {early.move.source} sent {early.place}, and got that part only {after.place}"


def _parts_of(ranks: list[int]) -> str:
    return f"the part{'s' if len(ranks) > 1 else ''} of {name_ranks(ranks)}"


def _at(move: Act) -> str:
    return "" if move.line is None else f" (line {move.line})"


def _an(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
