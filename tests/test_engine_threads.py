"""The native engine, ranks as threads of one process: every bit against the reference engine, and every way to fail.

What needs processes of its own is in test_engine.py. Everything here also runs under ThreadSanitizer (`make sanitize`).
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from engine_grid import RANKS, Array, Case, algorithms, bits, by_size, by_type, expected, fetch_all, input_of, perform

import allfold
from allfold.collectives import COLLECTIVES
from allfold.errors import CollectiveTimeout, MismatchError, RankFailed, RankLost, ScheduleError, UsageError
from allfold.run.communicator import Communicator
from allfold.run.threads import run_threads
from allfold.schedule import Move

PATIENCE = 30.0  # seconds after which something that should happen at once is taken not to happen
# Under a sanitizer a call takes ten times as long, and the interleavings count, not the values.
REDUCED = os.environ.get("ALLFOLD_TEST_GRID") == "reduced"


def fails(function: Callable[..., Any], *arguments: Any, **named: Any) -> Exception:
    """What a call raises."""
    try:
        function(*arguments, **named)
    except Exception as error:
        return error
    raise AssertionError(f"{function} did not raise")


# Every bit ------------------------------------------------------------------------------------------------------------


def assert_as_expected(cases: list[Case], ranks: int, results: list[list[Array | None]]) -> None:
    for number, case in enumerate(cases):
        for rank, wanted in enumerate(expected(case, ranks)):
            came = results[rank][number]
            if bits(came, case.dtype) != bits(wanted, case.dtype):
                raise AssertionError(f"rank {rank} of {ranks}: {case}: came {came}, expected {wanted}")


def all_of(cases: list[Case], comm: Communicator) -> list[Array | None]:
    return [perform(comm, case) for case in cases]


@pytest.mark.parametrize("ranks", [2, 3, 5] if REDUCED else RANKS)
def test_every_operation_on_every_type_by_every_algorithm(ranks: int) -> None:
    # With many ranks every third, which still has every pair somewhere.
    cases = by_type(ranks, 37)[:: 5 if REDUCED else 3 if ranks > 5 else 1]
    assert_as_expected(cases, ranks, run_threads(partial(all_of, cases), ranks))


@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else [2, 3, 4])
def test_every_algorithm_at_every_size(ranks: int) -> None:
    cases = by_size(ranks, (1, 1000, 65537) if REDUCED else (0, 1, 3, 1000, 65537))
    assert_as_expected(cases, ranks, run_threads(partial(all_of, cases), ranks))


def test_buffers_that_take_several_turns_through_the_work_area() -> None:
    cases = [case for case in by_size(3, (400_000,)) if case.root in (None, 2)]
    assert_as_expected(cases, 3, run_threads(partial(all_of, cases), 3))


@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else [2, 3, 5])
def test_some_ranks_with_shared_and_some_with_ordinary_memory(ranks: int) -> None:
    cases = [case for case in by_size(ranks, (1, 1000, 65537)) if not case.shared]

    def work(comm: Communicator) -> list[Array | None]:
        mixed = [Case(**{**vars(case), "shared": (comm.rank + number) % 2 == 1}) for number, case in enumerate(cases)]
        return [perform(comm, case) for case in mixed]

    assert_as_expected(cases, ranks, run_threads(work, ranks))


@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else [2, 3, 5])
def test_arrays_that_peers_may_read_but_not_write(ranks: int) -> None:
    cases = [case for case in by_size(ranks, (0, 1, 1000, 65537)) if not case.shared]

    def work(comm: Communicator) -> list[Array | None]:
        fetch_all(comm)
        some = [Case(**{**vars(case), "shared": (comm.rank + number) % 5 == 1}) for number, case in enumerate(cases)]
        return [perform(comm, case) for case in some]

    assert_as_expected(cases, ranks, run_threads(work, ranks))


def test_the_same_bits_again_and_everywhere() -> None:
    case = Case("all_reduce", None, None, 1000, "float32", "sum")

    def work(comm: Communicator) -> set[bytes]:
        return {bits(perform(comm, case), case.dtype) for _ in range(20)}

    assert len(set.union(*run_threads(work, 4))) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_the_bits_of_the_default_do_not_change_with_the_size(shared: bool) -> None:
    longest = 100_000 if REDUCED else 3_000_000
    sizes = [size for size in (10, 100, 1000, 3000, 5000, 10_000, 100_000, 1_000_000, longest) if size <= longest]

    def work(comm: Communicator) -> list[Array]:
        data = np.random.default_rng(comm.rank).standard_normal(longest, np.float32)
        results = []
        for size in sizes:
            array = comm.empty(size) if shared else np.empty(size, np.float32)
            array[:] = data[:size]
            comm.all_reduce(array)
            results.append(array)
        return results

    for results in run_threads(work, 4):
        for size, result in zip(sizes, results, strict=True):
            assert result.tobytes() == results[-1][:size].tobytes(), size


# The user's own algorithms and operations -----------------------------------------------------------------------------


def turned_ring(ranks: int) -> Iterator[list[Move]]:
    """An all_reduce of the test's own: a ring, the other way round."""
    for step in range(ranks - 1):
        yield [allfold.reduce((r + step) % ranks, r, (r - 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [allfold.copy((r + step - 1) % ranks, r, (r - 1) % ranks) for r in range(ranks)]


def forgetful(ranks: int) -> Iterator[list[Move]]:
    yield [allfold.reduce(0, r, 0) for r in range(2, ranks)]
    yield [allfold.copy(0, 0, r) for r in range(1, ranks)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_users_own_generator_runs(shared: bool) -> None:
    case = Case("all_reduce", None, None, 1000, "float32", "sum")

    def work(comm: Communicator) -> Array:
        array = comm.empty(1000) if shared else np.empty(1000, np.float32)
        array[:] = np.random.default_rng(comm.rank).standard_normal(1000, np.float32)
        comm.all_reduce(array, algorithm=turned_ring)
        return array

    inputs = [np.random.default_rng(rank).standard_normal(1000, np.float32) for rank in range(4)]
    wanted = allfold.replay(allfold.schedule("all_reduce", turned_ring, 4), inputs)
    for rank, result in enumerate(run_threads(work, 4)):
        assert bits(result, case.dtype) == bits(wanted[rank], case.dtype)


def test_a_wrong_generator_is_refused_before_anything_is_moved() -> None:
    def work(comm: Communicator) -> tuple[Exception, float]:
        array = np.full(5, float(comm.rank))
        error = fails(comm.all_reduce, array, algorithm=forgetful)
        assert (array == comm.rank).all()
        comm.all_reduce(array)  # and the communicator is as good as before
        return error, float(array[0])

    for error, total in run_threads(work, 4):
        assert isinstance(error, ScheduleError) and "lacks" in str(error), error
        assert total == 6


# The permutations of three things: composing them is associative and not commutative, element by element.
_PERMUTATIONS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
_TABLE = np.array([[_PERMUTATIONS.index(tuple(a[i] for i in b)) for b in _PERMUTATIONS] for a in _PERMUTATIONS])


def composed(left: Array, right: Array) -> Array:
    result: Array = _TABLE[left, right]
    return result


COMPOSE = allfold.op(composed, commutative=False)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5] if REDUCED else [1, 2, 3, 4, 5, 8])
def test_an_operation_that_is_not_commutative_keeps_rank_order_or_is_refused(ranks: int) -> None:
    inputs = [np.random.default_rng(rank).integers(0, 6, 50) for rank in range(ranks)]
    wanted = reduce(composed, inputs)

    def work(comm: Communicator) -> list[str | None]:
        refused = []
        for algorithm in algorithms("all_reduce"):
            array = inputs[comm.rank].copy()
            try:
                comm.all_reduce(array, op=COMPOSE, algorithm=algorithm)
            except UsageError as error:
                assert "not commutative" in str(error) and str(algorithm) in str(error)
                refused.append(algorithm)
            else:
                assert (array == wanted).all(), algorithm
        return refused

    disordered = [
        name
        for name in allfold.algorithms("all_reduce")
        if allfold.verify(allfold.schedule("all_reduce", name, ranks), programs=False).rank_order is False
    ]
    assert run_threads(work, ranks) == [disordered] * ranks


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_a_users_own_operation_gives_the_reference_engines_bits(dtype: str) -> None:
    own = allfold.op(lambda left, right: left + right - left * right, commutative=True, name="either")
    case = Case("all_reduce", "ring", None, 101, dtype, "sum")
    inputs = [input_of(case, rank, 3) for rank in range(3)]

    def work(comm: Communicator) -> Array:
        array = inputs[comm.rank].copy()
        with np.errstate(all="ignore"):
            comm.all_reduce(array, op=own, algorithm="ring", dtype="bfloat16" if dtype == "bfloat16" else None)
        return array

    with np.errstate(all="ignore"):
        wanted = allfold.replay(allfold.schedule("all_reduce", "ring", 3), inputs, own, dtype)
    for came, one in zip(run_threads(work, 3), wanted, strict=True):
        assert bits(came, dtype) == bits(one, dtype)


@pytest.mark.parametrize("kind", [ZeroDivisionError, ValueError, TypeError, BufferError])
@pytest.mark.parametrize("in_background", [False, True])
def test_an_error_in_a_users_operation_reaches_its_caller_and_ends_the_others(
    kind: type[Exception], in_background: bool
) -> None:
    def work(comm: Communicator) -> Exception:
        def bad(left: Array, right: Array) -> Array:
            if comm.rank == 1:
                raise kind("not today")
            return left + right

        def call() -> None:
            operation = allfold.op(bad, commutative=True, name="bad")
            handle = comm.all_reduce(np.ones(10), op=operation, algorithm="ring", async_op=in_background)
            if handle is not None:
                handle.wait()
            comm.barrier()

        return fails(call)

    errors = run_threads(work, 3)
    assert type(errors[1]) is kind and "not today" in str(errors[1])
    for other in (0, 2):
        assert isinstance(errors[other], RankLost), errors[other]


def test_an_operation_that_gives_something_else_is_told_so() -> None:
    short = allfold.op(lambda left, right: left[:1], commutative=True, name="short")

    def work(comm: Communicator) -> str:
        return str(fails(comm.all_reduce, np.ones(10), op=short))

    errors = run_threads(work, 2)
    assert any("short" in error and "float64[10]" in error and "float64[1]" in error for error in errors), errors


# Calls in the background ----------------------------------------------------------------------------------------------


def test_several_calls_in_flight_and_other_work_in_between() -> None:
    def work(comm: Communicator) -> None:
        arrays = [np.full(1000 * (number + 1), float(comm.rank + number)) for number in range(8)]
        handles = [comm.all_reduce(array, async_op=True) for array in arrays]
        mine = float(np.arange(1000.0).sum())
        total = np.ones(3)
        comm.all_reduce(total)  # a blocking call takes its turn after those in the background
        assert all(handle is not None and handle.done() for handle in handles)
        assert (total == comm.size).all() and mine == 499500
        for number, (array, handle) in enumerate(zip(arrays, handles, strict=True)):
            assert handle is not None
            handle.wait()
            handle.wait()  # and once more, which changes nothing
            assert (array == comm.size * number + 3).all()

    run_threads(work, 3)


def test_waiting_for_a_while_and_then_again() -> None:
    waited = threading.Event()

    def work(comm: Communicator) -> None:
        array = np.ones(10)
        if comm.rank == 1:
            assert waited.wait(PATIENCE)
        handle = comm.all_reduce(array, async_op=True)
        assert handle is not None
        if comm.rank == 0:
            assert not handle.done()
            error = fails(handle.wait, timeout=0.05)
            assert isinstance(error, CollectiveTimeout) and "0.05 s" in str(error)
            assert isinstance(fails(handle.wait, timeout=0), CollectiveTimeout)
            waited.set()
        handle.wait(timeout=PATIENCE)
        assert handle.done() and (array == 2).all()

    run_threads(work, 2)


def test_a_background_call_on_what_is_not_contiguous() -> None:
    def work(comm: Communicator) -> None:
        array = np.ones((6, 6))
        handle = comm.all_reduce(array[:, ::2], async_op=True)
        assert handle is not None
        handle.wait()
        assert (array[:, ::2] == 2).all() and (array[:, 1::2] == 1).all()

    run_threads(work, 2)


def test_handles_and_arrays_may_be_dropped() -> None:
    def work(comm: Communicator) -> float:
        for _ in range(20):
            comm.all_reduce(np.ones(1000), async_op=True)
        gc.collect()
        array = np.ones(1)
        comm.all_reduce(array)
        return float(array[0])

    assert run_threads(work, 3) == [3.0] * 3


def test_a_communicator_may_be_dropped_while_calls_are_in_flight() -> None:
    def work(comm: Communicator) -> None:
        for _ in range(5):
            group = comm.group(range(comm.size))
            assert group is not None
            group.all_reduce(np.ones(100_000), async_op=True)
            del group

    run_threads(work, 3)


# Groups ---------------------------------------------------------------------------------------------------------------


def test_overlapping_groups_at_the_same_time_from_several_threads() -> None:
    lists = [[0, 1], [1, 2], [2, 0], [2, 1, 0]]

    def use(group: Communicator, ranks: list[int]) -> None:
        for turn in range(30):
            array = np.full(50 * (turn + 1), float(ranks[group.rank]))
            group.all_reduce(array)
            assert (array == sum(ranks)).all()
            table = np.empty(group.size)
            group.all_gather(np.array([float(ranks[group.rank])]), table)
            assert table.tolist() == ranks

    def work(comm: Communicator) -> None:
        groups = [comm.group(ranks) for ranks in lists]
        failures: list[BaseException] = []

        def guarded(group: Communicator, ranks: list[int]) -> None:
            try:
                use(group, ranks)
            except BaseException as error:
                failures.append(error)

        threads = []
        for group, ranks in zip(groups, lists, strict=True):
            assert (group is None) == (comm.rank not in ranks)
            if group is not None:
                assert group.rank == ranks.index(comm.rank) and group.size == len(ranks)
                threads.append(threading.Thread(target=guarded, args=(group, ranks)))
        for thread in threads:
            thread.start()
        for _ in range(20):
            comm.barrier()
        for thread in threads:
            thread.join()
        assert not failures, failures

    run_threads(work, 3)


def test_two_threads_of_a_rank_on_one_communicator_take_turns() -> None:
    """Which of two equal calls is whose cannot be told, so it does not matter; that neither keeps the other out does."""

    def work(comm: Communicator) -> None:
        totals: list[float] = []

        def use() -> None:
            for _ in range(50):
                array = np.ones(100)
                comm.all_reduce(array)
                totals.append(float(array[0]))

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert totals == [comm.size] * 100

    run_threads(work, 3, timeout=PATIENCE)


def test_ranks_may_name_different_groups_at_once_and_groups_have_groups() -> None:
    def work(comm: Communicator) -> float:
        half = comm.group([0, 1, 2] if comm.rank < 3 else [3, 4])
        assert half is not None
        array = np.full(10, float(comm.rank))
        half.all_reduce(array)
        inner = half.group([half.size - 1, 0])
        if inner is not None:
            inner.broadcast(array, root=1)
            assert inner.size == 2
        return float(array[0])

    assert run_threads(work, 5) == [3, 3, 3, 7, 7]


def test_groups_that_disagree() -> None:
    def work(comm: Communicator) -> Exception:
        return fails(comm.group, [0, 1, 2] if comm.rank != 2 else [0, 2])

    for error in run_threads(work, 3):
        assert isinstance(error, MismatchError)
        assert "rank 0 came with [0, 1, 2]" in str(error) and "rank 2 with [0, 2]" in str(error)


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 3], [-1]])
def test_groups_that_cannot_be(ranks: list[int]) -> None:
    def work(comm: Communicator) -> str:
        return str(fails(comm.group, ranks))

    for error in run_threads(work, 2):
        assert "different ranks from 0 to 1" in error and str(ranks) in error


