"""The patterns of the regular families, written down at once: what `fold` would find in their schedules.

A schedule of 65,536 ranks is too long to build, but its steps are few kinds. Tests hold each of these equal to the
schedule that the algorithm generates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .patterns import Everybody, Index, Pattern, Patterns, Share

Whole = NDArray[np.int64]
MOST_PAIRWISE = 2048  # ranks; a tournament has a different pairing in every step, P² messages in all


def patterns_of(
    collective: str, algorithm: str, ranks: int, root: int | None = None, groups: Sequence[int] | None = None
) -> Patterns | None:
    """The patterns of a shipped algorithm, or None where it has no closed form for so many ranks.

    `groups` are the sizes of consecutive groups of ranks, for the algorithms that have two levels; without it they are
    the algorithms' own.
    """
    family = _FAMILIES.get((collective, algorithm))
    if family is None:
        return None
    return [] if ranks == 1 else family(ranks, root or 0, groups or _near_square(ranks))


def step(
    source: NDArray[np.integer[Any]],
    destination: NDArray[np.integer[Any]],
    share: float | Share,
    reduces: bool,
    times: int = 1,
) -> Pattern:
    shares = np.broadcast_to(np.asarray(share, np.float64), source.shape)
    reduced = shares if reduces else np.zeros(source.shape)
    return Pattern(times, source.astype(np.int32), destination.astype(np.int32), shares, reduced)


def _near_square(ranks: int) -> list[int]:
    size = isqrt(ranks - 1) + 1
    return [min(size, ranks - start) for start in range(0, ranks, size)]


def _doublings(ranks: int) -> list[int]:
    return [1 << bit for bit in range((ranks - 1).bit_length())]


# Rings and chains -----------------------------------------------------------------------------------------------------


def _around(ranks: int, share: float, reduces: bool, times: int) -> Patterns:
    everyone = np.arange(ranks)
    return [step(everyone, (everyone + 1) % ranks, share, reduces, times)] if times else []


def _ring_scatter(ranks: int) -> Patterns:
    return _around(ranks, 1 / ranks, True, ranks - 1)


def _ring_gather(ranks: int) -> Patterns:
    return _around(ranks, 1 / ranks, False, ranks - 1)


def _rotate(ranks: int) -> Patterns:
    everyone: Index = np.arange(ranks, dtype=np.int32)
    right, whole, none = (everyone + 1) % np.int32(ranks), np.ones(ranks), np.zeros(ranks)
    passing = Pattern(ranks - 2, everyone, right, whole, none, everyone, whole)
    last = Pattern(1, everyone[:0], everyone[:0], whole[:0], whole[:0], everyone, whole)
    return [*_around(ranks, 1.0, False, 1), *([passing] if ranks > 2 else []), last]


def _chain(ranks: int, root: int, reduces: bool) -> Patterns:
    near = (root + np.arange(ranks - 1)) % ranks
    far = (near + 1) % ranks
    message = step(far, near, 1.0, True) if reduces else step(near, far, 1.0, False)
    return [Pattern(1, message.source, message.destination, message.share, message.reduced, apart=True)]


def _neighbors(ranks: int) -> Patterns | None:
    if ranks % 2:
        return None
    everyone = np.arange(ranks)
    partner = [np.where((everyone + turn) % 2 == 0, everyone + 1, everyone - 1) % ranks for turn in (0, 1)]
    later = ranks // 2 - 1
    found: Patterns = [step(everyone, partner[0], 1 / ranks, False)]
    for turn, times in ((1, later - later // 2), (0, later // 2)):
        taking_turns = replace(step(everyone, partner[turn], 2 / ranks, False, max(1, times)), consecutive=times < 2)
        found += [taking_turns] if times else []
    return found


# Trees ----------------------------------------------------------------------------------------------------------------


def _edges(ranks: int, distance: int) -> tuple[Whole, Whole]:
    """Parents and children, counted from the root."""
    parent = np.arange(0, ranks - distance, 2 * distance)
    return parent, parent + distance


def _tree(ranks: int, root: int, up: bool, slices: bool = False, reduces: bool = False) -> Patterns:
    found: Patterns = []
    for distance in _doublings(ranks) if up else reversed(_doublings(ranks)):
        parent, child = _edges(ranks, distance)
        share = np.minimum(distance, ranks - child) / ranks if slices else 1.0
        below, above = (root + child) % ranks, (root + parent) % ranks
        found.append(step(below, above, share, reduces) if up else step(above, below, share, reduces))
    return found


def _tree_all_reduce(ranks: int) -> Patterns:
    return [*_tree(ranks, 0, up=True, reduces=True), *_tree(ranks, 0, up=False)]


def _double_tree(ranks: int) -> Patterns:
    node = np.arange(ranks)

    def above(nodes: Whole) -> Whole:
        low = ~nodes & (nodes + 1)  # the bit above the trailing ones
        return np.where(nodes & (2 * low), nodes - low, nodes + low)

    root = (1 << (ranks.bit_length() - 1)) - 1
    parent = above(node)
    while (outside := (parent >= ranks) & (node != root)).any():
        parent = np.where(outside, above(parent), parent)
    depth, at = np.zeros(ranks, np.int64), node
    while (below := at != root).any():
        depth += below
        at = np.where(below, parent[at], root)
    seats = (node, node[::-1] if ranks % 2 == 0 else np.roll(node, -1))
    up: Patterns = []
    down: Patterns = []
    for level in range(1, int(depth.max()) + 1):
        here = np.flatnonzero(depth == level)
        child = np.concatenate([seat[here] for seat in seats])
        upper = np.concatenate([seat[parent[here]] for seat in seats])
        pair, halves = np.unique(child * ranks + upper, return_counts=True)  # both trees may use the same pair
        up.append(step(pair // ranks, pair % ranks, halves / 2, True))
        down.append(step(pair % ranks, pair // ranks, halves / 2, False))
    return [*reversed(up), *down]


# Recursive exchanges --------------------------------------------------------------------------------------------------


def _seats(ranks: int) -> tuple[Whole, Whole]:
    """The players' ranks, and the hosts among them, whose guests sit one to the right."""
    surplus = ranks - (1 << (ranks.bit_length() - 1))
    hosts = 2 * np.arange(surplus)
    return np.concatenate([hosts, np.arange(2 * surplus, ranks)]), hosts


