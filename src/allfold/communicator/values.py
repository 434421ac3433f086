"""Calls that return their result: on numbers and lists, and where no output is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..collectives import find_collective
from ..errors import UsageError
from .arrays import is_on_gpu

NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def as_array(call: str, value: Any) -> Any:
    """Numbers, lists and tuples as NumPy arrays; arrays as they are."""
    if not isinstance(value, (*NUMBERS, list, tuple)):
        return value
    try:
        made = np.asarray(value)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise UsageError(f"{call}: {value!r:.60} cannot be made an array: {error}") from None
    if made.dtype.kind not in "biufc":
        raise UsageError(
            f"{call}: {value!r:.60} cannot be made an array of numbers; for other objects there is {call}_object"
        )
    return made


def in_place(call: str, number: Any) -> np.ndarray[Any, Any]:
    """An array of one element, for a number that cannot be changed itself."""
    made = np.array([number])
    if made.dtype.kind not in "biufc":
        raise UsageError(f"{call}: {number!r:.60} is beyond 64 bits; for numbers of any size there is {call}_object")
    return made


def number_in(array: np.ndarray[Any, Any], like: Any) -> Any:
    """The element, as a number of the kind that was given."""
    return array[0] if isinstance(like, np.generic) else array[0].item()


def output_for(call: str, array: Any, ranks: int) -> Any:
    """A new array for the result of a collective on `array`: of its kind, its type and its device."""
    shape = tuple(array.shape) if hasattr(array, "shape") else np.shape(array)
    return _empty(call, array, _result_shape(call, shape, ranks))


def _result_shape(call: str, shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Ranks' parts follow each other in the first dimension."""
    length, *rest = shape or (1,)
    promise = find_collective(call)
    if promise.starts.sliced:
        return length * ranks, *rest
    if length % ranks:
        raise UsageError(f"{call}: {length} rows cannot be divided among {ranks} ranks; give an output")
    return (length // ranks, *rest) if promise.ends.sliced else (length, *rest)


def describe_part(array: Any, ranks: int) -> tuple[bool, str, tuple[int, ...]]:
    """What the ranks of a scatter need to know of the root's array: whether it is torch's, its type, a part's shape."""
    shape = _result_shape("scatter", tuple(np.shape(array)), ranks)
    kind = getattr(array, "dtype", None)
    if is_on_gpu(array) or kind is None:
        raise UsageError(
            "scatter: without an output, the array must be a NumPy array, a torch tensor on the CPU or a list"
        )
    return hasattr(array, "new_empty"), str(kind).removeprefix("torch."), shape


def part_for(is_torch: bool, kind: str, shape: Sequence[int]) -> Any:
    """A new array for one rank's part."""
    if not is_torch:
        return np.empty(tuple(shape), kind)
    import torch

    return torch.empty(tuple(shape), dtype=getattr(torch, kind))


def _empty(call: str, array: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(array, "new_empty"):
        return array.detach().new_empty(shape)
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    if is_on_gpu(array):
        raise UsageError(f"{call}: give an output: of this array's kind, none can be made here")
    try:
        return np.empty(shape, np.asarray(memoryview(array)).dtype)
    except (TypeError, ValueError):
        raise UsageError(f"{call}: give an output: for a {type(array).__name__}, none can be made here") from None