# Mismatched calls -----------------------------------------------------------------------------------------------------

Call = Callable[[Communicator, Callable[..., Array]], object]


def calls(name: str, count: int = 1000, dtype: str = "float32", **rest: Any) -> Call:
    def call(comm: Communicator, array: Callable[..., Array]) -> object:
        if name == "barrier":
            return comm.barrier(**rest)
        if name == "all_gather":
            return comm.all_gather(array(count, dtype), array(count * comm.size, dtype), **rest)
        if name == "all_to_all":
            return comm.all_to_all(array(count * comm.size, dtype), array(count * comm.size, dtype), **rest)
        return getattr(comm, name)(array(count, dtype), **rest)

    return call


MISMATCHES: dict[str, tuple[Call, Call, list[str]]] = {
    "collective": (
        calls("all_reduce"),
        calls("broadcast"),
        ["mismatched calls", "all_reduce of float32[1000] sum", "rank 1 with broadcast of float32[1000] root 0"],
    ),
    "barrier": (calls("barrier"), calls("all_reduce"), ["barrier", "all_reduce of float32[1000] sum"]),
    "no barrier": (calls("all_gather"), calls("barrier"), ["all_gather of float32[3000]", "barrier"]),
    "dtype": (
        calls("all_reduce"),
        calls("all_reduce", dtype="float64"),
        ["float32[1000] sum", "rank 1 with float64[1000]"],
    ),
    "dtype of one size": (
        calls("all_reduce"),
        calls("all_reduce", dtype="int32"),
        ["float32[1000]", "rank 1 with int32[1000]"],
    ),
    "count": (calls("all_reduce"), calls("all_reduce", 1001), ["float32[1000] sum", "rank 1 with float32[1001] sum"]),
    "small and large": (
        calls("all_reduce", 10),
        calls("all_reduce", 100_000),
        ["float32[10]", "rank 1 with float32[100000]"],
    ),
    "large and small": (
        calls("all_reduce", 100_000),
        calls("all_reduce", 0),
        ["float32[100000]", "rank 1 with float32[0]"],
    ),
    "large slices": (
        calls("all_gather", 50_000),
        calls("all_gather", 1),
        ["float32[150000]", "rank 1 with float32[3]"],
    ),
    "op": (calls("all_reduce"), calls("all_reduce", op="max"), ["float32[1000] sum", "rank 1 with float32[1000] max"]),
    "root": (calls("broadcast"), calls("broadcast", root=1), ["root 0", "rank 1 with float32[1000] root 1"]),
    "root of a reduce": (calls("reduce", root=2), calls("reduce", root=1), ["sum root 2", "sum root 1"]),
    "algorithm": (
        calls("all_reduce", algorithm="ring"),
        calls("all_reduce", algorithm="tree"),
        ["sum by ring", "rank 1 with float32[1000] sum by tree"],
    ),
    "named or not": (
        calls("all_reduce"),
        calls("all_reduce", algorithm="ring"),
        ["rank 1 with float32[1000] sum by ring"],
    ),
    "algorithms in circles": (
        calls("all_to_all", algorithm="pairwise"),
        calls("all_to_all", algorithm="bruck"),
        ["by pairwise", "by bruck"],
    ),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatched_calls_raise_everywhere_and_say_who_came_with_what(name: str, shared: bool) -> None:
    usual, other, facts = MISMATCHES[name]

    def work(comm: Communicator) -> tuple[Exception, float]:
        def array(count: int, dtype: str) -> Array:
            return comm.empty(count, dtype) if shared else np.empty(count, dtype)

        def both() -> None:
            (other if comm.rank == 1 else usual)(comm, array)
            comm.barrier()  # whoever needed nobody learns of it here

        comm.barrier()
        began = time.monotonic()
        return fails(both), time.monotonic() - began

    for error, took in run_threads(work, 3, timeout=PATIENCE):
        assert isinstance(error, MismatchError), error
        for fact in [*facts, "ranks 0 and 2", "(call 2 of the world)"]:
            assert fact in str(error), f"{fact!r} is not in {str(error)!r}"
        assert took < 5


def test_after_a_mismatch_the_communicator_is_broken_and_says_so() -> None:
    def work(comm: Communicator) -> str:
        fails(comm.all_reduce, np.ones(comm.rank + 1))
        return str(fails(comm.barrier))

    for error in run_threads(work, 2):
        assert "broken by an earlier error" in error


# Those who do not come, and those who leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["barrier", "all_reduce", "shared all_reduce"])
def test_a_rank_that_does_not_come_is_named_in_time(call: str) -> None:
    over = threading.Barrier(3)

    def work(comm: Communicator) -> tuple[Exception, float] | None:
        error = None
        if comm.rank != 1:
            began = time.monotonic()
            if call == "barrier":
                error = fails(comm.barrier, timeout=0.4), time.monotonic() - began
            else:
                array = comm.empty(100_000) if call.startswith("shared") else np.ones(100_000, np.float32)
                error = fails(comm.all_reduce, array, timeout=0.4), time.monotonic() - began
        over.wait(PATIENCE)
        return error

    results = run_threads(work, 3)
    came = [result for rank, result in enumerate(results) if rank != 1 and result is not None]
    # The first to notice gives up, and the other may hear of that before its own time is up.
    assert any(isinstance(error, CollectiveTimeout) for error, _ in came)
    for error, took in came:
        assert 0.3 < took < 2
        assert isinstance(error, (CollectiveTimeout, RankLost)), error
        if isinstance(error, CollectiveTimeout):
            assert "rank 1 did not come within 0.4 s (call 1 of the world)" in str(error)


def test_a_rank_that_leaves_early_is_named() -> None:
    def work(comm: Communicator) -> Exception | None:
        comm.barrier()
        if comm.rank == 1:
            comm.close()
            assert "closed" in str(fails(comm.barrier))
            return None
        began = time.monotonic()
        error = fails(comm.barrier)
        assert time.monotonic() - began < 2
        return error

    for rank, error in enumerate(run_threads(work, 3)):
        if rank != 1:
            assert isinstance(error, RankLost), error
            assert "rank 1 has left: it closed its communicator after call 1" in str(error) or "gave up" in str(error)


def test_abort_ends_the_calls_of_all_ranks_here_and_elsewhere() -> None:
    aborted = threading.Event()

    def work(comm: Communicator) -> Exception | None:
        if comm.rank == 2:  # never comes, so nobody else could end what rank 0 waits for
            assert aborted.wait(PATIENCE)
            return None
        if comm.rank == 1:
            return fails(comm.barrier)
        in_flight = comm.all_reduce(np.ones(3), algorithm="ring", async_op=True)
        assert in_flight is not None
        comm.abort()
        error = fails(in_flight.wait)
        aborted.set()
        return error

    first, second, _ = run_threads(work, 3)
    assert isinstance(first, (RankLost, UsageError)), first
    assert isinstance(second, (RankLost, MismatchError)), second


def test_run_threads_names_the_rank_that_raised_and_ends_the_others() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            raise LookupError("nothing here")
        comm.barrier()

    began = time.monotonic()
    with pytest.raises(RankFailed, match="rank 2 raised LookupError: nothing here") as caught:
        run_threads(work, 4)
    assert caught.value.rank == 2 and isinstance(caught.value.__cause__, LookupError)
    assert time.monotonic() - began < 5
    with pytest.raises(UsageError, match="at least 1"):
        run_threads(work, 0)


# Arrays ---------------------------------------------------------------------------------------------------------------


def test_arrays_of_every_shape() -> None:
    def work(comm: Communicator) -> None:
        rank, size = comm.rank, comm.size
        whole = np.arange(60.0).reshape(3, 4, 5)
        for view in (whole[:, ::2], whole.T, np.asfortranarray(whole), whole[::-1], whole[1:2, :, 3], whole[:, :0]):
            before = view.copy()
            comm.all_reduce(view)
            assert (view == before * size).all()
            view[...] = before
        nothing_d = np.array(rank + 1.0)
        comm.all_reduce(nothing_d)
        assert nothing_d.shape == () and nothing_d == size * (size + 1) / 2
        # Strided input and strided output; rows of a table.
        table = np.zeros((size, 6))
        comm.all_gather(np.full((3, 4), float(rank))[:, ::2], table.reshape(size, 3, 2))
        assert (table == np.arange(size)[:, None]).all()
        wide = np.zeros((size, 12))
        comm.all_gather(np.full(6, float(rank)), wide[:, ::2])
        assert (wide[:, ::2] == np.arange(size)[:, None]).all() and not wide[:, 1::2].any()
        comm.broadcast(memoryview(bytearray(b"abc")))
        read_only = np.arange(4.0)
        read_only.flags.writeable = False
        output = np.zeros(4 * size)
        comm.all_gather(read_only, output)  # an input need not be writable
        assert (output.reshape(size, 4) == np.arange(4)).all()

    run_threads(work, 3)


def _read_only() -> Array:
    array = np.ones(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (_read_only, ["read-only"]),
        (lambda: _read_only()[::2], ["read-only"]),
        (lambda: b"bytes", ["read-only"]),
        (lambda: np.array([None, 1], object), ["element type", "O"]),
        (lambda: np.array(["a"]), ["element type"]),
        (lambda: np.ones(3, ">f4"), ["element type"]),
        (lambda: np.ones(3, np.longdouble), ["element type"]),
        (lambda: [1.0, 2.0], ["expected an array", "buffer protocol or DLPack"]),
        (lambda: 3.0, ["expected an array"]),
        (lambda: None, ["expected an array", "None"]),
    ],
)
def test_what_is_no_array_is_refused(make: Callable[[], Any], facts: list[str]) -> None:
    def work(comm: Communicator) -> str:
        error = fails(comm.all_reduce, make())
        assert isinstance(error, UsageError), error
        comm.barrier()  # nothing was begun
        return str(error)

    for error in run_threads(work, 2):
        assert error.startswith("all_reduce: ") and not error.startswith("all_reduce: all_reduce")
        for fact in facts:
            assert fact in error


