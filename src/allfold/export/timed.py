"""From moves with times to a schedule: other formats have no steps, so steps are found here.

The reader of a format runs the file, and records for every move when it read and when it wrote. Moves then get the
earliest steps that do not change what each one reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ..errors import ScheduleError, UsageError
from ..schedules import COLUMNS, Schedule, of_table

Place = tuple[int, str, int]
"""A rank, a space of its memory and an index in it. What has no place in the format gets one in space "t"."""

Cells = dict[Place, int]
"""The chunk of its rank that stands for each place."""


class TimedMove(NamedTuple):
    """`source` is read at `read`, and `destination` written at `written`; times order everything.

    Moves of the same `group` are one fold and belong in one step; −1 means a group of its own.
    """

    reduces: bool
    source: Place
    destination: Place
    read: int
    written: int
    site: str
    group: int = -1


_BY_PLACES = itemgetter(1, 2)  # of moves: from where, and to where


def assemble(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int | None,
    chunks: int,
    steps: Iterable[tuple[list[TimedMove], Cells]],
) -> Schedule:
    """The schedule made of these steps, with places replaced by the cells that stand for them."""
    sites: dict[str, int] = {}
    listed = []
    for moves, cells in steps:
        rows = []
        for move in moves:
            source, destination = cells[move.source], cells[move.destination]
            if (move.source[0], source) != (move.destination[0], destination) or move.reduces:
                site = sites.setdefault(move.site, len(sites))
                rows.append((move.reduces, source, move.source[0], move.destination[0], destination, site))
        if rows:
            listed.append(rows)
    table = np.array([*chain.from_iterable(listed)], np.int64).reshape(-1, len(COLUMNS))
    named = int(max(table[:, 1].max(), table[:, 4].max())) + 1 if len(table) else 1
    scratch, sizes = max(0, named - chunks), [*map(len, listed)]
    try:
        return of_table(collective, algorithm, ranks, root, chunks, scratch, table, sizes, [*sites])
    except ScheduleError as error:
        raise UsageError(f"this is not a schedule: {error}") from None


def in_steps(moves: list[TimedMove], cells: Cells) -> list[list[TimedMove]] | None:
    """The moves by steps, each in the earliest possible step, or None if there are no such steps.

    A move comes in a later step than the moves that wrote its source and the previous content of its destination. It
    does not come in an earlier step than the moves that read that previous content: within a step, all reads come
    first.
    """
    numbers: dict[int, int] = {}
    group = [
        numbers.setdefault(move.group if move.group >= 0 else -1 - i, len(numbers)) for i, move in enumerate(moves)
    ]
    accesses: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    written = [0] * len(numbers)
    for (reduces, start, end, read, written_at, _, _), own in zip(moves, group, strict=True):
        source, destination = (start[0], cells[start]), (end[0], cells[end])
        if source != destination or reduces:
            accesses[source].append((read, 0, own))
            accesses[destination].append((written_at, 1, own))
        written[own] = written_at
    bounds: list[list[tuple[int, int]]] = [[] for _ in numbers]  # (another, how many steps later at least)
    for touched in accesses.values():
        writer = -1
        readers: list[int] = []
        touched.sort()
        for _, writes, own in touched:
            if writer not in (-1, own):
                bounds[own].append((writer, 1))
            if writes and own != writer:
                bounds[own] += [(reader, 0) for reader in readers if reader != own]
                writer, readers = own, []
            elif not writes:
                readers.append(own)
    order = sorted(range(len(bounds)), key=written.__getitem__)
    level = [0] * len(bounds)
    for _ in range(64):  # one round suffices if data is written before it is read; exchanges need a few more
        changed = False
        for own in order:
            for other, later in bounds[own]:
                least = level[other] + later
                if least > level[own]:
                    level[own], changed = least, True
        if not changed:
            steps: list[list[TimedMove]] = [[] for _ in range(max(level, default=-1) + 1)]
            for move, own in zip(moves, group, strict=True):
                steps[level[own]].append(move)
            return [sorted(step, key=_BY_PLACES) for step in steps]
    return None


def through_temporaries(moves: list[TimedMove]) -> list[TimedMove]:
    """The same, with every message stored at its sender until it arrives: then the times themselves give an order."""
    kept = []
    for number, move in enumerate(moves):
        if move.source[0] == move.destination[0]:
            kept.append(move)
            continue
        place = (move.source[0], "t", -1 - number)
        kept.append(TimedMove(False, move.source, place, move.read, move.read, move.site))
        kept.append(move._replace(source=place, read=move.written))
    return kept


def laid_out(
    moves: list[TimedMove], cells_of: Callable[[list[TimedMove]], Cells]
) -> tuple[list[list[TimedMove]], Cells]:
    """The moves by steps, and the cell of each place. A message that is in flight for too long is stored meanwhile."""
    cells = cells_of(moves)
    steps = in_steps(moves, cells)
    if steps is None:
        moves = through_temporaries(moves)
        cells = cells_of(moves)
        steps = in_steps(moves, cells)
    return steps or [], cells


def cells_after_chunks(moves: list[TimedMove], chunks: int) -> Cells:
    """Chunks come first, in order; saved data comes after them."""
    places = {place for move in moves for place in (move.source, move.destination)}
    cells = {place: place[2] for place in places if place[1] == "row"}
    width = max([chunks, *(chunk + 1 for chunk in cells.values())])
    more: dict[int, int] = defaultdict(int)
    for place in sorted(places - {*cells}):
        cells[place] = width + more[place[0]]
        more[place[0]] += 1
    return cells
