"""The naive all-reduce: everyone sends everything to everyone.

One step and the fewest waits, which is why it wins for a handful of bytes; but every port carries P−1 whole buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..patterns import Everybody
from ..registry import Phase, algorithm
from ..schedules import Move, reduce


@algorithm(
    "all_reduce",
    steps=lambda p: 1,
    port=lambda p: p - 1,
    patterns=lambda p: [Everybody(1.0, 1.0)],
    phases=[Phase("add up", "Every rank sends all it has to every other rank, and adds up what comes.")],
)
def naive(ranks: int) -> Iterator[list[Move]]:
    """Everyone sends its whole buffer to everyone else and adds up what arrives.

    1 step, (P−1)·S through the busiest port.
    """
    yield [reduce(chunk=0, source=s, destination=d) for d in range(ranks) for s in range(ranks) if s != d]
