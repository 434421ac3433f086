"""The element types, and how NumPy arrays carry their data.

A type is known by its name everywhere. Its data is carried by NumPy arrays of the type of the same name, with one
exception: NumPy has no bfloat16, so bfloat16 data is carried as uint16, bit for bit. Reductions of the two 16-bit
floating types are computed in float32: `widen` and `narrow` convert there and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .wording import suggest

Array = NDArray[Any]
Kind = Literal["bool", "integer", "floating", "complex"]


@dataclass(frozen=True)
class Dtype:
    """An element type; `carrier` is the NumPy type of the arrays that hold its data."""

    name: str
    carrier: np.dtype[Any]
    itemsize: int
    kind: Kind

    @property
    def accumulates_in(self) -> np.dtype[Any]:
        """The NumPy type that reductions are computed in."""
        return np.dtype(np.float32) if self.is_half else self.carrier

    @property
    def is_half(self) -> bool:
        return self.name in ("float16", "bfloat16")

    def __str__(self) -> str:
        return self.name


def _table() -> dict[str, Dtype]:
    kinds: dict[str, Kind] = {"b": "bool", "i": "integer", "u": "integer", "f": "floating", "c": "complex"}
    integers = "int8 uint8 int16 uint16 int32 uint32 int64 uint64"
    table = {}
    for name in f"bool {integers} float16 bfloat16 float32 float64 complex64 complex128".split():
        carrier = np.dtype("uint16" if name == "bfloat16" else name)
        kind = "floating" if name == "bfloat16" else kinds[carrier.kind]
        table[name] = Dtype(name, carrier, carrier.itemsize, kind)
    return table


DTYPES = _table()


def find_dtype(wanted: object) -> Dtype:
    """The type by its name, or that of a NumPy or torch dtype, or of a Python or NumPy number class."""
    if isinstance(wanted, Dtype):
        return wanted
    if isinstance(wanted, np.dtype):
        return _from_numpy(wanted)
    # torch is not imported for this: its types are recognised by how they print.
    name = str(wanted).removeprefix("torch.") if str(wanted).startswith("torch.") else wanted
    if isinstance(name, str):
        if name in DTYPES:
            return DTYPES[name]
        try:
            return _from_numpy(np.dtype(name))
        except TypeError:
            raise UsageError(f"unknown dtype {str(wanted)!r}; {suggest(name, DTYPES)}") from None
    if isinstance(wanted, type) and (wanted in (bool, int, float, complex) or issubclass(wanted, np.generic)):
        return _from_numpy(np.dtype(wanted))
    raise UsageError(f"a dtype is a name, a NumPy dtype or a torch dtype, not {wanted!r}; {suggest(wanted, DTYPES)}")


@lru_cache(maxsize=256)
def _from_numpy(dtype: np.dtype[Any]) -> Dtype:
    if dtype.name == "bfloat16":  # an extension of NumPy's types that some array libraries bring along
        return DTYPES["bfloat16"]
    if dtype.fields is not None or dtype.subdtype is not None:
        raise UsageError(f"{dtype} is a structured dtype, which has no reductions; give one field at a time")
    if not dtype.isnative:
        native = dtype.newbyteorder("=").name
        raise UsageError(f"{dtype.str} has the byte order of another machine; convert it: x.astype({native!r})")
    # By kind and size, not by name: C's long and long long are two types to NumPy, and one of them has another name.
    for known in DTYPES.values():
        if known.name != "bfloat16" and (known.carrier.kind, known.itemsize) == (dtype.kind, dtype.itemsize):
            return known
    raise UsageError(f"dtype {dtype} cannot be used; known: {', '.join(DTYPES)}")


def widen(array: Array, dtype: Dtype) -> Array:
    """Carried data in the type that reductions are computed in; exact."""
    if dtype.name == "float16":
        with np.errstate(all="ignore"):  # a signalling NaN is no reason to warn
            return array.astype(np.float32)
    if dtype.name == "bfloat16":
        return np.asarray(array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def narrow(array: Array, dtype: Dtype) -> Array:
    """Back from the type that reductions are computed in: rounded to nearest, ties to even.

    What is too large becomes infinite; NaN stays NaN.
    """
    with np.errstate(all="ignore"):
        if dtype.name == "float16":
            return array.astype(np.float16)
        if dtype.name == "bfloat16":
            bits = np.asarray(array, np.float32).view(np.uint32)
            # Add just under half of the last bit that stays, and one more if that bit is odd. A carry into the exponent
            # is right.
            rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
            # A NaN may have all its fraction bits in the half that is dropped; set one in the half that stays.
            quiet = bits >> np.uint32(16) | np.uint32(0x40)
            return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
    return array


def describe(dtype: Dtype | np.dtype[Any], shape: Iterable[int]) -> str:
    """`float32[1000]`: how errors name an array."""
    return f"{dtype}[{', '.join(map(str, shape))}]"
