"""The reference engine: every registered algorithm on real data, against plain NumPy and a separate interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import allfold
from allfold.collectives import COLLECTIVES
from allfold.division import chunk_bounds
from allfold.dtypes import DTYPES, Dtype, narrow, widen
from allfold.engines.reference.replay import Replay, replay
from allfold.errors import ScheduleError, UsageError
from allfold.ops import OPS, Op, op
from allfold.registry import Algorithm
from allfold.schedules import Move, Schedule, copy, reduce

Array = NDArray[Any]

RANKS = (*range(1, 10), 13)
SIZES = (0, 1, 3, 64, 101)
EVERYTHING = [(collective, name) for collective in COLLECTIVES for name in allfold.algorithms(collective)]
REDUCING = [pair for pair in EVERYTHING if COLLECTIVES[pair[0]].reduces and COLLECTIVES[pair[0]].carries_data]
with_data = pytest.mark.parametrize(("collective", "name"), [pair for pair in EVERYTHING if pair[0] != "barrier"])
every_one = each(("collective", "name"), [pair for pair in EVERYTHING if pair[0] != "barrier"])
reducing = each(("collective", "name"), REDUCING)
modest = settings(max_examples=settings().max_examples // 5)  # of each of many algorithms


@cache
def schedule_of(collective: str, name: str, ranks: int, root: int | None = None) -> Schedule:
    return allfold.schedule(collective, name, ranks, root=root)


def roots(collective: str, ranks: int) -> list[int | None]:
    return [*range(ranks)] if COLLECTIVES[collective].rooted else [None]


def length_of(collective: str, ranks: int, size: int) -> int:
    """The length of an input: a whole array must divide into slices."""
    return size * ranks if collective in ("scatter", "reduce_scatter", "all_to_all") else size


def expectation(
    collective: str, inputs: list[Array], root: int | None, fold: Callable[[list[Array]], Array]
) -> list[Array | None]:
    """What every rank must get, in plain NumPy; `fold` gives the reduction of some inputs, in order."""
    ranks = len(inputs)
    everybody = range(ranks)

    def at_root(array: Array | None) -> list[Array | None]:
        return [array if rank == root else None for rank in everybody]

    def slices(array: Array) -> list[Array]:
        return np.split(array, ranks)

    if collective == "all_to_all":
        return [np.concatenate([slices(array)[rank] for array in inputs]) for rank in everybody]
    if collective == "all_gather":
        return [np.concatenate(inputs)] * ranks
    if collective == "gather":
        return at_root(np.concatenate(inputs))
    if collective in ("broadcast", "scatter"):
        assert root is not None
        return [*slices(inputs[root])] if collective == "scatter" else [inputs[root]] * ranks
    if collective in ("scan", "exscan"):
        many = [rank + 1 if collective == "scan" else max(rank, 1) for rank in everybody]
        return [fold(inputs[:end]) for end in many]
    total = fold(inputs)
    if collective == "reduce":
        return at_root(total)
    return [*slices(total)] if collective == "reduce_scatter" else [total] * ranks


def assert_equal(came: list[Array | None], expected: list[Array | None]) -> None:
    assert len(came) == len(expected)
    for rank, (one, other) in enumerate(zip(came, expected, strict=True)):
        if one is None or other is None:
            assert one is None and other is None, f"rank {rank}"
        else:
            assert one.dtype == other.dtype and one.shape == other.shape, f"rank {rank}"
            assert one.tobytes() == other.tobytes(), f"rank {rank}: {one} is not {other}"


# Every algorithm, every root ---------------


@every_one
@pytest.mark.parametrize(
    ("ranks", "every"),
    [
        *((ranks, False) for ranks in RANKS if ranks not in (6, 7, 9)),
        *(pytest.param(ranks, True, marks=pytest.mark.exhaustive) for ranks in RANKS),
    ],
)
def test_every_algorithm_does_what_its_collective_promises(collective: str, name: str, ranks: int, every: bool) -> None:
    """From every root at one size, and at the others from the last; from every root at every size at night."""
    generator = np.random.default_rng(ranks)
    sizes = SIZES if ranks <= 5 else (0, 3, 101)
    for size in sizes:
        length = length_of(collective, ranks, size)
        inputs = [generator.integers(-(2**63), 2**63 - 1, length) for _ in range(ranks)]
        before = [array.copy() for array in inputs]
        for root in roots(collective, ranks) if size == 3 or every else roots(collective, ranks)[-1:]:
            came = replay(schedule_of(collective, name, ranks, root), inputs)
            assert_equal(came, expectation(collective, inputs, root, lambda some: np.sum(some, axis=0)))
        assert_equal(list(inputs), list(before))


@each("name", allfold.algorithms("barrier"))
@each("ranks", RANKS)
def test_barriers(name: str, ranks: int) -> None:
    schedule = schedule_of("barrier", name, ranks)
    for inputs in (None, (), [None] * ranks):
        assert replay(schedule, inputs, op="avg") == [None] * ranks
    replayed = Replay(schedule)
    replayed.outputs()
    for rank in range(ranks):
        cell = replayed.cell(rank, 0)
        assert cell is not None and cell.size == 0 and replayed.contributors(rank, 0) == list(range(ranks))
    with pytest.raises(UsageError, match="barrier takes no data, but got 1 inputs"):
        replay(schedule, [np.ones(3)])


def numbers(data: st.DataObject, dtype: Dtype, ranks: int, length: int) -> list[Array]:
    """Inputs on which every order of every operation is exact: small whole numbers, for products ones and twos."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return [generator.integers(0, 2, length).astype(bool) for _ in range(ranks)]
    if dtype.kind == "integer":
        return [np.frombuffer(generator.bytes(length * dtype.itemsize), dtype.carrier) for _ in range(ranks)]
    plain = [generator.choice([1, 2, -1], length).astype(dtype.accumulates_in) for _ in range(ranks)]
    if dtype.kind == "complex":  # products of these stay real or imaginary, where both parts are exact
        plain = [array * generator.choice([1, 1j], length).astype(dtype.carrier) for array in plain]
    return [narrow(array, dtype) for array in plain]


