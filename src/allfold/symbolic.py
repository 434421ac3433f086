"""The meaning of a schedule: what every chunk of every rank holds after every step, in symbols instead of data.

A chunk holds a *datum* (which piece of data) and the set of ranks that have contributed to it. `State.advance` takes
one step: it folds what arrives, in the order that the language defines, and refuses whatever makes no sense. The proof,
the reference engine, the compiler and the pictures all ask this module, so they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from . import _native
from .collectives import NOTHING
from .division import longer_by
from .errors import ScheduleError
from .pure.hashes import combined
from .schedules import Schedule, describe
from .wording import name_ranks

Cells = NDArray[np.int64]
MOST_BYTES = 8 * 2**30  # a schedule from a file may name any number of ranks; memory is limited
_MOST_COMPARED = 2**28  # remainders that are tried, over all pairs of chunks whose lengths are compared
_MOVE = ("reduces", "chunk", "source", "destination", "into")
_TAKES_NOTHING, _TWO_WRITES = 1, 2  # what `folds_of` finds wrong; 3: a move reduces into what holds nothing
_MIXTURE, _REDUCTION = 1, 2  # what `fold_symbols` finds wrong; 3: a contribution comes twice


@dataclass(frozen=True)
class Folds:
    """The folds of one step: fold i puts the left-to-right fold of `operands[starts[i]:starts[i + 1]]` into `target[i]`.

    Targets and operands are cells: rank · width + chunk. A fold of one operand is a copy. `move[i]` is one of the moves
    that made fold i.
    """

    target: Cells
    starts: Cells
    operands: Cells
    move: Cells


class State:
    """The content of every cell (rank, chunk); a cell is numbered rank · width + chunk."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.promise = schedule.promise
        self.step = 0
        self._marks = 0
        self.width = schedule.chunks + schedule.scratch
        cells = schedule.ranks * self.width
        words = -(-schedule.ranks // 64) if self.promise.reduces else 0
        if cells * (40 + 8 * words) > MOST_BYTES:
            raise ScheduleError(
                f"{schedule.title}: {schedule.ranks} ranks with {self.width} chunks each are too many to follow: that takes "
                f"{cells * (40 + 8 * words) / 2**30:.0f} GiB, and at most {MOST_BYTES // 2**30} are used"
            )
        self.datum, rank, self.expression = at_start(schedule)
        self.first = rank.copy()  # the lowest and the highest rank that has contributed
        self.last = rank.copy()
        self._written = np.zeros(cells, np.int64)  # which step wrote each cell last, in the marks of `folds_of`
        self.count = np.where(self.datum == NOTHING, 0, 1).astype(np.int32)
        self.in_order = np.ones(cells, bool)  # contributions are consecutive ranks, folded from left to right
        # `expression` is a hash of the whole expression, brackets included; this one also covers where folds rounded.
        self.bits = self.expression.copy()
        # How many chunks a slice has (the whole buffer, where there are no slices): a chunk's place among them decides
        # its length.
        self._part = schedule.chunks // self.promise.slices(schedule.ranks)
        self._fits: set[tuple[int, int]] = (
            set()
        )  # pairs of such chunks: the first never has more elements than the second
        self.members: NDArray[np.uint64] | None = None  # one bit per contribution
        if self.promise.reduces:
            self.members = np.zeros((cells, words), np.uint64)
            holding = np.flatnonzero(self.datum != NOTHING)
            self.members[holding, rank[holding] // 64] = np.uint64(1) << (rank[holding] % 64).astype(np.uint64)

    @property
    def done(self) -> bool:
        return self.step == self.schedule.steps

    def contributors(self, rank: int, chunk: int) -> list[int]:
        """The ranks whose contribution a chunk holds."""
        cell = rank * self.width + chunk
        if self.datum[cell] == NOTHING:
            return []
        if self.members is None:
            return [int(self.first[cell])]
        return _bits(self.members[cell])

    def contributions(self, rank: int, chunk: int) -> int:
        """The number of ranks that have contributed to what a chunk holds."""
        cell = rank * self.width + chunk
        if self.members is None or self.datum[cell] == NOTHING:
            return int(self.datum[cell] != NOTHING)
        return sum(map(int.bit_count, self.members[cell].tolist()))

    def keeps(self, promised: NDArray[np.int32], rank: int, chunk: int) -> bool:
        """True if a chunk holds what the collective promises there (`promised`: the datum of each rank and chunk)."""
        if chunk >= self.schedule.chunks or promised[rank, chunk] == NOTHING:
            return False
        if int(self.datum[rank * self.width + chunk]) != promised[rank, chunk]:
            return False
        return self.has_wanted(rank, chunk)

    def has_wanted(self, rank: int, chunk: int) -> bool:
        """True if a chunk holds the contributions that the collective wants there, and no others."""
        if not self.promise.reduces:
            return True
        wanted = self.promise.contributors(rank, self.schedule.ranks)
        if self.contributions(rank, chunk) != len(wanted):
            return False
        return self.promise.combines_all or self.contributors(rank, chunk) == list(wanted)

    def advance(self) -> Folds:
        """Take one step, or raise `ScheduleError` if it makes no sense."""
        start, end = self.schedule.starts[self.step : self.step + 2].tolist()
        reduces, chunk, source, destination, into = (self.schedule.columns[name][start:end] for name in _MOVE)
        self._marks += 2
        wrong, at, elsewhere, target, starts, operands, move = _native.folds_of(
            reduces,
            chunk,
            source,
            destination,
            into,
            self.schedule.ranks,
            self.width,
            self.schedule.chunks,
            self._part if self.promise.carries_data else 1,
            self.datum,
            self.first,
            self._written,
            self._marks,
        )
        if wrong:
            self._refuse_step(wrong, at, start, end)
        folds = Folds(target, starts, operands, move + start)
        too_long = self._too_long(folds) if elsewhere else None
        self._fold(folds, write=too_long is None)
        if too_long is not None:
            raise too_long
        self.step += 1
        return folds

    def run_to_end(self) -> State:
        """Take all steps that remain."""
        while not self.done:
            self.advance()
        return self

    # One step, in parts ----------------------------------------------------------------------------------------------

    def _fold(self, folds: Folds, write: bool) -> None:
        """Fold each run of operands from left to right; everything is read before anything is written.

        Types that are computed in a wider type are rounded once, at the end of a fold: (a ⊕ b ⊕ c) in one fold is not
        (a ⊕ b) ⊕ c in two.
        """
        columns = (self.datum, self.first, self.last, self.count, self.in_order, self.expression, self.bits)
        wrong, fold, depth = _native.fold_symbols(
            folds.target, folds.starts, folds.operands, *columns, self.members, not self.promise.idempotent, write
        )
        if not wrong:
            return
        operands = folds.operands[folds.starts[fold] : folds.starts[fold + 1]]
        cell, move = folds.target[fold], int(folds.move[fold])
        if wrong == _MIXTURE:
            one, other = (self.name_of(self.datum[operands[place]]) for place in (0, depth))
            raise self._fault(cell, move, f"mixes {one} with {other} in {self._cell(cell)}")
        if wrong == _REDUCTION:
            raise self._fault(cell, move, f"reduces, but {self.promise.name} only copies")
        raise self._double(cell, operands, move)

    def _too_long(self, folds: Folds) -> ScheduleError | None:
        """If the buffer does not divide evenly, chunks differ in length; data copied to another chunk must fit.

        What is reduced is the same piece of data on both sides, so it fits. Scratch chunks hold any length.
        """
        copies = (folds.starts[1:] - folds.starts[:-1] == 1).nonzero()[0]
        target, move = folds.target[copies], folds.move[copies]
        chunk, datum = target % self.width, self.datum[folds.operands[folds.starts[copies]]]
        piece, place = datum % self.schedule.chunks % self._part, chunk % self._part
        for i in np.flatnonzero((piece != place) & (chunk < self.schedule.chunks)).tolist():
            pair = int(piece[i]), int(place[i])
            if pair in self._fits:
                continue
            if (len(self._fits) + 1) * self._part > _MOST_COMPARED:
                return ScheduleError(
                    f"{self.schedule.title}: {len(self._fits) + 1} pairs of {self._part} chunks are too many to compare"
                )
            elements = longer_by(*pair, self._part)
            if elements is not None:
                return self._wrong_length(int(target[i]), int(datum[i]), elements, int(move[i]))
            self._fits.add(pair)
        return None

    # What is wrong, in sentences -------------------------------------------------------------------------------------

    def _word(self, move: int) -> str:
        columns = self.schedule.columns
        return describe(*(int(columns[name][move]) for name in _MOVE))  # type: ignore[arg-type]

    def _refuse_step(self, wrong: int, at: int, start: int, end: int) -> NoReturn:
        """Raise what `folds_of` found: `at` is a move of this step, or a cell."""
        columns = {name: self.schedule.columns[name][start:end] for name in _MOVE}
        source = columns["source"] * np.int64(self.width) + columns["chunk"]
        target = columns["destination"] * np.int64(self.width) + columns["into"]
        if wrong == _TWO_WRITES:
            raise self._two_writes(target, columns["reduces"] != 0, start)
        if wrong == _TAKES_NOTHING:
            raise self._fault(source[at], at + start, f"takes {self._cell(source[at])}, which holds nothing")
        move = int((target == at).argmax()) + start
        raise self._fault(at, move, f"reduces into {self._cell(at)}, which holds nothing")

    def _fault(self, cell: int, move: int, what: str, advice: str = "") -> ScheduleError:
        """The error of a move of this step, in a cell."""
        rank, chunk = divmod(int(cell), self.width)
        site = self.schedule.where(move)
        message = f"{self.schedule.title}: step {self.step + 1}, move {self._word(move)} {what} ({site}){advice}"
        return ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _cell(self, cell: int) -> str:
        rank, chunk = divmod(int(cell), self.width)
        return f"chunk {chunk} of rank {rank}"

    def _two_writes(self, target: Cells, reduces: NDArray[np.bool_], start: int) -> ScheduleError:
        """A copy into a chunk that something else is written to in the same step has no defined outcome."""
        copied = in_order(target[~reduces])
        clash = copied[1:][copied[1:] == copied[:-1]]
        if not len(clash):
            clash = np.intersect1d(copied, target[reduces])
        rank, chunk = divmod(int(clash[0]), self.width)
        moves = np.flatnonzero(target == clash[0]) + start
        words = " and ".join(f"{self._word(int(move))} ({self.schedule.where(int(move))})" for move in moves[:2])
        title, site = self.schedule.title, self.schedule.where(int(moves[0]))
        message = f"{title}: step {self.step + 1} has two unordered writes to {self._cell(clash[0])}: {words}"
        return ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _wrong_length(self, cell: int, datum: int, elements: int, move: int) -> ScheduleError:
        chunk, piece = cell % self.width, datum % self.schedule.chunks
        of = "slices" if self.promise.sliced else "a buffer"
        return self._fault(
            cell,
            move,
            f"puts {self.name_of(datum)} into {self._cell(cell)}, which can be shorter: of {of} of {elements} elements "
            f"chunk {piece} has one, chunk {chunk} none",
            "; a scratch chunk holds any length",
        )

    def _double(self, cell: int, operands: Cells, move: int) -> ScheduleError:
        assert self.members is not None
        rank, chunk = divmod(int(cell), self.width)
        seen = Counter(member for operand in operands for member in _bits(self.members[operand]))
        faults = []
        wanted = self.promise.contributors(rank, self.schedule.ranks)
        if seen.total() >= len(wanted):  # this was meant to be all of them, so name those missing
            missing = [r for r in wanted if r not in seen]
            faults += [f"lacks {name_ranks(missing)}"] if missing else []
        for times in sorted({times for times in seen.values() if times > 1}):
            doubled = [r for r, n in sorted(seen.items()) if n == times]
            faults.append(f"has {name_ranks(doubled)} {'twice' if times == 2 else f'{times} times'}")
        site = self.schedule.where(move)
        where = f"after step {self.step + 1}, rank {rank} chunk {chunk}"
        message = f"{self.schedule.title}: {where} {' and '.join(faults)} ({site})"
        return ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def name_of(self, datum: int) -> str:
        """A datum in words."""
        if datum == NOTHING:
            return "nothing"
        rank, chunk = divmod(int(datum), self.schedule.chunks)
        if not self.promise.sliced:
            return f"chunk {chunk}"
        name = f"slice {chunk // self._part}" if self._part == 1 else f"chunk {chunk} (of slice {chunk // self._part})"
        return f"{name} of rank {rank}" if self.promise.exchanges else name


def at_start(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
    """By cell, before the first step: its datum, the rank that has contributed it, and the hash of that expression."""
    promise, width = schedule.promise, schedule.chunks + schedule.scratch
    start = promise.starts_with(schedule.ranks, schedule.root, schedule.chunks)
    rows = np.full((schedule.ranks, width), NOTHING, np.int32)
    rows[:, : schedule.chunks] = start
    datum = rows.reshape(-1)
    rank = np.arange(schedule.ranks, dtype=np.int32).repeat(width)
    if not promise.reduces:  # the contributor is the rank where the datum began
        rank = _origins(start)[datum]
    return datum, rank, combined(rank.astype(np.uint64), np.uint64(1))


def _origins(start: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rank where each datum begins, by datum; the last entry stands for NOTHING, which is −1."""
    ranks, chunks = np.nonzero(start != NOTHING)
    origins = np.zeros(int(start.max()) + 2, np.int32)
    origins[start[ranks, chunks]] = ranks
    return origins


def unkept(state: State) -> tuple[Cells, NDArray[np.bool_]]:
    """The cells that hold results, and of each whether it does not hold exactly what the collective promises.

    That is the right piece of data, with the contribution of every rank that it wants and of no other. (None comes
    twice: `State.advance` refuses that.)
    """
    schedule, promise = state.schedule, state.promise
    ends = np.full((schedule.ranks, state.width), NOTHING, np.int32)
    ends[:, : schedule.chunks] = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
    wanted = ends.reshape(-1)
    results = np.flatnonzero(wanted != NOTHING)
    wrong = state.datum[results] != wanted[results]
    if state.members is not None:
        several = range(1 if promise.combines_all else schedule.ranks)
        sets = np.stack([_members(promise.contributors(rank, schedule.ranks), schedule.ranks) for rank in several])
        wrong |= (state.members[results] != (sets if promise.combines_all else sets[results // state.width])).any(
            axis=1
        )
    return results, wrong


def _members(ranks: range, of: int) -> NDArray[np.uint64]:
    """A set of ranks, one bit each."""
    there = np.zeros(-(-of // 64) * 64, bool)
    there[ranks.start : ranks.stop] = True
    return np.packbits(there, bitorder="little").view(np.uint64)


def heads_of(ordered: Cells) -> Cells:
    """The starts of runs of equal numbers."""
    fresh = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return fresh.nonzero()[0]


def order_of(key: Cells) -> Cells:
    """The order of these numbers (none below zero); equal ones keep theirs."""
    return _native.order(key)


def in_order(key: Cells) -> Cells:
    """These numbers (none below zero) in order."""
    return key[order_of(key)]


def sizes_of(heads: Cells, total: int) -> Cells:
    """The lengths of the runs that begin at `heads`."""
    return np.append(heads[1:], total)[: len(heads)] - heads


def _bits(words: NDArray[np.uint64]) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def name_of(schedule: Schedule, datum: int) -> str:
    """A piece of data as pictures name it: its chunk; for an all_to_all the ranks it is from and for."""
    if not schedule.promise.exchanges:
        return str(datum)
    part = schedule.chunks // schedule.ranks
    origin, chunk = divmod(datum, schedule.chunks)
    return f"{origin}→{chunk // part}" + (f".{chunk % part}" if part > 1 else "")
