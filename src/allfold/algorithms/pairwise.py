"""Pairwise exchange: in every step the ranks pair up and swap, like a tournament in which everybody meets everybody."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Everybody, Pattern, Patterns, copies
from ..registry import Phase, algorithm
from ..schedules import Move, copy

MOST_PAIRED = 2048  # ranks; a tournament has a different pairing in every step, P² messages in all


def rounds(ranks: int) -> Iterator[Pattern]:
    fixed = ranks - 1 + ranks % 2
    everyone = np.arange(fixed)
    for step in range(fixed):
        other = (step - everyone) % fixed
        other = np.where(other == everyone, fixed, other)
        here, there = everyone[other < ranks], other[other < ranks]
        alone = there == fixed  # `fixed` itself is not in `here`
        yield copies(np.append(here, there[alone]), np.append(there, here[alone]), 1 / ranks)


def tournament(ranks: int) -> Patterns:
    return rounds(ranks) if ranks <= MOST_PAIRED else [Everybody(1 / ranks, 0.0, steps=ranks - 1 + ranks % 2)]


@algorithm(
    "all_to_all",
    steps=lambda p: p - 1 + p % 2,
    port=lambda p: Fraction(p - 1, p),
    patterns=tournament,
    phases=[Phase("exchange", "Ranks pair up, with a new partner in every step, and swap the slices for each other.")],
)
def pairwise(ranks: int) -> Iterator[list[Move]]:
    """In each step everybody swaps slices with one partner, by the circle method of tournaments.

    P−1 steps for an even number of ranks, P steps for an odd one (somebody sits out), (P−1)/P·S through the busiest port.
    """
    players = ranks + ranks % 2  # an odd number of ranks gets a dummy: the rank that meets it sits out
    fixed = players - 1
    for step in range(players - 1):
        pairs = [(r, (step - r) % fixed) for r in range(fixed)]
        pairs = [(r, fixed if r == other else other) for r, other in pairs]
        yield [
            copy(chunk=destination, source=source, destination=destination, into=source)
            for r, other in pairs
            if other < ranks and (r < other or other == fixed)
            for source, destination in ((r, other), (other, r))
        ]