def exact_total(operation: Op, dtype: Dtype, inputs: list[Array]) -> Array:
    """The reduction in one go: exact in any order on the numbers above, except for the mean, which rounds once."""
    ufuncs: dict[str, np.ufunc] = {
        "sum": np.add,
        "avg": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    if dtype.kind == "bool":
        ufuncs |= {"sum": np.logical_or, "product": np.logical_and}
    wide = np.stack([widen(array, dtype) for array in inputs])
    total = ufuncs[operation.name].reduce(wide, axis=0, dtype=wide.dtype)
    if operation.name == "avg":  # part by part, where there are two
        parts = total.view(np.float32 if total.dtype in (np.float32, np.complex64) else np.float64)
        total = (parts / parts.dtype.type(len(inputs))).view(total.dtype)
    return narrow(total, dtype)


@with_data
@modest
@given(data=st.data())
def test_random_sizes_types_and_operations(collective: str, name: str, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from(RANKS))
    root = data.draw(st.integers(0, ranks - 1)) if COLLECTIVES[collective].rooted else None
    dtype = data.draw(st.sampled_from(list(DTYPES.values())))
    operation = data.draw(st.sampled_from(list(OPS.values())))
    length = length_of(collective, ranks, data.draw(st.integers(0, 40)))
    inputs = numbers(data, dtype, ranks, length)
    schedule = schedule_of(collective, name, ranks, root)
    unsupported = {
        "avg": dtype.kind in ("bool", "integer"),
        **dict.fromkeys(("min", "max"), dtype.kind == "complex"),
        **dict.fromkeys(("band", "bor", "bxor"), dtype.kind in ("floating", "complex")),
    }.get(operation.name, False)
    if unsupported and COLLECTIVES[collective].reduces:
        with pytest.raises(UsageError, match=f"{operation.name} is not defined for {dtype}"):
            replay(schedule, inputs, operation, dtype)
        return
    if operation.name == "avg" and COLLECTIVES[collective].has_order:
        with pytest.raises(
            UsageError, match=f"{collective}: avg divides by the number of ranks, and a prefix has fewer"
        ):
            replay(schedule, inputs, operation, dtype)
        return
    came = replay(schedule, inputs, operation, dtype)
    wanted = expectation(collective, inputs, root, lambda some: exact_total(operation, dtype, some))
    if dtype.kind == "complex":  # the zero part of a product may have either sign, depending on the order
        came, wanted = ([None if one is None else one + 0 for one in some] for some in (came, wanted))
    assert_equal(came, wanted)


# The order of every reduction ---------------


def interpret(schedule: Schedule, inputs: list[Array], dtype: Dtype, average: bool) -> dict[tuple[int, int], Array]:
    """An all_reduce, reduce or reduce_scatter of sums, read move by move: what every chunk of every rank holds."""
    bounds = chunk_bounds(inputs[0].size, schedule.chunks)
    cells = {
        (rank, chunk): (array[bounds[chunk] : bounds[chunk + 1]], {rank})
        for rank, array in enumerate(inputs)
        for chunk in range(schedule.chunks)
    }
    for step in schedule:
        after = dict(cells)
        arriving: dict[tuple[int, int], list[tuple[Array, set[int]]]] = {}
        for move in step:
            source, target = (move.source, move.chunk), (move.destination, move.into)
            if move.reduces:
                arriving.setdefault(target, [cells[target]]).append(cells[source])
            else:
                after[target] = cells[source]
        for target, operands in arriving.items():
            operands.sort(key=lambda operand: min(operand[1]))
            total = widen(operands[0][0], dtype)
            for operand, _ in operands[1:]:
                total = total + widen(operand, dtype)
            who = set().union(*(members for _, members in operands))
            if average and len(who) == schedule.ranks:
                total = total / total.dtype.type(schedule.ranks)
            after[target] = (narrow(total, dtype), who)
        cells = after
    return {cell: array for cell, (array, _) in cells.items()}


@reducing
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_order_of_every_reduction_is_that_of_the_schedule(collective: str, name: str, dtype: str) -> None:
    # Numbers of very different magnitudes: any other order or rounding shows.
    kind = DTYPES[dtype]
    for ranks in (1, 2, 3, 5, 8, 9):
        generator = np.random.default_rng(ranks)
        plain = [generator.normal(size=ranks * 5) * 10.0 ** generator.integers(-3, 4, ranks * 5) for _ in range(ranks)]
        inputs = [narrow(array.astype(kind.accumulates_in), kind) for array in plain]
        for root in roots(collective, ranks):
            schedule = schedule_of(collective, name, ranks, root)
            for operation in ("sum",) if COLLECTIVES[collective].has_order else ("sum", "avg"):
                replayed = Replay(schedule, inputs, operation, kind)
                replayed.outputs()
                for (rank, chunk), expected in interpret(schedule, inputs, kind, operation == "avg").items():
                    cell = replayed.cell(rank, chunk)
                    assert cell is not None and cell.tobytes() == expected.tobytes(), (schedule.title, rank, chunk)


def last_nonzero(left: Array, right: Array) -> Array:
    """Associative, not commutative: the last of the numbers that are not zero."""
    return np.where(right != 0, right, left)


def keeps_rank_order(schedule: Schedule) -> bool:
    """By hand: strings of ranks, joined as the schedule says, come out in order wherever a result is wanted."""
    promise = schedule.promise
    cells = {(rank, chunk): [rank] for rank in range(schedule.ranks) for chunk in range(schedule.chunks)}
    for step in schedule:
        after = dict(cells)
        arriving: dict[tuple[int, int], list[list[int]]] = {}
        for move in step:
            source, target = (move.source, move.chunk), (move.destination, move.into)
            if move.reduces:
                arriving.setdefault(target, [cells[target]]).append(cells[source])
            else:
                after[target] = cells[source]
        for target, words in arriving.items():
            after[target] = [rank for word in sorted(words, key=min) for rank in word]
        cells = after
    wanted = np.argwhere(promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) >= 0).tolist()
    return all(cells[rank, chunk] == sorted(cells[rank, chunk]) for rank, chunk in wanted)


