"""The length of rounds: how many chunks every link carries in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..price.cost.cuts import whole_numbers

_MOST_PER_ROUND = 16  # chunks, over the slowest link
_TRIED = 24  # lengths of rounds, from one to its double


def lengths_of(bandwidth: NDArray[np.float64]) -> tuple[int, ...]:
    """Chunks that the slowest link may carry per round: the number with which all links carry whole chunks, if it is small."""
    limited = bandwidth[np.isfinite(bandwidth)]
    least = int(whole_numbers(limited).min()) if len(limited) else 1
    if least > _MOST_PER_ROUND:
        return 8, 4, 2, 1
    return (least, *(shorter for shorter in (8, 4, 2, 1) if shorter < least))


def per_round(
    bandwidth: NDArray[np.float64], crossing: NDArray[np.float64], depth: int, least: int
) -> NDArray[np.int64]:
    """The chunks that links carry per round, where `crossing` chunks cross each of them in all.

    In the ratio of their bandwidths, if that of the slowest is then `least`. Otherwise rounded down: a long round loses
    little by that, a short one loses little until the last rank has something to do, `depth` rounds after the first.
    The best length up to twice the least is found by trying.
    """
    chunks = np.full(len(bandwidth), 2**40)
    limited = np.isfinite(bandwidth) & (crossing > 0)
    if not limited.any():
        return chunks
    exact = whole_numbers(bandwidth[limited])
    speed = bandwidth[limited] / bandwidth[limited].min()

    def takes(capacity: NDArray[np.float64]) -> float:
        rounds = float((crossing[limited] / capacity).max()) + depth
        return rounds * float((capacity / speed).max())

    tried = [np.floor(speed * length * (1 + 1e-9)) for length in np.geomspace(least, 2 * least, _TRIED)]
    chunks[limited] = exact if exact.min() == least else min(tried, key=takes)
    return chunks
