"""One case of a benchmark: which collective on how many elements, what goes in, and what must come out.

The data are small whole numbers, so that every order of a reduction gives the same bits and every difference is an
error. They repeat with a prime period: data in the wrong place is noticed, and neither the data nor the expected result
needs memory of the size of the message. This module also runs in the environments of the peers: it needs only NumPy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..collectives import Collective, find_collective
from ..dtypes import Array, Dtype, find_dtype, narrow
from ..ops import find_op

_PERIOD = 1021
_LARGEST = 2  # of the input numbers, except for products
_GARBAGE = 3  # initial content of result arrays, so that a missing result is noticed
_MOST_REPEATS = 3


@dataclass(frozen=True)
class Case:
    """A collective on `count` elements: of one rank's array, or of the whole array if each rank has a part of it."""

    collective: str
    dtype: str
    op: str
    root: int
    ranks: int
    count: int

    @property
    def kind(self) -> Collective:
        return find_collective(self.collective)

    @property
    def element(self) -> Dtype:
        return find_dtype(self.dtype)

    @property
    def size(self) -> int:
        return self.count * self.element.itemsize

    @property
    def part(self) -> int:
        """The elements that every rank has of the whole array."""
        return self.count // self.ranks

    @property
    def bus_factor(self) -> float:
        return float(bus_factor(self.collective, self.ranks))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def case_of_size(
    collective: str, size: int, ranks: int, dtype: str = "float32", op: str = "sum", root: int = 0
) -> Case:
    """The largest case whose message is at most `size` bytes; at least one element per rank."""
    kind, itemsize = find_collective(collective), find_dtype(dtype).itemsize
    if not kind.carries_data:
        return Case(collective, dtype, op, root, ranks, 0)
    whole = kind.slices(ranks)
    return Case(collective, dtype, op, root, ranks, max(1, size // itemsize // whole) * whole)


def bus_factor(collective: str, ranks: int) -> Fraction:
    """nccl-tests multiplies size ÷ time by this, to get a comparable figure: the bandwidth of the busiest link."""
    kind = find_collective(collective)
    if not kind.carries_data:
        return Fraction(0)
    if kind.round_trip:
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1, ranks) if kind.sliced else Fraction(1)


# What a rank's arrays hold -------------------------------------------------------------------------------------------


def lengths(case: Case, rank: int) -> tuple[int | None, int | None]:
    """Elements of the input array and of the output array; None where this rank has none.

    In-place collectives have only the output.
    """
    kind, is_root = case.kind, rank == case.root
    if not kind.carries_data:
        return None, None
    if kind.in_place:
        return None, case.count
    source, target = (part.length(case.count, case.ranks, is_root) for part in (kind.starts, kind.ends))
    return source or None, target or None


def written_by(case: Case, rank: int, source: Array | None, target: Array | None) -> Array | None:
    """The array that a program on this rank would write before every call; None where it only receives."""
    if not case.kind.reads(rank == case.root):
        return None
    return target if case.kind.in_place else source


def fill(case: Case, rank: int, source: Array | None, target: Array | None) -> None:
    """Fill the input with this rank's contribution, and pure outputs with garbage."""
    if case.kind.in_place:
        source = target
    elif target is not None:
        target[...] = _carried(case, np.full(1, _GARBAGE))
    if source is not None:
        _lay(source, _contribution(case, rank))


def settle(case: Case, target: Array | None) -> None:
    """If repeated calls would make the numbers grow, use numbers that stay the same, for the timed loop."""
    if case.kind.in_place and case.kind.reduces and target is not None:
        target[...] = _carried(case, np.full(1, 1 if case.op == "product" else 0))


def repeats(case: Case) -> int:
    """The number of calls that can follow each other directly with a result that is still known and exact."""
    if not (case.kind.in_place and case.kind.reduces) or not case.kind.carries_data:
        return _MOST_REPEATS
    if case.kind.ends.root_only or case.kind.has_order or case.op in ("product", "avg"):
        return (
            1  # other ranks' arrays are undefined after a reduce; prefixes of prefixes; a quotient is no whole number
        )
    if case.op != "sum" or case.element.kind in ("bool", "integer"):
        return _MOST_REPEATS
    exact = {"float16": 2**11, "bfloat16": 2**8}.get(case.dtype, 2**24)
    return max(times for times in range(1, _MOST_REPEATS + 1) if times == 1 or _LARGEST * case.ranks**times <= exact)


def count_wrong(case: Case, rank: int, target: Array | None, calls: int) -> int:
    """The number of wrong elements in the result of that many calls in a row."""
    if target is None or (case.kind.ends.root_only and rank != case.root):
        return 0
    ranks = range(case.ranks)
    if case.kind.reduces:
        operands = [_contribution(case, other) for other in case.kind.contributors(rank, case.ranks)]
        total = find_op(case.op).fold(operands, case.element, case.ranks)
        for _ in range(calls - 1 if case.kind.in_place else 0):
            total = find_op(case.op).fold([total] * case.ranks, case.element, case.ranks)
        return _differences(target, total, rank * case.part if case.kind.ends.sliced else 0)
    if case.kind.starts.root_only:
        return _differences(target, _contribution(case, case.root), rank * case.part if case.kind.ends.sliced else 0)
    offset = rank * case.part if case.kind.exchanges else 0
    parts = [target[other * case.part : (other + 1) * case.part] for other in ranks]
    return sum(_differences(parts[other], _contribution(case, other), offset) for other in ranks)


def _contribution(case: Case, rank: int) -> Array:
    """One period of what this rank contributes."""
    numbers = np.random.default_rng(rank).integers(0, _LARGEST + 1, _PERIOD)
    if case.op == "product" and case.kind.reduces:
        # Powers of two, and few enough of them that the narrowest type can hold the product.
        numbers = 1 + numbers % 2 if rank < 6 else np.ones_like(numbers)
    return _carried(case, numbers)


def _carried(case: Case, numbers: Array) -> Array:
    dtype = case.element
    return narrow(numbers.astype(dtype.accumulates_in), dtype).astype(dtype.carrier, copy=False)


def _lay(array: Array, period: Array) -> None:
    whole = len(array) // _PERIOD * _PERIOD
    array[:whole].reshape(-1, _PERIOD)[...] = period
    array[whole:] = period[: len(array) - whole]


def _differences(array: Array, period: Array, offset: int = 0) -> int:
    expected = np.roll(period, -(offset % _PERIOD))
    whole = len(array) // _PERIOD * _PERIOD
    # != is true for NaN, which is never expected.
    wrong = np.count_nonzero(array[:whole].reshape(-1, _PERIOD) != expected)
    return int(wrong + np.count_nonzero(array[whole:] != expected[: len(array) - whole]))