@reducing
def test_an_operation_that_is_not_commutative_runs_in_rank_order_or_not_at_all(collective: str, name: str) -> None:
    mine = op(last_nonzero, commutative=False)
    for ranks in RANKS:
        generator = np.random.default_rng(ranks)
        inputs = [generator.integers(0, 2, ranks * 7) * (rank + 1) for rank in range(ranks)]
        for root in roots(collective, ranks):
            schedule = schedule_of(collective, name, ranks, root)
            if keeps_rank_order(schedule):
                came = replay(schedule, inputs, mine)
                assert_equal(came, expectation(collective, inputs, root, partial(functools.reduce, last_nonzero)))
            else:
                with pytest.raises(
                    UsageError, match=r"last_nonzero is not commutative, and .* does not keep rank order"
                ):
                    replay(schedule, inputs, mine)
                replay(schedule, inputs, op(last_nonzero, commutative=True))  # because the user says so


def test_products_of_matrices_are_taken_in_rank_order() -> None:
    def multiply(left: Array, right: Array) -> Array:
        return (left.reshape(-1, 2, 2) @ right.reshape(-1, 2, 2)).reshape(-1)

    ranks = 6
    inputs = [np.random.default_rng(rank).integers(-3, 4, (2, 2)) for rank in range(ranks)]
    # Here one chunk holds a whole matrix, so that the function never sees a part of one.
    chosen = [name for name in allfold.algorithms("all_reduce") if schedule_of("all_reduce", name, ranks).chunks == 1]
    ordered = [name for name in chosen if keeps_rank_order(schedule_of("all_reduce", name, ranks))]
    assert ordered
    for name in ordered:
        came = replay(schedule_of("all_reduce", name, ranks), inputs, op(multiply, commutative=False))
        assert_equal(came, [np.linalg.multi_dot(inputs)] * ranks)


