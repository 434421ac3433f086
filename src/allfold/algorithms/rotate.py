"""The whole-buffer ring: what a ring is before the buffer is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..patterns import Pattern, copies, local
from ..registry import Phase, algorithm
from ..schedules import Move, copy, reduce

OWN, PASSING = 0, 1  # the buffer, and the scratch chunk that holds the buffer passing through


def rotations(ranks: int) -> Iterator[Pattern]:
    everyone = np.arange(ranks)
    passing, adding = copies(everyone, (everyone + 1) % ranks, 1.0), local(everyone, 1.0)
    yield passing
    if ranks > 2:
        yield replace(passing, times=ranks - 2, local_rank=adding.local_rank, local_share=adding.local_share)
    yield adding


@algorithm(
    "all_reduce",
    chunks=1,
    steps=lambda p: p,
    port=lambda p: p - 1,
    patterns=rotations,
    phases=[
        Phase(
            "pass on", "Whole buffers move on to the next rank; what came before is added meanwhile.", lambda p: p - 1
        ),
        Phase("add the last", "Every rank adds the buffer that came last; nothing is sent."),
    ],
)
def rotate(ranks: int) -> Iterator[list[Move]]:
    """Every buffer travels once around the ring, whole; everybody adds up the buffers that pass.

    P steps (the last one local), (P−1)·S through the busiest port. Everybody adds in a different order, so the results
    can differ in their last bits.
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
