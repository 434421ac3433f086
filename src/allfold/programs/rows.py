"""Lists of (rank, value) pairs in columns: sources, destinations and waits of millions of instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..symbolic import order_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """A list of (rank, value) pairs for every row: those of row i are at `starts[i]` to `starts[i + 1]`."""

    starts: Ints
    rank: Ints
    value: Ints

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        return self.starts, self.rank, self.value

    def of(self, row: int) -> list[tuple[int, int]]:
        here = slice(self.starts[row], self.starts[row + 1])
        return list(zip(self.rank[here].tolist(), self.value[here].tolist(), strict=True))

    @property
    def sizes(self) -> NDArray[np.intp]:
        sizes: NDArray[np.intp] = np.diff(self.starts).astype(np.intp)
        return sizes

    @property
    def row(self) -> Ints:
        return np.arange(len(self.starts) - 1).repeat(self.sizes)


def lists_of(row: Ints, rank: Ints, value: Ints, total: int) -> Lists:
    order = order_of(row)
    return Lists(starts_of(row, total), rank[order], value[order])


def starts_of(key: Ints, total: int) -> Ints:
    """The starts of the runs of 0, 1, …, `total` − 1 in these ordered numbers, and the end of the last run."""
    starts = np.zeros(total + 1, np.int64)
    np.cumsum(np.bincount(key.astype(np.intp), minlength=total), out=starts[1:])
    return starts
