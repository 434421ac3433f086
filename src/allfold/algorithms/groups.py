"""Groups of ranks: machines hold several ranks each, and links inside a machine are faster than links between them.

What `hierarchical` (one leader per group crosses) and `two_level` (everybody crosses with its share) have in common.
Both are built from any algorithms inside and across the groups. The groups may differ in size, and lie in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, lcm

from ..errors import UsageError
from ..schedules import Schedule
from .compose import parts_of

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


def ring_across(ranks: int, groups: Groups | None = None) -> int:
    """The steps once around all groups."""
    return len(checked(ranks, groups)) - 1


def room(data: Sequence[int], part: Schedule, scratch: int) -> list[Sequence[int]]:
    """The places of a part's chunks: its data cut evenly from `data`, its scratch from chunk `scratch` on."""
    width = len(data) // part.chunks
    spare = [range(scratch + i * width, scratch + (i + 1) * width) for i in range(part.scratch)]
    return parts_of(data, part.chunks) + spare


def pieces_of(parts: Sequence[Schedule]) -> int:
    """Into how many chunks a slice is cut, so that every part can cut it as it does."""
    return lcm(*(part.chunks // part.ranks for part in parts))


def room_of_slices(owned: Groups, part: Schedule, pieces: int, scratch: int, number: int = 0) -> list[Sequence[int]]:
    """The places of the chunks of a part with slices: slice i of the part is all of the slices `owned[i]`.

    Every slice has `pieces` chunks. The scratch of the `number`-th part at the same time begins after that of the others.
    """
    cuts = part.chunks // part.ranks
    if len({len(slices) for slices in owned}) > 1 and (part.columns["chunk"] != part.columns["into"]).any():
        raise UsageError(
            f"{part.algorithm} cannot be a part of two levels whose groups differ in size: it moves slices to other places, "
            "and here they differ in length"
        )
    chunks = [
        [chunk for one in slices for chunk in parts_of(range(one * pieces, (one + 1) * pieces), cuts)[cut]]
        for slices in owned
        for cut in range(cuts)
    ]
    width = max(map(len, chunks))
    first = scratch + number * part.scratch * width
    return chunks + [range(first + i * width, first + (i + 1) * width) for i in range(part.scratch)]
