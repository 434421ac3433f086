"""The whole-buffer ring: what a ring is before the buffer is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import algorithm
from ..schedule import Move, copy, reduce

OWN, PASSING = 0, 1  # the buffer, and the scratch chunk that holds the buffer passing through


@algorithm("all_reduce", chunks=1)
def rotate(ranks: int) -> Iterator[list[Move]]:
    """Every buffer travels once around the ring, whole; everybody adds up the buffers that pass.

    P steps (the last one local), (P−1)·S through the busiest port. Everybody adds in another order, so the results can
    differ in their last bits.
    """
    right = [(r + 1) % ranks for r in range(ranks)]
    if ranks > 1:
        yield [copy(chunk=OWN, source=r, destination=right[r], into=PASSING) for r in range(ranks)]
    for _ in range(ranks - 2):
        pass_on = [copy(chunk=PASSING, source=r, destination=right[r]) for r in range(ranks)]
        add_up = [reduce(chunk=PASSING, source=r, destination=r, into=OWN) for r in range(ranks)]
        yield pass_on + add_up
    if ranks > 1:
        yield [reduce(chunk=PASSING, source=r, destination=r, into=OWN) for r in range(ranks)]
