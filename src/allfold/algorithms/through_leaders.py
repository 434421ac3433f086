"""Leaders for collectives in which every rank gets something of its own: all_to_all, scan and exscan.

The leader of each group collects what its group brings, exchanges it with the other leaders in one message each, and
hands every rank of its group what is for it. With small arrays, the number of messages between groups is what counts:
G(G−1) instead of one for every pair of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..patterns import Pattern, Seats, copies, local
from ..registry import Phase, algorithm
from ..schedules import Move, Numbers, copy, reduce
from .groups import Groups, checked, group_count, group_size

COLLECT = "Each leader collects what its group brings."
HAND = "Each leader hands every rank of its group what is for it."


def with_local(pattern: Pattern, ranks: Seats, shares: NDArray[np.number[Any]]) -> Pattern:
    """The same step, in which ranks also move or combine shares of S within their own memory."""
    moves = shares > 0
    return replace(pattern, local_rank=ranks[moves].astype(np.int32), local_share=shares[moves].astype(np.float64))


def members_of(groups: Groups) -> tuple[Seats, Seats, Seats]:
    """The first rank of every group, its size, and the group of each rank, by number."""
    leaders, sizes = np.array([group[0] for group in groups]), np.array([len(group) for group in groups])
    group_of = np.empty(int(sizes.sum()), np.int64)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    return leaders, sizes, group_of


# all_to_all -----------------------------------------------------------------------------------------------------------


def exchange_patterns(ranks: int, groups: Groups | None = None) -> Iterator[Pattern]:
    leaders, sizes, group_of = members_of(checked(ranks, groups))
    members = np.setdiff1d(np.arange(ranks), leaders)
    own, several = leaders[group_of[members]], (sizes > 1).astype(np.int64)
    if len(members):
        yield with_local(copies(members, own, 1.0), leaders, several)
    one, other = np.nonzero(~np.eye(len(leaders), dtype=bool))
    crossing = copies(leaders[one], leaders[other], sizes[one] * sizes[other] / ranks)
    yield with_local(crossing, leaders, several * sizes * sizes / ranks)
    if len(members):
        yield with_local(copies(own, members, 1.0), leaders, several)


@algorithm(
    "all_to_all",
    "hierarchical",
    chunks=lambda ranks, groups=None: ranks,
    steps=lambda p: 3,
    port=lambda p: group_size(p) - 1 + Fraction(group_size(p) * (p - group_size(p)), p),
    patterns=exchange_patterns,
    phases=[
        Phase("collect inside", COLLECT, lambda p, groups=None: int(max(map(len, checked(p, groups))) > 1)),
        Phase(
            "leaders exchange",
            "Every leader sends each other leader all slices for the ranks of its group.",
            lambda p, groups=None: 1,
        ),
        Phase("hand out inside", HAND),
    ],
)
def hierarchical_all_to_all(ranks: int, groups: Groups | None = None) -> Iterator[list[Move]]:
    """Each leader collects the buffers of its group, the leaders exchange slices, and each hands them out in its group.

    For G groups of at most g ranks: 3 steps, (g−1+g(P−g)/P)·S through the busiest port: few messages, and many bytes.
    """
    if ranks == 1:
        return
    groups = checked(ranks, groups)
    size, row = max(map(len, groups)), np.arange(ranks)

    def brought(group: Sequence[int], seat: Numbers, slice: Numbers) -> Numbers:
        """Where the leader of a group has the slices of its ranks."""
        return slice if len(group) == 1 else ranks + seat * ranks + slice

    def wanted(group: Sequence[int], seat: Numbers, slice: Numbers) -> Numbers:
        """Where it has the slices for its ranks."""
        return slice if len(group) == 1 else ranks + (size + seat) * ranks + slice

    large = [group for group in groups if len(group) > 1]
    if large:
        yield [
            copy(row, member, group[0], into=brought(group, seat, row))
            for group in large
            for seat, member in enumerate(group)
        ]
    exchange = []
    for one in groups:
        for other in groups:
            if one is not other or len(one) > 1:
                here, there = np.indices((len(one), len(other))).reshape(2, -1)
                chunk = brought(one, here, np.array(other)[there])
                exchange.append(copy(chunk, one[0], other[0], into=wanted(other, there, np.array(one)[here])))
    yield exchange
    if large:
        yield [
            copy(wanted(group, seat, row), group[0], member, into=row)
            for group in large
            for seat, member in enumerate(group)
        ]


# scan and exscan ------------------------------------------------------------------------------------------------------


class Prefixes:
    """The moves of a scan, phase by phase.

    A leader keeps what its ranks bring, what is for them, and *totals*: of each run of consecutive ranks in one group.
    Groups of consecutive ranks are one run each. A rank's prefix is what its own group has below it, and the totals
    of the runs of other groups below it.
    """

    def __init__(self, ranks: int, groups: Groups | None, exclusive: bool) -> None:
        self.ranks, self.exclusive, self.groups = ranks, exclusive, checked(ranks, groups)
        _, _, group_of = members_of(self.groups)
        self.group_of: list[int] = group_of.tolist()
        self.seat = {rank: seat for group in self.groups for seat, rank in enumerate(group)}
        self.size = max(map(len, self.groups))
        self.runs = [list(run) for _, run in groupby(range(ranks), key=self.group_of.__getitem__)]

    def leader(self, rank: int) -> int:
        return self.groups[self.group_of[rank]][0]

    def is_alone(self, rank: int) -> bool:
        return len(self.groups[self.group_of[rank]]) == 1

    # Where the leader of a rank has what the rank brings, what is for it, and the totals.

    def brought(self, rank: int) -> int:
        return 0 if self.is_alone(rank) else 1 + self.seat[rank]

    def wanted(self, rank: int) -> int:
        return 0 if self.is_alone(rank) else 1 + self.size + self.seat[rank]

    def total(self, run: int) -> int:
        return 1 + 2 * self.size + run

    # What a rank's prefix is made of.

    def below(self, rank: int) -> list[int]:
        """The ranks of its own group that contribute."""
        group = sorted(self.groups[self.group_of[rank]])
        return [one for one in group if one < rank or (one == rank and not self.exclusive)]

    def runs_below(self, rank: int) -> list[int]:
        """The runs of other groups that contribute."""
        return [
            number
            for number, run in enumerate(self.runs)
            if run[0] < rank and self.group_of[run[0]] != self.group_of[rank]
        ]

    def receivers(self, run: int) -> list[int]:
        """The leaders of the other groups that need the total of a run."""
        own = self.group_of[self.runs[run][0]]
        last = self.runs[run][-1]
        return [group[0] for number, group in enumerate(self.groups) if number != own and max(group) > last]

    # The phases. Rank 0 has its prefix, or none.

    def collect(self) -> Iterator[list[Move]]:
        yield [copy(0, rank, self.leader(rank), self.brought(rank)) for rank in self.together()]

    def add_inside(self) -> Iterator[list[Move]]:
        """Leaders add up what their groups bring: totals, and prefixes inside the groups."""
        sums = [
            (self.leader(run[0]), [self.brought(rank) for rank in run], self.total(number))
            for number, run in enumerate(self.runs)
            if self.receivers(number) and not self.is_alone(run[0])
        ]
        for rank in self.together():
            if rank > 0 and self.below(rank):
                sums.append((self.leader(rank), [*map(self.brought, self.below(rank))], self.wanted(rank)))
        yield [copy(first, leader, leader, into) for leader, (first, *_), into in sums]
        yield [reduce(other, leader, leader, into) for leader, (_, *others), into in sums for other in others]

    def cross(self) -> Iterator[list[Move]]:
        yield [
            copy(0 if self.is_alone(run[0]) else self.total(number), self.leader(run[0]), receiver, self.total(number))
            for number, run in enumerate(self.runs)
            for receiver in self.receivers(number)
        ]

    def add_across(self) -> Iterator[list[Move]]:
        """Leaders add the totals of other groups to the prefixes."""
        starts, adds = [], []
        for rank in range(1, self.ranks):
            leader, into, runs = self.leader(rank), self.wanted(rank), self.runs_below(rank)
            if not self.below(rank):
                starts.append(copy(self.total(runs.pop(0)), leader, leader, into))
            adds += [reduce(self.total(run), leader, leader, into) for run in runs]
        yield starts
        yield adds

    def hand_out(self) -> Iterator[list[Move]]:
        yield [copy(self.wanted(rank), self.leader(rank), rank, 0) for rank in self.together() if rank > 0]

    def together(self) -> list[int]:
        """The ranks of groups that have several."""
        return [rank for rank in range(self.ranks) if not self.is_alone(rank)]


STAGES = {
    "collect inside": (Prefixes.collect, COLLECT),
    "add up inside": (Prefixes.add_inside, "Leaders add up what their groups have brought."),
    "leaders exchange": (Prefixes.cross, "Every leader sends the sum of its group to the leaders above it."),
    "add up across": (Prefixes.add_across, "Leaders add the sums of the groups below to what is for their ranks."),
    "hand out inside": (Prefixes.hand_out, HAND),
}


def prefix_phases(exclusive: bool) -> list[Phase]:
    def phase(name: str) -> Phase:
        make, sentence = STAGES[name]
        return Phase(name, sentence, lambda p, groups=None: sum(map(bool, make(Prefixes(p, groups, exclusive)))))

    return [phase(name) for name in STAGES]


def prefix_steps(ranks: int, groups: Groups | None, exclusive: bool) -> Iterator[list[Move]]:
    made = Prefixes(ranks, groups, exclusive)
    for make, _ in STAGES.values():
        yield from filter(None, make(made))


def prefix_patterns(ranks: int, groups: Groups | None, exclusive: bool) -> Iterator[Pattern] | None:
    """The patterns for groups of consecutive ranks, in their order; others have none."""
    groups = checked(ranks, groups)
    if [rank for group in groups for rank in group] != list(range(ranks)):
        return None
    return in_order_patterns(groups, exclusive)


def in_order_patterns(groups: Groups, exclusive: bool) -> Iterator[Pattern]:
    leaders, sizes, group_of = members_of(groups)
    members, number = np.setdiff1d(np.arange(len(group_of)), leaders), np.arange(len(groups))
    own, several = leaders[group_of[members]], (sizes > 1).astype(np.int64)
    below, above = np.triu_indices(len(groups), 1)
    sent, later = several * (number < len(groups) - 1), (number > 0).astype(np.int64)
    # How many prefixes start with what a rank of the group brings, and how many more such operands they have together.
    if exclusive:
        prefixes, operands, late = several * (sizes - 1), several * (sizes - 1) * (sizes - 2) // 2, later
    else:
        prefixes, operands, late = several * (sizes - 1 + later), several * sizes * (sizes - 1) // 2, 0 * later
    steps = [
        with_local(copies(members, own, 1.0), leaders, several),
        inside(leaders, sent + prefixes),
        inside(leaders, sent * (sizes - 1) + operands),
        copies(leaders[below], leaders[above], 1.0),
        inside(leaders, late),
        inside(leaders, number * sizes - late),
        with_local(copies(own, members, 1.0), leaders, several * later),
    ]
    yield from (step for step in steps if len(step.source) or len(step.local_rank))


def inside(ranks: Seats, shares: NDArray[np.number[Any]]) -> Pattern:
    return with_local(local(ranks[:0], 0.0), ranks, shares)


@algorithm(
    "scan",
    "hierarchical",
    chunks=lambda ranks, groups=None: 1,
    steps=lambda p: 4 if p == 2 else 6,
    port=lambda p: group_size(p) + group_count(p) - 2,
    patterns=lambda p, groups=None: prefix_patterns(p, groups, exclusive=False),
    phases=prefix_phases(exclusive=False),
)
def hierarchical_scan(ranks: int, groups: Groups | None = None) -> Iterator[list[Move]]:
    """Each leader collects the buffers of its group, sends their sum to the leaders above, and hands out prefixes.

    For G groups of at most g ranks: 6 steps, or 4 steps with 2 ranks, and (g+G−2)·S through the busiest port.
    """
    if ranks > 1:
        yield from prefix_steps(ranks, groups, exclusive=False)


@algorithm(
    "exscan",
    "hierarchical",
    chunks=lambda ranks, groups=None: 1,
    steps=lambda p: {2: 3, 3: 6}.get(p, 7),
    port=lambda p: group_size(p) + group_count(p) - 2,
    patterns=lambda p, groups=None: prefix_patterns(p, groups, exclusive=True),
    phases=prefix_phases(exclusive=True),
)
def hierarchical_exscan(ranks: int, groups: Groups | None = None) -> Iterator[list[Move]]:
    """Each leader collects the buffers of its group, sends their sum to the leaders above, and hands out prefixes.

    For G groups of at most g ranks: 7 steps, or 6 steps with 3 ranks, 3 steps with 2, and (g+G−2)·S through the
    busiest port.
    """
    if ranks > 1:
        yield from prefix_steps(ranks, groups, exclusive=True)
