"""The native engine, ranks as threads of one process: ranks that disagree, do not come, or leave.

What needs processes of its own is in test_engine.py. Everything here also runs under ThreadSanitizer (`make sanitize`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_grid import (
    PATIENCE,
    Array,
    fails,
)
from saying import AT_ONCE

from allfold.communicator.communicator import Communicator
from allfold.errors import CollectiveTimeout, MismatchError, RankFailed, RankLost, UsageError
from allfold.launch.threads import run_threads

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
        [
            "mismatched calls",
            "called all_reduce(float32[1000] sum)",
            "rank 1 called broadcast(float32[1000] root 0)",
        ],
    ),
    "barrier": (calls("barrier"), calls("all_reduce"), ["called barrier()", "all_reduce(float32[1000] sum)"]),
    "no barrier": (calls("all_gather"), calls("barrier"), ["all_gather(float32[3000])", "barrier()"]),
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
def test_mismatched_calls_raise_on_every_rank_and_name_the_calls(name: str, shared: bool) -> None:
    usual, other, facts = MISMATCHES[name]

    def work(comm: Communicator) -> tuple[Exception, float]:
        def array(count: int, dtype: str) -> Array:
            return comm.empty(count, dtype) if shared else np.empty(count, dtype)

        def both() -> None:
            (other if comm.rank == 1 else usual)(comm, array)
            comm.barrier()  # ranks that waited for nobody learn of it here

        comm.barrier()
        began = time.monotonic()
        return fails(both), time.monotonic() - began

    for error, took in run_threads(work, 3, timeout=PATIENCE):
        assert isinstance(error, MismatchError), error
        for fact in [*facts, "ranks 0 and 2", "(call 2 of the world)"]:
            assert fact in str(error), f"{fact!r} is not in {str(error)!r}"
        assert took < AT_ONCE


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
        assert 0.3 < took < AT_ONCE
        assert isinstance(error, (CollectiveTimeout, RankLost)), error
        if isinstance(error, CollectiveTimeout):
            assert "rank 1 did not arrive within 0.4 s (call 1 of the world)" in str(error)


def test_a_rank_that_leaves_early_is_named() -> None:
    def work(comm: Communicator) -> Exception | None:
        comm.barrier()
        if comm.rank == 1:
            comm.close()
            assert "closed" in str(fails(comm.barrier))
            return None
        began = time.monotonic()
        error = fails(comm.barrier)
        assert time.monotonic() - began < AT_ONCE
        return error

    for rank, error in enumerate(run_threads(work, 3)):
        if rank != 1:
            assert isinstance(error, RankLost), error
            assert "rank 1 has left: it closed its communicator after call 1" in str(error) or "gave up" in str(error)


def test_abort_ends_the_calls_of_all_ranks_here_and_elsewhere() -> None:
    aborted = threading.Event()

    def work(comm: Communicator) -> Exception | None:
        if comm.rank == 2:  # never comes, so nothing else could end rank 0's wait
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
    assert time.monotonic() - began < AT_ONCE
    with pytest.raises(UsageError, match="at least 1"):
        run_threads(work, 0)