def _exchanges(players: Whole, weight: Whole, whole: int, halve: bool) -> Patterns:
    """Halving (reducing) or doubling (copying); player i answers for `weight[i]` of the `whole` chunks."""
    many, found = len(players), []
    number = np.arange(many)
    for distance in _doublings(many) if halve else reversed(_doublings(many)):
        classes = np.bincount(number % (2 * distance), weights=weight)
        cared = (number ^ distance) if halve else number
        share = classes[cared % (2 * distance)] / whole
        found.append(step(players, players[number ^ distance], share, halve))
    return list(found)


def _fold_in(hosts: Whole, share: float, reduces: bool) -> Patterns:
    return [step(hosts + 1, hosts, share, reduces)] if len(hosts) else []


def _fold_out(hosts: Whole, share: float) -> Patterns:
    return [step(hosts, hosts + 1, share, False)] if len(hosts) else []


def _weights(players: Whole, hosts: Whole) -> Whole:
    return 1 + (np.arange(len(players)) < len(hosts)).astype(np.int64)


def _recursive_doubling(ranks: int) -> Patterns:
    players, hosts = _seats(ranks)
    number = np.arange(len(players))
    found = _fold_in(hosts, 1.0, True)
    found += [step(players, players[number ^ distance], 1.0, True) for distance in _doublings(len(players))]
    return found + _fold_out(hosts, 1.0)


def _halving_doubling(ranks: int) -> Patterns:
    players, hosts = _seats(ranks)
    one = np.ones(len(players), np.int64)
    middle = [_exchanges(players, one, len(players), halve) for halve in (True, False)]
    return [*_fold_in(hosts, 1.0, True), *middle[0], *middle[1], *_fold_out(hosts, 1.0)]


def _halving(ranks: int) -> Patterns:
    players, hosts = _seats(ranks)
    exchanges = _exchanges(players, _weights(players, hosts), ranks, halve=True)
    return [*_fold_in(hosts, 1.0, True), *exchanges, *_fold_out(hosts, 1 / ranks)]


def _doubling_gather(ranks: int) -> Patterns:
    players, hosts = _seats(ranks)
    exchanges = _exchanges(players, _weights(players, hosts), ranks, halve=False)
    return [*_fold_in(hosts, 1 / ranks, False), *exchanges, *_fold_out(hosts, (ranks - 1) / ranks)]


