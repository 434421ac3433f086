"""Reductions: what each operation means, on NumPy arrays. The native engine gives the same bits.

A fold goes strictly from left to right, in the type that its data accumulates in, and rounds once at the end:

- Integers wrap around. For booleans, sum, max and bor are "or"; product, min and band are "and".
- avg is the sum, divided by the number of ranks where the last contribution comes in; it exists for floating and
  complex types, since the mean of integers is not an integer.
- min and max give NaN if any operand is NaN, and order −0.0 below 0.0, so that the order of operands never matters.
- Which NaN comes out (sign and payload) is not defined, for any operation: it may differ between engines, between ranks
  and between elements. That it is a NaN is defined.
- float16 and bfloat16 are folded in float32 and rounded to nearest, ties to even, once per fold.
- A complex product is (ac − bd) + (ad + bc)i, each operation rounded; overflow gives infinities or NaN, never an error.
- A fold of a single operand is that operand, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from types import CodeType

import numpy as np

from .collectives import Collective
from .dtypes import Array, Dtype, Kind, describe, narrow, widen
from .errors import UsageError
from .wording import suggest

Function = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Op:
    """A reduction: a built-in one by its name, or the user's own `function` (made by `op`).

    >>> largest = af.op(np.maximum, commutative=True)
    >>> largest.name, largest.is_builtin
    ('maximum', False)
    """

    name: str
    commutative: bool
    function: Function | None = None

    def __post_init__(self) -> None:
        if self.function is None and self.name not in _COMBINE:
            raise UsageError(f"unknown operation {self.name!r}; {suggest(self.name, _COMBINE)}")

    @property
    def is_builtin(self) -> bool:
        return self.function is None

    @property
    def averages(self) -> bool:
        return self.is_builtin and self.name == "avg"

    @cached_property
    def digest(self) -> int:
        """A hash by which ranks compare operations: of the name and, for a function written in Python, of its code."""
        code = getattr(self.function, "__code__", None)
        facts = (self.name, self.commutative, None if code is None else _code_facts(code))
        return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "little")

    def fold(self, operands: Sequence[Array], dtype: Dtype, divisor: int = 1) -> Array:
        """The fold of `operands`, first to last, as a new array. `divisor` matters only to avg, when above 1."""
        check_supported(self, dtype)
        _check_operands(self, operands, dtype)
        divides = self.averages and divisor > 1
        if operands[0].size == 0 or (len(operands) == 1 and not divides):
            return operands[0].copy()
        # Flat, because arithmetic on 0-d arrays gives scalars, and those warn where arrays wrap around.
        flat = [_accumulator(operand.reshape(-1), dtype) for operand in operands]
        total = flat[0]
        if self.function is not None:
            for operand in flat[1:]:
                total = self._call(total, operand)
        else:
            combine = _COMBINE[self.name][dtype.kind]
            with np.errstate(all="ignore"):
                for operand in flat[1:]:
                    total = combine(total, operand)
                if divides:
                    total = _divide(total, divisor)
        # The user's function may have returned one of its arguments, so its result is copied.
        return narrow(total, dtype).reshape(operands[0].shape).astype(dtype.carrier, copy=not self.is_builtin)

    def _call(self, left: Array, right: Array) -> Array:
        assert self.function is not None
        views = [argument.view() for argument in (left, right)]
        for view in views:
            view.setflags(write=False)
        result = self.function(*views)
        if not isinstance(result, np.ndarray) or result.shape != left.shape or result.dtype != left.dtype:
            came = describe(result.dtype, result.shape) if isinstance(result, np.ndarray) else repr(result)
            wanted = describe(left.dtype, left.shape)
            raise UsageError(f"{self.name}: the operation must return one {wanted} for two, but returned {came}")
        return result


def _code_facts(code: CodeType) -> tuple[object, ...]:
    """The facts of a code that are equal in every process: not its file and line, nor the values it closes over."""
    plain = (int, float, complex, str, bytes, tuple, type(None))
    constants = [_code_facts(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, [one for one in constants if isinstance(one, plain)]


def op(function: Function, *, commutative: bool, name: str | None = None) -> Op:
    """The user's own reduction, from an associative function of two NumPy arrays.

    The function gets one-dimensional pieces of the buffers, the one of the lower ranks first, and returns an array of
    the same shape and dtype without changing its arguments, which are read-only. It gets float16 and bfloat16 data as
    float32. An operation that is not commutative only runs on schedules that keep rank order.

    >>> def longer(left, right):
    ...     return np.where(np.abs(left) >= np.abs(right), left, right)
    >>> schedule = af.schedule("all_reduce", "tree", ranks=3)
    >>> af.replay(schedule, [np.array([2]), np.array([-5]), np.array([4])], op=af.op(longer, commutative=False))[0]
    array([-5])
    """
    if not callable(function):
        raise UsageError(f"an operation is made from a function of two arrays, not from {function!r}")
    if not isinstance(commutative, (bool, np.bool_)):
        raise UsageError(f"commutative must be True or False, not {commutative!r}")
    return Op(name or str(getattr(function, "__name__", type(function).__name__)), bool(commutative), function)


def find_op(wanted: str | Op | Function) -> Op:
    """A built-in operation by its name, in upper or lower case; an `Op` as it is; a function as an `Op`.

    A bare function does not say whether it is commutative, so it is assumed not to be, which is always safe. Python's
    and NumPy's own functions for the built-in operations are recognised as these.
    """
    if isinstance(wanted, Op):
        return wanted
    if isinstance(wanted, str):
        name = _ALIASES.get(wanted.lower(), wanted.lower())
        if name not in OPS:
            raise UsageError(f"unknown operation {wanted!r}; {suggest(wanted.lower(), [*OPS, *_ALIASES])}")
        return OPS[name]
    if callable(wanted):
        for function, name in _KNOWN_FUNCTIONS:
            if wanted is function:
                return OPS[name]
        return op(wanted, commutative=False)
    raise UsageError(f"an operation is a name or a function of two arrays, not {wanted!r}; known: {', '.join(OPS)}")


NO_AVERAGE = (
    "avg divides by the number of ranks, and a prefix has fewer contributions; take the sum and divide it yourself"
)


def check_supported(op: Op, dtype: Dtype) -> None:
    """Raise `UsageError` unless the operation is defined for the type."""
    if op.function is None and dtype.kind not in _COMBINE[op.name]:
        raise UsageError(f"{op.name} is not defined for {dtype.name}: {WHY_NOT[op.name]}")


def check_average(promise: Collective, op: Op) -> None:
    """Raise `UsageError` for an average where not all ranks contribute: it divides by the number of all."""
    if op.averages and not promise.combines_all:
        raise UsageError(f"{promise.name}: {NO_AVERAGE}")


def _check_operands(op: Op, operands: Sequence[Array], dtype: Dtype) -> None:
    if not operands:
        raise UsageError(f"{op.name}: nothing to fold; expected at least one operand")
    for number, operand in enumerate(operands):
        if operand.dtype != dtype.carrier or operand.shape != operands[0].shape:
            raise UsageError(
                f"{op.name}: operand {number} is {describe(operand.dtype, operand.shape)}, expected "
                f"{describe(dtype.carrier, operands[0].shape)}{' for bfloat16' if dtype.name == 'bfloat16' else ''}"
            )


# The operations on one-dimensional arrays of the accumulation type ----------------------------------------------------


def _accumulator(array: Array, dtype: Dtype) -> Array:
    if dtype.kind == "bool":  # a byte that came from elsewhere may be true without being 1
        return np.not_equal(array.view(np.uint8), 0)
    return widen(array, dtype)


def _minimum(left: Array, right: Array) -> Array:
    # Equal numbers have equal bits, zeros excepted: of those, "or" keeps the negative one and "and" the positive one.
    return np.where(left == right, _bitwise(np.bitwise_or, left, right), np.minimum(left, right))


def _maximum(left: Array, right: Array) -> Array:
    return np.where(left == right, _bitwise(np.bitwise_and, left, right), np.maximum(left, right))


def _bitwise(combine: Function, left: Array, right: Array) -> Array:
    bits = np.dtype(f"u{left.dtype.itemsize}")
    return combine(left.view(bits), right.view(bits)).view(left.dtype)


def _complex_product(left: Array, right: Array) -> Array:
    # By parts, because NumPy's own complex product uses fused multiply-add on some processors, which changes the bits.
    result = np.empty_like(left)
    result.real = left.real * right.real - left.imag * right.imag
    result.imag = left.real * right.imag + left.imag * right.real
    return result


def _divide(total: Array, divisor: int) -> Array:
    real = total.real.dtype.type(divisor)
    if total.dtype.kind != "c":
        return np.asarray(total / real)
    result = np.empty_like(total)  # by parts: NumPy's complex division takes more operations, which round
    result.real, result.imag = total.real / real, total.imag / real
    return result


# An operation exists for the kinds in its row.
_COMBINE: dict[str, dict[Kind, Function]] = {
    "sum": {"bool": np.logical_or, "integer": np.add, "floating": np.add, "complex": np.add},
    "avg": {"floating": np.add, "complex": np.add},
    "product": {
        "bool": np.logical_and,
        "integer": np.multiply,
        "floating": np.multiply,
        "complex": _complex_product,
    },
    "min": {"bool": np.logical_and, "integer": np.minimum, "floating": _minimum},
    "max": {"bool": np.logical_or, "integer": np.maximum, "floating": _maximum},
    "band": {"bool": np.logical_and, "integer": np.bitwise_and},
    "bor": {"bool": np.logical_or, "integer": np.bitwise_or},
    "bxor": {"bool": np.logical_xor, "integer": np.bitwise_xor},
}

WHY_NOT = {
    "avg": "the mean of integers is not an integer; take the sum and divide it, or use a floating type",
    **dict.fromkeys(("min", "max"), "complex numbers have no order"),
    **dict.fromkeys(("band", "bor", "bxor"), "only integers and truth values have bits that mean something"),
}

OPS = {name: Op(name, commutative=True) for name in _COMBINE}

_ALIASES = {
    "add": "sum",
    "plus": "sum",
    "mean": "avg",
    "average": "avg",
    "prod": "product",
    "mul": "product",
    "multiply": "product",
    "minimum": "min",
    "maximum": "max",
}

_KNOWN_FUNCTIONS: tuple[tuple[object, str], ...] = (
    (sum, "sum"),
    (min, "min"),
    (max, "max"),
    (np.add, "sum"),
    (np.multiply, "product"),
    (np.minimum, "min"),
    (np.maximum, "max"),
    (np.bitwise_and, "band"),
    (np.bitwise_or, "bor"),
    (np.bitwise_xor, "bxor"),
)
