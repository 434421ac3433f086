"""Calls that return their result: on numbers and lists, and where no output is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from ..collectives import find_collective
from ..engines.buffer import Kind, new_like, refuse_masked, shape_of
from ..errors import UsageError

NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def as_array(call: str, value: Any) -> Any:
    """Numbers, lists and tuples as NumPy arrays; arrays as they are."""
    if not isinstance(value, (*NUMBERS, list, tuple)):
        return value
    for one in value if isinstance(value, (list, tuple)) else ():
        refuse_masked(call, one)
    try:
        made = np.asarray(value)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise UsageError(f"{call}: {value!r:.60} cannot be converted to an array: {error}") from None
    if made.dtype.kind not in "biufc":
        raise UsageError(
            f"{call}: {value!r:.60} cannot be converted to an array of numbers; for other objects, use {call}_object"
        )
    return made


def in_place(call: str, number: Any) -> np.ndarray[Any, Any]:
    """An array of one element, for a number that cannot be changed itself."""
    made = np.array([number])
    if made.dtype.kind not in "biufc":
        raise UsageError(f"{call}: {number!r:.60} exceeds 64 bits; for numbers of any size, use {call}_object")
    return made


def number_in(array: np.ndarray[Any, Any], like: Any) -> Any:
    """The element, as a number of the same kind as the argument."""
    return array[0] if isinstance(like, np.generic) else array[0].item()


def output_for(call: str, array: Any, ranks: int) -> Any:
    """A new array for the result of a collective on `array`: of its kind, its type and its device."""
    return new_like(call, array, _result_shape(call, shape_of(array), ranks))


def output_of_length(call: str, array: Any, elements: int) -> Any:
    """The same, with this many elements: in rows like those of `array`, if they make whole ones."""
    rest = tuple(shape_of(array))[1:]
    row = prod(rest)
    return new_like(call, array, (elements // row, *rest) if row and elements % row == 0 else (elements,))


def _result_shape(call: str, shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Ranks' parts follow each other in the first dimension."""
    length, *rest = shape or (1,)
    promise = find_collective(call)
    if promise.starts.sliced:
        return length * ranks, *rest
    if length % ranks:
        raise UsageError(f"{call}: {length} rows cannot be divided among {ranks} ranks; pass an output")
    return (length // ranks, *rest) if promise.ends.sliced else (length, *rest)


def describe_part(array: Any, ranks: int) -> tuple[Kind, tuple[int, ...]]:
    """The facts of the root's array that all ranks of a scatter need: its kind, and the shape of a part."""
    shape = _result_shape("scatter", shape_of(array), ranks)
    kind = Kind.of(array)
    if kind is None:
        raise UsageError(
            "scatter: without an output, the array must be a NumPy array, a torch tensor on the CPU or a list"
        )
    return kind, shape


def whole_numbers(values: Iterable[Any]) -> list[int] | None:
    """The values as integers; None if one of them is not a whole number."""
    given = list(values)
    if any(isinstance(value, bool) or not isinstance(value, SupportsIndex) for value in given):
        return None
    return [index(value) for value in given]
