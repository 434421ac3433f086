"""Happens-before between the instructions of all ranks, with vector clocks.

An instruction's clock says, for every rank, how many of its instructions are known to be done before it: those before
it in its own program, and, through each wait, all that the awaited instruction knew. Progress only grows and a wait
only asks for "at least", so it does not matter in which order ranks run; here everybody runs as soon as it can, and
what runs at the same time is a *round*, handled at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ScheduleError
from ..symbolic import heads_of, sizes_of
from .rows import Ints, Lists, by_round, positions


def rounds_of(starts: Ints, waits: Lists) -> list[Ints]:
    """The instructions that run in each round. Raises `ScheduleError` if a rank would wait forever.

    Instruction i of rank r is row `starts[r] + i`; a wait (q, n) is met when rank q has done n instructions.
    """
    total = np.diff(starts)
    done = np.zeros(len(total), np.int64)
    rounds = []
    active = np.flatnonzero(done < total)
    while len(active):
        rows = starts[active] + done[active]
        owner, position = positions(waits, rows)
        unmet = waits.value[position] > done[waits.rank[position]]
        blocked = np.zeros(len(active), bool)
        blocked[owner[unmet]] = True
        if blocked.all():
            rank, wait = int(active[owner[unmet][0]]), position[unmet][0]
            peer, count = int(waits.rank[wait]), int(waits.value[wait])
            waiting = ", ".join(map(str, active[:8])) + (", …" if len(active) > 8 else "")
            message = (
                f"a cycle of waits: none of the ranks {waiting} can go on; rank {rank} at instruction {done[rank]} waits "
                f"until rank {peer} has done {count}, and it has done {done[peer]}"
            )
            raise ScheduleError(message, rank=rank)
        ready = active[~blocked]
        rounds.append(starts[ready] + done[ready])
        done[ready] += 1
        active = active[done[active] < total[active]]
    return rounds


class Clocks:
    """The clocks of all instructions, one round at a time.

    `horizon` limits for how many rounds a clock is remembered, and so the memory. A wait for an older instruction then
    only tells that this instruction is done. So some implied waits may be missed, but none is wrongly called implied.
    """

    def __init__(self, starts: Ints, waits: Lists, rounds: list[Ints], horizon: int | None = None) -> None:
        ranks = len(starts) - 1
        self.starts, self.waits, self.rounds, self.horizon = starts, waits, rounds, horizon
        self.rank = np.repeat(np.arange(ranks), np.diff(starts))
        self.when = np.zeros(len(self.rank), np.int64)
        for number, rows in enumerate(rounds):
            self.when[rows] = number
        self.needed = np.zeros(len(waits.rank), bool)  # the waits that told something new
        self._awaited = starts[waits.rank] + waits.value - 1
        self._last_asked = np.full(len(self.rank), -1, np.int64)
        np.maximum.at(self._last_asked, self._awaited, self.when[waits.row])
        # Clocks are as narrow as possible: for a thousand ranks, most of the time goes into moving them.
        self._narrow = np.int16 if np.diff(starts).max(initial=0) < 2**15 else np.int32
        self._known = np.zeros((ranks, ranks), self._narrow)  # by rank: the clock of its next instruction
        self._kept: dict[int, NDArray[np.signedinteger]] = {}
        self._kept_row = np.full(len(self.rank), -1, np.int64)
        self._forget_after: dict[int, list[int]] = {}
        self._waits = by_round(waits, rounds)

    def advance(self, number: int) -> NDArray[np.signedinteger]:
        """The clocks of the instructions of the next round, themselves included, in the order of `rounds[number]`."""
        rows = self.rounds[number]
        own = self.rank[rows]
        everybody = len(own) == len(self._known)  # then `own` is 0, 1, 2, …
        clock = self._known.copy() if everybody else self._known[own]
        owner, position = self._waits[number]
        if len(owner):
            self._hear(clock, owner, position)
        clock[np.arange(len(own)), own] = rows - self.starts[own] + 1
        self._keep(number, rows, clock)
        if everybody:
            self._known = clock
        else:
            if any(self._known is kept for kept in self._kept.values()):
                self._known = self._known.copy()  # remembered clocks must not change any more
            self._known[own] = clock
        return clock

    def _hear(self, clock: NDArray[np.signedinteger], owner: Ints, position: Ints) -> None:
        """Merge in what the waits at `position` tell the instructions `owner` of this round."""
        when = self.when[self._awaited[position]]
        if len(owner) > len(clock):  # the latest first: what it implies need not be asked for
            order = np.lexsort((-when, owner))
            owner, position, when = owner[order], position[order], when[order]
        heads = heads_of(owner)
        sizes = sizes_of(heads, len(owner))
        for depth in range(int(sizes.max())):
            here = heads[sizes > depth] + depth
            peer, count = self.waits.rank[position[here]], self.waits.value[position[here]]
            news = clock[owner[here], peer] < count
            here, peer, count = here[news], peer[news], count[news]
            self.needed[position[here]] = True
            clock[owner[here], peer] = count
            for block in np.unique(when[here]):
                if int(block) in self._kept:
                    part = here[when[here] == block]
                    known = self._kept[int(block)][self._kept_row[self._awaited[position[part]]]]
                    if len(part) == len(clock):
                        np.maximum(clock, known, out=clock)
                    else:
                        clock[owner[part]] = np.maximum(clock[owner[part]], known)

    def _keep(self, number: int, rows: Ints, clock: NDArray[np.signedinteger]) -> None:
        asked = np.flatnonzero(self._last_asked[rows] > number)
        if len(asked):
            self._kept[number] = clock if len(asked) == len(rows) else clock[asked]
            self._kept_row[rows[asked]] = np.arange(len(asked))
            last = int(self._last_asked[rows[asked]].max())
            last = last if self.horizon is None else min(last, number + self.horizon)
            self._forget_after.setdefault(last, []).append(number)
        for block in self._forget_after.pop(number, ()):
            del self._kept[block]
