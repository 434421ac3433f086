"""What every operation does to every element type, compared with arithmetic on single numbers."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from collections.abc import Iterator
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from allfold.dtypes import DTYPES, Array, Dtype, describe, find_dtype, narrow, widen
from allfold.errors import UsageError
from allfold.ops import OPS, Op, check_supported, find_op, op

HALVES = [DTYPES["float16"], DTYPES["bfloat16"]]
SUPPORTED = {
    "sum": {"bool", "integer", "floating", "complex"},
    "product": {"bool", "integer", "floating", "complex"},
    "avg": {"floating", "complex"},
    "min": {"bool", "integer", "floating"},
    "max": {"bool", "integer", "floating"},
    "band": {"bool", "integer"},
    "bor": {"bool", "integer"},
    "bxor": {"bool", "integer"},
}
PAIRS = [
    pytest.param(OPS[name], dtype, id=f"{name}-{dtype}")
    for name, kinds in SUPPORTED.items()
    for dtype in DTYPES.values()
    if dtype.kind in kinds
]
NOT_PAIRS = [(OPS[name], dtype) for name in SUPPORTED for dtype in DTYPES.values() if dtype.kind not in SUPPORTED[name]]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def patterns(dtype: Dtype, generator: np.random.Generator, count: int) -> Array:
    """Arbitrary bits, including subnormal numbers, infinities and NaN, and some round numbers."""
    if dtype.kind == "bool":
        return generator.integers(0, 2, count).astype(bool)
    array = np.frombuffer(generator.bytes(count * dtype.itemsize), dtype.carrier).copy()
    if dtype.kind != "integer":
        with np.errstate(all="ignore"):
            plain = generator.integers(-4, 5, count).astype(dtype.accumulates_in) / dtype.accumulates_in.type(4)
        array[::2] = narrow(plain, dtype)[::2]
    return array


def same(left: Array, right: Array, dtype: Dtype) -> bool:
    """The same bits; all NaNs count as equal."""
    if left.dtype != dtype.carrier or right.dtype != dtype.carrier or left.shape != right.shape:
        return False
    if dtype.kind == "complex":
        part = DTYPES["float32" if dtype.name == "complex64" else "float64"]
        return all(same(getattr(left, half).copy(), getattr(right, half).copy(), part) for half in ("real", "imag"))
    equal = left.view(f"u{dtype.itemsize}") == right.view(f"u{dtype.itemsize}")
    if dtype.kind == "floating":
        equal |= np.isnan(widen(left, dtype)) & np.isnan(widen(right, dtype))
    return bool(equal.all())


# An independent fold: one element at a time, with Python's integers and NumPy's scalars ---------------


def fold_numbers(name: str, dtype: Dtype, numbers: list[Any], divisor: int) -> object:
    if dtype.kind == "bool":
        combine = {"sum": any, "max": any, "bor": any, "product": all, "min": all, "band": all}
        return combine[name](numbers) if name in combine else sum(map(bool, numbers)) % 2 == 1
    if dtype.kind == "integer":
        integers = [int(number) for number in numbers]
        folds: dict[str, Any] = {
            "sum": sum,
            "product": lambda them: reduce(operator.mul, them),
            "min": min,
            "max": max,
            "band": lambda them: reduce(operator.and_, them),
            "bor": lambda them: reduce(operator.or_, them),
            "bxor": lambda them: reduce(operator.xor, them),
        }
        total = folds[name](integers)
        limits = np.iinfo(dtype.carrier)
        return (total - int(limits.min)) % 2 ** (8 * dtype.itemsize) + int(limits.min)
    if dtype.kind == "complex":
        real = np.float32 if dtype.name == "complex64" else np.float64
        total = (real(numbers[0].real), real(numbers[0].imag))
        for number in numbers[1:]:
            (a, b), (c, d) = total, (real(number.real), real(number.imag))
            total = (a * c - b * d, a * d + b * c) if name == "product" else (a + c, b + d)
        if name == "avg":
            total = (total[0] / real(divisor), total[1] / real(divisor))
        result = np.empty((), dtype.carrier)
        result.real, result.imag = total
        return result[()]
    total = reduce(lambda a, b: number_operation(name, a, b), numbers)
    return total / type(total)(divisor) if name == "avg" else total


def number_operation(name: str, a: Any, b: Any) -> Any:
    if name in ("sum", "avg"):
        return a + b
    if name == "product":
        return a * b
    if np.isnan(a) or np.isnan(b):
        return type(a)(np.nan)
    ordered = sorted((a, b), key=lambda number: (number, not np.signbit(number)))
    return ordered[0 if name == "min" else 1]


@cache
def all_halves(dtype: Dtype) -> Array:
    """Every finite half number that is not negative, in order, as float64; number i has the bits i."""
    wide = widen(np.arange(2**15, dtype=np.uint16).view(dtype.carrier), dtype)
    return wide[np.isfinite(wide)].astype(np.float64)


def nearest_half(value: np.float32, dtype: Dtype) -> int:
    """The bits of the half number nearest to `value`, found by looking at its neighbours in the list of all of them."""
    sign = int(np.signbit(value)) << 15
    values = all_halves(dtype)
    size = abs(float(value))
    if size > values[-1]:  # infinity takes the place of the next number
        overshoot, place = size - values[-1], values[-1] - values[-2]
        return sign | len(values) - 1 + int(overshoot >= place / 2)
    above = int(np.searchsorted(values, size))
    if values[above] == size:
        return sign | above
    up, down = values[above] - size, size - values[above - 1]
    return sign | (above if up < down or (up == down and above % 2 == 0) else above - 1)


@each(("operation", "dtype"), PAIRS)
@each("divisor", [1, 5])
def test_a_fold_is_that_of_its_numbers(operation: Op, dtype: Dtype, divisor: int) -> None:
    generator = np.random.default_rng(7)
    for operands in (2, 3, 7):
        arrays = [patterns(dtype, generator, 60) for _ in range(operands)]
        untouched = [array.copy() for array in arrays]
        result = operation.fold(arrays, dtype, divisor)
        assert all(array.tobytes() == before.tobytes() for array, before in zip(arrays, untouched, strict=True))
        wide = [widen(array, dtype) for array in arrays]
        with np.errstate(all="ignore"):
            expected = [fold_numbers(operation.name, dtype, list(row), divisor) for row in zip(*wide, strict=True)]
            narrowed = narrow(np.array(expected, dtype.accumulates_in), dtype)
        assert same(result, narrowed, dtype)


@each(("operation", "dtype"), PAIRS)
def test_one_operand_is_copied_bit_by_bit_and_empty_ones_stay_empty(operation: Op, dtype: Dtype) -> None:
    array = patterns(dtype, np.random.default_rng(3), 40)
    result = operation.fold([array], dtype)
    assert result.tobytes() == array.tobytes() and not np.shares_memory(result, array)
    empty = operation.fold([array[:0]] * 3, dtype, 3)
    assert empty.shape == (0,) and empty.dtype == dtype.carrier


@each("shape", [(), (1,), (2, 3), (0, 4)])
@each("dtype", DTYPES.values())
def test_any_shape_and_silence_on_overflow(shape: tuple[int, ...], dtype: Dtype) -> None:
    array = np.full(shape, 100, dtype.carrier)
    result = OPS["product"].fold([array, array, array], dtype)
    assert isinstance(result, np.ndarray) and result.shape == shape and result.dtype == dtype.carrier


@pytest.mark.parametrize("dtype", [*HALVES, DTYPES["float32"], DTYPES["float64"]], ids=str)
def test_minimum_and_maximum_of_zeros_and_nan(dtype: Dtype) -> None:
    left, right = (
        narrow(np.array(values, dtype.accumulates_in), dtype)
        for values in ([-0.0, 0.0, -0.0, np.nan, 1.0, np.nan, -np.inf], [0.0, -0.0, -0.0, 1.0, np.nan, np.nan, np.inf])
    )
    for first, second in ((left, right), (right, left)):
        lowest, highest = (widen(OPS[name].fold([first, second], dtype), dtype) for name in ("min", "max"))
        assert np.signbit(lowest[:3]).all() and np.signbit(highest[:3]).tolist() == [False, False, True]
        assert np.isnan(lowest[3:6]).all() and np.isnan(highest[3:6]).all()
        assert (lowest[6], highest[6]) == (-np.inf, np.inf)


def test_truth_values_of_other_bytes_count_as_true() -> None:
    dtype = DTYPES["bool"]
    odd = np.array([0, 1, 2, 255], np.uint8).view(bool)
    true = np.ones(4, bool)
    assert OPS["bxor"].fold([odd, true], dtype).view(np.uint8).tolist() == [1, 0, 0, 0]
    assert OPS["sum"].fold([odd, ~true], dtype).view(np.uint8).tolist() == [0, 1, 1, 1]
    assert OPS["band"].fold([odd, true], dtype).view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_round_once_a_fold(dtype: Dtype) -> None:
    # 1 + ε/2 + ε/2: each addition alone would round back to 1.
    tiny = 2.0**-11 if dtype.name == "float16" else 2.0**-8
    operands = [narrow(np.array([value], np.float32), dtype) for value in (1.0, tiny, tiny)]
    assert widen(OPS["sum"].fold(operands, dtype), dtype)[0] == 1 + 2 * tiny
    twice = OPS["sum"].fold([OPS["sum"].fold(operands[:2], dtype), operands[2]], dtype)
    assert widen(twice, dtype)[0] == 1
    # Largest + largest, over two: the sum does not fit into a float16, the mean does.
    largest = np.array([65504.0], np.float16)
    assert OPS["avg"].fold([largest, largest], DTYPES["float16"], 2) == largest


@each(("operation", "dtype"), NOT_PAIRS)
def test_what_is_not_defined_is_refused(operation: Op, dtype: Dtype) -> None:
    message = f"{operation.name} is not defined for {dtype}: .* "
    for attempt in (check_supported, lambda *_: operation.fold([np.zeros(2, dtype.carrier)], dtype)):
        with pytest.raises(UsageError, match=message):
            attempt(operation, dtype)


def test_operands_must_be_alike() -> None:
    with pytest.raises(UsageError, match=r"sum: operand 1 is float32\[4\], expected float32\[3\]"):
        OPS["sum"].fold([np.zeros(3, np.float32), np.zeros(4, np.float32)], DTYPES["float32"])
    with pytest.raises(UsageError, match=r"sum: operand 0 is float32\[3\], expected uint16\[3\] for bfloat16"):
        OPS["sum"].fold([np.zeros(3, np.float32)], DTYPES["bfloat16"])
    with pytest.raises(UsageError, match="sum: nothing to fold"):
        OPS["sum"].fold([], DTYPES["float32"])


# Element types ---------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_number_survives_the_way_to_float32_and_back(dtype: Dtype) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(dtype.carrier)
    wide = widen(every, dtype)
    assert wide.dtype == np.float32
    back = narrow(wide, dtype)
    assert same(back, every, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rounding_is_to_nearest_and_ties_go_to_even(dtype: Dtype) -> None:
    generator = np.random.default_rng(11)
    values = all_halves(dtype)
    places = generator.integers(0, len(values) - 1, 150)
    midpoints = ((values[places] + values[places + 1]) / 2).astype(np.float32)
    last, before = values[-1], values[-2]
    edges = np.array([0.0, last, last + (last - before) / 2, last + (last - before) / 4], np.float32)
    some = np.frombuffer(generator.bytes(600), np.float32)
    with np.errstate(all="ignore"):
        near = np.concatenate([np.nextafter(midpoints, np.float32(to)) for to in (0, np.inf)])
        spread = generator.uniform(-5, 5, 100).astype(np.float32)
    numbers = np.concatenate([midpoints, near, edges, some[np.isfinite(some)], spread])
    numbers = np.concatenate([numbers, -numbers])
    bits = narrow(numbers, dtype).view(np.uint16).tolist()
    assert bits == [nearest_half(number, dtype) for number in numbers]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nan_stays_nan_whatever_its_bits(dtype: Dtype) -> None:
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F80FFFF], np.uint32)
    assert np.isnan(widen(narrow(bits.view(np.float32), dtype), dtype)).all()
    infinite = narrow(np.array([np.inf, -np.inf, 3.4e38, -3.4e38], np.float32), dtype)
    assert np.isinf(widen(infinite, dtype))[:2].all()
    assert narrow(np.array(np.nan, np.float32), dtype).shape == ()


def test_the_table_of_types() -> None:
    assert len(DTYPES) == 15
    for name, dtype in DTYPES.items():
        assert dtype.name == name == str(dtype) and dtype.itemsize == dtype.carrier.itemsize
        assert dtype.accumulates_in == (np.float32 if "float16" in name else dtype.carrier)
        assert find_dtype(name) is find_dtype(dtype) is find_dtype(f"torch.{name}") is dtype
        if name != "bfloat16":
            assert find_dtype(dtype.carrier) is find_dtype(dtype.carrier.type) is dtype
    assert (
        find_dtype(float).name == "float64" and find_dtype(bool).name == "bool" and find_dtype("<f4").name == "float32"
    )
    assert find_dtype(np.dtype("longlong")) is find_dtype(np.dtype("long")) is DTYPES["int64"]
    assert describe(DTYPES["bfloat16"], (2, 3)) == "bfloat16[2, 3]"


class TorchLike:
    """As a torch dtype prints, where torch may not be installed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


