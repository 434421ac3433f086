"""Lists of (rank, value) pairs in columns: sources, destinations and waits of millions of instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """A list of (rank, value) pairs for every row: those of row i stand at `starts[i]` to `starts[i + 1]`."""

    starts: Ints
    rank: Ints
    value: Ints

    def of(self, row: int) -> list[tuple[int, int]]:
        here = slice(self.starts[row], self.starts[row + 1])
        return list(zip(self.rank[here].tolist(), self.value[here].tolist(), strict=True))

    @property
    def row(self) -> Ints:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def lists_of(row: Ints, rank: Ints, value: Ints, total: int) -> Lists:
    order = np.argsort(row, kind="stable")
    row = row[order]
    return Lists(np.searchsorted(row, np.arange(total + 1)), rank[order], value[order])