def test_calls_that_make_no_sense() -> None:
    def work(comm: Communicator) -> None:
        ones = np.ones(4)
        for error, facts in (
            (fails(comm.all_reduce, ones, op="median"), ["median", "known"]),
            (fails(comm.all_reduce, np.ones(4, np.int32), op="avg"), ["avg is not defined for int32"]),
            (fails(comm.all_reduce, np.ones(4, np.complex64), op="max"), ["max is not defined for complex64"]),
            (fails(comm.all_reduce, ones, algorithm="circle"), ["circle", "known", "ring"]),
            (fails(comm.all_reduce, ones, algorithm=7), ["generator function", "7"]),
            (fails(comm.all_reduce, ones, dtype="float16"), ["float16", "8 bytes"]),
            (fails(comm.broadcast, ones, root=2), ["root", "0 to 1", "2"]),
            (fails(comm.all_gather, ones, np.ones(7)), ["one input of every rank", "4 and 7"]),
            (fails(comm.all_gather, ones, np.ones(8, np.float32)), ["float64", "float32"]),
            (fails(comm.reduce_scatter, np.ones(7), ones), ["one output for every rank", "7 and 4"]),
            (fails(comm.all_to_all, np.ones(3), np.ones(3)), ["a multiple of the ranks", "3 and 3"]),
            (fails(comm.gather, ones, None if comm.rank == 0 else ones), ["the root is 0"]),
            (fails(comm.scatter, ones, ones if comm.rank else None), ["the root is 0"]),
            (fails(comm.empty, -1), ["negative"]),
        ):
            assert isinstance(error, UsageError), error
            for fact in facts:
                assert fact in str(error), str(error)
        comm.barrier()

    run_threads(work, 2)


