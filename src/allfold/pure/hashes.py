"""The hashes of expressions, as in native/proof/hash.hpp: the proof compares what both make of the same expressions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIX_LEFT, _MIX_RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_ROUNDED = np.uint64(0xD6E8FEB86659FD93)


def rounded(expression: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash after the end of a fold of several operands: types that are computed in a wider type round there."""
    return combined(expression, np.full(len(expression), _ROUNDED))


def combined(left: NDArray[np.uint64], right: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """A hash of a pair that tells (a, b) from (b, a), and ((a, b), c) from (a, (b, c))."""
    value = (left ^ left >> np.uint64(29)) * _MIX_LEFT + (right ^ right >> np.uint64(32)) * _MIX_RIGHT + np.uint64(1)
    return value ^ value >> np.uint64(31)
