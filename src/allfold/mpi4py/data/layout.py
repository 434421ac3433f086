"""The layout of a datatype: where its elements lie, and copies of them out of a buffer and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_ENGINE_TYPES = "?bBhHiIlLqQefdFD"
Part = tuple[int, int, "Layout"]
"""Items that follow each other: the first one's displacement in bytes, their number, and their layout."""


@dataclass(frozen=True, eq=False)
class Layout:
    """One item: the parts that it consists of, or the type of its only element, and its bounds.

    A part stands for any number of items, so a type of a billion elements is as small as one of two.
    """

    parts: tuple[Part, ...]
    element: np.dtype[Any] | None
    lower: int
    upper: int
    is_bounded: bool = False
    """True if the program has set bounds, here or in a part. If there are such bounds, only they count."""

    @classmethod
    def of(cls, primitive: np.dtype[Any]) -> Layout:
        return cls((), primitive, 0, primitive.itemsize)

    @cached_property
    def extent(self) -> int:
        return self.upper - self.lower

    @cached_property
    def size(self) -> int:
        return self.element.itemsize if self.element else sum(count * item.size for _, count, item in self.parts)

    @cached_property
    def elements(self) -> int:
        return 1 if self.element else sum(count * item.elements for _, count, item in self.parts)

    @cached_property
    def primitives(self) -> frozenset[np.dtype[Any]]:
        """The types of its elements."""
        return (
            frozenset([self.element])
            if self.element
            else frozenset().union(*(one.primitives for *_, one in self.parts))
        )

    @cached_property
    def primitive(self) -> np.dtype[Any] | None:
        """The type of all its elements, if it is one."""
        return next(iter(self.primitives)) if len(self.primitives) == 1 else None

    @cached_property
    def native(self) -> np.dtype[Any]:
        """The type of the elements of packed data: that of all elements, or bytes where they differ."""
        primitive = self.primitive
        return np.dtype(np.uint8) if primitive is None or primitive.char not in _ENGINE_TYPES else primitive

    @cached_property
    def sizes(self) -> Any:
        """The length of each element, in order."""
        if self.element:
            return np.array([self.element.itemsize])
        return np.concatenate([np.empty(0, np.int64), *(np.tile(item.sizes, count) for _, count, item in self.parts)])

    @cached_property
    def true_bounds(self) -> tuple[int, int]:
        if self.element:
            return 0, self.element.itemsize
        spans = [
            (displacement + low, displacement + high)
            for displacement, count, item in self.parts
            if item.size
            for low, high in [item.span(count)]
        ]
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0)

    @cached_property
    def alignment(self) -> int:
        return max((one.alignment for one in self.primitives), default=1)

    @cached_property
    def is_dense(self) -> bool:
        """True if the elements of one item lie without gaps from byte 0 on, in order."""
        end = 0
        for displacement, count, item in self.parts:
            if displacement != end or not item.is_dense or (count > 1 and item.extent != item.size):
                return False
            end += count * item.size
        return True

    @cached_property
    def is_plain(self) -> bool:
        """True if items follow each other without gaps, in order."""
        return self.lower == 0 and self.extent == self.size and self.is_dense

    @cached_property
    def runs(self) -> tuple[Any, Any]:
        """The offsets and lengths of the stretches of bytes without gaps, in the order in which they are sent."""
        if self.is_dense:
            return np.zeros(1, np.int64), np.full(1, self.size)
        offsets, lengths = [], []
        for displacement, count, item in self.parts:
            if item.is_dense and item.extent == item.size:
                offsets.append(np.full(1, displacement))
                lengths.append(np.full(1, count * item.size))
            else:
                own, long = item.runs
                starts = displacement + np.arange(count) * item.extent
                offsets.append((starts[:, None] + own).reshape(-1))
                lengths.append(np.tile(long, count))
        return _merged(np.concatenate(offsets), np.concatenate(lengths))

    @cached_property
    def pieces(self) -> tuple[Any, int]:
        """The runs, cut into pieces of one length: where each begins, and the length."""
        offsets, lengths = self.runs
        unit = gcd(*lengths.tolist()) or 1
        many = lengths // unit
        before = np.cumsum(many) - many
        return np.repeat(offsets, many) + (np.arange(many.sum()) - np.repeat(before, many)) * unit, unit

    def span(self, count: int) -> tuple[int, int]:
        """The first byte and the end of `count` items."""
        if count == 0 or not self.size:
            return 0, 0
        low, high = self.true_bounds
        last = (count - 1) * self.extent
        return min(low, low + last), max(high, high + last)

    def elements_in(self, bytes: int) -> int | None:
        """The number of elements that these bytes fill; None if the last one is not whole."""
        if self.size == 0:
            return 0
        items, rest = divmod(bytes, self.size)
        if self.primitive is not None:
            more, cut = divmod(rest, self.primitive.itemsize)
            return None if cut else items * self.elements + more
        ends = np.cumsum(self.sizes)
        more = int(np.searchsorted(ends, rest, side="right"))
        if rest and (more == 0 or ends[more - 1] != rest):
            return None
        return items * self.elements + more

    def bytes_in(self, elements: int) -> int:
        """The number of bytes of that many elements."""
        if self.elements == 0:
            return 0
        items, rest = divmod(elements, self.elements)
        more = rest * self.primitive.itemsize if self.primitive is not None else int(self.sizes[:rest].sum())
        return items * self.size + more


