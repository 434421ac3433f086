"""Building algorithms from algorithms: several at the same time, or one on a part of the ranks and chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from ..schedule import Move, Schedule, copy, reduce


def together(*parts: Iterable[list[Move]]) -> Iterator[list[Move]]:
    """All parts at once: step t holds the moves of step t of every part."""
    for steps in zip_longest(*parts, fillvalue=()):
        yield [move for step in steps for move in step]


def placed(part: Schedule, ranks: Sequence[int], chunks: Sequence[Sequence[int]]) -> Iterator[list[Move]]:
    """The steps of a schedule, carried out by other ranks on other chunks.

    Rank i of `part` is `ranks[i]`; its chunk j (scratch follows the data) is all of `chunks[j]`.
    """
    for step in part:
        yield [
            (reduce if move.reduces else copy)(chunk, ranks[move.source], ranks[move.destination], into)
            for move in step
            for chunk, into in zip(chunks[move.chunk], chunks[move.into], strict=True)
        ]


def parts_of(chunks: Sequence[int], count: int) -> list[Sequence[int]]:
    """`chunks` cut into `count` runs of equal length."""
    length = len(chunks) // count
    return [chunks[i * length : (i + 1) * length] for i in range(count)]
