"""Bine trees (binomial negabinary): binomial trees and butterflies whose partners are a third nearer.

(De Sensi et al.: "Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC'25,
arXiv 2508.17311.)

In a binomial tree the ranks of a subtree begin at its root, and the root of the other half is half of the ranks away. A
Bine tree puts the two halves side by side as mirror images, so that their roots are about a third of the ranks apart:
1, 1, 3, 5, 11, 21, … instead of 1, 2, 4, 8, 16, 32, …: the numbers whose digits are all ones in base −2. Where
consecutive ranks share a group of a network, fewer messages cross between groups.

The paper defines the trees for powers of two. Here the two halves of a tree differ by at most one rank, so every number
of ranks and every root has one. Butterflies (all_gather, reduce_scatter, all_to_all) are those of `swing`: for even
numbers of ranks as in the paper, and an odd one has a guest. all_reduce exchanges whole buffers, and has guests like
`recursive_doubling`; the paper's all_reduce of long buffers is `swing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, Seats, Share, copies, local, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .compose import together
from .recursive import FOLD_IN, FOLD_OUT, exchange, exchange_patterns, has_guests
from .swing import ADD as SWING_ADD
from .swing import add_up, distance, exchanges, hand_out, one_way, partner, swings, table, tree_edges
from .tree import HAND, SPREAD, log_down, log_up

ADD = Phase("add up", "Pairs of ranks, 1, 1, 3, 5, 11, … apart: one adds what the other one has.", log_up)
COLLECT = Phase("collect", "Pairs of ranks, 1, 1, 3, 5, 11, … apart: one takes over all that the other has.", log_up)

# Trees ----------------------------------------------------------------------------------------------------------------

Edge = tuple[int, int, range]  # (parent, child, the ranks of the child's subtree, which may run past the last rank)


def halves(ranks: range, height: int, mirrored: bool) -> tuple[range, range]:
    """A tree's ranks: the half that the root is in, and the other one. They change sides from step to step."""
    far = len(ranks) // 2
    if (height % 2 == 1) == mirrored:
        return ranks[far:], ranks[:far]
    return ranks[: len(ranks) - far], ranks[len(ranks) - far :]


def root_of(ranks: range, height: int, mirrored: bool) -> int:
    """The rank at which a tree begins."""
    while len(ranks) > 1:
        ranks = halves(ranks, height, mirrored)[0]
        height -= 1
    return ranks[0]


def tree(ranks: int, root: int) -> Iterator[list[Edge]]:
    """Step by step down the tree: its edges. Every step halves all subtrees, and the other halves are mirror images."""
    height = log_up(ranks)
    start = root - root_of(range(ranks), height, mirrored=False)
    subtrees = [(root, range(start, start + ranks), False)]
    while height:
        edges: list[Edge] = []
        grown = []
        for parent, below, mirrored in subtrees:
            if len(below) == 1:
                continue
            own, other = halves(below, height, mirrored)
            child = root_of(other, height - 1, not mirrored)
            edges.append((parent % ranks, child % ranks, other))
            grown += [(parent, own, mirrored), (child, other, not mirrored)]
        yield edges
        subtrees = grown
        height -= 1


def levels(ranks: int, root: int) -> Iterator[tuple[Seats, Seats, Share]]:
    """Step by step down the tree: parents, their children, and the share of S in each child's subtree."""
    for edges in tree(ranks, root):
        parent, child, slices = np.array([(parent, child, len(below)) for parent, child, below in edges]).T
        yield parent, child, slices / ranks