def test_non_commutative_operations_are_no_matter_where_nothing_is_reduced() -> None:
    inputs = [np.arange(3) + rank for rank in range(4)]
    came = replay(schedule_of("all_gather", "ring", 4), inputs, op(last_nonzero, commutative=False))
    assert_equal(came, [np.concatenate(inputs)] * 4)


# Averages, shapes, types ---------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_the_average_of_one_rank_is_the_identity(dtype: str) -> None:
    kind = DTYPES[dtype]
    array = np.frombuffer(np.random.default_rng(1).bytes(50 * kind.itemsize), kind.carrier)
    for name in allfold.algorithms("all_reduce"):
        assert_equal(replay(schedule_of("all_reduce", name, 1), [array], "avg", kind), [array])


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 4), (2, 3, 2)])
def test_buffers_of_any_shape(shape: tuple[int, ...]) -> None:
    inputs = [np.full(shape, rank + 1.0) for rank in range(4)]
    for name in allfold.algorithms("all_reduce"):
        assert_equal(replay(schedule_of("all_reduce", name, 4), inputs), [np.full(shape, 10.0)] * 4)
    for name in allfold.algorithms("broadcast"):
        assert_equal(replay(schedule_of("broadcast", name, 4, 2), inputs), [inputs[2]] * 4)
    whole = np.stack(inputs) if shape == () else np.concatenate(inputs)
    for name in allfold.algorithms("all_gather"):
        assert_equal(replay(schedule_of("all_gather", name, 4), inputs), [whole] * 4)


def test_slices_are_cut_along_the_first_axis() -> None:
    whole = np.arange(24).reshape(8, 3)
    scattered = replay(schedule_of("scatter", "tree", 4, 1), [None, whole, None, None])
    assert_equal(scattered, list(np.split(whole, 4)))
    assert_equal(replay(schedule_of("reduce_scatter", "ring", 4), [whole] * 4), list(np.split(4 * whole, 4)))
    for rank, came in enumerate(replay(schedule_of("all_to_all", "bruck", 4), [whole + 100 * r for r in range(4)])):
        expected = [np.split(whole, 4)[rank] + 100 * sender for sender in range(4)]
        assert came is not None and came.tolist() == np.concatenate(expected).tolist()


def test_strided_arrays_lists_and_numbers_come_in() -> None:
    schedule = schedule_of("all_reduce", "ring", 3)
    table = np.arange(24.0).reshape(6, 4)
    assert_equal(replay(schedule, [table.T[1::2, ::-1]] * 3), [3 * table.T[1::2, ::-1]] * 3)
    assert_equal(replay(schedule, [[1, 2], [3, 4], [5, 6]]), [np.array([9, 12])] * 3)
    assert_equal(replay(schedule, np.arange(6).reshape(3, 2)), [np.array([6, 9])] * 3)
    assert_equal(replay(schedule, [1.5, 2.5, 3.0], dtype="float32"), [np.array(7, np.float32)] * 3)
    halves = narrow(np.array([0.5, 3.0], np.float32), DTYPES["bfloat16"])
    tripled = narrow(np.array([1.5, 9.0], np.float32), DTYPES["bfloat16"])
    assert_equal(replay(schedule, [[0.5, 3.0]] * 3, dtype="bfloat16"), [tripled] * 3)
    assert_equal(replay(schedule, [halves] * 3, dtype="bfloat16"), [tripled] * 3)


