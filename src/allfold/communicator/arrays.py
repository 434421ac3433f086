"""Arrays that are not contiguous: copied into one piece, and back. For NumPy and torch, without importing torch."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from .. import _native
from ..engines.arrays import mark_as_changed
from ..errors import UsageError


def contiguous(collective: str, array: Any) -> Any:
    """The array itself, without gradient tracking, if it is contiguous; otherwise a contiguous copy."""
    if array is None:
        return None
    if type(array).__name__ == "PyCapsule":  # of DLPack
        raise UsageError(f"{collective}: this needs a copy, and a capsule can be read once only; pass the array itself")
    if hasattr(array, "detach") and hasattr(array, "contiguous"):  # a torch tensor
        return array.detach().resolve_conj().resolve_neg().contiguous()
    try:
        return np.ascontiguousarray(array)
    except Exception as error:
        raise UsageError(f"{collective}: {type(array).__name__} cannot be used as an array: {error}") from None


def copied(array: Any) -> Any:
    """A contiguous copy of a contiguous array."""
    return array.clone() if hasattr(array, "detach") and hasattr(array, "clone") else np.array(array)


def overlap(one: Any, other: Any) -> bool:
    """Whether two contiguous arrays have memory in common."""
    return _native.overlap(one, other)


def check_writable(call: str, array: Any) -> None:
    """Refuse an array that cannot hold a result: a read-only one, or one with several elements at one address."""
    flags = getattr(array, "flags", None)
    if isinstance(array, bytes) or getattr(array, "readonly", not getattr(flags, "writeable", True)):
        raise UsageError(f"{call}: the array for the result is read-only")
    strides = array.stride() if callable(getattr(array, "stride", None)) else getattr(array, "strides", None) or ()
    lengths = getattr(array, "shape", ())
    if any(stride == 0 and length > 1 for stride, length in zip(strides, lengths, strict=False)):
        raise UsageError(f"{call}: the array for the result has several elements in one place (expanded, or broadcast)")


def whole_numbers(values: Iterable[Any]) -> list[int] | None:
    """The values as integers; None if one of them is not a whole number."""
    given = list(values)
    if any(isinstance(value, bool) or not isinstance(value, SupportsIndex) for value in given):
        return None
    return [index(value) for value in given]


def put_back(target: Any, result: Any) -> None:
    """Copy a result to where it was asked for, unless it is there already: both may share their memory."""
    if hasattr(target, "detach") and target.data_ptr() == result.data_ptr():
        mark_as_changed(target)
    elif hasattr(target, "detach"):
        target.detach().copy_(result)
    else:
        target[...] = result.reshape(np.shape(target))


def is_on_gpu(array: Any) -> bool:
    """Whether it is in a GPU's memory: a torch tensor says so, others have the interface only then."""
    says_so = getattr(array, "is_cuda", None)
    return hasattr(type(array), "__cuda_array_interface__") if says_so is None else bool(says_so)