@algorithm(
    "broadcast",
    "bine",
    steps=log_up,
    port=log_up,
    patterns=lambda p, root: (copies(parent, child, 1.0) for parent, child, _ in levels(p, root)),
    phases=[HAND],
)
def bine_broadcast(ranks: int, root: int) -> Iterator[list[Move]]:
    """Every rank that has the buffer sends it to one that does not, about a third of the remaining ranks away.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for edges in tree(ranks, root):
        yield [copy(chunk=0, source=parent, destination=child) for parent, child, _ in edges]


@algorithm(
    "reduce",
    "bine",
    steps=log_up,
    port=log_up,
    patterns=lambda p, root: (reductions(child, parent, 1.0) for parent, child, _ in reversed([*levels(p, root)])),
    phases=[ADD],
)
def bine_reduce(ranks: int, root: int) -> Iterator[list[Move]]:
    """The broadcast backwards: neighbours first, each child sends its sum to its parent, until only the root is left.

    ⌈log₂P⌉ steps, ⌈log₂P⌉·S through the busiest port.
    """
    for edges in reversed([*tree(ranks, root)]):
        yield [reduce(chunk=0, source=child, destination=parent) for parent, child, _ in edges]


@algorithm(
    "scatter",
    "bine",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: (copies(parent, child, slices) for parent, child, slices in levels(p, root)),
    phases=[SPREAD],
)
def bine_scatter(ranks: int, root: int) -> Iterator[list[Move]]:
    """Like the broadcast, but each child gets the slices of its own subtree only, which are consecutive.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for edges in tree(ranks, root):
        yield [
            copy(chunk=slice_ % ranks, source=parent, destination=child)
            for parent, child, below in edges
            for slice_ in below
        ]


@algorithm(
    "gather",
    "bine",
    steps=log_up,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p, root: (copies(child, parent, slices) for parent, child, slices in reversed([*levels(p, root)])),
    phases=[COLLECT],
)
def bine_gather(ranks: int, root: int) -> Iterator[list[Move]]:
    """The scatter backwards: each child hands over the slices of its whole subtree, which are consecutive.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port.
    """
    for edges in reversed([*tree(ranks, root)]):
        yield [
            copy(chunk=slice_ % ranks, source=child, destination=parent)
            for parent, child, below in edges
            for slice_ in below
        ]


# Butterflies ----------------------------------------------------------------------------------------------------------


@algorithm(
    "reduce_scatter",
    "bine",
    steps=one_way,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: swings(p, reductions),
    phases=[SWING_ADD],
)
def bine_reduce_scatter(ranks: int) -> Iterator[list[Move]]:
    """Neighbours exchange halves and add them; then partners 1, 3, 5, 11, … away exchange quarters, eighths, ….

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port. An odd number of ranks plays without the last one, ⌈log₂(P−1)⌉
    steps: it exchanges directly with everybody.
    """
    yield from add_up(ranks)


@algorithm(
    "all_gather",
    "bine",
    steps=one_way,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: swings(p, copies),
    phases=[Phase("double", "Partners, nearer and nearer, exchange all they have, so that it doubles.", one_way)],
)
def bine_all_gather(ranks: int) -> Iterator[list[Move]]:
    """Partners, at first about a third of all ranks away, then nearer and nearer, exchange all they have.

    ⌈log₂P⌉ steps, (P−1)/P·S through the busiest port. An odd number of ranks plays without the last one, ⌈log₂(P−1)⌉
    steps: it exchanges directly with everybody.
    """
    yield from hand_out(ranks)


def farthest_first(players: int) -> list[Seats]:
    number = np.arange(players)
    ways = 1 - 2 * (number % 2)
    return [(number + ways * distance(step)) % players for step in reversed(range(log_down(players)))]


