"""The native engine, ranks as threads of one process: bit for bit against the reference engine, in all ways to call it.

What needs processes of its own is in test_engine.py. Everything here also runs under ThreadSanitizer (`make sanitize`).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from engine_grid import (
    PATIENCE,
    Array,
    Case,
    algorithms,
    bits,
    by_size,
    by_type,
    digest,
    expected,
    expected_digests,
    fails,
    fetch_all,
    input_of,
    perform,
    turned_ring,
)

import allfold
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.engines.shared_memory import engine as shared_memory
from allfold.errors import CollectiveTimeout, MismatchError, RankLost, ScheduleError, UsageError
from allfold.launch.threads import run_threads
from allfold.schedules import Move

# Under a sanitizer a call takes ten times as long, and what matters is interleavings, not values.
EXHAUSTIVE = pytest.mark.exhaustive
REDUCED = os.environ.get("ALLFOLD_TEST_GRID") == "reduced"


def numbers(*usual: int, at_night: tuple[int, ...]) -> list[Any]:
    """Numbers of ranks: the usual ones in every run, the others in make test-all."""
    return [*usual, *(pytest.param(ranks, marks=EXHAUSTIVE) for ranks in at_night)]


# Every bit ------------------------------------------------------------------------------------------------------------


def assert_as_expected(cases: list[Case], ranks: int, results: list[list[Array | None]]) -> None:
    for number, case in enumerate(cases):
        for rank, wanted in enumerate(expected_digests(case, ranks)):
            came = results[rank][number]
            if digest(came, case.dtype) != wanted:
                raise AssertionError(
                    f"rank {rank} of {ranks}: {case}: came {came}, expected {expected(case, ranks)[rank]}"
                )


def all_of(cases: list[Case], comm: Communicator) -> list[Array | None]:
    return [perform(comm, case) for case in cases]


@pytest.mark.parametrize("apart", [5] if REDUCED else [7, pytest.param(1, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [2, 3, 5] if REDUCED else numbers(*range(1, 8), at_night=(8, 13)))
def test_every_operation_on_every_type_by_every_algorithm(ranks: int, apart: int) -> None:
    # Every seventh case still has every type and operation, and 1 to 7 ranks take all sevenths between them.
    cases = by_type(ranks, 37)[ranks % apart :: apart]
    assert_as_expected(cases, ranks, run_threads(partial(all_of, cases), ranks))


def test_the_reference_engine_gives_what_it_promises_to_others() -> None:
    """Calls that meet in threads give the bits of the schedule that is replayed alone."""
    cases = by_type(3, 37)[::23]
    assert_as_expected(cases, 3, run_threads(partial(all_of, cases), 3, engine="reference"))


@pytest.mark.parametrize("every", [True] if REDUCED else [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else numbers(3, at_night=(2, 4)))
def test_every_algorithm_at_every_size(ranks: int, every: bool) -> None:
    cases = by_size(ranks, (1, 1000, 65537) if REDUCED else (0, 1, 3, 1000, 65537), every)
    assert_as_expected(cases, ranks, run_threads(partial(all_of, cases), ranks))


def test_buffers_that_take_several_turns_through_the_work_area() -> None:
    cases = by_size(3, (400_000,), every=REDUCED)
    assert_as_expected(cases, 3, run_threads(partial(all_of, cases), 3))


@pytest.mark.parametrize("every", [True] if REDUCED else [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else numbers(3, at_night=(2, 5)))
def test_some_ranks_with_shared_and_some_with_ordinary_memory(ranks: int, every: bool) -> None:
    cases = [case for case in by_size(ranks, (1, 1000, 65537), every) if not (every and case.shared)]

    def work(comm: Communicator) -> list[Array | None]:
        mixed = [replace(case, shared=(comm.rank + number) % 2 == 1) for number, case in enumerate(cases)]
        return [perform(comm, case) for case in mixed]

    assert_as_expected(cases, ranks, run_threads(work, ranks))


@pytest.mark.parametrize("every", [True] if REDUCED else [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("ranks", [2, 3] if REDUCED else numbers(2, at_night=(3, 5)))
def test_arrays_that_peers_may_read_but_not_write(ranks: int, every: bool) -> None:
    cases = [case for case in by_size(ranks, (0, 1, 1000, 65537), every) if not (every and case.shared)]

    def work(comm: Communicator) -> list[Array | None]:
        fetch_all(comm)
        some = [replace(case, shared=(comm.rank + number) % 5 == 1) for number, case in enumerate(cases)]
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
        comm.all_reduce(array)  # and the communicator still works
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


def test_a_generator_runs_once_per_communicator() -> None:
    def work(comm: Communicator) -> int:
        runs = 0

        def in_order(ranks: int) -> Iterator[list[Move]]:
            nonlocal runs
            runs += 1
            for rank in range(1, ranks):
                yield [allfold.reduce(0, rank, 0)]
            yield [allfold.copy(0, 0, rank) for rank in range(1, ranks)]

        comm.all_reduce(np.ones(3, np.int64), algorithm=in_order)
        first = runs
        for op in ("sum", COMPOSE, "max", COMPOSE):
            comm.all_reduce(np.ones(3, np.int64), op=op, algorithm=in_order)
        return runs - first

    assert run_threads(work, 2) == [0, 0]


def test_functions_made_for_one_call_each_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_MOST_FUNCTIONS", 3, raising=False)

    def work(comm: Communicator) -> tuple[set[str], int]:
        def called(algorithm: Any) -> None:
            array = np.full(10, comm.rank + 1.0)
            comm.all_reduce(array, algorithm=algorithm)
            assert (array == 3).all()

        with comm.trace() as trace:
            for number in range(6):
                called(lambda ranks: turned_ring(ranks))
                called(turned_ring)  # used between them, and so remembered
                if number == comm.rank:
                    gc.collect()  # not at the same time on all ranks
            for _ in range(5):
                called(lambda ranks: turned_ring(ranks))
            called(turned_ring)  # forgotten, and now another one of the same name
        return {event.algorithm for event in trace.events}, len(comm.engine._functions)  # type: ignore[attr-defined]

    lambdas = {"<lambda>()", *(f"<lambda>()#{number}" for number in range(2, 12))}
    assert run_threads(work, 2) == [(lambdas | {"turned_ring()", "turned_ring()#2"}, 3)] * 2


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

        error = fails(call)
        if comm.rank == 1:
            again = str(fails(comm.barrier))
            assert again.startswith(
                "barrier: this communicator is broken by an earlier error: all_reduce: aborted on this rank"
            )
        return error

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
            handle.wait()  # a second wait changes nothing
            assert (array == comm.size * number + 3).all()

    run_threads(work, 3)


@pytest.mark.parametrize("collective", ["broadcast", "scatter", "gather", "reduce"])
def test_ranks_that_need_no_answer_run_seven_small_calls_ahead(collective: str) -> None:
    ranks, ahead = 3, 7
    met = threading.Barrier(ranks)

    def work(comm: Communicator) -> list[Array]:
        is_root = comm.rank == 0
        goes_first = is_root == (collective in ("broadcast", "scatter"))
        came = []
        for call in range(3 * ahead):
            if call == (ahead if goes_first else 0):
                met.wait(PATIENCE)
            own = np.arange(6) * 100 + comm.rank * 10 + call
            result = {"gather": np.zeros(6 * ranks, int), "scatter": np.zeros(2, int)}.get(collective, own)
            if collective == "gather":
                comm.gather(own, result if is_root else None)
            elif collective == "scatter":
                comm.scatter(array=own if is_root else None, output=result)
            else:
                getattr(comm, collective)(own)
            came.append(result)
        return came

    results = run_threads(work, ranks, timeout=PATIENCE)
    for call in range(3 * ahead):
        own = [np.arange(6) * 100 + rank * 10 + call for rank in range(ranks)]
        wanted = {
            "broadcast": [own[0]] * ranks,
            "scatter": np.split(own[0], ranks),
            "gather": [np.concatenate(own)],
            "reduce": [sum(own)],
        }[collective]
        for rank, right in enumerate(wanted):
            np.testing.assert_array_equal(results[rank][call], right)


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
    """Which of two equal calls comes first does not matter; what matters is that neither blocks the other."""

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
        assert "rank 0 called it with [0, 1, 2]" in str(error) and "rank 2 with [0, 2]" in str(error)


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 3], [-1]])
def test_groups_that_cannot_be(ranks: list[int]) -> None:
    def work(comm: Communicator) -> str:
        return str(fails(comm.group, ranks))

    for error in run_threads(work, 2):
        assert "different ranks from 0 to 1" in error and str(ranks) in error


def test_every_collective_is_in_the_grid() -> None:
    assert {case.collective for case in by_size(2)} == set(COLLECTIVES)
