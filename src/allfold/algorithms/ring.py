"""The ring: everybody talks to its right neighbour only, and every port is busy in every step.

Cut the buffer into one chunk per rank. First the *share-reduce*: chunk c starts at rank c+1 and travels once around.
Each rank that it passes adds its own part, so that it arrives complete at rank c. Then the *share-only*: each complete
chunk travels around once more, and everybody keeps a copy. All P chunks travel at the same time, each one rank behind
the next, so in every step every rank sends one chunk and receives one.

No port ever carries more than 2(P−1)/P of the buffer, and no algorithm needs less. The price is the number of
steps: 2(P−1), which is why a tree is faster for small buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ..patterns import Messages, Pattern, Seats, copies, reductions
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce

_ADD = "Every rank passes a chunk to the next rank, where it is added."
_HAND = "Every rank passes a finished chunk on to the next rank."


def around(seats: Seats, messages: Messages, share: float) -> Iterator[Pattern]:
    """Once around, in equal steps: everybody sends to its right neighbour. Every row of `seats` is a ring."""
    times = seats.shape[-1] - 1
    if times:
        yield messages(seats.ravel(), np.roll(seats, -1, axis=-1).ravel(), share, times)


@algorithm(
    "reduce_scatter",
    "ring",
    steps=lambda p: p - 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: around(np.arange(p), reductions, 1 / p),
    phases=[Phase("add up", _ADD)],
)
def ring_reduce_scatter(ranks: int) -> Iterator[list[Move]]:
    """Everybody adds its own part to the chunk that came from the left, and hands it on to the right.

    P−1 steps, (P−1)/P·S through the busiest port.
    """
    r = np.arange(ranks)  # all ranks at once
    for step in range(ranks - 1):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks)]


@algorithm(
    "all_gather",
    "ring",
    steps=lambda p: p - 1,
    port=lambda p: Fraction(p - 1, p),
    patterns=lambda p: around(np.arange(p), copies, 1 / p),
    phases=[Phase("hand out", _HAND)],
)
def ring_all_gather(ranks: int) -> Iterator[list[Move]]:
    """Everybody passes on to the right what last came from the left, starting with its own chunk.

    P−1 steps, (P−1)/P·S through the busiest port.
    """
    r = np.arange(ranks)  # all ranks at once
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks)]


@algorithm(
    "all_reduce",
    "ring",
    steps=lambda p: 2 * (p - 1),
    port=lambda p: Fraction(2 * (p - 1), p),
    patterns=lambda p: [*around(np.arange(p), reductions, 1 / p), *around(np.arange(p), copies, 1 / p)],
    phases=[Phase("add up", _ADD, lambda p: p - 1), Phase("hand out", _HAND, lambda p: p - 1)],
)
def ring_all_reduce(ranks: int) -> Iterator[list[Move]]:
    """Chunks travel around the ring twice: once to be added up, once to be handed out.

    2(P−1) steps, 2(P−1)/P·S through the busiest port.
    """
    yield from ring_reduce_scatter(ranks)  # share-reduce
    yield from ring_all_gather(ranks)  # share-only
