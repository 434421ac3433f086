"""Accesses to memory that must be ordered: as native/proof/conflicts.cpp."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def conflicts(row: Ints, place: Ints, writes: NDArray[np.bool_], when: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """The pairs (earlier, later) of rows of different ranks that access the same place, one of them to write.

    Each access is compared with the last write before it, each read with the next write after it: the rest follows.
    """
    ordered = np.lexsort((writes, when[row], place))  # at the same time, reads come before writes
    row, place, writes = row[ordered], place[ordered], writes[ordered]
    rank = np.arange(len(starts) - 1).repeat(np.diff(starts).astype(np.intp))[row]
    at = np.arange(len(row))
    last_write = np.append(-1, np.maximum.accumulate(np.where(writes, at, -1)))[:-1]
    next_write = np.minimum.accumulate(np.where(writes, at, len(at))[::-1])[::-1]
    written = (last_write >= 0).nonzero()[0]
    overwritten = (~writes & (next_write < len(at))).nonzero()[0]
    earlier = np.concatenate([last_write[written], overwritten])
    later = np.concatenate([written, next_write[overwritten]])
    both = (place[earlier] == place[later]) & (rank[earlier] != rank[later])
    return row[earlier[both]], row[later[both]]
