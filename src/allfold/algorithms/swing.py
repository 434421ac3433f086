"""Swing: recursive exchanges with partners that stay close on a ring or torus.

(De Sensi, Bonato, Saam, Hoefler: "Swing: short-cutting rings for higher bandwidth allreduce", arXiv 2401.09356.)

Recursive halving meets partners at distance 1, 2, 4, 8, …; swing swings to and fro, at distance 1, −1, 3, −5, 11, …, so
on a ring its messages cross fewer links. Even ranks swing one way and odd ranks the other, so partners are mutual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np

from ..patterns import Messages, Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce
from .compose import together
from .tree import log_up

Edge = tuple[int, int, int]  # (chunk, the rank nearer to the chunk's owner, the rank farther from it)


def distance(step: int) -> int:
    """1, −1, 3, −5, 11, …"""
    return (1 - int((-2) ** (step + 1))) // 3


def partner(rank: int, step: int, players: int) -> int:
    return (rank + distance(step) if rank % 2 == 0 else rank - distance(step)) % players


def tree_edges(players: int) -> Iterator[tuple[int, Seats, Seats]]:
    """The tree along which chunk 0 spreads to all players: each exchange, last one first, with its edges (near, far).

    For a power of two every exchange reaches somebody new. For other even numbers some would reach a rank that has the
    chunk already; those are left out, so that the chunk still spreads along a tree.
    """
    near = np.zeros(1, np.int64)
    held = np.arange(players) == 0
    for step in reversed(range(log_up(players))):
        far = (near + (1 - 2 * (near % 2)) * distance(step)) % players
        new = ~held[far]
        yield step, near[new], far[new]
        held[far] = True
        near = np.append(near, far[new])


def spreading(players: int) -> Iterator[list[Edge]]:
    """All chunks spread from their owners to all players, last exchange first: a tree for each chunk.

    The tree of an even chunk is that of chunk 0, shifted; the tree of an odd one is also mirrored, as partners are.
    """
    for _, near, far in tree_edges(players):
        edges = list(zip(near.tolist(), far.tolist(), strict=True))
        yield [
            (chunk, (chunk + way * one) % players, (chunk + way * other) % players)
            for chunk in range(players)
            for way in (1 - 2 * (chunk % 2),)
            for one, other in edges
        ]


def table(ranks: int) -> tuple[int, list[range]]:
    """The number of players; and with an odd number of ranks, where the last one is a guest, its turns.

    In every step the guest exchanges directly with some of the players.
    """
    players = ranks - ranks % 2 if ranks > 1 else 1
    steps = log_up(players) if players < ranks else 0
    return players, [range(players * step // steps, players * (step + 1) // steps) for step in range(steps)]


def add_up(ranks: int) -> Iterator[list[Move]]:
    """Chunks are added up along their trees, until each is complete at its owner."""
    guest, turns = table(ranks)
    yield from together(
        [
            [reduce(chunk=c, source=far, destination=near) for c, near, far in step]
            for step in reversed(list(spreading(guest)))
        ],
        (
            [reduce(chunk=r, source=guest, destination=r) for r in turn]
            + [reduce(chunk=guest, source=r, destination=guest) for r in turn]
            for turn in turns
        ),
    )


def hand_out(ranks: int) -> Iterator[list[Move]]:
    """Chunks spread from their owners along their trees."""
    guest, turns = table(ranks)
    yield from together(
        ([copy(chunk=c, source=near, destination=far) for c, near, far in step] for step in spreading(guest)),
        (
            [copy(chunk=r, source=r, destination=guest) for r in turn]
            + [copy(chunk=guest, source=guest, destination=r) for r in turn]
            for turn in turns
        ),
    )


def exchanges(ranks: int, shares: Mapping[int, float], messages: Messages) -> Iterator[Pattern]:
    """In each of these exchanges, by number, every player sends its partner a share of S.

    The guest and the players whose turn it is send each other one chunk.
    """
    players, turns = table(ranks)
    everyone = np.arange(players)
    for number, step in enumerate(shares):
        other = (everyone + (1 - 2 * (everyone % 2)) * distance(step)) % players
        visited = np.array(turns[number] if turns else [], np.int64)
        guest = np.full(len(visited), players)
        yield messages(
            np.concatenate([everyone, visited, guest]),
            np.concatenate([other, guest, visited]),
            np.concatenate([np.full(players, shares[step]), np.full(2 * len(visited), 1 / ranks)]),
        )


def swings(ranks: int, messages: Messages) -> Iterator[Pattern]:
    """The patterns of `add_up` or `hand_out`, by whether messages are reductions or copies.

    Trees are shifted and mirrored, so every player sends the same number of chunks: one for each edge of a tree.
    """
    trees = [*tree_edges(table(ranks)[0])]
    shares = {step: len(near) / ranks for step, near, _ in (trees[::-1] if messages is reductions else trees)}
    yield from exchanges(ranks, shares, messages)


def one_way(ranks: int) -> int:
    """The steps until all is added up, and again until all is handed out."""
    return log_up(ranks - ranks % 2)


ADD = Phase("add up", "Partners that swing to and fro, 1, −1, 3, −5, … away, exchange chunks and add them.", one_way)


@algorithm(
    "all_reduce",
    steps=lambda p: 2 * one_way(p),
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=lambda p: [*swings(p, reductions), *swings(p, copies)],
    phases=[ADD, Phase("hand out", "The same exchanges backwards: partners copy finished chunks.", one_way)],
)
def swing(ranks: int) -> Iterator[list[Move]]:
    """Chunks are added up along swinging exchanges until each is complete at its owner, then sent back the same way.

    2⌈log₂P⌉ steps, 2(P−1)/P·S through the busiest port, the least possible. An odd number of ranks plays without the
    last one, 2⌈log₂(P−1)⌉ steps: it gives everybody its part of their chunk, takes everybody's part of its own, and gets
    all results the same way.
    """
    yield from add_up(ranks)
    yield from hand_out(ranks)
