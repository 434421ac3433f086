"""The seeds that NumPy draws from the operating system, as in `np.random.default_rng()`: part of what a rank receives.

Other numbers from the operating system, such as those of `os.urandom`, may be secrets, and are not recorded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

_MOST_EARLY = 10_000

Seed = tuple[int, int]
"""The number of bits, and the seed."""


class DrawnSeeds:
    """Records the seeds that this process draws. Until there is a file, the last ones are kept in memory."""

    def __init__(self) -> None:
        self._early: deque[Seed] = deque(maxlen=_MOST_EARLY)
        self._process = os.getpid()
        self._note: Callable[[Seed], None] | None = None
        _replace(self._draw)

    def note_with(self, note: Callable[[Seed], None]) -> None:
        while self._early:
            note(self._early.popleft())
        self._note = note

    def _draw(self, bits: int, original: Callable[[int], int]) -> int:
        seed = original(bits)
        if os.getpid() == self._process:
            (self._note or self._early.append)((bits, seed))
        return seed


def replay_seeds(seeds: Iterable[Seed]) -> None:
    """Have NumPy draw these seeds again, in their order; after the last one, new ones."""
    left = deque(seeds)

    def draw(bits: int, original: Callable[[int], int]) -> int:
        if left and left[0][0] == bits:
            return left.popleft()[1]
        return original(bits)

    _replace(draw)


def _replace(draw: Callable[[int, Callable[[int], int]], int]) -> None:
    try:
        from numpy.random import bit_generator
    except ImportError:
        return
    module: Any = bit_generator
    original = module.randbits
    module.randbits = lambda bits: draw(bits, original)
