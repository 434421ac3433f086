"""What a schedule means: what every chunk of every rank holds after every step, in symbols instead of data.

A chunk holds a *datum* (which piece of data) and the set of ranks that have contributed to it. `State.advance` takes
one step: it folds what arrives, in the order that the language defines, and refuses whatever makes no sense. The proof,
the reference engine, the compiler and the pictures all ask this module, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .collectives import NOTHING
from .division import longer_by
from .errors import ScheduleError
from .schedule import Schedule, describe
from .wording import name_ranks

Cells = NDArray[np.int64]
MOST_BYTES = 8 * 2**30  # a schedule from a file may name any number of ranks; memory is limited
_MOST_COMPARED = 2**28  # remainders that are tried, over all pairs of chunks whose lengths are compared
_MIX_LEFT, _MIX_RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_ROUNDED = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Folds:
    """What one step does: fold i puts the left-to-right fold of `operands[starts[i]:starts[i + 1]]` into `target[i]`.

    Targets and operands are cells: rank · width + chunk. A fold of one operand is a copy. `move[i]` is one of the moves
    that made fold i.
    """

    target: Cells
    starts: Cells
    operands: Cells
    move: Cells


class State:
    """What every cell (rank, chunk) holds; a cell is numbered rank · width + chunk."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.promise = schedule.promise
        self.step = 0
        self.width = schedule.chunks + schedule.scratch
        cells = schedule.ranks * self.width
        words = -(-schedule.ranks // 64) if self.promise.reduces else 0
        if cells * (40 + 8 * words) > MOST_BYTES:
            raise ScheduleError(
                f"{schedule.title}: {schedule.ranks} ranks with {self.width} chunks each are too many to follow: that takes "
                f"{cells * (40 + 8 * words) / 2**30:.0f} GiB, and at most {MOST_BYTES // 2**30} are used"
            )
        start = self.promise.starts_with(schedule.ranks, schedule.root, schedule.chunks)
        datum = np.full((schedule.ranks, self.width), NOTHING, np.int32)
        datum[:, : schedule.chunks] = start
        self.datum: NDArray[np.int32] = datum.reshape(cells)
        rank = np.repeat(np.arange(schedule.ranks, dtype=np.int32), self.width)
        if not self.promise.reduces:  # the contributor is the rank where the datum began
            rank = _origins(start)[self.datum]
        self.first = rank.copy()  # the lowest and the highest rank that has contributed
        self.last = rank.copy()
        self.count = np.where(self.datum == NOTHING, 0, 1).astype(np.int32)
        self.in_order = np.ones(cells, bool)  # contributions are consecutive ranks, folded from left to right
        # Two hashes of the whole expression, brackets included; the second also covers where folds ended and rounded.
        self.expression = combined(rank.astype(np.uint64), np.uint64(1))
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

    def advance(self) -> Folds:
        """Take one step, or raise `ScheduleError` if it makes no sense."""
        start, end = self.schedule.starts[self.step : self.step + 2].tolist()
        columns, width = self.schedule.columns, np.int64(self.width)
        source = columns["source"][start:end] * width + columns["chunk"][start:end]
        target = columns["destination"][start:end] * width + columns["into"][start:end]
        reduces = columns["reduces"][start:end] != 0
        empty = self.datum[source] == NOTHING
        if empty.any():
            self._refuse_empty(int(empty.argmax()) + start, "takes", source[empty.argmax()])
        copies, reducing = (~reduces).nonzero()[0], reduces.nonzero()[0]
        parts = []  # everything is read before anything is written
        if len(copies):
            self._check_copies(target, copies, reducing, start)
            copied = self._take(source[copies])
            found = Folds(target[copies], np.arange(len(copies) + 1), source[copies], copies + start)
            parts.append((found, copied))
        if len(reducing):
            parts.append(self._reduce(source[reducing], target[reducing], reducing + start))
        if len(copies):
            self._check_lengths(found.target, copied[0], found.move)
        for folds, values in parts:
            self._put(folds.target, values)
        self.step += 1
        return parts[0][0] if len(parts) == 1 else _joined(parts[0][0], parts[1][0])

    def _reduce(self, source: Cells, target: Cells, moves: Cells) -> tuple[Folds, list[NDArray[Any]]]:
        """What the moves that reduce make, and of what: each target's own content is one of the operands."""
        own = _unique(target)
        hollow = self.datum[own] == NOTHING
        if hollow.any():
            cell = own[hollow.argmax()]
            self._refuse_empty(int(moves[(target == cell).argmax()]), "reduces into", cell)
        operands = np.concatenate([source, own])
        targets = np.concatenate([target, own])
        order = order_of(targets * self.schedule.ranks + self.first[operands])
        operands, targets = operands[order], targets[order]
        heads = heads_of(targets)
        last = np.append(moves, np.full(len(own), -1))[order]
        folds = Folds(own, np.append(heads, len(targets)), operands, np.maximum.reduceat(last, heads))
        return folds, self._fold(folds)

    def run_to_end(self) -> State:
        """Take all steps that remain."""
        while not self.done:
            self.advance()
        return self

    # One step, in parts ----------------------------------------------------------------------------------------------

    def _take(self, cells: Cells) -> list[NDArray[Any]]:
        return [column[cells] for column in self._columns()]

    def _put(self, cells: Cells, values: list[NDArray[Any]]) -> None:
        for column, value in zip(self._columns(), values, strict=True):
            column[cells] = value

    def _columns(self) -> list[NDArray[Any]]:
        columns = [self.datum, self.first, self.last, self.count, self.in_order, self.expression, self.bits]
        return columns if self.members is None else [*columns, self.members]

    def _fold(self, folds: Folds) -> list[NDArray[Any]]:
        """Fold each run of operands from left to right, all runs in parallel."""
        operands, heads = folds.operands, folds.starts[:-1]
        sizes = folds.starts[1:] - heads
        total = self._take(operands[heads])
        datum, _, last, count, in_order, expression, bits = total[:7]
        members = total[7] if self.members is not None else None
        for depth in range(1, int(sizes.max(initial=1))):
            longer = sizes > depth
            runs: Any = slice(None) if longer.all() else longer.nonzero()[0]
            operand = operands[heads[runs] + depth]
            other = self.datum[operand] != datum[runs]
            if other.any():
                run = longer.nonzero()[0][other.argmax()]
                self._refuse_mixture(
                    folds.target[run], datum[run], self.datum[operands[heads[run] + depth]], int(folds.move[run])
                )
            if members is None:
                run = longer.nonzero()[0][0]
                self._refuse_reduction(folds.target[run], int(folds.move[run]))
            assert members is not None and self.members is not None
            theirs = self.members[operand]
            if not self.promise.idempotent:
                twice = members[runs] & theirs
                if twice.any():
                    run = longer.nonzero()[0][twice.any(axis=1).argmax()]
                    self._refuse_double(
                        folds.target[run], operands[folds.starts[run] : folds.starts[run + 1]], int(folds.move[run])
                    )
            in_order[runs] &= self.in_order[operand] & (last[runs] + 1 == self.first[operand])
            last[runs] = np.maximum(last[runs], self.last[operand])
            count[runs] += self.count[operand]
            members[runs] |= theirs
            expression[runs] = combined(expression[runs], self.expression[operand])
            bits[runs] = combined(bits[runs], self.bits[operand])
        # Types that are computed in a wider type are rounded once, at the end of a fold: (a ⊕ b ⊕ c) in one fold is not
        # (a ⊕ b) ⊕ c in two.
        several = sizes > 1
        bits[several] = rounded(bits[several])
        return total

    def _check_copies(self, target: Cells, copies: Cells, reducing: Cells, start: int) -> None:
        """A copy into a chunk that something else is written to in the same step has no defined outcome."""
        if not len(copies):
            return
        copied = np.sort(target[copies])
        clash = copied[1:][copied[1:] == copied[:-1]]
        if not len(clash) and len(reducing):
            clash = np.intersect1d(copied, target[reducing])
        if len(clash):
            rank, chunk = divmod(int(clash[0]), self.width)
            moves = np.flatnonzero(target == clash[0]) + start
            words = " and ".join(f"{self._word(int(move))} ({self.schedule.where(int(move))})" for move in moves[:2])
            title, site = self.schedule.title, self.schedule.where(int(moves[0]))
            message = f"{title}: step {self.step} has two unordered writes to chunk {chunk} of rank {rank}: {words}"
            raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _check_lengths(self, target: Cells, datum: NDArray[np.int32], moves: Cells) -> None:
        """Where the buffer does not divide evenly, chunks differ in length; what is copied to another chunk must fit.

        What is reduced is the same piece of data on both sides, so it fits. Scratch chunks hold any length.
        """
        if not self.promise.carries_data or self._part == 1:
            return
        chunk = target % self.width
        piece, place = datum % self.schedule.chunks % self._part, chunk % self._part
        for i in np.flatnonzero((piece != place) & (chunk < self.schedule.chunks)).tolist():
            pair = int(piece[i]), int(place[i])
            if pair in self._fits:
                continue
            if (len(self._fits) + 1) * self._part > _MOST_COMPARED:
                raise ScheduleError(
                    f"{self.schedule.title}: {len(self._fits) + 1} pairs of {self._part} chunks are too many to compare"
                )
            elements = longer_by(*pair, self._part)
            if elements is not None:
                self._refuse_length(int(target[i]), int(datum[i]), elements, int(moves[i]))
            self._fits.add(pair)

    # What is wrong, in sentences -------------------------------------------------------------------------------------

    def _word(self, move: int) -> str:
        columns = self.schedule.columns
        names = ("reduces", "chunk", "source", "destination", "into")
        return describe(*(int(columns[name][move]) for name in names))  # type: ignore[arg-type]

    def _refuse_empty(self, move: int, verb: str, cell: int) -> None:
        rank, chunk = divmod(int(cell), self.width)
        site = self.schedule.where(move)
        message = (
            f"{self.schedule.title}: step {self.step}, move {self._word(move)} {verb} chunk {chunk} of rank {rank}, "
            f"which holds nothing ({site})"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _refuse_length(self, cell: int, datum: int, elements: int, move: int) -> None:
        rank, chunk = divmod(cell, self.width)
        site, piece = self.schedule.where(move), datum % self.schedule.chunks
        of = "slices" if self.promise.sliced else "a buffer"
        message = (
            f"{self.schedule.title}: step {self.step}, move {self._word(move)} puts {self.name_of(datum)} into chunk {chunk} "
            f"of rank {rank}, which can be shorter: of {of} of {elements} elements chunk {piece} has one, chunk {chunk} "
            f"none ({site}); a scratch chunk holds any length"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _refuse_reduction(self, cell: int, move: int) -> None:
        rank, chunk = divmod(int(cell), self.width)
        site = self.schedule.where(move)
        message = (
            f"{self.schedule.title}: step {self.step}, move {self._word(move)} reduces, but {self.promise.name} "
            f"only copies ({site})"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _refuse_mixture(self, cell: int, datum: int, other: int, move: int) -> None:
        rank, chunk = divmod(int(cell), self.width)
        site = self.schedule.where(move)
        message = (
            f"{self.schedule.title}: step {self.step}, move {self._word(move)} mixes {self.name_of(datum)} with "
            f"{self.name_of(other)} in chunk {chunk} of rank {rank} ({site})"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def _refuse_double(self, cell: int, operands: Cells, move: int) -> None:
        assert self.members is not None
        rank, chunk = divmod(int(cell), self.width)
        seen: dict[int, int] = {}
        for operand in operands:
            for member in _bits(self.members[operand]):
                seen[member] = seen.get(member, 0) + 1
        faults = []
        if sum(seen.values()) >= self.schedule.ranks:  # this was meant to be everyone, so name those missing
            missing = [r for r in range(self.schedule.ranks) if r not in seen]
            faults += [f"lacks {name_ranks(missing)}"] if missing else []
        for times in sorted({times for times in seen.values() if times > 1}):
            doubled = [r for r, n in sorted(seen.items()) if n == times]
            faults.append(f"has {name_ranks(doubled)} {'twice' if times == 2 else f'{times} times'}")
        site = self.schedule.where(move)
        message = (
            f"{self.schedule.title}: after step {self.step}, rank {rank} chunk {chunk} {' and '.join(faults)} ({site})"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=self.step, site=site)

    def name_of(self, datum: int) -> str:
        """A datum in words."""
        if datum == NOTHING:
            return "nothing"
        rank, chunk = divmod(int(datum), self.schedule.chunks)
        if not self.promise.sliced:
            return f"chunk {chunk}"
        name = f"slice {chunk // self._part}" if self._part == 1 else f"chunk {chunk} (of slice {chunk // self._part})"
        return f"{name} of rank {rank}" if self.promise.name == "all_to_all" else name


def _origins(start: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rank where each datum begins, by datum; the last entry stands for NOTHING, which is −1."""
    ranks, chunks = np.nonzero(start != NOTHING)
    origins = np.zeros(int(start.max()) + 2, np.int32)
    origins[start[ranks, chunks]] = ranks
    return origins


def _joined(first: Folds, second: Folds) -> Folds:
    return Folds(
        target=np.concatenate([first.target, second.target]),
        starts=np.concatenate([first.starts, first.starts[-1] + second.starts[1:]]),
        operands=np.concatenate([first.operands, second.operands]),
        move=np.concatenate([first.move, second.move]),
    )


def _unique(cells: Cells) -> Cells:
    ordered = np.sort(cells)
    return ordered[heads_of(ordered)]


def heads_of(ordered: Cells) -> Cells:
    """Where runs of equal numbers begin."""
    fresh = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return fresh.nonzero()[0]


def order_of(key: Cells) -> Cells:
    """What puts these numbers (none below zero) in order; equal ones keep theirs.

    A sort is several times as fast as an argsort, so each number takes its position along, where both fit.
    """
    if len(key) < 2**10 or int(key.max()) >= 2**62 // len(key):
        return key.argsort(kind="stable")
    packed = key * len(key)
    packed += np.arange(len(key))
    packed.sort()
    packed %= len(key)
    return packed


def sizes_of(heads: Cells, total: int) -> Cells:
    """How long the runs are that begin at `heads`."""
    return np.append(heads[1:], total)[: len(heads)] - heads


def _bits(words: NDArray[np.uint64]) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def rounded(expression: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash after the end of a fold of several operands: types that are computed in a wider type round there."""
    return combined(expression, np.full(len(expression), _ROUNDED))


def combined(left: NDArray[np.uint64], right: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """A hash of a pair that tells (a, b) from (b, a), and ((a, b), c) from (a, (b, c))."""
    value = (left ^ left >> np.uint64(29)) * _MIX_LEFT + (right ^ right >> np.uint64(32)) * _MIX_RIGHT + np.uint64(1)
    return value ^ value >> np.uint64(31)
