"""Happens-before between the instructions of all ranks, with vector clocks.

An instruction's clock says, for every rank, how many of its instructions are known to be done before it: those before
it in its own program, and, through each wait, all that the awaited instruction knew. Progress only grows and a wait
only asks for "at least", so it does not matter in which order ranks run; here everybody runs as soon as it can, and
what runs at the same time is a *round*, handled at once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import ScheduleError
from ..symbolic import heads_of, order_of
from .rows import Ints, Lists, positions, starts_of

_FEW = 2**15  # numbers in the clocks that are merged at once; for more, that is slower than one by one


def rounds_of(starts: Ints, waits: Lists) -> list[Ints]:
    """The instructions that run in each round. Raises `ScheduleError` if a rank would wait forever.

    Instruction i of rank r is row `starts[r] + i`; a wait (q, n) is met when rank q has done n instructions.
    """
    next_row, end = starts[:-1].copy(), starts[1:]
    awaited = starts[waits.rank] + waits.value - 1
    rounds = []
    active = (next_row < end).nonzero()[0]
    while len(active):
        rows = next_row[active]
        owner, position = positions(waits, rows)
        unmet = next_row[waits.rank[position]] <= awaited[position]
        if unmet.any():
            blocked = np.zeros(len(active), bool)
            blocked[owner[unmet]] = True
            if blocked.all():
                rank, wait = int(active[owner[unmet][0]]), position[unmet][0]
                peer, count = int(waits.rank[wait]), int(waits.value[wait])
                done = next_row - starts[:-1]
                waiting = ", ".join(map(str, active[:8])) + (", …" if len(active) > 8 else "")
                message = (
                    f"a cycle of waits: none of the ranks {waiting} can go on; rank {rank} at instruction {done[rank]} "
                    f"waits until rank {peer} has done {count}, and it has done {done[peer]}"
                )
                raise ScheduleError(message, rank=rank)
            rows = rows[~blocked]
            next_row[active[~blocked]] += 1
        else:
            next_row[active] += 1
        rounds.append(rows)
        active = active[next_row[active] < end[active]]
    return rounds


class Clocks:
    """The clocks of all instructions, one round at a time.

    `horizon` limits for how many rounds a clock is remembered, and so the memory. A wait for an older instruction then
    only tells that this instruction is done. So some implied waits may be missed, but none is wrongly called implied.
    """

    def __init__(self, starts: Ints, waits: Lists, rounds: list[Ints], horizon: int | None = None) -> None:
        ranks, total, count = len(starts) - 1, int(starts[-1]), len(rounds)
        self.starts, self.waits, self.rounds = starts, waits, rounds
        length = starts[1:] - starts[:-1]
        self.rank = np.arange(ranks).repeat(length)
        sizes = np.fromiter((len(rows) for rows in rounds), np.int64, count)
        in_order = np.concatenate(rounds) if rounds else np.zeros(0, np.int64)
        self.when = np.empty(total, np.int64)
        self.when[in_order] = np.arange(count).repeat(sizes)
        self.needed = np.zeros(len(waits.rank), bool)  # the waits that told something new; complete with a horizon
        self._awaited = starts[waits.rank] + waits.value - 1
        # Clocks are as narrow as possible: for a thousand ranks, most of the time goes into moving them.
        self._narrow = np.int16 if length.max(initial=0) < 2**15 else np.int32
        self._known = np.zeros((ranks, ranks), self._narrow)  # by rank: the clock of its next instruction
        self.place = np.empty(total, np.int64)  # by row: its place in its round
        self.place[in_order] = np.arange(total) - (np.cumsum(sizes) - sizes).repeat(sizes)
        self._numbers = np.arange(ranks)
        self._sort_waits(sizes)
        self._plan_memory(in_order, horizon)

    def _sort_waits(self, sizes: Ints) -> None:
        """Group the waits: the first of every instruction of a round, the second of every instruction, and so on."""
        waits, count = self.waits, len(self.rounds)
        row = waits.row
        asked = self.when[row]
        depth = np.arange(len(row)) - waits.starts[row]
        depths = int(depth.max(initial=0)) + 1
        key = asked * depths + depth
        position = order_of(key)
        key = key[position]
        if depths > 1:
            # In a round of many waits the latest come first: what they imply need not be asked for.
            many = np.bincount(asked, minlength=count) > sizes
            age = np.where(many[asked], count - self.when[self._awaited], 0)
            position = order_of(row * (count + 1) + age)[position]
        heads = heads_of(key)
        self._position, self._owner = position, self.place[row[position]]
        self._groups = np.append(heads, len(key)).tolist()
        self._group_of_round = np.searchsorted(key[heads], np.arange(count + 1) * depths).tolist()

    def _plan_memory(self, in_order: Ints, horizon: int | None) -> None:
        """Clocks that are asked for later are remembered, each until the last time."""
        asked, made, count = self.when[self.waits.row], self.when[self._awaited], len(self.rounds)
        self._remembered = None if horizon is None else asked - made <= horizon
        last = np.full(len(self.when), -1, np.int64)
        if self._remembered is None:
            np.maximum.at(last, self._awaited, asked)
        else:
            np.maximum.at(last, self._awaited[self._remembered], asked[self._remembered])
        self._kept_rows = in_order[last[in_order] >= 0]
        ends = last[self._kept_rows]
        self._forgotten_rows = self._kept_rows[order_of(ends)]
        kept = starts_of(self.when[self._kept_rows], count)
        forgotten = starts_of(ends, count)
        self._kept_bounds, self._forgotten_bounds = kept.tolist(), forgotten.tolist()
        most = int((kept - forgotten).max(initial=0))
        self._kept = np.empty((most, len(self._known)), self._narrow)
        self._free = np.arange(most)
        self._slot = np.empty(len(self.when), np.int64)  # by row: where its clock is kept
        self._heard = np.empty_like(self._known)

    def advance(self, number: int) -> NDArray[np.signedinteger]:
        """The clocks of the instructions of the next round, themselves included, in the order of `rounds[number]`.

        They are valid until the next call.
        """
        rows = self.rounds[number]
        own = self.rank[rows]
        everybody = len(own) == len(self._known)  # then `own` is 0, 1, 2, …
        clock = self._known if everybody else self._known[own]
        bounds = self._groups[self._group_of_round[number] : self._group_of_round[number + 1] + 1]
        if len(bounds) > 2 and self._remembered is None and (bounds[-1] - bounds[0]) * len(self._known) < _FEW:
            self._hear_at_once(clock, slice(bounds[0], bounds[-1]))
        else:
            for begin, end in pairwise(bounds):
                self._hear(clock, slice(begin, end))
        clock[self._numbers[: len(own)], own] = rows - self.starts[own] + 1
        self._keep(number, clock)
        if not everybody:
            self._known[own] = clock
        return clock

    def _hear(self, clock: NDArray[np.signedinteger], group: slice) -> None:
        """Merge in what these waits tell; each is of another instruction of this round."""
        owner, position = self._owner[group], self._position[group]
        peer, count = self.waits.rank[position], self.waits.value[position]
        news = clock[owner, peer] < count
        if not news.all():
            owner, position, peer, count = owner[news], position[news], peer[news], count[news]
        self.needed[position] = True
        clock[owner, peer] = count
        if self._remembered is not None:
            recent = self._remembered[position]
            if not recent.all():
                owner, position = owner[recent], position[recent]
        heard = self._heard[: len(position)]
        self._kept.take(self._slot[self._awaited[position]], axis=0, out=heard, mode="clip")
        if len(owner) == len(clock):
            np.maximum(clock, heard, out=clock)  # `owner` is 0, 1, 2, …
        else:
            clock[owner] = np.maximum(clock[owner], heard)

    def _hear_at_once(self, clock: NDArray[np.signedinteger], waits: slice) -> None:
        """Merge in what all waits of a round tell, needed or not."""
        order = order_of(self._owner[waits])
        owner = self._owner[waits][order]
        heads = heads_of(owner)
        heard = self._kept[self._slot[self._awaited[self._position[waits][order]]]]
        who = owner[heads]
        clock[who] = np.maximum(clock[who], np.maximum.reduceat(heard, heads, axis=0))

    def _keep(self, number: int, clock: NDArray[np.signedinteger]) -> None:
        begin, end = self._forgotten_bounds[number : number + 2]
        free = len(self._free) - self._kept_bounds[number] + begin
        if end > begin:
            self._free[free : free + end - begin] = self._slot[self._forgotten_rows[begin:end]]
            free += end - begin
        begin, end = self._kept_bounds[number : number + 2]
        if end > begin:
            rows, slots = self._kept_rows[begin:end], self._free[free - (end - begin) : free]
            self._slot[rows] = slots
            self._kept[slots] = clock if len(rows) == len(clock) else clock[self.place[rows]]