def _merged(offsets: Any, lengths: Any) -> tuple[Any, Any]:
    """The same runs; those that follow each other without a gap are one."""
    offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
    if not len(offsets):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    first = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1] + lengths[:-1]]))
    return offsets[first], np.add.reduceat(lengths, first)


def joined(parts: Iterable[Part]) -> Layout:
    """Parts one after the other; its bounds are those of all their items, or of those whose bounds were set."""
    kept = tuple(part for part in parts if part[1] > 0 and (part[2].size or part[2].is_bounded))
    if not kept:
        return Layout((), None, 0, 0)
    is_bounded = any(item.is_bounded for *_, item in kept)
    lows, highs = [], []
    for displacement, count, item in kept:
        if item.is_bounded != is_bounded:
            continue
        last = displacement + (count - 1) * item.extent
        lows.append(min(displacement, last) + item.lower)
        highs.append(max(displacement, last) + item.upper)
    return Layout(kept, None, min(lows), max(highs), is_bounded)


def strided(item: Layout, count: int, length: int, stride: int) -> Layout:
    """`count` blocks of `length` items; each block begins `stride` bytes after the one before."""
    block = joined([(0, length, item)])
    if count == 0 or not (block.size or block.is_bounded):
        return joined([])
    last = (count - 1) * stride
    every = ((0, count, bounded(block, block.lower, stride)),)
    return Layout(every, None, block.lower + min(0, last), block.upper + max(0, last), block.is_bounded)


def subarray(item: Layout, sizes: list[int], chosen: list[list[tuple[int, int]]]) -> Layout:
    """A part of an array in row-major order: `chosen` has ranges of indices for each dimension, as (start, count).

    Its extent is that of the whole array.
    """
    made, extent = item, item.extent
    for size, ranges in zip(sizes[::-1], chosen[::-1], strict=True):
        made = joined([(start * extent, count, bounded(made, 0, extent)) for start, count in ranges])
        extent *= size
    return bounded(made, 0, extent)


def padded(layout: Layout) -> Layout:
    """The layout of a struct: its extent is a multiple of its alignment, as C's is, unless the program has set it."""
    if layout.is_bounded:
        return layout
    extent = layout.extent + -layout.extent % layout.alignment
    return Layout(layout.parts, layout.element, layout.lower, layout.lower + extent)


def bounded(layout: Layout, lower: int, extent: int) -> Layout:
    """The same layout; items follow each other at this distance."""
    return Layout(layout.parts, layout.element, lower, lower + extent, True)


def gathered(raw: Bytes, start: int, count: int, layout: Layout) -> Bytes:
    """The bytes of `count` items at byte `start`, without gaps; a view of `raw` where there are none."""
    if layout.is_plain:
        return raw[start : start + count * layout.size]
    if count == 0 or layout.size == 0:
        return np.empty(0, np.uint8)
    places, unit = _pieces(start, count, layout)
    made: Bytes = np.lib.stride_tricks.sliding_window_view(raw, unit)[places].reshape(-1)
    return made


def spread(raw: Bytes, start: int, count: int, layout: Layout, data: Bytes) -> None:
    """Put bytes without gaps where the items lie; `data` may hold fewer bytes than there is room for."""
    if layout.is_plain:
        raw[start : start + len(data)] = data
    elif len(data):
        places, unit = _pieces(start, count, layout)
        whole, rest = divmod(len(data), unit)
        pieces = np.lib.stride_tricks.sliding_window_view(raw, unit, writeable=True)
        pieces[places[:whole]] = data[: whole * unit].reshape(whole, unit)
        if rest:
            raw[places[whole] : places[whole] + rest] = data[whole * unit :]


def _pieces(start: int, count: int, layout: Layout) -> tuple[Any, int]:
    own, unit = layout.pieces
    return (start + np.arange(count)[:, None] * layout.extent + own).reshape(-1), unit
