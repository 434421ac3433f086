"""Message specifications: `array`, `[array, count]`, `[array, type]`, `[array, count, type]`, and with displacements."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..failures import error
from .datatypes import Datatype
from .foreign import at_address, is_foreign
from .layout import Bytes, gathered, spread
from .memory import BottomType, array_of, bytes_of, is_buffer
from .predefined import BYTE, of_code, of_dtype

_NOTHING = np.empty(0, np.uint8)


class BufferSpec:
    """Some items of one type in a piece of memory."""

    __slots__ = ("count", "datatype", "layout", "owner", "raw", "start")

    def __init__(self, raw: Bytes, start: int, count: int, datatype: Datatype, owner: Any = None) -> None:
        self.raw, self.start, self.count, self.datatype, self.owner = raw, start, count, datatype, owner
        self.layout = datatype.layout

    @property
    def bytes(self) -> int:
        return self.count * self.layout.size

    def read(self) -> Bytes:
        """Its bytes without gaps: a view of the memory if they have none there."""
        if self._is_all:
            return self.raw
        self.check()
        return gathered(self.raw, self.start, self.count, self.layout)

    def write(self, data: Bytes) -> None:
        if self._is_all and data.size == self.raw.size:
            self.raw[:] = data
            return
        self.check()
        spread(self.raw, self.start, self.count, self.layout, data)

    @property
    def is_plain(self) -> bool:
        return self.layout.is_plain

    @property
    def _is_all(self) -> bool:
        """True if it is the whole memory, without gaps."""
        layout = self.layout
        return self.start == 0 and layout.is_plain and self.count * layout.size == self.raw.size

    def check(self) -> None:
        low, high = self.layout.span(self.count)
        if self.count and (self.start + low < 0 or self.start + high > self.raw.size):
            raise error(
                "ERR_BUFFER",
                f"the message has {self.count} items of {self.layout.extent} bytes, which do not fit into "
                f"{self.raw.size - self.start} bytes",
            )


class VectorSpec:
    """One part per rank: their counts, and where they begin, in items of one type."""

    def __init__(self, raw: Bytes, counts: list[int], places: list[int], datatype: Datatype, owner: Any = None) -> None:
        extent = datatype.layout.extent
        self.counts, self.datatype = counts, datatype
        self.parts = [
            BufferSpec(raw, place * extent, count, datatype, owner) for count, place in zip(counts, places, strict=True)
        ]


def plain(spec: Any, written: bool) -> Datatype | None:
    """The datatype of a message that is a whole array in one piece; None for all others."""
    if type(spec) is not np.ndarray:
        return None
    flags = spec.flags
    if not flags.c_contiguous or (written and not flags.writeable) or not spec.size:
        return None
    return of_dtype(spec.dtype)  # not cached by dtype: those of long and long long are equal


def simple(spec: Any, written: bool, blocks: int = 1) -> BufferSpec:
    """A message that is one piece; without a count, the array holds `blocks` of them."""
    if (found := plain(spec, written)) is not None:  # the most frequent one: what follows would come to the same
        whole: Bytes = (spec if spec.ndim == 1 else spec.reshape(-1)).view(np.uint8)
        items, rest = divmod(whole.size, found.layout.extent * blocks)
        if not rest:
            return BufferSpec(whole, 0, items, found, spec)
    memory, count, place, kind = _taken(spec, (list, tuple))
    raw, datatype, owner = _memory(memory, kind, written, count)
    extent = datatype.layout.extent if datatype else 0
    start = 0
    if place is not None:
        place = operator.index(place)
        if place < 0:
            raise ValueError(f"message: negative displacement {place}")
        if place and extent <= 0:
            raise ValueError(f"message: cannot handle displacement, the datatype's extent is {extent}")
        if place * extent > raw.size:
            raise ValueError(f"message: displacement {place} out of bounds, there are {raw.size // extent} entries")
        start = place * extent
    if count is not None:
        items = operator.index(count)
        if items < 0:
            raise ValueError(f"message: negative count {items}")
        if items > 0 and memory is None:
            raise ValueError(f"message: buffer is None but count is {items}")
    else:
        items = _inferred(raw.size - start, datatype)
        if items % blocks:
            raise ValueError(f"message: cannot infer count, {items} entries are not a multiple of {blocks} blocks")
        items //= blocks
    if not datatype:
        raise error("ERR_TYPE", "the datatype of the message is null")
    return _based(raw, start, items, datatype, owner, memory)


def vector(spec: Any, written: bool, blocks: int) -> VectorSpec:
    """A message with one part per rank, with its own count and displacement."""
    memory, counts, places, kind = _taken(spec, (tuple,))
    raw, datatype, owner = _memory(memory, kind, written, counts)
    if counts is None:
        whole = _inferred(raw.size, datatype)
        numbers = [whole // blocks + (whole % blocks > part) for part in range(blocks)]
    elif _is_number(counts):
        numbers = [operator.index(counts)] * blocks
    else:
        numbers = _numbers(counts, blocks)
    if places is None:
        starts = [sum(numbers[:part]) for part in range(blocks)]
    elif _is_number(places):
        starts = [operator.index(places) * part for part in range(blocks)]
    else:
        starts = _numbers(places, blocks)
    if not datatype:
        raise error("ERR_TYPE", "the datatype of the message is null")
    if any(number < 0 for number in numbers):
        raise error("ERR_COUNT", f"a count is negative: {numbers}")
    return VectorSpec(raw, numbers, starts, datatype, owner)


def vector_of_types(spec: Any, written: bool, blocks: int) -> list[BufferSpec]:
    """A message with one part per rank, with its own type; displacements are in bytes."""
    if len(spec) == 2:
        (memory, types), counts, places = spec, [1] * blocks, [0] * blocks
    elif len(spec) == 3:
        memory, (counts, places), types = spec
    elif len(spec) == 4:
        memory, counts, places, types = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    if isinstance(memory, BottomType) and (counts is None or places is None):
        raise ValueError("message: at BOTTOM, counts and displacements are needed")
    numbers = [1] * blocks if counts is None else _numbers(counts, blocks)
    starts = [0] * blocks if places is None else _numbers(places, blocks)
    kinds = list(types)
    if len(kinds) != blocks:
        raise ValueError(f"message: expecting {blocks} datatypes, got {len(kinds)}")
    if isinstance(memory, BottomType):
        return [
            _based(_NOTHING, 0, *one[:1], one[2], None, memory, one[1])
            for one in zip(numbers, starts, kinds, strict=True)
        ]
    array = array_of(memory, written)
    raw = bytes_of(array)
    return [
        BufferSpec(raw, start, number, kind, array) for number, start, kind in zip(numbers, starts, kinds, strict=True)
    ]


def _taken(spec: Any, pairs: Any) -> tuple[Any, Any, Any, Any]:
    """Memory, counts, displacements and type."""
    if isinstance(spec, (list, tuple)):
        counts = places = kind = None
        if len(spec) == 2:
            memory, counts = spec
            if isinstance(counts, (Datatype, str)):
                counts, kind = None, counts
        elif len(spec) == 3:
            memory, counts, kind = spec
        elif len(spec) == 4:
            memory, counts, places, kind = spec
            return memory, counts, places, kind
        else:
            raise ValueError("message: expecting 2 to 4 items")
        if isinstance(counts, pairs):
            pair: Any = counts
            counts, places = pair
        return memory, counts, places, kind
    if is_buffer(spec) or is_foreign(spec):
        return spec, None, None, None
    raise TypeError(f"message: expecting buffer or list/tuple, not {type(spec).__name__}")


def _memory(memory: Any, kind: Any, written: bool, count: Any) -> tuple[Bytes, Datatype, Any]:
    if memory is None or isinstance(memory, BottomType):
        return _NOTHING, _datatype(kind) if kind is not None else BYTE, None
    array = array_of(memory, written)
    if kind is not None:
        datatype = _datatype(kind)
    elif isinstance(memory, (bytes, bytearray)):
        datatype = BYTE
    else:
        if not array.dtype.isnative:
            raise BufferError(
                f"message: {array.dtype.str} does not have the byte order of this machine: give the datatype"
            )
        found = of_dtype(array.dtype)
        if found is None:
            raise ValueError(f"message: cannot infer datatype, the buffer has {array.dtype}")
        datatype = found
    return bytes_of(array), datatype, array


def _datatype(kind: Any) -> Datatype:
    if isinstance(kind, Datatype):
        return kind
    if isinstance(kind, str):
        try:
            return of_code(kind)
        except ValueError as problem:
            raise KeyError(str(problem)) from None
    raise TypeError(f"message: expecting a datatype, not {type(kind).__name__}")


def _based(
    raw: Bytes, start: int, items: int, datatype: Datatype, owner: Any, memory: Any, address: int = 0
) -> BufferSpec:
    """The items; at MPI.BOTTOM the offsets of the type are addresses."""
    if isinstance(memory, BottomType) and items:
        low, high = datatype.layout.span(items)
        return BufferSpec(at_address(address + low, high - low), -low, items, datatype)
    return BufferSpec(raw, start, items, datatype, owner)


def _inferred(length: int, datatype: Datatype) -> int:
    if length <= 0:
        return 0
    if not datatype:
        raise ValueError("message: cannot infer count, datatype is null")
    extent = datatype.layout.extent
    if extent <= 0:
        raise ValueError(f"message: cannot infer count, datatype extent {extent}")
    if length % extent:
        raise ValueError(
            f"message: cannot infer count, buffer length {length} is not a multiple of datatype extent {extent}"
        )
    return length // extent


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _numbers(values: Sequence[int], blocks: int) -> list[int]:
    made = [operator.index(one) for one in values]
    if len(made) != blocks:
        raise ValueError(f"expecting {blocks} items, got {len(made)}")
    return made
