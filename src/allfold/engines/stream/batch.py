"""The work that one call puts into a stream, in order; built once, and reused when the same call is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ... import _native
from .kernels import THREADS, Arguments

WAIT, WRITE, COPY, COPY_IN, FOLD, CALL, MEET = range(7)  # as in native/cuda/lane.hpp
_ASIDE = 8
_SMALL_BYTES = 64 << 10  # see native/cuda/lane.cpp


class Fold(NamedTuple):
    op: str
    dtype: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    elements: int
    divisor: int


class Kernels(Protocol):
    def kernel(self, fold: Fold) -> tuple[int, int]:
        """The kernel for it, as the driver's handle, and its number of blocks."""
        ...


class Batch:
    """Values of waits and writes count from the progress that the rank had before the call."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._folds: list[Fold] = []

    def wait(self, word: int, value: int) -> None:
        """The stream waits until the word is at least the value."""
        self._rows.append((WAIT, word, value, 0))

    def write(self, word: int, value: int) -> None:
        """Comes when all that the stream wrote before is visible."""
        self._rows.append((WRITE, word, value, 0))

    def copy(self, target: int, source: int, bytes: int, aside: bool = False) -> None:
        """`aside`: in the second stream, at the same time as the work in the first one up to the next `meet`."""
        self._rows.append((COPY + _ASIDE * aside, target, source, bytes))

    def copy_in(self, target: int, source: int, bytes: int, aside: bool = False) -> None:
        """A copy from main memory into the GPU's."""
        kind = COPY_IN if bytes < _SMALL_BYTES else COPY
        self._rows.append((kind + _ASIDE * aside, target, source, bytes))

    def meet(self) -> None:
        """Each of the two streams waits for what the other one holds. A batch with copies aside ends with this."""
        self._rows.append((MEET, 0, 0, 0))

    def call(self, function: int, argument: int) -> None:
        """A C function on a thread of the driver; the stream goes on when it returns."""
        self._rows.append((CALL, function, argument, 0))

    def fold(
        self, op: str, dtype: str, sources: Sequence[int], destinations: Sequence[int], elements: int, divisor: int
    ) -> None:
        self._rows.append((FOLD, len(self._folds), 0, 0))
        self._folds.append(Fold(op, dtype, tuple(sources), tuple(destinations), elements, divisor))

    def made(self, device: Kernels) -> _native.Batch:
        """The form that lanes take."""
        rows = np.array(self._rows, np.int64).reshape(-1, 4)
        arguments = b""
        for row, one in zip(np.flatnonzero(rows[:, 0] == FOLD), self._folds, strict=True):
            kernel, blocks = device.kernel(one)
            rows[row, 1:] = kernel, blocks, len(arguments)
            arguments += bytes(Arguments.of(one.sources, one.destinations, one.elements, one.divisor))
        return _native.Batch(rows, arguments, THREADS)
