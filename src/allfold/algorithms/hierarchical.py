"""Two levels: machines hold groups of ranks, and links inside a group are faster than links between groups.

Both forms here are built from any algorithms inside and across the groups. The groups may differ in size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import zip_longest
from math import isqrt, lcm

import numpy as np

from ..errors import UsageError
from ..patterns import Pattern, Seats, copies, reductions
from ..registry import algorithm, schedule
from ..schedule import Move, Schedule
from .compose import parts_of, placed, together
from .ring import around
from .tree import doublings, edges, log_up

Groups = Sequence[Sequence[int]]


def group_size(ranks: int) -> int:
    return isqrt(ranks - 1) + 1


def group_count(ranks: int) -> int:
    return -(-ranks // group_size(ranks))


def near_square(ranks: int) -> list[list[int]]:
    """Consecutive groups of about √P ranks; the last one may be smaller."""
    size = group_size(ranks)
    return [list(range(start, min(start + size, ranks))) for start in range(0, ranks, size)]


def checked(ranks: int, groups: Groups | None) -> Groups:
    if groups is None:
        return near_square(ranks)
    is_list = isinstance(groups, Sequence) and all(isinstance(group, Sequence) for group in groups)
    if not is_list or sorted(rank for group in groups for rank in group) != list(range(ranks)) or not all(groups):
        raise UsageError(f"groups must hold each of the ranks 0–{ranks - 1} once and none may be empty, not {groups}")
    return groups


def room(data: Sequence[int], part: Schedule, scratch: int) -> list[Sequence[int]]:
    """Where the chunks of a part lie: its data cut evenly from `data`, its scratch from chunk `scratch` on."""
    width = len(data) // part.chunks
    spare = [range(scratch + i * width, scratch + (i + 1) * width) for i in range(part.scratch)]
    return parts_of(data, part.chunks) + spare


def leader_parts(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
) -> tuple[Groups, list[Schedule], Schedule, list[Schedule]]:
    groups = checked(ranks, groups)
    reduces = [schedule("reduce", up, len(group), root=0) for group in groups]
    broadcasts = [schedule("broadcast", down, len(group), root=0) for group in groups]
    return groups, reduces, schedule("all_reduce", across, len(groups)), broadcasts


def leader_chunks(ranks: int, **parameters: str) -> int:
    _, reduces, middle, broadcasts = leader_parts(ranks, **parameters)  # type: ignore[arg-type]
    return lcm(middle.chunks, *(part.chunks for part in reduces + broadcasts))


def tree_levels(groups: Groups, down: bool = False) -> Iterator[Seats]:
    """Step by step, up the groups' trees or down: a row of parents, and a row of their children."""
    trees = [
        [
            [(group[parent], group[child]) for parent, child in edges(len(group), 0, distance)]
            for distance in sorted(doublings(len(group)), reverse=down)
        ]
        for group in groups
    ]
    for level in zip_longest(*trees, fillvalue=()):
        yield np.array([edge for tree in level for edge in tree]).T


def leader_patterns(ranks: int, groups: Groups | None = None) -> Iterator[Pattern]:
    groups = checked(ranks, groups)
    leaders = np.array([group[0] for group in groups])
    for parent, child in tree_levels(groups):
        yield reductions(child, parent, 1.0)
    for messages in (reductions, copies):
        yield from around(leaders, messages, 1 / len(groups))
    for parent, child in tree_levels(groups, down=True):
        yield copies(parent, child, 1.0)


