"""Rounds and vector clocks of the instructions of all ranks: as native/proof/happens_before.cpp.

Instruction i of rank r is row `starts[r] + i`; a wait (q, n) is met when rank q has done n instructions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def rounds(starts: Ints, wait_starts: Ints, wait_rank: Ints, wait_count: Ints) -> Ints:
    """By row: the round in which it runs, if everybody runs as soon as it can; −1 if it waits forever."""
    ends, begins = starts[1:].tolist(), wait_starts.tolist()
    awaited, peers = (starts[wait_rank] + wait_count - 1).tolist(), wait_rank.tolist()
    first, next_row = starts[:-1].tolist(), starts[:-1].tolist()
    when = [-1] * (ends[-1] if ends else 0)
    waiting: list[list[tuple[int, int]]] = [[] for _ in ends]  # by rank that is waited for: the row, and who waits
    ready = list(range(len(ends)))
    while ready:
        rank = ready.pop()
        row = next_row[rank]
        while row < ends[rank]:
            here = awaited[begins[row] : begins[row + 1]]
            unmet = next((i for i, past in enumerate(here) if when[past] < 0), None)
            if unmet is not None:
                waiting[peers[begins[row] + unmet]].append((here[unmet], rank))
                break
            before = when[row - 1] if row > first[rank] else -1
            when[row] = max([before, *(when[past] for past in here)]) + 1
            row += 1
        next_row[rank] = row
        ready += [who for past, who in waiting[rank] if when[past] >= 0]
        waiting[rank] = [(past, who) for past, who in waiting[rank] if when[past] < 0]
    return np.array(when, np.int64)


def needed_waits(
    starts: Ints, wait_starts: Ints, wait_rank: Ints, wait_count: Ints, when: Ints, horizon: int
) -> NDArray[np.bool_]:
    """By wait: True if it is not implied by the waits before it."""
    clocks = _Clocks(starts, wait_starts, wait_rank, wait_count, when, horizon)
    needed = np.zeros(len(wait_rank), bool)
    rounds = when.astype(np.intp)
    waits_per_round = np.bincount(rounds[clocks.asker], minlength=int(when.max(initial=-1)) + 1)
    many = waits_per_round > np.bincount(rounds, minlength=len(waits_per_round))
    for row in clocks.rows():
        clock, waits = clocks.known[clocks.rank[row]], list(range(wait_starts[row], wait_starts[row + 1]))
        # In a round of many waits the latest come first: what they imply need not be asked for.
        if many[when[row]]:
            waits.sort(key=lambda wait: -int(when[clocks.awaited[wait]]))
        for wait in waits:
            if clock[wait_rank[wait]] < wait_count[wait]:
                needed[wait] = True
                clocks.merge(wait)
    return needed


def first_unordered(
    starts: Ints,
    wait_starts: Ints,
    wait_rank: Ints,
    wait_count: Ints,
    when: Ints,
    earlier: Ints,
    later: Ints,
) -> int:
    """Of the pairs (earlier, later) that nothing orders, the first of the first round; −1 if all are ordered."""
    clocks = _Clocks(starts, wait_starts, wait_rank, wait_count, when, len(when))
    by_row = later.argsort(kind="stable")
    bounds = np.searchsorted(later[by_row], np.arange(len(when) + 1))
    past_rank = clocks.rank[earlier]
    done = earlier - starts[past_rank] + 1
    first: tuple[int, int] | None = None
    for row in clocks.rows():
        if first is not None and when[row] > first[0]:
            break
        for wait in range(wait_starts[row], wait_starts[row + 1]):
            clocks.merge(wait)
        clock = clocks.known[clocks.rank[row]]
        clock[clocks.rank[row]] = row - starts[clocks.rank[row]] + 1
        pairs = by_row[bounds[row] : bounds[row + 1]]
        unordered = clock[past_rank[pairs]] < done[pairs]
        if unordered.any():
            found = int(when[row]), int(pairs[unordered.argmax()])
            first = found if first is None else min(first, found)
    return -1 if first is None else first[1]


class _Clocks:
    """The clock of every rank, row by row; those of rows that are waited for are kept until the last such wait."""

    def __init__(
        self, starts: Ints, wait_starts: Ints, wait_rank: Ints, wait_count: Ints, when: Ints, horizon: int
    ) -> None:
        ranks = len(starts) - 1
        self.starts, self.wait_starts, self.when = starts, wait_starts, when
        self.wait_rank, self.wait_count = wait_rank, wait_count
        self.rank = np.arange(ranks).repeat(np.diff(starts).astype(np.intp))
        self.asker = np.arange(len(when)).repeat(np.diff(wait_starts).astype(np.intp))
        self.awaited = (starts[wait_rank] + wait_count - 1).astype(np.intp)
        self.known = np.zeros((ranks, ranks), np.int32)
        self._remembered = when[self.asker] - when[self.awaited] <= horizon
        self._asked = np.bincount(self.awaited[self._remembered], minlength=len(when))
        self._kept: dict[int, NDArray[np.int32]] = {}

    def rows(self) -> Iterator[int]:
        """All rows, round by round. After each its rank knows that it is done."""
        for row in self.when.argsort(kind="stable").tolist():
            yield row
            rank = self.rank[row]
            self.known[rank, rank] = row - self.starts[rank] + 1
            if self._asked[row]:
                self._kept[row] = self.known[rank].copy()
            for wait in range(self.wait_starts[row], self.wait_starts[row + 1]):
                if self._remembered[wait]:
                    past = int(self.awaited[wait])
                    self._asked[past] -= 1
                    if not self._asked[past]:
                        del self._kept[past]

    def merge(self, wait: int) -> None:
        """Merge into the clock of the rank that waits what the awaited instruction knew."""
        clock = self.known[self.rank[self.asker[wait]]]
        peer = self.wait_rank[wait]
        clock[peer] = max(clock[peer], self.wait_count[wait])
        if self._remembered[wait]:
            np.maximum(clock, self._kept[int(self.awaited[wait])], out=clock)
