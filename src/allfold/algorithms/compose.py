"""Building algorithms from algorithms: several at the same time, or one on a part of the ranks and chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest

from ..registry import Algorithm, algorithm_of, schedule
from ..schedules import Move, Schedule, copy, reduce


def part_of(collective: str, name: str, ranks: int, root: int | None = None) -> Schedule:
    """The schedule of an algorithm, to be placed; groups of equal size have the same one."""
    return _build_part(collective, algorithm_of(collective, name), ranks, root)


@lru_cache(maxsize=16)
def _build_part(collective: str, algorithm: Algorithm, ranks: int, root: int | None) -> Schedule:
    return schedule(collective, algorithm, ranks, root)


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
