"""Arrays that do not lie in one piece: copied into one, and back. Works for NumPy and torch without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UsageError


def contiguous(collective: str, array: Any) -> Any:
    """The array itself, without gradient tracking, if it is contiguous; otherwise a contiguous copy."""
    if array is None:
        return None
    if hasattr(array, "detach") and hasattr(array, "contiguous"):  # a torch tensor
        return array.detach().contiguous()
    try:
        return np.ascontiguousarray(array)
    except Exception as error:
        raise UsageError(f"{collective}: {type(array).__name__} cannot be used as an array: {error}") from None


def copied(array: Any) -> Any:
    """A contiguous copy of a contiguous array."""
    return array.clone() if hasattr(array, "detach") and hasattr(array, "clone") else np.array(array)


def is_writable(array: Any) -> bool:
    flags = getattr(array, "flags", None)
    if isinstance(array, (memoryview, bytes)):
        return isinstance(array, memoryview) and not array.readonly
    return bool(getattr(flags, "writeable", True))


def put_back(target: Any, result: Any) -> None:
    if hasattr(target, "detach"):
        target.detach().copy_(result)
    else:
        target[...] = result.reshape(np.shape(target))
