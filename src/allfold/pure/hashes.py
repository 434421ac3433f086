"""The hashes of expressions, as in native/proof/hash.hpp: the proof compares what both make of the same expressions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

_MIX_LEFT, _MIX_RIGHT, _ROUNDED = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93


def rounded(expression: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash after the end of a fold of several operands: types that are computed in a wider type round there."""
    return combined(expression, np.full(len(expression), _ROUNDED, np.uint64))


def combined(left: NDArray[np.uint64], right: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """A hash of a pair that tells (a, b) from (b, a), and ((a, b), c) from (a, (b, c))."""
    word = np.uint64
    value = (left ^ left >> word(29)) * word(_MIX_LEFT) + (right ^ right >> word(32)) * word(_MIX_RIGHT) + word(1)
    return value ^ value >> word(31)


def folded(parts: Iterable[int]) -> int:
    """The hash of a fold of several operands, one after the other: of the last pair, and of the rounding at its end."""
    return reduce(_pair, (*parts, _ROUNDED))


def _pair(left: int, right: int) -> int:
    """`combined`, of single numbers."""
    value = (left ^ left >> 29) * _MIX_LEFT + (right ^ right >> 32) * _MIX_RIGHT + 1 & 2**64 - 1
    return value ^ value >> 31