def _swing(ranks: int) -> Patterns | None:
    """For an even number of ranks. Shifted by two ranks everything looks the same, so two chunks stand for all."""
    if ranks % 2:
        return None
    everyone = np.arange(ranks)
    adding: Patterns = []
    handing: Patterns = []
    reached = [np.arange(ranks) == chunk for chunk in (0, 1)]
    for number in reversed(range((ranks - 1).bit_length())):
        swing = (1 - (-2) ** (number + 1)) // 3
        partner = np.where(everyone % 2 == 0, everyone + swing, everyone - swing) % ranks
        tells = [held & ~held[partner] for held in reached]  # who has the chunk, and a partner without it
        reached = [held | told[partner] for held, told in zip(reached, tells, strict=True)]
        # Every edge of a chunk's tree, shifted, leads away from each rank of its parity once.
        chunks = sum(np.bincount(np.flatnonzero(told) % 2, minlength=2) for told in tells)
        share = np.asarray(chunks)[everyone % 2] / ranks
        near = everyone[share > 0]
        adding.insert(0, step(partner[near], near, share[near], True))
        handing.append(step(near, partner[near], share[near], False))
    return adding + handing


# Two levels -----------------------------------------------------------------------------------------------------------


def _joined(parts: Sequence[tuple[Patterns, int]]) -> Patterns:
    """Step t of all parts at once, each shifted to the ranks that play it."""
    found: Patterns = []
    for number in range(max((len(patterns) for patterns, _ in parts), default=0)):
        now = [(patterns[number], start) for patterns, start in parts if number < len(patterns)]
        steps = [(pattern, np.int32(start)) for pattern, start in now if isinstance(pattern, Pattern)]
        found.append(
            Pattern(
                1,
                np.concatenate([pattern.source + start for pattern, start in steps]),
                np.concatenate([pattern.destination + start for pattern, start in steps]),
                np.concatenate([pattern.share for pattern, _ in steps]),
                np.concatenate([pattern.reduced for pattern, _ in steps]),
            )
        )
    return found


def _hierarchical(ranks: int, groups: Sequence[int]) -> Patterns:
    leaders = np.cumsum([0, *groups[:-1]])
    trees = {size: (_tree(size, 0, up=True, reduces=True), _tree(size, 0, up=False)) for size in set(groups)}
    up, down = (
        _joined([(trees[size][way], int(start)) for size, start in zip(groups, leaders, strict=True)]) for way in (0, 1)
    )
    many = len(groups)
    across = [step(leaders, np.roll(leaders, -1), 1 / many, reduces, many - 1) for reduces in (True, False) if many > 1]
    return [*up, *across, *down]


def _two_level(ranks: int, groups: Sequence[int]) -> Patterns | None:
    size, many = groups[0], len(groups)
    if any(other != size for other in groups):
        return None
    everyone = np.arange(ranks)
    right = everyone // size * size + (everyone + 1) % size
    over = (everyone + size) % ranks
    found: Patterns = []
    for to, share, reduces, times in (
        (right, 1 / size, True, size - 1),
        (over, 1 / ranks, True, many - 1),
        (over, 1 / ranks, False, many - 1),
        (right, 1 / size, False, size - 1),
    ):
        found += [step(everyone, to, share, reduces, times)] if times else []
    return found


# Everything else ------------------------------------------------------------------------------------------------------


def _driver(ranks: int, root: int, inwards: bool, share: float, reduces: bool = False) -> Patterns:
    others = np.delete(np.arange(ranks), root)
    hub = np.full(ranks - 1, root)
    return [step(others, hub, share, reduces) if inwards else step(hub, others, share, reduces)]


def _bruck_gather(ranks: int) -> Patterns:
    everyone = np.arange(ranks)
    return [
        step((everyone + distance) % ranks, everyone, min(distance, ranks - distance) / ranks, False)
        for distance in _doublings(ranks)
    ]


def _bruck_all_to_all(ranks: int) -> Patterns:
    everyone = np.arange(ranks)
    found: Patterns = [
        step(everyone, (everyone + d) % ranks, np.count_nonzero(everyone & d) / ranks, False) for d in _doublings(ranks)
    ]
    sorting = ranks - 1 - (ranks % 2 == 0)
    rank, none = everyone.astype(np.int32), np.zeros(0)
    last = Pattern(1, rank[:0], rank[:0], none, none, rank, np.full(ranks, sorting / ranks))
    return [*found, *([last] if sorting else [])]


def _pairwise(ranks: int) -> Patterns | None:
    if ranks > MOST_PAIRWISE:
        return None
    fixed = ranks + ranks % 2 - 1
    everyone = np.arange(fixed)
    found: Patterns = []
    for number in range(fixed):
        other = (number - everyone) % fixed
        other = np.where(other == everyone, fixed, other)
        here = everyone[other < ranks]
        there = other[other < ranks]
        alone = there == fixed
        source = np.concatenate([here, there[alone]])
        found.append(step(source, np.concatenate([there, here[alone]]), 1 / ranks, False))
    return found


