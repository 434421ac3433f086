"""The disturbances of a real machine: messages that take longer than they should, and ranks that are slower than others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import UsageError
from .fairness import Floats

_MOST = 1e9


@dataclass(frozen=True)
class Noise:
    """Disturbances drawn from a seed: the same seed, schedule and segments give the same times.

    Every message's latency is multiplied, and the bandwidth it can reach divided, by 1 + x, where x is drawn from an
    exponential distribution with mean `latency` or `bandwidth`. Noise only delays: a machine is sometimes slower than
    it should be, and never faster. A rank in `slow` takes that many times as long to start a message, to combine, and
    to get bytes through its ports.

    >>> ring, laptop = af.schedule("all_reduce", "ring", ranks=4), price.laptop(4)
    >>> calm = price.simulate(ring, laptop, size=2**20)
    >>> slow = price.simulate(ring, laptop, size=2**20, noise=price.Noise(slow={2: 3.0}))
    >>> slow.duration > calm.duration
    True
    """

    latency: float = 0.0
    bandwidth: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for what, mean in (("latency", self.latency), ("bandwidth", self.bandwidth)):
            if not 0 <= mean <= _MOST:
                raise UsageError(
                    f"noise of the {what}: expected a mean of at least 0 and at most {_MOST:g}, not {mean}"
                )
        for rank, factor in self.slow.items():
            if not 1 / _MOST <= factor <= _MOST:
                expected = "a factor above 0" if not factor > 0 else f"a factor from {1 / _MOST:g} to {_MOST:g}"
                raise UsageError(f"slow rank {rank}: expected {expected}, not {factor}")
        if self.seed < 0:
            raise UsageError(f"the seed of the noise is {self.seed}; expected a non-negative number")

    def factors(self, messages: int) -> tuple[Floats, Floats]:
        """For every message, what its latency is multiplied and its bandwidth divided by."""
        random = np.random.default_rng(self.seed)
        return 1 + self.latency * random.exponential(size=messages), 1 + self.bandwidth * random.exponential(
            size=messages
        )

    def slowness(self, ranks: int) -> Floats:
        """Every rank's factor; 1 for ranks that run at full speed."""
        factor = np.ones(ranks)
        for rank, value in self.slow.items():
            if not 0 <= rank < ranks:
                raise UsageError(f"slow rank {rank}: there are ranks 0–{ranks - 1} only")
            factor[rank] = value
        return factor
