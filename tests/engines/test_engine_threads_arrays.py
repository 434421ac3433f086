"""The native engine, ranks as threads of one process: what it takes as arrays, shared memory, and traces.

What needs processes of its own is in test_engine.py. Everything here also runs under ThreadSanitizer (`make sanitize`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_grid import Array, fails, turned_ring

import allfold
from allfold.communicator.communicator import Communicator
from allfold.errors import UsageError
from allfold.launch.threads import run_threads

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
        (lambda: np.array([None, 1], object), ["element type", "object"]),
        (lambda: np.array(["a"]), ["element type"]),
        (lambda: np.ones(3, ">f4"), ["element type"]),
        (lambda: np.ones(3, np.longdouble), ["element type"]),
        (lambda: [1.0, 2.0], ["expected an array", "buffer protocol or DLPack"]),
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
            (
                fails(comm.all_reduce, np.ones(4, np.int32), op="avg"),
                ["avg is not defined for int32: the mean of integers is not an integer"],
            ),
            (fails(comm.all_reduce, np.ones(4, np.complex64), op="max"), ["max is not defined for complex64"]),
            (fails(comm.all_reduce, ones, algorithm="circle"), ["circle", "known", "ring"]),
            (fails(comm.all_reduce, ones, algorithm=7), ["generator function", "7"]),
            (fails(comm.all_reduce, ones, dtype="float16"), ["float64", "not float16"]),
            (fails(comm.broadcast, ones, root=2), ["root", "0 to 1", "2"]),
            (fails(comm.broadcast, ones, root=0.0), ["broadcast: root", "whole number, not 0.0"]),
            (
                fails(comm.all_reduce, ones, timeout="5"),
                ["all_reduce: timeout must be a non-negative number of seconds", "'5'"],
            ),
            (
                fails(comm.all_reduce, ones, timeout=-1),
                ["all_reduce: timeout must be a non-negative number of seconds", "-1"],
            ),
            (
                fails(comm.all_reduce, ones, timeout=float("nan")),
                ["timeout must be a non-negative number of seconds", "nan"],
            ),
            (fails(comm.recv, ones, 0, timeout="5"), ["timeout must be a non-negative number of seconds", "'5'"]),
            (fails(comm.group, 0), ["group: expected different ranks from 0 to 1, not 0"]),
            (fails(comm.all_reduce, np.array(["a"])), ["all_reduce: unsupported element type", "known: bool"]),
            (fails(comm.all_gather, ones, np.ones(7)), ["one input of every rank", "4 and 7"]),
            (fails(comm.all_gather, ones, np.ones(8, np.float32)), ["float64", "float32"]),
            (fails(comm.reduce_scatter, np.ones(7), ones), ["one output for every rank", "7 and 4"]),
            (fails(comm.all_to_all, np.ones(3), np.ones(3)), ["a multiple of the ranks", "3 and 3"]),
            (fails(comm.gather, ones, np.ones(7) if comm.rank == 0 else ones), ["gather: "]),
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
        arena = comm.engine.members[comm.rank][0]
        before = arena.in_use
        array = comm.empty((10, 100), np.float64)
        held = arena.in_use
        assert held >= before + 8000
        here = comm.engine.native.in_shared_memory
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


def test_groups_that_one_rank_keeps_do_not_hold_up_the_release_of_others() -> None:
    def work(comm: Communicator) -> list[int]:
        arena = comm.engine.members[comm.rank][0]
        kept = [comm.group([0, 1]) for _ in range(10)]
        if comm.rank == 1:
            kept.clear()
        used = []
        for _ in range(12):
            comm.group([0, 1])
            used.append(arena.in_use)
        comm.barrier()  # rank 0 keeps its groups until rank 1 has come this far
        return used

    for used in run_threads(work, 2):
        assert len(set(used[1:])) == 1, used


def test_the_memory_of_a_shrunk_group_is_released() -> None:
    def work(comm: Communicator) -> list[int]:
        arena = comm.engine.members[comm.rank][0]
        used = []
        for _ in range(3):
            group = comm.group([1, 0])
            assert group is not None
            group.shrink()
            del group
            comm.group([0])
            used.append(arena.in_use)
        return used

    for used in run_threads(work, 2):
        assert len(set(used)) == 1, used


def test_groups_that_ranks_name_differently_leave_no_memory_behind() -> None:
    def work(comm: Communicator) -> None:
        arena = comm.engine.members[comm.rank][0]
        before = arena.in_use
        assert isinstance(fails(comm.group, [0, 1] if comm.rank else [1, 0]), allfold.MismatchError)
        assert arena.in_use == before

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


def test_a_call_that_cannot_be_is_refused_at_once() -> None:
    """Its arrays are taken once: nothing is tried a second time to find out what was wrong."""

    class Counted:
        def __init__(self, length: int, dtype: str = "float64") -> None:
            self.array, self.taken = np.ones(length, dtype), 0

        def __dlpack__(self, **how: Any) -> Any:
            self.taken += 1
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    def work(comm: Communicator) -> list[tuple[str, int]]:
        whole, short, other = Counted(6), Counted(5), Counted(4, "int32")
        calls: list[tuple[Counted, Any]] = [
            (short, lambda: comm.all_gather(whole, short)),
            (other, lambda: comm.all_to_all(whole, other)),
            (other, lambda: comm.all_reduce(other, "avg")),
            (short, lambda: comm.all_reduce(short, algorithm="no such")),
        ]
        said = []
        for array, call in calls:
            array.taken = 0
            said.append((str(fails(call)), array.taken))
        return said

    why = "the mean of integers is not an integer; take the sum and divide it, or use a floating type"
    for said in run_threads(work, 2):
        assert said[:3] == [
            ("all_gather: the output must hold one input of every rank, got 6 and 5", 1),
            ("all_to_all: the input is float64, the output int32", 1),
            (f"all_reduce: avg is not defined for int32: {why}", 1),
        ]
        assert "'no such'" in said[3][0] and said[3][1] == 1