def test_types_of_torch_are_known_by_how_they_print() -> None:
    assert find_dtype(TorchLike("bfloat16")) is DTYPES["bfloat16"]
    with pytest.raises(UsageError, match=r"unknown dtype 'torch.qint8'; did you mean '\w+'\? known: bool, int8"):
        find_dtype(TorchLike("qint8"))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("flaot32", "unknown dtype 'flaot32'; did you mean 'float32'"),
        (">f4", r">f4 has the byte order of another machine; convert it: x.astype\('float32'\)"),
        (np.dtype(">i8"), "byte order of another machine"),
        (np.dtype([("a", "f4"), ("b", "i4")]), "structured dtype"),
        (np.dtype(("f4", 3)), "structured dtype"),
        (np.dtype("datetime64[s]"), r"dtype datetime64\[s\] cannot be used; known: bool"),
        (np.dtype("U5"), "cannot be used"),
        (object, r"a dtype is a name, a NumPy dtype or a torch dtype, not <class 'object'>"),
        (None, "a dtype is a name, a NumPy dtype or a torch dtype, not None"),
        (3, "a dtype is a name, a NumPy dtype or a torch dtype, not 3"),
    ],
)
def test_types_that_cannot_be_used(wanted: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_dtype(wanted)


# Names and the user's own operations ---------------


@pytest.mark.parametrize(
    ("wanted", "name"),
    [(name, name) for name in OPS]
    + [(name.upper(), name) for name in OPS]
    + [("mean", "avg"), ("prod", "product"), ("Mul", "product"), ("average", "avg")]
    + [(np.add, "sum"), (sum, "sum"), (np.maximum, "max"), (max, "max"), (np.bitwise_xor, "bxor")]
    + [(OPS["min"], "min")],
)
def test_operations_are_found(wanted: Any, name: str) -> None:
    assert find_op(wanted) is OPS[name] and OPS[name].commutative and OPS[name].is_builtin


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("summ", "unknown operation 'summ'; did you mean 'sum'"),
        ("PROUDCT", "unknown operation 'PROUDCT'; did you mean 'product'"),
        ("xyz", "unknown operation 'xyz'; known: sum, avg, product"),
        (7, "an operation is a name or a function of two arrays, not 7; known: sum"),
        (None, "not None"),
    ],
)
def test_operations_that_are_not_there(wanted: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_op(wanted)


def later_wins(left: Array, right: Array) -> Array:
    return np.where(right != 0, right, left)


def test_an_own_operation() -> None:
    mine = op(later_wins, commutative=False)
    assert (mine.name, mine.commutative, mine.is_builtin) == ("later_wins", False, False)
    assert op(later_wins, commutative=True, name="other").name == "other"
    arrays = [np.array(values, np.int64) for values in ([[1, 2]], [[0, 3]], [[0, 0]])]
    assert mine.fold(arrays, DTYPES["int64"]).tolist() == [[1, 3]]
    assert pickle.loads(pickle.dumps(mine)) == mine == find_op(mine) and copy.copy(OPS["sum"]) == OPS["sum"]


def test_a_bare_function_is_not_taken_to_be_commutative() -> None:
    assert find_op(later_wins) == op(later_wins, commutative=False)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_an_own_operation_gets_flat_read_only_arrays_in_the_accumulation_type(dtype: Dtype) -> None:
    def look(left: Array, right: Array) -> Array:
        for array in (left, right):
            assert array.dtype == dtype.accumulates_in and array.ndim == 1 and not array.flags.writeable
        return left

    arrays = [np.ones((2, 3), dtype.carrier), np.zeros((2, 3), dtype.carrier)]
    result = op(look, commutative=False).fold(arrays, dtype)
    assert result.tobytes() == arrays[0].tobytes() and result.shape == (2, 3)
    assert not np.shares_memory(result, arrays[0]) and result.flags.writeable


def test_an_own_operation_that_writes_into_its_arguments_fails() -> None:
    def add_in_place(left: Array, right: Array) -> Array:
        left += right
        return left

    with pytest.raises(ValueError, match="read-only"):
        op(add_in_place, commutative=True).fold([np.ones(3), np.ones(3)], DTYPES["float64"])


@pytest.mark.parametrize(
    ("function", "came"),
    [
        (lambda a, b: a / b, r"float64\[3\]"),
        (lambda a, b: (a + b)[:2], r"int64\[2\]"),
        (lambda a, b: (a + b)[None], r"int64\[1, 3\]"),
        (lambda a, b: 5, "5"),
        (lambda a, b: None, "None"),
    ],
)
def test_an_own_operation_that_gives_something_else_is_refused(function: Any, came: str) -> None:
    mine = op(function, commutative=True, name="mine")
    with pytest.raises(
        UsageError, match=rf"mine: the operation must return one int64\[3\] for two, but returned {came}$"
    ):
        mine.fold([np.ones(3, np.int64)] * 2, DTYPES["int64"])


def test_wrong_ways_to_make_an_operation() -> None:
    with pytest.raises(UsageError, match="made from a function of two arrays, not from 'sum'"):
        op("sum", commutative=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="commutative must be True or False, not 'yes'"):
        op(later_wins, commutative="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown operation 'summ'; did you mean 'sum'"):
        Op("summ", commutative=True)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_the_order_of_operands_never_shows_in_exact_operations(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["sum", "product", "min", "max", "band", "bor", "bxor"]))
    dtype = data.draw(st.sampled_from([one for one in DTYPES.values() if one.kind in ("bool", "integer")]))
    arrays = [patterns(dtype, np.random.default_rng(seed), 9) for seed in range(data.draw(st.integers(1, 6)))]
    shuffled = data.draw(st.permutations(arrays))
    assert OPS[name].fold(arrays, dtype).tobytes() == OPS[name].fold(shuffled, dtype).tobytes()