# Shared memory --------------------------------------------------------------------------------------------------------


def test_arrays_in_shared_memory_stay_there_as_slices_and_views_and_are_given_back() -> None:
    def work(comm: Communicator) -> None:
        arena = comm._members[comm.rank][0]
        before = arena.in_use
        array = comm.empty((10, 100), np.float64)
        held = arena.in_use
        assert held >= before + 8000
        here = comm._engine.in_shared_memory
        for view in (
            array,
            array[3:5],
            array[2],
            array[0, :10],
            array.view(np.int64),
            array.reshape(-1),
            array[0, 0:1],
        ):
            assert here(view)
        assert not here(array.copy()) and not here(np.ones(3))
        with comm.trace() as trace:
            part = array[3:5]
            part[...] = comm.rank
            comm.all_reduce(part, algorithm="ring")
        assert {event.memory for event in trace.events} == {"shared"}
        assert (part == 1).all()
        assert (
            comm.empty((), np.int8).shape == () and comm.empty(0).size == 0 and comm.empty((3, 0, 2)).shape == (3, 0, 2)
        )
        del array, view
        assert arena.in_use == held  # a part of it is still in use
        del part
        assert arena.in_use == before
        for dtype in ("bool", "bfloat16", "complex128", np.int16):
            assert comm.empty(5, dtype).shape == (5,)
        fresh = comm.empty(1000, np.uint8)
        assert not fresh.any()

    run_threads(work, 2)


