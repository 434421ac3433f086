"""Two levels without leaders: everybody crosses between groups, each with its own share.

So the links between groups carry S/g per rank instead of S, and all of them are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import lcm

import numpy as np

from ..patterns import Messages, Pattern, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, Schedule
from .compose import part_of, parts_of, placed, together
from .groups import Groups, checked, group_count, group_size, pieces_of, ring_across, room, room_of_slices
from .ring import around


def rings(groups: Groups, *levels: tuple[str, Messages]) -> list[Pattern] | None:
    """Rings inside the groups and across them, one after the other. Groups that differ in size have no pattern."""
    if len({len(group) for group in groups}) > 1:
        return None
    inside = np.array(groups)
    seats = {"inside": (inside, 1 / inside.shape[1]), "across": (inside.T, 1 / inside.size)}
    return [one for where, messages in levels for one in around(seats[where][0], messages, seats[where][1])]


def ring_inside(ranks: int, groups: Groups | None = None) -> int:
    """The steps once around the largest group."""
    return max(map(len, checked(ranks, groups))) - 1


ADD = Phase(
    "add up inside", "Inside each group, every rank passes a share to the next rank, where it is added.", ring_inside
)
CROSS_ADD = Phase(
    "add up across", "Every rank passes a share to its counterpart in the next group, where it is added.", ring_across
)
CROSS_HAND = Phase(
    "hand out across", "Every rank passes a finished share to its counterpart in the next group.", ring_across
)
HAND = Phase(
    "hand out inside", "Inside each group, every rank passes a finished share on to the next rank.", ring_inside
)


# all_reduce -----------------------------------------------------------------------------------------------------------


def level_parts(
    ranks: int, groups: Groups | None = None, scatter: str = "ring", across: str = "ring", gather: str = "ring"
) -> tuple[Groups, list[Schedule], Schedule, list[Schedule], int]:
    groups = checked(ranks, groups)
    scatters = [part_of("reduce_scatter", scatter, len(group)) for group in groups]
    gathers = [part_of("all_gather", gather, len(group)) for group in groups]
    middle = part_of("all_reduce", across, len(groups))
    # Every group cuts the buffer into one part per member; a *share* is a piece that no group's cuts divide.
    shares = lcm(*(part.chunks for part in scatters + gathers))
    return groups, scatters, middle, gathers, shares


def level_chunks(ranks: int, **parameters: str) -> int:
    _, _, middle, _, shares = level_parts(ranks, **parameters)  # type: ignore[arg-type]
    return shares * middle.chunks


@algorithm(
    "all_reduce",
    chunks=level_chunks,
    steps=lambda p: 2 * (group_size(p) - 1) + 2 * (group_count(p) - 1),
    port=lambda p: 2 - Fraction(2, group_size(p) * group_count(p)),
    patterns=lambda p, groups=None: rings(
        checked(p, groups), ("inside", reductions), ("across", reductions), ("across", copies), ("inside", copies)
    ),
    phases=[ADD, CROSS_ADD, CROSS_HAND, HAND],
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


# Slices ---------------------------------------------------------------------------------------------------------------


def columns_of(groups: Groups) -> list[list[list[int]]]:
    """By column, then by group: the slice that the group has in it. A group with few ranks has none in the last ones."""
    return [[list(group[column : column + 1]) for group in groups] for column in range(max(map(len, groups)))]


def phases(
    collective: str, ranks: int, groups: Groups | None, local: str, across: str
) -> tuple[int, Iterator[list[Move]], Iterator[list[Move]]]:
    """The number of chunks, the steps inside all groups, and the steps of all columns."""
    groups = checked(ranks, groups)
    parts = [part_of(collective, local, len(group)) for group in groups]
    middle = part_of(collective, across, len(groups))
    pieces = pieces_of([*parts, middle])
    chunks, columns = ranks * pieces, columns_of(groups)
    carried = [
        [
            [rank for column in columns[number :: len(group)] for own in column for rank in own]
            for number in range(len(group))
        ]
        for group in groups
    ]
    inside = together(
        *(
            placed(part, group, room_of_slices(own, part, pieces, chunks))
            for part, group, own in zip(parts, groups, carried, strict=True)
        )
    )
    between = together(
        *(
            placed(
                middle,
                [group[number % len(group)] for group in groups],
                room_of_slices(column, middle, pieces, chunks, number),
            )
            for number, column in enumerate(columns)
        )
    )
    return chunks, inside, between


def chunks_of(collective: str) -> Callable[..., int]:
    def chunks(ranks: int, groups: Groups | None = None, across: str = "ring", **local: str) -> int:
        (name,) = local.values() or ("ring",)  # `scatter` or `gather`
        return phases(collective, ranks, groups, name, across)[0]

    return chunks


def least_port(ranks: int) -> Fraction | None:
    return Fraction(ranks - 1, ranks) if ranks == group_size(ranks) * group_count(ranks) else None


def all_steps(ranks: int) -> int:
    return group_size(ranks) - 1 + group_count(ranks) - 1


@algorithm(
    "all_gather",
    "two_level",
    chunks=chunks_of("all_gather"),
    steps=all_steps,
    port=least_port,
    patterns=lambda p, groups=None: rings(checked(p, groups), ("across", copies), ("inside", copies)),
    phases=[CROSS_HAND, HAND],
)
def two_level_all_gather(
    ranks: int, groups: Groups | None = None, across: str = "ring", gather: str = "ring"
) -> Iterator[list[Move]]:
    """Every slice crosses once to each other group, then an all_gather inside each group of what its ranks have.

    The ranks with the same number in their groups all_gather their slices; in a group with fewer ranks, one of them
    stands in. `across` and `gather` name the algorithms of the two phases. With the default ones, for G groups of g
    ranks each: (G−1)+(g−1) steps, (P−1)/P·S through the busiest port, the least possible.
    """
    _, inside, between = phases("all_gather", ranks, groups, gather, across)
    yield from between
    yield from inside


@algorithm(
    "reduce_scatter",
    "two_level",
    chunks=chunks_of("reduce_scatter"),
    steps=all_steps,
    port=least_port,
    patterns=lambda p, groups=None: rings(checked(p, groups), ("inside", reductions), ("across", reductions)),
    phases=[ADD, CROSS_ADD],
)
def two_level_reduce_scatter(
    ranks: int, groups: Groups | None = None, scatter: str = "ring", across: str = "ring"
) -> Iterator[list[Move]]:
    """Reduce_scatter inside each group, so that every slice crosses once from each group to its owner, already reduced.

    The ranks with the same number in their groups end up with each other's slices, and reduce_scatter them; in a group
    with fewer ranks, one of them stands in. `scatter` and `across` name the algorithms of the two phases. With the
    default ones, for G groups of g ranks each: (g−1)+(G−1) steps, (P−1)/P·S through the busiest port, the least possible.
    """
    _, inside, between = phases("reduce_scatter", ranks, groups, scatter, across)
    yield from inside
    yield from between
