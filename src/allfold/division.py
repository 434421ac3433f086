"""How a buffer is divided into chunks, and a chunk into segments: one rule for all engines.

Part i of n elements in p parts goes from i·n//p to (i+1)·n//p. So parts differ by at most one element, empty ones occur
only where there are more parts than elements, and the slices of a collective that has slices are made of whole chunks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError


def chunk_bounds(elements: int, chunks: int) -> NDArray[np.int64]:
    """Chunk c of a buffer goes from element `bounds[c]` to `bounds[c + 1]`.

    Where a collective has slices, the buffer is the whole array: `elements` counts all slices together.
    """
    return _bounds(elements, chunks, "elements", "chunks")


def segment_bounds(length: int, segments: int) -> NDArray[np.int64]:
    """Segment s of a chunk goes from the chunk's element `bounds[s]` to `bounds[s + 1]`."""
    return _bounds(length, segments, "elements", "segments")


def longer_by(chunk: int, other: int, parts: int) -> int | None:
    """A number of elements for which chunk `chunk` of `parts` is one longer than chunk `other`; None if there is none.

    How the lengths of two chunks differ depends only on the remainder of the elements divided by the parts, so it is
    enough to try every remainder.
    """
    step = 1 << 16
    for start in range(0, parts, step):
        rest = np.arange(start, min(start + step, parts), dtype=np.int64)
        lengths = [(one + 1) * rest // parts - one * rest // parts for one in (chunk, other)]
        longer = np.flatnonzero(lengths[0] > lengths[1])
        if len(longer):
            return int(rest[longer[0]])
    return None


def _bounds(length: int, parts: int, of: str, into: str) -> NDArray[np.int64]:
    if length < 0 or parts < 1:
        raise UsageError(f"{length} {of} cannot be divided into {parts} {into}")
    # i·n//p without the product i·n, which may not fit into 64 bits.
    whole, rest = divmod(length, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    return part * whole + part * rest // parts
