"""The division of a buffer into chunks, and of a chunk into segments: one rule for all engines.

Part i of n elements in p parts goes from i·n//p to (i+1)·n//p. So parts differ by at most one element, empty ones occur
only where there are more parts than elements, and the slices of a collective that has slices are made of whole chunks.

Slices may also have lengths of their own (`Lengths`); then each of them is divided by that rule.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

if TYPE_CHECKING:
    from .collectives import Collective

_MOST_ELEMENTS = 2**62
_SHOWN = 16  # lengths in a sentence


def chunk_bounds(elements: int, chunks: int) -> NDArray[np.int64]:
    """Chunk c of a buffer goes from element `bounds[c]` to `bounds[c + 1]`.

    Where a collective has slices, the buffer is the whole array: `elements` counts all slices together.
    """
    if elements < 0 or chunks < 1:
        raise UsageError(f"{elements} elements cannot be divided into {chunks} chunks")
    # i·n//p without the product i·n, which may not fit into 64 bits.
    whole, rest = divmod(elements, chunks)
    part = np.arange(chunks + 1, dtype=np.int64)
    return part * whole + part * rest // chunks


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


class Lengths:
    """The lengths of slices that differ: one per rank; for all_to_all a row per rank, of what it sends to each rank."""

    def __init__(self, promise: Collective, ranks: int, counts: object) -> None:
        if not promise.sliced or promise.ends.in_pieces:
            raise UsageError(
                f"{promise.label}: it {'takes' if promise.sliced else 'has no parts, and takes'} no counts"
            )
        wanted = (ranks, ranks) if promise.exchanges else (ranks,)
        words = f"{ranks} rows of {ranks}" if promise.exchanges else f"{ranks}, one per rank"
        try:
            given = np.asarray(counts)
        except ValueError:  # rows of different lengths
            given = np.empty(0)
        if given.shape != wanted or given.dtype.kind not in "iu":
            raise UsageError(f"{promise.name}: counts must be whole numbers, {words}; got {_shown(counts)}")
        if (given < 0).any() or sum(map(int, given.ravel())) > _MOST_ELEMENTS:
            raise UsageError(f"{promise.name}: counts must be non-negative and fit in memory; got {_shown(counts)}")
        self.table: NDArray[np.int64] = given.astype(np.int64)
        self.table.setflags(write=False)
        self.digest = crc32(self.table.tobytes()) or 1
        """32 bits; 0 stands for slices that are equally long."""

    @classmethod
    def of(cls, promise: Collective, ranks: int, counts: object) -> Lengths | None:
        """Lengths as users give them, or as they are known already; None for slices that are equally long."""
        return counts if counts is None or isinstance(counts, Lengths) else cls(promise, ranks, counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return self.digest

    def __str__(self) -> str:
        return _shown(self.table.tolist())

    @property
    def exchanges(self) -> bool:
        return self.table.ndim == 2

    @cached_property
    def elements(self) -> int:
        """Of the whole buffer; of an all_to_all, those of a rank on average."""
        total = int(self.table.sum())
        return -(-total // len(self.table)) if self.exchanges else total

    def of_arrays(self, promise: Collective, rank: int) -> tuple[int, int]:
        """The elements of a rank's input and output, where it has them."""
        if self.exchanges:
            return int(self.table[rank].sum()), int(self.table[:, rank].sum())
        own, whole = int(self.table[rank]), int(self.table.sum())
        return own if promise.starts.sliced else whole, own if promise.ends.sliced else whole

    def check(self, promise: Collective, rank: int, given: int | None, taken: int | None) -> None:
        """Refuse arrays of other lengths; None: no array."""
        for is_input, length in ((True, given), (False, taken)):
            if length is not None:
                self.check_array(promise, rank, is_input, length)
            elif not promise.may_lack(is_input):
                raise UsageError(
                    f"{promise.name}: expected an array that speaks the buffer protocol or DLPack, got None"
                )

    def check_array(self, promise: Collective, rank: int, is_input: bool, length: int) -> None:
        wanted, what = self.of_arrays(promise, rank)[not is_input], "input" if is_input else "output"
        if length != wanted:
            raise UsageError(
                f"{promise.name}: by the counts, the {what} of rank {rank} must hold {wanted} elements, got {length}"
            )


class Division:
    """The positions and lengths of a call's chunks in the whole input and output of every rank.

    A datum is a chunk or, in an all_to_all, owner · chunks + chunk.
    """

    def __init__(self, ranks: int, chunks: int, elements: int, lengths: Lengths | None = None) -> None:
        self._chunks = chunks
        self.is_even = lengths is None and elements % chunks == 0
        """All chunks are equally long."""
        self._inputs: list[list[int]]
        self._outputs: list[list[int]]
        if lengths is None:
            self._inputs = self._outputs = [chunk_bounds(elements, chunks).tolist()] * ranks
        elif lengths.exchanges:
            self._inputs = [_cut(row, chunks) for row in lengths.table]
            self._outputs = [_cut(column, chunks) for column in lengths.table.T]
        else:
            self._inputs = self._outputs = [_cut(lengths.table, chunks)] * ranks

    def bounds(self, rank: int, of_output: bool) -> list[int]:
        """Chunk c of a rank goes from element `bounds[c]` to `bounds[c + 1]`."""
        return (self._outputs if of_output else self._inputs)[rank]

    def length(self, datum: int) -> int:
        owner, chunk = divmod(datum, self._chunks)
        bounds = self._inputs[owner]
        return bounds[chunk + 1] - bounds[chunk]

    @cached_property
    def longest(self) -> int:
        return max(int(np.diff(bounds).max()) for bounds in {id(one): one for one in self._inputs}.values())


def _cut(counts: NDArray[np.int64], chunks: int) -> list[int]:
    """The bounds of chunks in slices of these lengths."""
    part = chunks // len(counts)
    begins = np.cumsum(counts) - counts
    cut = begins[:, None] + counts[:, None] * np.arange(part) // part
    return [*cut.ravel().tolist(), int(counts.sum())]


def _shown(counts: object) -> str:
    """Counts in a sentence, the first of them."""
    text = str(counts)
    if isinstance(counts, list) and len(counts) > _SHOWN:
        return f"{str(counts[:_SHOWN])[:-1]}, … ({len(counts)} in all)"
    return text if len(text) <= 300 else text[:299] + "…"
