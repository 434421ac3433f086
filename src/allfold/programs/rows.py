"""Lists of (rank, value) pairs in columns: sources, destinations and waits of millions of instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """A list of (rank, value) pairs for every row: those of row i are at `starts[i]` to `starts[i + 1]`."""

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


def positions(lists: Lists, rows: Ints) -> tuple[Ints, Ints]:
    """Where the lists of the given rows are: (which of the rows, position), flat."""
    begin, sizes = lists.starts[rows], lists.starts[rows + 1] - lists.starts[rows]
    owner = np.repeat(np.arange(len(rows)), sizes)
    return owner, np.arange(len(owner)) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)


def by_round(lists: Lists, rounds: list[Ints]) -> list[tuple[Ints, Ints]]:
    """The same for the rows of each round, all rounds at once."""
    if not rounds:
        return []
    owner, position = positions(lists, np.concatenate(rounds))
    ends = np.cumsum([len(rows) for rows in rounds])
    cuts = np.searchsorted(owner, ends)
    owner -= np.repeat(ends - [len(rows) for rows in rounds], np.diff(cuts, prepend=0))
    return list(zip(np.split(owner, cuts[:-1]), np.split(position, cuts[:-1]), strict=True))