def test_what_comes_out_belongs_to_the_caller() -> None:
    inputs = [np.ones(4), np.ones(4)]
    replayed = Replay(schedule_of("broadcast", "driver", 2, 0), inputs)
    inputs[0][:] = 7
    first = replayed.outputs()
    for array in first:
        assert array is not None and array.flags.writeable
        array += 1
    cell = replayed.cell(0, 0)
    assert cell is not None
    cell += 1
    assert_equal(replayed.outputs(), [np.ones(4)] * 2)


# Step by step ---------------


def test_a_ring_can_be_watched() -> None:
    schedule = schedule_of("all_reduce", "ring", 3)
    replayed = Replay(schedule, [np.array([1, 2, 3]) * 10**rank for rank in range(3)])

    def values() -> list[list[int]]:
        return [[int(cell[0]) for cell in replayed.row(rank) if cell is not None] for rank in range(3)]

    assert (replayed.step, replayed.done) == (0, False)
    assert values() == [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
    seen = []
    while not replayed.done:
        folds = replayed.advance()
        assert len(folds.target) == 3
        seen.append([replayed.contributors(rank, 0) for rank in range(3)])
    assert replayed.step == schedule.steps == 4 and len(seen) == 4
    assert max(len(who) for who in seen[0]) == 2 and seen[-1] == [[0, 1, 2]] * 3
    assert values() == [[111, 222, 333]] * 3
    with pytest.raises(UsageError, match=r"ring\(ranks=3\): all 4 steps have been taken"):
        replayed.advance()


def test_chunks_that_hold_nothing_are_none() -> None:
    replayed = Replay(schedule_of("gather", "driver", 3, 1), [[1, 2], [3, 4], [5, 6]])
    assert replayed.cell(0, 1) is None and replayed.contributors(0, 1) == []
    assert [None if cell is None else cell.tolist() for cell in replayed.row(0)] == [[1, 2], None, None]
    assert_equal(replayed.outputs(), [None, np.arange(1, 7), None])
    assert replayed.contributors(1, 2) == [2]
    for rank, chunk in ((3, 0), (0, 3), (-1, 0), (0, -1)):
        for look in (replayed.cell, replayed.contributors):
            with pytest.raises(UsageError, match=rf"no chunk {chunk} of rank {rank}: ranks are 0–2, chunks 0–2"):
                look(rank, chunk)


def test_a_chunk_keeps_its_length_wherever_it_lies() -> None:
    def parked(ranks: int, root: int) -> Iterator[list[Move]]:
        """On rank 1 the chunks lie shifted by one place, the last one in scratch, before they go where they belong."""
        yield [copy(chunk, source=0, destination=1, into=chunk + 1) for chunk in range(3)]
        yield [copy(chunk + 1, source=1, destination=1, into=chunk) for chunk in range(3)]

    schedule = allfold.schedule("broadcast", Algorithm("broadcast", "parked", parked, chunks=3), 2)
    replayed = Replay(schedule, [np.arange(11), None])
    lengths = [[None if cell is None else cell.size for cell in replayed.row(rank)] for rank in range(2)]
    assert lengths == [[3, 4, 4, None], [None] * 4]
    replayed.advance()
    assert [None if cell is None else cell.size for cell in replayed.row(1)] == [None, 3, 4, 4]
    assert_equal(replayed.outputs(), [np.arange(11)] * 2)


# What cannot be done ---------------


@pytest.mark.parametrize(
    ("collective", "inputs", "dtype", "message"),
    [
        ("all_reduce", [[1.0], [2.0]], None, r"all_reduce: ring\(ranks=3\) takes 3 inputs, one per rank, but got 2"),
        ("all_reduce", None, None, "all_reduce: missing the input of ranks 0, 1 and 2"),
        ("all_reduce", [[1.0], None, [2.0]], None, "all_reduce: missing the input of rank 1"),
        (
            "all_reduce",
            [np.ones(4, np.float32), np.ones(4, np.float32), np.ones(5, np.float32)],
            None,
            r"all_reduce: the inputs differ: float32\[4\] on ranks 0 and 1, float32\[5\] on rank 2; all must have the same",
        ),
        (
            "all_gather",
            [np.ones(4), np.ones(4, np.int32), np.ones((2, 2))],
            None,
            r"all_gather: the inputs differ: float64\[4\] on rank 0, int32\[4\] on rank 1, float64\[2, 2\] on rank 2",
        ),
        ("broadcast", [np.ones(4), np.ones(3), None], None, r"float64\[4\] on rank 0, float64\[3\] on rank 1"),
        ("broadcast", [None, np.ones(3), np.ones(3)], None, "broadcast: missing the input of rank 0"),
        (
            "scatter",
            [np.ones(4), None, None],
            None,
            r"scatter: the first axis of float64\[4\] cannot be divided into 3 slices",
        ),
        (
            "reduce_scatter",
            [np.ones(())] * 3,
            None,
            r"reduce_scatter: the first axis of float64\[\] cannot be divided into 3",
        ),
        (
            "all_to_all",
            [np.ones((2, 3))] * 3,
            None,
            r"all_to_all: the first axis of float64\[2, 3\] cannot be divided into 3",
        ),
        ("all_reduce", [np.ones(2)] * 3, "float32", r"rank 0's input is float64\[2\], expected float32$"),
        ("all_reduce", [np.ones(2)] * 3, "bfloat16", r"float64\[2\], expected uint16 that carries bfloat16"),
        ("all_reduce", [np.ones(2, ">f4")] * 3, None, "all_reduce: rank 0: >f4 has the byte order of another machine"),
        (
            "all_reduce",
            [np.ma.array([1.0], mask=[True])] * 3,
            None,
            "all_reduce: a masked array's mask would be ignored",
        ),
        ("all_reduce", [["a"]] * 3, None, "all_reduce: rank 0: dtype <U1 cannot be used"),
        ("all_reduce", [[[1], [1, 2]]] * 3, None, "all_reduce: rank 0's input cannot be converted to an array: "),
        ("all_reduce", [["a"]] * 3, "float32", "all_reduce: rank 0's input cannot be converted to a float32 array: "),
        ("all_reduce", [[1]] * 3, "flot32", "unknown dtype 'flot32'; did you mean 'float32'"),
    ],
)
def test_inputs_that_do_not_fit(collective: str, inputs: Any, dtype: object, message: str) -> None:
    name = "ring" if "ring" in allfold.algorithms(collective) else allfold.algorithms(collective)[0]
    with pytest.raises(UsageError, match=message):
        Replay(schedule_of(collective, name, 3, roots(collective, 3)[0]), inputs, dtype=dtype)


def test_operations_that_do_not_fit() -> None:
    schedule = schedule_of("all_reduce", "ring", 2)
    with pytest.raises(UsageError, match="avg is not defined for int64: the mean of integers is not an integer"):
        replay(schedule, [[1], [2]], "avg")
    with pytest.raises(UsageError, match="unknown operation 'summ'; did you mean 'sum'"):
        replay(schedule, [[1], [2]], "summ")


def test_a_schedule_that_does_not_keep_its_promise_gives_no_result() -> None:
    def forgetful(ranks: int) -> Iterator[list[Move]]:
        yield [reduce(0, source=1, destination=0)]

    def lazy(ranks: int) -> Iterator[list[Move]]:
        yield [copy(0, source=0, destination=1)]

    with pytest.raises(
        ScheduleError, match=r"rank 0 chunk 0 holds chunk 0 of ranks 0 and 1, expected chunk 0 of all 3"
    ):
        replay(allfold.schedule("all_reduce", forgetful, 3), [[1], [2], [3]])
    with pytest.raises(ScheduleError, match=r"rank 0 chunk 1 holds nothing, expected slice 1; allfold.verify says"):
        replay(allfold.schedule("all_gather", lazy, 3), [[1], [2], [3]])
    doubled = allfold.schedule("all_reduce", lambda ranks: [[reduce(0, 0, 1)], [reduce(0, 0, 1)]], 2)
    replayed = Replay(doubled, [[1], [2]])
    replayed.advance()
    with pytest.raises(ScheduleError, match="has rank 0 twice"):
        replayed.advance()