@algorithm(
    "all_reduce",
    "bine",
    steps=lambda p: log_down(p) + 2 * has_guests(p),
    port=lambda p: log_down(p) + has_guests(p),
    patterns=lambda p: exchange_patterns(p, farthest_first),
    phases=[
        FOLD_IN,
        Phase("exchange", "Partners …, 11, 5, 3, 1, 1 away exchange all they have, and both add.", log_down),
        FOLD_OUT,
    ],
)
def bine_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Partners …, 11, 5, 3, 1, 1 away exchange whole buffers and both add up, until everyone has everything.

    Far partners come first, because then all ranks add in the same order and get the same bits. Each exchange sends the
    same bytes, whenever it comes.
    log₂P steps and log₂P·S through the busiest port; with guests ⌊log₂P⌋+2 steps and (⌊log₂P⌋+1)·S.
    """
    yield from exchange(ranks, farthest_first)


def travels(players: int) -> tuple[list[Seats], Seats]:
    """The slices of an all_to_all, seen from rank 0: which of them move in each exchange, and where each came from.

    All places are relative to the rank: counted to the right for an even one, to the left for an odd one, because the
    ranks' roles are mirror images. Partners swap the slices in the same places, so no other room is needed. A slice goes
    up the tree of the rank that it is for, as in a reduce_scatter.
    """
    sends_up = np.full(players, -1)  # by place in a tree: the exchange in which it sends to its parent
    for step, _, far in tree_edges(players):
        sends_up[far] = step
    meant_for, came_from = np.arange(players), np.zeros(players, np.int64)
    moved: list[Seats] = []
    for step in range(log_up(players)):
        place = np.where(meant_for % 2 == 0, -meant_for, meant_for) % players
        now = np.flatnonzero(sends_up[place] == step)
        for whose in (meant_for, came_from):
            whose[now] = (distance(step) - whose[now]) % players
        moved.append(now)
    return moved, came_from


def unsorted(players: int) -> Seats:
    """The places whose slice came from elsewhere than the place says, and the places that they belong in."""
    came_from = travels(players)[1]
    wrong = np.flatnonzero(came_from != np.arange(players))
    return np.stack([wrong, came_from[wrong]])


def all_to_all_port(ranks: int) -> Fraction:
    players, turns = table(ranks)
    sent = sum(map(len, travels(players)[0]))
    return Fraction(max(sent + 1, players) if turns else sent, ranks)


def swap_patterns(ranks: int) -> Iterator[Pattern]:
    players = table(ranks)[0]
    yield from exchanges(ranks, {step: len(now) / ranks for step, now in enumerate(travels(players)[0])}, copies)
    wrong = unsorted(players).shape[1]
    if wrong:
        yield local(np.arange(players), wrong / ranks)


@algorithm(
    "all_to_all",
    "bine",
    steps=lambda p: one_way(p) + bool(unsorted(table(p)[0]).size),
    port=all_to_all_port,
    patterns=swap_patterns,
    phases=[
        Phase("travel", "Partners 1, 1, 3, 5, 11, … away swap the slices for ranks on the other's side.", one_way),
        Phase("sort", "Every rank puts its slices in order; nothing is sent."),
    ],
)
def bine_all_to_all(ranks: int) -> Iterator[list[Move]]:
    """Partners 1, 1, 3, 5, 11, … away swap slices: those for the other and for all ranks on the other's side.

    ⌈log₂P⌉+1 steps, about ½·log₂P·S through the busiest port. An odd number of ranks plays without the last one,
    ⌈log₂(P−1)⌉+1 steps: it swaps slices directly with everybody. The last step is local. Up to five ranks do without
    it: ⌈log₂P⌉ steps, or ⌈log₂(P−1)⌉ steps if their number is odd.
    """
    players, turns = table(ranks)
    ways = [1 - 2 * (rank % 2) for rank in range(players)]
    yield from together(
        (
            [
                copy(
                    chunk=(rank + ways[rank] * place) % players,
                    source=rank,
                    destination=other,
                    into=(other + ways[other] * place) % players,
                )
                for rank in range(players)
                for other in (partner(rank, step, players),)
                for place in places.tolist()
            ]
            for step, places in enumerate(travels(players)[0])
        ),
        (
            [copy(chunk=players, source=r, destination=players, into=r) for r in turn]
            + [copy(chunk=r, source=players, destination=r, into=players) for r in turn]
            for turn in turns
        ),
    )
    misplaced = list(zip(*unsorted(players).tolist(), strict=True))
    if misplaced:
        yield [
            copy(
                chunk=(rank + way * here) % players, source=rank, destination=rank, into=(rank + way * there) % players
            )
            for rank, way in enumerate(ways)
            for here, there in misplaced
        ]
