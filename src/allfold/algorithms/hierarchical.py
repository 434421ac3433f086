"""Leaders: one rank of each group, its leader, speaks for all of them, and only leaders cross between groups.

Few messages cross, but the leaders carry whole buffers. In a rooted collective the root leads its own group; the other
leaders are the first ranks of their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, zip_longest
from math import gcd, lcm

import numpy as np

from ..collectives import COLLECTIVES
from ..patterns import Messages, Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, Schedule
from .compose import part_of, placed, together
from .groups import Groups, checked, group_count, group_size, pieces_of, ring_across, room, room_of_slices
from .ring import around
from .tree import doublings, log_up


def leaders_of(groups: Groups, root: int | None = None) -> list[int]:
    return [group[0] if root is None or root not in group else root for group in groups]


def branches(seats: Sequence[int], top: int, weights: Sequence[int], down: bool) -> Iterator[Seats]:
    """Step by step, up the tree from `top` or down: rows of parents, of children, and of the weight below each child."""
    count, rotate = len(seats), -list(seats).index(top)
    ranks = np.roll(np.array(seats), rotate)
    before = np.append(0, np.cumsum(np.roll(np.array(weights), rotate)))
    for distance in sorted(doublings(count), reverse=down):
        parent = np.arange(0, count - distance, 2 * distance)
        child = parent + distance
        weight = before[np.minimum(child + distance, count)] - before[child]
        yield np.array([ranks[parent], ranks[child], weight])


def inside_trees(groups: Groups, leaders: Sequence[int], down: bool) -> Iterator[Seats]:
    """The steps of all groups' trees at once; the weight is a number of ranks."""
    trees = [branches(group, top, [1] * len(group), down) for group, top in zip(groups, leaders, strict=True)]
    for level in zip_longest(*trees):
        yield np.concatenate([tree for tree in level if tree is not None], axis=1)


def leaders_tree(groups: Groups, leaders: Sequence[int], root: int, down: bool) -> Iterator[Seats]:
    """The steps of the leaders' tree; the weight is the number of ranks in the groups below."""
    return branches(leaders, root, [len(group) for group in groups], down)


def tree_inside(ranks: int, groups: Groups | None = None) -> int:
    """The steps of a tree inside the largest group."""
    return log_up(max(map(len, checked(ranks, groups))))


def tree_across(ranks: int, groups: Groups | None = None) -> int:
    return log_up(len(checked(ranks, groups)))


ADD = Phase("add up inside", "Inside each group, a tree adds everything up at the leader.", tree_inside)
HAND = Phase("hand out inside", "Inside each group, the leader hands out what it has, along a tree.", tree_inside)
COLLECT = Phase("collect inside", "Inside each group, the leader collects all slices, along a tree.", tree_inside)


# all_reduce -----------------------------------------------------------------------------------------------------------


def leader_parts(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
) -> tuple[Groups, list[Schedule], Schedule, list[Schedule]]:
    groups = checked(ranks, groups)
    reduces = [part_of("reduce", up, len(group), root=0) for group in groups]
    broadcasts = [part_of("broadcast", down, len(group), root=0) for group in groups]
    return groups, reduces, part_of("all_reduce", across, len(groups)), broadcasts


def leader_chunks(ranks: int, **parameters: str) -> int:
    _, reduces, middle, broadcasts = leader_parts(ranks, **parameters)  # type: ignore[arg-type]
    return lcm(middle.chunks, *(part.chunks for part in reduces + broadcasts))


def leader_patterns(ranks: int, groups: Groups | None = None) -> Iterator[Pattern]:
    groups = checked(ranks, groups)
    leaders = leaders_of(groups)
    for parent, child, _ in inside_trees(groups, leaders, down=False):
        yield reductions(child, parent, 1.0)
    for messages in (reductions, copies):
        yield from around(np.array(leaders), messages, 1 / len(groups))
    for parent, child, _ in inside_trees(groups, leaders, down=True):
        yield copies(parent, child, 1.0)