def test_shared_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_ARENA_BYTES", str(2**23))

    def work(comm: Communicator) -> str:
        error = fails(comm.empty, 2**23, np.float64)
        assert isinstance(error, allfold.SharedMemoryError)
        return str(error)

    (error,) = run_threads(work, 1)
    assert str(2**26) in error and "ALLFOLD_ARENA_BYTES" in error


# Traces ---------------------------------------------------------------------------------------------------------------


def test_a_trace_holds_what_every_rank_did(tmp_path: Any) -> None:
    def work(comm: Communicator) -> Any:
        comm.barrier()
        with comm.trace() as trace:
            comm.all_reduce(np.ones(100_000), algorithm="ring")
            comm.broadcast(np.ones(10), root=1)
            comm.all_reduce(np.ones(10), algorithm=turned_ring)
        comm.all_reduce(np.ones(10))
        if comm.rank == 0:
            trace.save(tmp_path / "trace.json")
            trace.save(tmp_path / "chrome.json", chrome=True)
        return trace

    traces = run_threads(work, 3)
    for trace in traces:
        assert trace.events == traces[0].events
        assert {event.rank for event in trace.events} == {0, 1, 2}
        assert {event.call for event in trace.events} == {2, 3, 4}
        assert {event.algorithm for event in trace.events} >= {"ring", "turned_ring()"}
        assert all(event.waited >= 0 and event.worked >= 0 and event.start > 0 for event in trace.events)
        assert any(event.peers for event in trace.events) and any(event.bytes for event in trace.events)
        for rank in range(3):  # what one rank does, it does one thing after the other
            own = [event for event in trace.events if event.rank == rank]
            for one, following in itertools.pairwise(own):
                assert one.start + one.waited + one.worked <= following.start
    read = json.loads((tmp_path / "trace.json").read_text())
    assert read["format"] == "allfold-trace" and len(read["events"]) == len(traces[0].events)
    chrome = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    assert {row["ph"] for row in chrome} == {"M", "X"}
    for row in chrome:
        if row["ph"] == "X":
            assert row["ts"] >= 0 and row["dur"] >= 0 and row["tid"] in (0, 1, 2) and row["cat"] in ("wait", "work")


def test_every_collective_is_in_the_grid() -> None:
    assert {case.collective for case in by_size(2)} == set(COLLECTIVES)
