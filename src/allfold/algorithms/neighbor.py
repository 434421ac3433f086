"""Neighbor exchange: a ring in which everybody talks to both neighbours in turn; half as many steps as the ring.

(Chen, Zhang, Zhang, Yuan: "Performance evaluation of allgather algorithms on terascale Linux cluster with Fast
Ethernet", 2005.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..patterns import Pattern, copies
from ..registry import Phase, algorithm
from ..schedules import Move, copy


def swaps(ranks: int) -> Iterator[Pattern]:
    """For an even number of ranks."""
    everyone = np.arange(ranks)
    first, second = ((everyone + np.where((everyone + turn) % 2 == 0, 1, -1)) % ranks for turn in (0, 1))
    yield copies(everyone, first, 1 / ranks)
    later = ranks // 2 - 1
    for partner, times in ((second, later - later // 2), (first, later // 2)):
        if times:
            yield replace(copies(everyone, partner, 2 / ranks, times), consecutive=times < 2)


def busiest_port(ranks: int) -> Fraction:
    if ranks % 2 == 0:
        return Fraction(ranks - 1, ranks)
    return Fraction(4, 3) if ranks == 3 else 2 - Fraction(1, ranks)


@algorithm(
    "all_gather",
    steps=lambda p: p // 2 + 2 * (p % 2),
    port=busiest_port,
    patterns=lambda p: swaps(p) if p % 2 == 0 else None,
    phases=[
        Phase("fold in", "The last rank is left over, and hands its chunk to its neighbour.", lambda p: p % 2),
        Phase("swap", "Neighbours swap what came last, to the left and to the right in turn.", lambda p: p // 2),
        Phase("fold out", "The last rank gets all other chunks from its neighbour.", lambda p: p % 2),
    ],
)
def neighbor_exchange(ranks: int) -> Iterator[list[Move]]:
    """Neighbours swap chunks; then everybody swaps what arrived last, with its left and its right neighbour in turn.

    P/2 steps and (P−1)/P·S through the busiest port for an even number of ranks. An odd one leaves a guest over, the
    last rank: it gives its chunk to its neighbour first and gets all others from it at the end, (P−1)/2+2 steps and
    less than 2·S.
    """
    players = ranks - ranks % 2
    guest = ranks - 1 if ranks % 2 and ranks > 1 else None
    owned = [[r] for r in range(players)]
    if guest is not None:
        owned[-1].append(guest)
        yield [copy(chunk=guest, source=guest, destination=guest - 1)]
    latest = owned
    for step in range(players // 2):
        # Even ranks look to the right first, then to the left, and so on; odd ranks the other way round.
        partner = [(r + (1 if (r + step) % 2 == 0 else -1)) % players for r in range(players)]
        yield [copy(chunk=c, source=r, destination=partner[r]) for r in range(players) for c in latest[r]]
        if step == 0:
            latest = [owned[r] + owned[partner[r]] for r in range(players)]
        else:
            latest = [latest[partner[r]] for r in range(players)]
    if guest is not None:
        yield [copy(chunk=c, source=guest - 1, destination=guest) for c in range(guest)]
