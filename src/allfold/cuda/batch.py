"""What one call puts into a stream, in order; made once, and put in again when the same call comes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

WAIT, WRITE, COPY, FOLD = range(4)  # as in native/bindings/submit.cpp


class Fold(NamedTuple):
    op: str
    dtype: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    elements: int
    divisor: int


class Batch:
    """Values of waits and writes count from the progress that the rank had before the call."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.folds: list[Fold] = []
        self.prepared: Any = None  # what the device makes of it

    def wait(self, word: int, value: int) -> None:
        self.rows.append((WAIT, word, value, 0))

    def write(self, word: int, value: int) -> None:
        self.rows.append((WRITE, word, value, 0))

    def copy(self, target: int, source: int, bytes: int) -> None:
        self.rows.append((COPY, target, source, bytes))

    def fold(
        self, op: str, dtype: str, sources: Sequence[int], destinations: Sequence[int], elements: int, divisor: int
    ) -> None:
        self.rows.append((FOLD, len(self.folds), 0, 0))
        self.folds.append(Fold(op, dtype, tuple(sources), tuple(destinations), elements, divisor))
