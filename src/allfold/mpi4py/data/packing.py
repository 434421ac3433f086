"""Packing items into bytes and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..failures import error
from .datatypes import Datatype
from .layout import Bytes, Layout
from .memory import array_of, bytes_of
from .specs import BufferSpec, simple


def pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int, external: bool) -> int:
    """Pack all items of a buffer at `position`; returns the position after them."""
    source = _items(inbuf, datatype, False)
    target = bytes_of(array_of(_memory(outbuf), True))
    data = source.read()
    if external:
        data = _swapped(data, datatype.layout)
    if position < 0 or position + data.size > target.size:
        raise error("ERR_TRUNCATE", f"Pack: {data.size} bytes do not fit at position {position} of {target.size} bytes")
    target[position : position + data.size] = data
    return position + int(data.size)


def unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any, external: bool) -> int:
    """Unpack items from `position` on until the output is full; returns the position after them."""
    target = _items(outbuf, datatype, True)
    source = bytes_of(array_of(_memory(inbuf), False))
    data = source[position : position + target.bytes]
    if position < 0 or data.size < target.bytes:
        raise error(
            "ERR_TRUNCATE", f"Unpack: there are not {target.bytes} bytes at position {position} of {source.size} bytes"
        )
    target.write(_swapped(data, datatype.layout) if external else data)
    return position + target.bytes


def _items(spec: Any, datatype: Datatype, written: bool) -> BufferSpec:
    if isinstance(spec, (list, tuple)):
        return simple(spec, written)
    array = array_of(spec, written)
    raw = bytes_of(array)
    high = datatype.layout.true_bounds[1]
    extent = datatype.layout.extent
    count = 0 if extent <= 0 else int(raw.size) // extent
    if extent > 0 and raw.size - count * extent >= high > 0:
        count += 1
    return BufferSpec(raw, 0, count, datatype, array)


def _memory(spec: Any) -> Any:
    return spec[0] if isinstance(spec, (list, tuple)) else spec


def _swapped(data: Bytes, layout: Layout) -> Bytes:
    """The same data with the bytes of each element reversed: external data is big-endian."""
    if layout.primitive is not None:
        swapped: Bytes = data.view(layout.primitive).byteswap().view(np.uint8)
        return swapped
    made = np.empty_like(data)
    start = 0
    sizes = layout.sizes
    while start < data.size:
        for size in sizes:
            made[start : start + size] = data[start : start + size][::-1]
            start += int(size)
    return made
