"""A schedule in two levels: the collectives of islands that it is made of, found in its moves.

Ranks of an island share memory, and have collectives of their own there. A schedule is in two levels if each of its
steps is either inside islands or between them, and what an island does in consecutive steps is one collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ..collectives import COLLECTIVES, NOTHING, Part
from ..errors import ScheduleError
from ..pure.hashes import folded
from ..schedules import COLUMNS, Schedule
from ..symbolic import State

Islands = tuple[tuple[int, ...], ...]


Row = list[int | None]
"""Chunks of a buffer, in order; None fills up the slices of ranks that have fewer."""


class IslandPhase(NamedTuple):
    """A collective of an island. `root`: its number in the island. `brought`, `got`: the chunks of each of its ranks."""

    island: tuple[int, ...]
    name: str
    root: int | None
    brought: list[Row]
    got: list[Row]

    @classmethod
    def of(cls, island: tuple[int, ...], name: str, root: int | None, before: Row, after: Row | None = None) -> Self:
        """`before`, `after`: the chunks of the whole buffer, where ranks bring and where they get them (None: the same)."""
        promise, size = COLLECTIVES[name], len(island)

        def rows(row: Row, part: Part) -> list[Row]:
            return [[row[at] for at in np.flatnonzero(held)] for held in part.held(size, root, len(row))]

        return cls(
            island, name, root, rows(before, promise.starts), rows(before if after is None else after, promise.ends)
        )

    def takes(self, rank: int) -> Row:
        """The chunks that a rank of the island brings."""
        return self.brought[self.island.index(rank)]

    def gives(self, rank: int) -> Row:
        """The chunks that it gets."""
        return self.got[self.island.index(rank)]


def phases(schedule: Schedule, islands: Islands) -> Iterator[tuple[bool, int]]:
    """Runs of consecutive steps: whether they are inside islands, and how many they are.

    Steps in which ranks only move or combine what they have themselves are not inside: no collective is needed for them.
    """
    host = np.zeros(schedule.ranks, np.int64)
    for number, island in enumerate(islands):
        host[list(island)] = number
    source, destination = schedule.columns["source"], schedule.columns["destination"]
    crosses, enters = host[source] != host[destination], (host[source] == host[destination]) & (source != destination)
    kinds = []
    for step in range(schedule.steps):
        part = slice(*schedule.starts[step : step + 2])
        is_inside = bool(enters[part].any())
        if is_inside and crosses[part].any():
            raise ScheduleError(
                f"{schedule.title}: step {step + 1} has moves inside islands and between them", step=step
            )
        kinds.append(is_inside)
    for is_inside, run in groupby(kinds):
        yield is_inside, len(list(run))


def advance_inside(state: State, islands: Islands, steps: int) -> list[IslandPhase]:
    """Take some steps inside islands, and find the collective that each island does in them."""
    shape = state.schedule.ranks, state.width
    if steps == 1 and (moved := _moved(state, islands)):
        state.advance()
        return moved
    before = state.datum.reshape(shape).copy(), state.bits.reshape(shape).copy()
    touched = np.zeros(shape, bool)
    for _ in range(steps):
        touched.reshape(-1)[state.advance().target] = True
    after = state.datum.reshape(shape), state.bits.reshape(shape)
    found = []
    for island in islands:
        here = list(island)
        if touched[here].any():
            held = [[one[here] for one in pair] for pair in (before, after)]
            found.append(_find(state.schedule, island, touched[here], *held))
    return found


def _moved(state: State, islands: Islands) -> list[IslandPhase]:
    """The gathers and scatters of the next step, if chunks come to other places in it; otherwise nothing."""
    schedule = state.schedule
    moves = slice(*schedule.starts[state.step : state.step + 2])
    reduces, chunk, source, destination, into = (schedule.columns[name][moves] for name in COLUMNS[:5])
    if reduces.any() or (chunk == into).all():
        return []
    found = []
    for island in islands:
        here = np.isin(source, island)
        if not here.any():
            continue
        senders, receivers = set(source[here].tolist()), set(destination[here].tolist())
        if len(island) == 1 or min(len(senders), len(receivers)) > 1:
            raise ScheduleError(f"{schedule.title}: what ranks {list(island)} do together is no collective of theirs")
        gathers = len(senders) > 1
        order = np.argsort(into if gathers else chunk, kind="stable")
        rows: dict[int, list[tuple[int, int]]] = {rank: [] for rank in island}
        for at in order[here[order]].tolist():
            rows[int((source if gathers else destination)[at])].append((int(chunk[at]), int(into[at])))
        deep = max(map(len, rows.values()))
        whole = [pair for row in rows.values() for pair in (*row, *[(None, None)] * (deep - len(row)))]
        (root,) = receivers if gathers else senders
        before, after = ([pair[side] for pair in whole] for side in (0, 1))
        found.append(IslandPhase.of(island, "gather" if gathers else "scatter", island.index(root), before, after))
    return found


def _find(
    schedule: Schedule,
    island: tuple[int, ...],
    touched: NDArray[np.bool_],
    before: Sequence[NDArray[Any]],
    after: Sequence[NDArray[Any]],
) -> IslandPhase:
    """The collective that changes what the ranks of an island hold from `before` to `after`: data, and their hashes."""
    columns: list[int] = np.flatnonzero(touched.any(axis=0)).tolist()
    if not schedule.promise.carries_data:
        return IslandPhase.of(island, "barrier", None, list(columns))
    size = len(island)
    gets = {chunk: np.flatnonzero(touched[:, chunk]).tolist() for chunk in columns}
    owner: dict[int, int] = {}  # by chunk that is reduced: the rank that gets it
    source: dict[int, int] = {}  # by chunk that is copied: the rank that has it
    for chunk, ranks in gets.items():
        had = list(zip(*(one[:, chunk].tolist() for one in before), strict=True))
        has = set(zip(*(one[ranks, chunk].tolist() for one in after), strict=True))
        (datum, bits), *others = has
        reduced = {one for one, _ in had} == {datum} and bits == folded(one for _, one in had)
        origins = [rank for rank in range(size) if rank not in ranks and had[rank] in has]
        if not others and reduced and len(ranks) == 1 and datum != NOTHING:
            owner[chunk] = ranks[0]
        elif not others and len(origins) == 1:
            source[chunk] = origins[0]
        else:
            raise ScheduleError(f"{schedule.title}: what ranks {list(island)} do with chunk {chunk} is no collective")

    def of(which: dict[int, int]) -> list[int | None]:
        """The chunks of each rank, one rank after the other, equally many of each."""
        parts = [[chunk for chunk in which if which[chunk] == rank] for rank in range(size)]
        deep = max(map(len, parts))
        return [chunk for part in parts for chunk in (*part, *[None] * (deep - len(part)))]

    def own(rank: int) -> dict[int, int]:
        """The chunks of a rank's own slice, which it neither sends nor receives."""
        part = schedule.chunks // schedule.ranks
        return dict.fromkeys(range(island[rank] * part, (island[rank] + 1) * part), rank)

    if owner and not source:
        if len(set(owner.values())) == 1:
            return IslandPhase.of(island, "reduce", owner[columns[0]], list(columns))
        return IslandPhase.of(island, "reduce_scatter", None, of(owner))
    target = {chunk: ranks[0] for chunk, ranks in gets.items()}
    spreads = all(len(ranks) == size - 1 for ranks in gets.values())
    if not owner and spreads and len(set(source.values())) > 1:
        return IslandPhase.of(island, "all_gather", None, of(source))
    sliced = schedule.promise.sliced and all(len(ranks) == 1 for ranks in gets.values())
    if not owner and sliced and len(set(target.values())) == 1 and _is_own(schedule, island, source):
        return IslandPhase.of(
            island, "gather", target[columns[0]], of(dict(sorted((source | own(target[columns[0]])).items())))
        )
    if not owner and sliced and len(set(source.values())) == 1 and _is_own(schedule, island, target):
        return IslandPhase.of(
            island, "scatter", source[columns[0]], of(dict(sorted((target | own(source[columns[0]])).items())))
        )
    if not owner and spreads:
        return IslandPhase.of(island, "broadcast", source[columns[0]], list(columns))
    raise ScheduleError(f"{schedule.title}: what ranks {list(island)} do together is no collective of theirs")


def _is_own(schedule: Schedule, island: Sequence[int], which: dict[int, int]) -> bool:
    """True if every chunk belongs to the slice of its rank."""
    return all(chunk * schedule.ranks // schedule.chunks == island[rank] for chunk, rank in which.items())