@algorithm(
    "all_reduce",
    chunks=leader_chunks,
    steps=lambda p: 2 * log_up(group_size(p)) + 2 * (group_count(p) - 1),
    port=lambda p: log_up(group_size(p)) + Fraction(2 * (group_count(p) - 1), group_count(p)),
    patterns=leader_patterns,
    phases=[
        ADD,
        Phase("leaders add up", "Every leader passes a chunk to the next leader, where it is added.", ring_across),
        Phase("leaders hand out", "Every leader passes a finished chunk on to the next leader.", ring_across),
        HAND,
    ],
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
    leaders = leaders_of(groups)
    yield from together(*(placed(part, g, room(data, part, chunks)) for part, g in zip(reduces, groups, strict=True)))
    yield from placed(middle, leaders, room(data, middle, chunks))
    yield from together(
        *(placed(part, g, room(data, part, chunks)) for part, g in zip(broadcasts, groups, strict=True))
    )


# To a root and from it ------------------------------------------------------------------------------------------------


def phases(
    collective: str, ranks: int, root: int, groups: Groups | None, local: str, across: str
) -> tuple[int, Iterator[list[Move]], Iterator[list[Move]]]:
    """The number of chunks, the steps inside all groups, and the steps of the leaders."""
    groups = checked(ranks, groups)
    leaders = leaders_of(groups, root)
    parts = [
        part_of(collective, local, len(group), root=list(group).index(leader))
        for group, leader in zip(groups, leaders, strict=True)
    ]
    middle = part_of(collective, across, len(groups), root=leaders.index(root))
    if COLLECTIVES[collective].sliced:
        pieces = pieces_of([*parts, middle])
        chunks = ranks * pieces
        rooms = [
            room_of_slices([[rank] for rank in group], part, pieces, chunks)
            for part, group in zip(parts, groups, strict=True)
        ]
        leaders_room = room_of_slices(groups, middle, pieces, chunks)
    else:
        chunks = lcm(middle.chunks, *(part.chunks for part in parts))
        rooms = [room(range(chunks), part, chunks) for part in parts]
        leaders_room = room(range(chunks), middle, chunks)
    inside = together(*(placed(*one) for one in zip(parts, groups, rooms, strict=True)))
    return chunks, inside, placed(middle, leaders, leaders_room)


def chunks_of(collective: str) -> Callable[..., int]:
    def chunks(ranks: int, groups: Groups | None = None, across: str = "tree", **local: str) -> int:
        (name,) = local.values() or ("tree",)  # `up` or `down`
        return phases(collective, ranks, 0, groups, name, across)[0]

    return chunks


def rising(ranks: int, root: int, groups: Groups | None, messages: Messages) -> Iterator[Pattern]:
    """Up the trees: whole buffers that are reduced, or the slices of everybody below."""
    groups = checked(ranks, groups)
    leaders = leaders_of(groups, root)
    for levels in (inside_trees(groups, leaders, down=False), leaders_tree(groups, leaders, root, down=False)):
        for parent, child, weight in levels:
            yield messages(child, parent, 1.0 if messages is reductions else weight / ranks)


def falling(ranks: int, root: int, groups: Groups | None, whole: bool) -> Iterator[Pattern]:
    """Down the trees: whole buffers, or the slices of everybody below."""
    groups = checked(ranks, groups)
    leaders = leaders_of(groups, root)
    for levels in (leaders_tree(groups, leaders, root, down=True), inside_trees(groups, leaders, down=True)):
        for parent, child, weight in levels:
            yield copies(parent, child, 1.0 if whole else weight / ranks)


def two_trees(ranks: int) -> int:
    """The steps inside the groups and across, by trees."""
    return log_up(group_size(ranks)) + log_up(group_count(ranks))


@algorithm(
    "reduce",
    "hierarchical",
    chunks=chunks_of("reduce"),
    steps=two_trees,
    port=two_trees,
    patterns=lambda p, root, groups=None: rising(p, root, groups, reductions),
    phases=[ADD, Phase("leaders add up", "A tree of the leaders adds everything up at the root.", tree_across)],
)
def hierarchical_reduce(
    ranks: int, root: int, groups: Groups | None = None, up: str = "tree", across: str = "tree"
) -> Iterator[list[Move]]:
    """Reduce inside each group to its leader, then across the leaders to the root.

    `up` and `across` name the algorithms of the two phases. With the default ones, for G groups of at most g ranks:
    ⌈log₂g⌉+⌈log₂G⌉ steps, (⌈log₂g⌉+⌈log₂G⌉)·S through the busiest port.
    """
    _, inside, between = phases("reduce", ranks, root, groups, up, across)
    yield from inside
    yield from between


@algorithm(
    "broadcast",
    "hierarchical",
    chunks=chunks_of("broadcast"),
    steps=two_trees,
    port=two_trees,
    patterns=lambda p, root, groups=None: falling(p, root, groups, whole=True),
    phases=[
        Phase("leaders hand out", "Leaders that have the buffer pass it on to leaders that have not.", tree_across),
        HAND,
    ],
)
def hierarchical_broadcast(
    ranks: int, root: int, groups: Groups | None = None, across: str = "tree", down: str = "tree"
) -> Iterator[list[Move]]:
    """The root broadcasts to the leaders of all groups, then each leader inside its group.

    `across` and `down` name the algorithms of the two phases. With the default ones, for G groups of at most g ranks:
    ⌈log₂G⌉+⌈log₂g⌉ steps, (⌈log₂G⌉+⌈log₂g⌉)·S through the busiest port.
    """
    _, inside, between = phases("broadcast", ranks, root, groups, down, across)
    yield from between
    yield from inside


@algorithm(
    "gather",
    "hierarchical",
    chunks=chunks_of("gather"),
    steps=two_trees,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root, groups=None: rising(p, root, groups, copies),
    phases=[COLLECT, Phase("leaders collect", "A tree of the leaders brings all slices to the root.", tree_across)],
)
def hierarchical_gather(
    ranks: int, root: int, groups: Groups | None = None, up: str = "tree", across: str = "tree"
) -> Iterator[list[Move]]:
    """Each leader gathers the slices of its group, then the root gathers those of all groups from the leaders.

    `up` and `across` name the algorithms of the two phases. With the default ones, for G groups of at most g ranks:
    ⌈log₂g⌉+⌈log₂G⌉ steps, (P−1)/P·S through the busiest port.
    """
    _, inside, between = phases("gather", ranks, root, groups, up, across)
    yield from inside
    yield from between


@algorithm(
    "scatter",
    "hierarchical",
    chunks=chunks_of("scatter"),
    steps=two_trees,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root, groups=None: falling(p, root, groups, whole=False),
    phases=[Phase("leaders hand out", "Leaders get the slices of their groups, along a tree.", tree_across), HAND],
)
def hierarchical_scatter(
    ranks: int, root: int, groups: Groups | None = None, across: str = "tree", down: str = "tree"
) -> Iterator[list[Move]]:
    """The root sends each leader the slices of its whole group, then each leader scatters them inside its group.

    `across` and `down` name the algorithms of the two phases. With the default ones, for G groups of at most g ranks:
    ⌈log₂G⌉+⌈log₂g⌉ steps, (P−1)/P·S through the busiest port.
    """
    _, inside, between = phases("scatter", ranks, root, groups, down, across)
    yield from between
    yield from inside


# Slices of everybody --------------------------------------------------------------------------------------------------


def whole_and_slices(
    ranks: int, groups: Groups | None, collectives: Sequence[str], names: Sequence[str]
) -> tuple[int, list[Iterator[list[Move]]]]:
    """The number of chunks, and the steps of three phases: inside all groups, of the leaders, and inside again.

    `collectives` and `names` are the collective and the algorithm of each phase. The leaders' is for the slices of groups.
    """
    groups = checked(ranks, groups)
    middle = part_of(collectives[1], names[1], len(groups))
    inside = [[part_of(collectives[i], names[i], len(g), root=0) for g in groups] for i in (0, 2)]
    sliced = [middle, *(part for parts in inside for part in parts if part.promise.sliced)]
    whole = [part for parts in inside for part in parts if not part.promise.sliced]
    pieces = lcm(pieces_of(sliced), *(part.chunks // gcd(part.chunks, ranks) for part in whole))
    chunks = ranks * pieces

    def place(part: Schedule, group: Sequence[int]) -> Iterator[list[Move]]:
        if part.promise.sliced:
            return placed(part, group, room_of_slices([[rank] for rank in group], part, pieces, chunks))
        return placed(part, group, room(range(chunks), part, chunks))

    before, after = (together(*map(place, parts, groups)) for parts in inside)
    between = placed(middle, leaders_of(groups), room_of_slices(groups, middle, pieces, chunks))
    return chunks, [before, between, after]


def leaders_ring(groups: Groups, messages: Messages) -> Iterator[Pattern]:
    """Once around the leaders, each time with the slices of one group."""
    leaders, sizes = np.array(leaders_of(groups)), np.array([len(group) for group in groups])
    if len(set(sizes.tolist())) == 1:
        yield from around(leaders, messages, 1 / len(groups))
        return
    first = 1 if messages is reductions else 0
    for step in range(len(groups) - 1):
        yield messages(leaders, np.roll(leaders, -1), np.roll(sizes, first + step) / sizes.sum())


def slices_port(ranks: int) -> Fraction:
    size, count = group_size(ranks), group_count(ranks)
    return log_up(size) + Fraction(size * (count - 1), ranks)


def slices_steps(ranks: int) -> int:
    return 2 * log_up(group_size(ranks)) + group_count(ranks) - 1


def chunks_of_slices(*collectives: str) -> Callable[..., int]:
    def chunks(
        ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
    ) -> int:
        return whole_and_slices(ranks, groups, collectives, (up, across, down))[0]

    return chunks


def slices_patterns(ranks: int, groups: Groups | None, messages: Messages) -> Iterator[Pattern]:
    """Slices go up and whole buffers come down; where they are reduced, the other way round."""
    groups, reduces = checked(ranks, groups), messages is reductions
    leaders = leaders_of(groups)
    for parent, child, weight in inside_trees(groups, leaders, down=False):
        yield messages(child, parent, 1.0 if reduces else weight / ranks)
    yield from leaders_ring(groups, messages)
    for parent, child, weight in inside_trees(groups, leaders, down=True):
        yield copies(parent, child, weight / ranks if reduces else 1.0)


GATHERING, SCATTERING = ("gather", "all_gather", "broadcast"), ("reduce", "reduce_scatter", "scatter")


@algorithm(
    "all_gather",
    "hierarchical",
    chunks=chunks_of_slices(*GATHERING),
    steps=slices_steps,
    port=slices_port,
    patterns=lambda p, groups=None: slices_patterns(p, groups, copies),
    phases=[
        COLLECT,
        Phase("leaders hand around", "Every leader passes the slices of a group on to the next leader.", ring_across),
        HAND,
    ],
)
def hierarchical_all_gather(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
) -> Iterator[list[Move]]:
    """Each leader gathers the slices of its group, the leaders all_gather them, and each broadcasts all inside its group.

    `up`, `across` and `down` name the algorithms of the three phases. With the default ones, for G groups of at most g
    ranks: 2⌈log₂g⌉+(G−1) steps, (⌈log₂g⌉+g(G−1)/P)·S through the busiest port.
    """
    yield from chain(*whole_and_slices(ranks, groups, GATHERING, (up, across, down))[1])


@algorithm(
    "reduce_scatter",
    "hierarchical",
    chunks=chunks_of_slices(*SCATTERING),
    steps=slices_steps,
    port=slices_port,
    patterns=lambda p, groups=None: slices_patterns(p, groups, reductions),
    phases=[
        ADD,
        Phase(
            "leaders add up",
            "Every leader passes the slices of a group to the next leader, where they are added.",
            ring_across,
        ),
        HAND,
    ],
)
def hierarchical_reduce_scatter(
    ranks: int, groups: Groups | None = None, up: str = "tree", across: str = "ring", down: str = "tree"
) -> Iterator[list[Move]]:
    """Reduce inside each group to its leader, reduce_scatter across the leaders, scatter inside each group.

    `up`, `across` and `down` name the algorithms of the three phases. With the default ones, for G groups of at most g
    ranks: 2⌈log₂g⌉+(G−1) steps, (⌈log₂g⌉+g(G−1)/P)·S through the busiest port.
    """
    yield from chain(*whole_and_slices(ranks, groups, SCATTERING, (up, across, down))[1])
