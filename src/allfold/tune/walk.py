"""The graph of a few calls: every instruction of every rank, who waits for whom, and when each one ends.

This follows `native/collectives/communicator.cpp`: a rank enters a call when nobody is more than two segments behind
(in small calls with a root: several calls, more than are followed here), agrees with the others where ranks access each
other's arrays, runs its program segment by segment, waits before it reuses a work slot, and leaves when nobody needs
its arrays any more. Where ranks outnumber cores they take turns on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ..programs.compile import Programs

_NEWS, _SWITCH = 1, 2

_Point = tuple[int, int, int, int]
"""How far a rank is: call, segment, rank, number of instructions done."""
_CAME, _ALL = -1, -1


@dataclass(frozen=True)
class TimedGraph:
    """A graph with times: for each node its row, when it ended, and what it waited for last."""

    row: Sequence[int]
    ends: Sequence[float]
    before: Sequence[int]
    between: Sequence[int]
    """What lay between the two: news, a switch of ranks on a core, both or neither."""

    def path(self, nodes: Sequence[int]) -> tuple[list[int], int, int]:
        """The longest path to the node that ends last: its rows, how often it waited for news, and for a core."""
        node = max(nodes, key=self.ends.__getitem__)
        rows = []
        news = switches = 0
        while node >= 0:
            rows.append(self.row[node])
            news += self.between[node] & _NEWS
            switches += self.between[node] // _SWITCH
            node = self.before[node]
        return rows, news, switches


class CallGraph:
    """All instructions of some calls with some segments each, and who waits for whom; independent of the size.

    A node is one instruction of one segment of one call on one rank, or a rank entering a call, agreeing or leaving.
    `ahead`: ranks that need no answer may run several calls ahead.
    """

    def __init__(self, programs: Programs, calls: int, segments: int, ahead: bool) -> None:
        ranks = programs.schedule.ranks
        starts = programs.starts.tolist()
        comes = len(programs.step)  # after the rows of instructions come those of entering, agreeing and leaving
        agrees, leaves = comes + 1, comes + 2
        self.row: list[int] = []
        self.rank: list[int] = []
        self.first: list[int] = []  # the first node of every rank
        self.follows: list[int] = []  # the next node of the same rank, −1 for none
        self.call_ends: list[list[int]] = [[] for _ in range(calls)]
        self.segment_ends: list[list[int]] = [[] for _ in range(segments)]  # of the last call
        done: dict[_Point, int] = {}  # the node after which a rank has reached a point
        waits: list[tuple[int, _Point]] = []
        for rank in range(ranks):
            peers = [peer for peer in range(ranks) if peer != rank]
            self.first.append(len(self.row))
            for call in range(calls):
                node = done[call, _CAME, rank, 0] = self._add(rank, comes)
                # Nobody may fall behind by more than two uses of a large work area.
                if segments > 1 and not programs.one_area and call >= 1:
                    waits += [(node, (call - 1, segments - 2, peer, _ALL)) for peer in peers]
                elif call >= 2 and not ahead:
                    waits += [(node, (call - 2, segments - 1, peer, _ALL)) for peer in peers]
                if programs.memory != "private":
                    node = self._add(rank, agrees)
                    waits += [(node, (call, _CAME, peer, 0)) for peer in peers]
                for segment in range(segments):
                    for number, row in enumerate(range(starts[rank], starts[rank + 1])):
                        node = done[call, segment, rank, number + 1] = self._add(rank, row)
                        if segment == 1 and number == 0 and call >= 1:
                            waits += [(node, (call - 1, segments - 1, peer, _ALL)) for peer in peers]
                        waits += [(node, (call, segment, peer, count)) for peer, count in programs.waits.of(row)]
                        if segment >= 2:
                            waits += [
                                (node, (call, segment - 2, peer, count)) for peer, count in programs.reuse.of(row)
                            ]
                    done[call, segment, rank, _ALL] = node
                    if call == calls - 1:
                        self.segment_ends[segment].append(node)
                awaited = programs.leave.of(rank)
                if awaited:
                    node = self._add(rank, leaves)
                    waits += [(node, (call, segments - 1, peer, count)) for peer, count in awaited]
                self.call_ends[call].append(node)
            self.follows[-1] = -1
        self.waited_by: list[list[int]] = [[] for _ in self.row]
        self.missing = [0 if node in self.first else 1 for node in range(len(self.row))]  # how many nodes it waits for
        for node, point in waits:
            self.waited_by[done[point]].append(node)
            self.missing[node] += 1

    def _add(self, rank: int, row: int) -> int:
        self.row.append(row)
        self.rank.append(rank)
        self.follows.append(len(self.row))
        return len(self.row) - 1

    def run(self, cost: Sequence[float], news: float, switch: float, cores: int) -> TimedGraph:
        """Compute the times, given the cost of each row, of news, and of switching ranks on a core.

        The node that can begin first goes first. A rank that has to wait leaves its core to the others.
        """
        total, rank_of, follows = len(self.row), self.rank, self.follows
        ends, before, between = [0.0] * total, [-1] * total, [0] * total
        missing = self.missing.copy()
        crowded = len(self.first) > cores
        free = [(0.0, core, -1) for core in range(cores)]  # when each core is free, and the node that it ran last
        at = [-1] * len(self.first)  # the core that a rank was on last
        begin, cause = [0.0] * total, [-1] * total
        ready = [(0.0, node) for node in self.first]
        while ready:
            start, node = heappop(ready)
            rank = rank_of[node]
            before[node] = cause[node]
            if cause[node] >= 0 and rank_of[cause[node]] != rank:
                between[node] = _NEWS
            if crowded:
                # Its own core if that is free by then, else the first one that becomes free.
                own = [i for i, (when, core, _) in enumerate(free) if core == at[rank] and when <= start]
                place = own[0] if own else min(range(cores), key=lambda i: free[i][0])
                when, core, last = free[place]
                moved = last >= 0 and rank_of[last] != rank
                if when > start:
                    start, before[node], between[node] = when, last, 0
                if moved:
                    start += switch
                    between[node] |= _SWITCH
                at[rank] = core
            ends[node] = end = start + cost[self.row[node]]
            if crowded:
                free[place] = (end, core, node)
            after = follows[node]
            if after >= 0:
                if end >= begin[after] or cause[after] < 0:
                    begin[after], cause[after] = max(end, begin[after]), node
                missing[after] -= 1
                if not missing[after]:
                    heappush(ready, (begin[after], after))
            for after in self.waited_by[node]:
                if end + news > begin[after]:
                    begin[after], cause[after] = end + news, node
                missing[after] -= 1
                if not missing[after]:
                    heappush(ready, (begin[after], after))
        return TimedGraph(self.row, ends, before, between)
