"""Pairwise exchange: in every step the ranks pair up and swap, everybody with everybody once, like a tournament."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move, copy


@algorithm("all_to_all")
def pairwise(ranks: int) -> Iterator[list[Move]]:
    """Everybody swaps slices with one partner a step, by the circle method of tournaments.

    P−1 steps for an even number of ranks, P for an odd one (somebody sits out), (P−1)/P·S through the busiest port.
    """
    players = ranks + ranks % 2  # an odd number of ranks gets a dummy: whoever meets it sits out
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