@algorithm(
    "all_reduce",
    chunks=leader_chunks,
    steps=lambda p: 2 * log_up(group_size(p)) + 2 * (group_count(p) - 1),
    port=lambda p: log_up(group_size(p)) + Fraction(2 * (group_count(p) - 1), group_count(p)),
    patterns=leader_patterns,
)
def hierarchical(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
) -> Iterator[list[Move]]:
    """Reduce inside each group to its leader, all_reduce across the leaders, broadcast back inside each group.

    The first rank of a group is its leader; `up`, `across` and `down` name the algorithms of the three phases. With
    the default ones, for G groups of at most g ranks: 2⌈log₂g⌉+2(G−1) steps, (⌈log₂g⌉+2(G−1)/G)·S through the busiest
    port: the leaders carry whole buffers.
    """
    groups, reduces, middle, broadcasts = leader_parts(ranks, groups, up, across, down)
    chunks = lcm(middle.chunks, *(part.chunks for part in reduces + broadcasts))
    data = range(chunks)
    leaders = [group[0] for group in groups]
    yield from together(*(placed(part, g, room(data, part, chunks)) for part, g in zip(reduces, groups, strict=True)))
    yield from placed(middle, leaders, room(data, middle, chunks))
    yield from together(
        *(placed(part, g, room(data, part, chunks)) for part, g in zip(broadcasts, groups, strict=True))
    )


def level_parts(
    ranks: int, groups: Groups | None = None, scatter: str = "ring", across: str = "ring", gather: str = "ring"
) -> tuple[Groups, list[Schedule], Schedule, list[Schedule], int]:
    groups = checked(ranks, groups)
    scatters = [schedule("reduce_scatter", scatter, len(group)) for group in groups]
    gathers = [schedule("all_gather", gather, len(group)) for group in groups]
    middle = schedule("all_reduce", across, len(groups))
    # Every group cuts the buffer into one part per member; a *share* is a piece that no group's cuts divide.
    shares = lcm(*(part.chunks for part in scatters + gathers))
    return groups, scatters, middle, gathers, shares


def level_chunks(ranks: int, **parameters: str) -> int:
    _, _, middle, _, shares = level_parts(ranks, **parameters)  # type: ignore[arg-type]
    return shares * middle.chunks


def level_patterns(ranks: int, groups: Groups | None = None) -> list[Pattern] | None:
    groups = checked(ranks, groups)
    if len({len(group) for group in groups}) > 1:
        return None
    inside = np.array(groups)
    across, size = inside.T, inside.shape[1]
    return [
        *around(inside, reductions, 1 / size),
        *around(across, reductions, 1 / ranks),
        *around(across, copies, 1 / ranks),
        *around(inside, copies, 1 / size),
    ]


@algorithm(
    "all_reduce",
    chunks=level_chunks,
    steps=lambda p: 2 * (group_size(p) - 1) + 2 * (group_count(p) - 1),
    port=lambda p: 2 - Fraction(2, group_size(p) * group_count(p)),
    patterns=level_patterns,
)
def two_level(
    ranks: int, groups: Groups | None = None, scatter: str = "ring", across: str = "ring", gather: str = "ring"
) -> Iterator[list[Move]]:
    """Reduce_scatter inside each group, all_reduce each share across the groups, all_gather inside each group.

    Nobody is a leader: everyone carries its own share across, so the slow links carry S/g per rank instead of S.
    `scatter`, `across` and `gather` name the algorithms of the three phases. With the default ones, for G groups of g
    ranks each: 2(g−1)+2(G−1) steps, 2(P−1)/P·S through the busiest port, the least possible.
    """
    groups, scatters, middle, gathers, shares = level_parts(ranks, groups, scatter, across, gather)
    chunks = shares * middle.chunks
    data = range(chunks)
    yield from together(*(placed(part, g, room(data, part, chunks)) for part, g in zip(scatters, groups, strict=True)))
    # All shares cross at the same time, so each has scratch of its own.
    yield from together(
        *(
            placed(
                middle,
                [group[share * len(group) // shares] for group in groups],
                room(own, middle, chunks + share * middle.scratch),
            )
            for share, own in enumerate(parts_of(data, shares))
        )
    )
    yield from together(*(placed(part, g, room(data, part, chunks)) for part, g in zip(gathers, groups, strict=True)))
