"""Swing: recursive exchanges with partners that stay close on a ring or torus.

(De Sensi, Bonato, Saam, Hoefler: "Swing: short-cutting rings for higher bandwidth allreduce", arXiv 2401.09356.)

Recursive halving meets partners at distance 1, 2, 4, 8, …; swing swings to and fro, at distance 1, −1, 3, −5, 11, …, so
on a ring its messages cross fewer links. Even ranks swing one way and odd ranks the other, so partners are mutual.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, copies, reductions
from ..registry import Phase, algorithm
from ..schedule import Move, copy, reduce
from .compose import together
from .tree import log_up

Edge = tuple[int, int, int]  # (chunk, the rank nearer to the chunk's owner, the rank farther from it)


def distance(step: int) -> int:
    """1, −1, 3, −5, 11, …"""
    return (1 - int((-2) ** (step + 1))) // 3


def partner(rank: int, step: int, players: int) -> int:
    return (rank + distance(step) if rank % 2 == 0 else rank - distance(step)) % players


def spreading(players: int) -> list[list[Edge]]:
    """How every chunk spreads from its owner to all players, last exchange first: a tree for each chunk.

    For a power of two every exchange reaches somebody new. For other even numbers some would reach a rank that has the
    chunk already; those are left out, so that each chunk still spreads along a tree.
    """
    steps = log_up(players)
    exchanges: list[list[Edge]] = [[] for _ in range(steps)]
    for chunk in range(players):
        holders = [chunk]
        held = {chunk}
        for step in reversed(range(steps)):
            for rank in list(holders):
                other = partner(rank, step, players)
                if other not in held:
                    held.add(other)
                    holders.append(other)
                    exchanges[step].append((chunk, rank, other))
    return exchanges[::-1]


def guest_turns(guest: int, steps: int) -> list[list[int]]:
    """With an odd number of ranks the last one is a guest: in every step it exchanges directly with some others."""
    return [list(range(guest * step // steps, guest * (step + 1) // steps)) for step in range(steps)]


def swings(ranks: int) -> list[Pattern]:
    """For an even number of ranks. Shifted by two ranks everything looks the same, so two chunks stand for all."""
    everyone = np.arange(ranks)
    way = 1 - 2 * (everyone % 2)
    adding: list[Pattern] = []
    handing: list[Pattern] = []
    reached = [everyone == chunk for chunk in (0, 1)]
    for step in reversed(range(log_up(ranks))):
        other = (everyone + way * distance(step)) % ranks
        tells = [held & ~held[other] for held in reached]  # the ranks that have the chunk and whose partner has not
        reached = [held | told[other] for held, told in zip(reached, tells, strict=True)]
        # Every edge of a chunk's tree, shifted, leads away from each rank of its parity once.
        chunks = np.bincount(np.concatenate([np.flatnonzero(told) for told in tells]) % 2, minlength=2)
        near = everyone[chunks[everyone % 2] > 0]
        share = chunks[near % 2] / ranks
        adding.insert(0, reductions(other[near], near, share))
        handing.append(copies(near, other[near], share))
    return adding + handing


def one_way(ranks: int) -> int:
    """The steps until all is added up, and again until all is handed out."""
    return max(1, log_up(ranks - ranks % 2))


@algorithm(
    "all_reduce",
    steps=lambda p: 2 * one_way(p),
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=lambda p: swings(p) if p % 2 == 0 else None,
    phases=[
        Phase("add up", "Partners that swing to and fro, 1, −1, 3, −5, … away, exchange chunks and add them.", one_way),
        Phase("hand out", "The same exchanges backwards: partners copy finished chunks.", one_way),
    ],
)
def swing(ranks: int) -> Iterator[list[Move]]:
    """Chunks are added up along swinging exchanges until each is complete at its owner, then sent back the same way.

    2⌈log₂P⌉ steps, 2(P−1)/P·S through the busiest port, the least possible. An odd number of ranks plays without the
    last one, 2⌈log₂(P−1)⌉ steps: it gives everybody its part of their chunk, takes everybody's part of its own, and gets
    all results the same way.
    """
    guest = ranks - 1 if ranks % 2 and ranks > 1 else None
    players = ranks if guest is None else guest
    exchanges = spreading(players)
    adding = [[reduce(chunk=c, source=far, destination=near) for c, near, far in step] for step in reversed(exchanges)]
    handing = [[copy(chunk=c, source=near, destination=far) for c, near, far in step] for step in exchanges]
    if guest is None:
        yield from adding
        yield from handing
        return
    turns = guest_turns(guest, max(1, len(exchanges)))
    yield from together(
        adding,
        (
            [reduce(chunk=r, source=guest, destination=r) for r in turn]
            + [reduce(chunk=guest, source=r, destination=guest) for r in turn]
            for turn in turns
        ),
    )
    yield from together(
        handing,
        (
            [copy(chunk=r, source=r, destination=guest) for r in turn]
            + [copy(chunk=guest, source=guest, destination=r) for r in turn]
            for turn in turns
        ),
    )