def _dissemination(ranks: int) -> Patterns:
    everyone = np.arange(ranks)
    return [step(everyone, (everyone + distance) % ranks, 0.0, True) for distance in _doublings(ranks)]


def _signals(patterns: Patterns) -> Patterns:
    """The same without bytes."""
    return [step(one.source, one.destination, 0.0, True) for one in patterns if isinstance(one, Pattern)]


Family = Callable[[int, int, Sequence[int]], Patterns | None]

_FAMILIES: dict[tuple[str, str], Family] = {
    ("all_reduce", "naive"): lambda p, root, groups: [Everybody(1.0, 1.0)],
    ("all_reduce", "driver"): lambda p, root, groups: _driver(p, 0, True, 1.0, True) + _driver(p, 0, False, 1.0),
    ("all_reduce", "rotate"): lambda p, root, groups: _rotate(p),
    ("all_reduce", "ring"): lambda p, root, groups: _ring_scatter(p) + _ring_gather(p),
    ("all_reduce", "tree"): lambda p, root, groups: _tree_all_reduce(p),
    ("all_reduce", "double_tree"): lambda p, root, groups: _double_tree(p),
    ("all_reduce", "recursive_doubling"): lambda p, root, groups: _recursive_doubling(p),
    ("all_reduce", "halving_doubling"): lambda p, root, groups: _halving_doubling(p),
    ("all_reduce", "swing"): lambda p, root, groups: _swing(p),
    ("all_reduce", "direct"): lambda p, root, groups: [Everybody(1 / p, 1 / p), Everybody(1 / p, 0.0)],
    ("all_reduce", "hierarchical"): lambda p, root, groups: _hierarchical(p, groups),
    ("all_reduce", "two_level"): lambda p, root, groups: _two_level(p, groups),
    ("reduce", "driver"): lambda p, root, groups: _driver(p, root, True, 1.0, True),
    ("reduce", "tree"): lambda p, root, groups: _tree(p, root, up=True, reduces=True),
    ("reduce", "chain"): lambda p, root, groups: _chain(p, root, reduces=True),
    ("reduce", "direct"): lambda p, root, groups: [Everybody(1 / p, 1 / p), *_driver(p, root, True, 1 / p)],
    ("reduce", "scatter_gather"): lambda p, root, groups: _halving(p) + _tree(p, root, up=True, slices=True),
    ("broadcast", "driver"): lambda p, root, groups: _driver(p, root, False, 1.0),
    ("broadcast", "tree"): lambda p, root, groups: _tree(p, root, up=False),
    ("broadcast", "chain"): lambda p, root, groups: _chain(p, root, reduces=False),
    ("broadcast", "scatter_all_gather"): lambda p, root, groups: (
        _tree(p, root, up=False, slices=True) + _ring_gather(p)
    ),
    ("gather", "driver"): lambda p, root, groups: _driver(p, root, True, 1 / p),
    ("gather", "tree"): lambda p, root, groups: _tree(p, root, up=True, slices=True),
    ("scatter", "driver"): lambda p, root, groups: _driver(p, root, False, 1 / p),
    ("scatter", "tree"): lambda p, root, groups: _tree(p, root, up=False, slices=True),
    ("all_gather", "ring"): lambda p, root, groups: _ring_gather(p),
    ("all_gather", "bruck"): lambda p, root, groups: _bruck_gather(p),
    ("all_gather", "direct"): lambda p, root, groups: [Everybody(1 / p, 0.0)],
    ("all_gather", "neighbor_exchange"): lambda p, root, groups: _neighbors(p),
    ("all_gather", "recursive_doubling"): lambda p, root, groups: _doubling_gather(p),
    ("reduce_scatter", "ring"): lambda p, root, groups: _ring_scatter(p),
    ("reduce_scatter", "direct"): lambda p, root, groups: [Everybody(1 / p, 1 / p)],
    ("reduce_scatter", "halving"): lambda p, root, groups: _halving(p),
    ("all_to_all", "direct"): lambda p, root, groups: [Everybody(1 / p, 0.0)],
    ("all_to_all", "pairwise"): lambda p, root, groups: _pairwise(p),
    ("all_to_all", "bruck"): lambda p, root, groups: _bruck_all_to_all(p),
    ("barrier", "dissemination"): lambda p, root, groups: _dissemination(p),
    ("barrier", "direct"): lambda p, root, groups: [Everybody(0.0, 0.0)],
    ("barrier", "tree"): lambda p, root, groups: _signals(_tree_all_reduce(p)),
}
