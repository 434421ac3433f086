"""The reference engine between ranks that are threads: random calls against the oracle, every wait ends, errors name ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from random_runs import try_seeds
from test_reference import assert_equal, expectation, length_of

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.launch.threads import run_threads

on_threads = partial(run_threads, engine="reference", timeout=60)


def said(call: Callable[[], Any]) -> str:
    """The kind and the sentence of the error that a call raises."""
    with pytest.raises(af.AllfoldError) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_random_schedules_give_the_bits_of_the_oracle(ranks: int) -> None:
    wrong = [line for lines in on_threads(try_seeds, ranks, args=(range(30),)) for line in lines]
    assert not wrong, "\n".join(wrong[:5])


def as_expected(comm: Communicator, seeds: int) -> None:
    """Random calls in whatever group this is; all ranks draw the same ones."""
    for seed in range(seeds):
        random = np.random.default_rng([seed, comm.size])
        collective = str(random.choice([name for name in COLLECTIVES if name != "barrier"]))
        root = int(random.integers(comm.size)) if COLLECTIVES[collective].rooted else None
        length = length_of(collective, comm.size, int(random.integers(0, 50)))
        inputs = [random.standard_normal(length).astype("float32") for _ in range(comm.size)]
        name = random.choice([None, *af.algorithms(collective)])
        replayed = af.schedule(collective, name or ("direct" if root is None else "driver"), comm.size, root=root)
        wanted = af.replay(replayed, inputs)[comm.rank]
        own, options = inputs[comm.rank], {"algorithm": name} | ({} if root is None else {"root": root})
        call = getattr(comm, collective)
        if COLLECTIVES[collective].in_place:
            output = own.copy()
            handle = call(output, **options, async_op=True)
        else:
            output = None if wanted is None else np.empty_like(wanted)
            given = own if root is None or collective == "gather" or comm.rank == root else None
            handle = call(array=given, output=output, **options, async_op=True)
        handle.wait()
        if wanted is not None:
            assert output is not None and output.tobytes() == wanted.tobytes(), (seed, collective, name)


def test_random_calls_in_groups_that_overlap_keep_the_order_of_reduction() -> None:
    def work(comm: Communicator) -> None:
        as_expected(comm, 25)
        pair = comm.group([0, 3] if comm.rank in (0, 3) else [2, 1])
        assert pair is not None
        as_expected(pair, 15)
        inner = comm.group([3, 1, 0])
        if inner is not None:
            as_expected(inner, 15)

    on_threads(work, 4)


def test_whole_numbers_against_plain_numpy() -> None:
    """`expectation` knows nothing about schedules."""

    def work(comm: Communicator, collective: str, name: str) -> Any:
        root = 1 if COLLECTIVES[collective].rooted else None
        own = np.arange(length_of(collective, 3, 7)) * (comm.rank + 2)
        options: dict[str, Any] = {"algorithm": name} | ({} if root is None else {"root": root})
        if COLLECTIVES[collective].in_place:
            getattr(comm, collective)(own, **options)
            return own if collective != "reduce" or comm.rank == root else None
        return getattr(comm, collective)(array=own if collective != "scatter" or comm.rank == root else None, **options)

    for collective in COLLECTIVES.keys() - {"barrier"}:
        inputs = [np.arange(length_of(collective, 3, 7)) * (rank + 2) for rank in range(3)]
        root = 1 if COLLECTIVES[collective].rooted else None
        wanted = expectation(collective, inputs, root, lambda some: np.sum(some, axis=0))
        for name in af.algorithms(collective):
            assert_equal(on_threads(work, 3, args=(collective, name)), wanted)


def test_background_calls_are_performed_in_order() -> None:
    """They are complete at the same moment, when the last rank has made all of them."""

    def work(comm: Communicator) -> list[float]:
        array = np.full(3, comm.rank + 1.0)
        handles = [comm.all_reduce(array, op, async_op=True) for op in ("sum", "max", "product", "sum")]
        for handle in handles:
            handle.wait()
        return array.tolist()

    assert on_threads(work, 3) == [[648.0] * 3] * 3


@pytest.mark.parametrize("how", ["wait", "done"])
def test_a_background_call_ends_at_its_own_timeout(how: str) -> None:
    gave_up = threading.Event()

    def work(comm: Communicator) -> str:
        if comm.rank == 1:
            assert gave_up.wait(60)
            return said(comm.barrier)
        handle = comm.barrier(async_op=True, timeout=0.2)
        assert handle is not None
        while how == "done" and not handle.done():
            pass
        try:
            return said(handle.wait)
        finally:
            gave_up.set()

    assert on_threads(work, 2) == [
        "CollectiveTimeout: barrier: rank 1 did not arrive within 0.2 s (call 1 of the world)",
        "CollectiveTimeout: barrier: rank 0 gave up: it had waited too long for rank 1 (the world)",
    ]


def test_an_infinite_timeout_is_a_timeout() -> None:
    assert on_threads(lambda comm: comm.barrier(timeout=float("inf")), 2) == [None, None]


def test_ranks_that_differ_are_named_while_another_is_away() -> None:
    told = threading.Barrier(3)

    def work(comm: Communicator) -> str:
        if comm.rank == 2:
            told.wait(60)
            return said(comm.barrier)
        text = said(lambda: comm.all_reduce(np.ones(4 + comm.rank)))
        told.wait(60)
        return text

    sentence = (
        "all_reduce: rank 0 called it with float64[4] sum, rank 1 with float64[5] sum, rank 2 did not arrive "
        "(call 1 of the world)"
    )
    assert on_threads(work, 3) == [f"MismatchError: {sentence}"] * 3


def test_a_group_against_a_call_names_both() -> None:
    def work(comm: Communicator) -> str:
        return said(lambda: comm.group([0, 1]) if comm.rank else comm.barrier())

    sentence = "mismatched calls: rank 0 called barrier(), rank 1 called group (call 1 of the world)"
    assert on_threads(work, 2) == [f"MismatchError: {sentence}"] * 2


class Unlucky(Exception):
    """It cannot be made of its own arguments."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} {two}")


def test_an_operation_that_raises_raises_on_every_rank_and_leaves_the_group_usable() -> None:
    def wrong(left: Any, right: Any) -> Any:
        raise Unlucky(1, two=2)

    def work(comm: Communicator) -> float:
        with pytest.raises(Unlucky, match="1 2"):
            comm.all_reduce(np.ones(3), af.op(wrong, commutative=True))
        array = np.ones(1)
        comm.all_reduce(array)
        return float(array[0])

    assert on_threads(work, 3) == [3.0] * 3


def test_a_call_inside_an_operation_is_refused() -> None:
    def work(comm: Communicator) -> str:
        def calls(left: Any, right: Any) -> Any:
            worlds[threading.current_thread().name].barrier()

        worlds[threading.current_thread().name] = comm
        comm.barrier()
        return said(lambda: comm.all_reduce(np.ones(3), af.op(calls, commutative=True)))

    worlds: dict[str, Communicator] = {}
    for text in on_threads(work, 2):
        assert text.startswith("UsageError: barrier: called inside a user-defined operation of the same communicator")


def test_a_rank_that_raises_ends_waits_in_groups_and_for_messages() -> None:
    ready = threading.Barrier(4)

    def work(comm: Communicator) -> None:
        pair = comm.group([0, 1] if comm.rank < 2 else [2, 3])
        assert pair is not None
        nested = pair.group([0, 1])
        assert nested is not None
        ready.wait(60)
        if comm.rank == 0:
            raise LookupError("nothing here")
        texts[comm.rank] = said(
            {1: nested.barrier, 2: lambda: comm.recv(np.ones(3), 0), 3: lambda: comm.irecv(np.ones(3), 0).wait()}[
                comm.rank
            ]
        )

    texts: dict[int, str] = {}
    with pytest.raises(af.RankFailed, match="rank 0 raised LookupError: nothing here"):
        on_threads(work, 4)
    why = "rank 0 has left: it is ending after LookupError: nothing here"
    assert texts[1].startswith(f"RankLost: barrier: {why} (call 1 of group 1 of group 1 of the world")
    assert texts[2] == texts[3] == f"RankLost: recv: {why} (the world)"


def test_survivors_shrink_and_go_on() -> None:
    def work(comm: Communicator) -> Any:
        if comm.rank == 1:
            comm.close()
            return said(comm.shrink)
        text = said(comm.barrier)
        left = comm.shrink()
        array = np.full(2, float(comm.rank))
        left.all_reduce(array)
        assert said(comm.shrink) == "UsageError: shrink: already shrunk; call shrink() on the communicator it returned"
        again = left.shrink()  # nobody is lost: all are left
        return text.partition(" (")[0], left.rank, repr(again), float(array[0])

    results = on_threads(work, 4)
    assert results.pop(1) == "UsageError: shrink: this communicator is closed"
    text = "RankLost: barrier: rank 1 has left: it closed its communicator"
    for rank, found in enumerate(results):
        left = f"<Communicator rank {rank} of 3, what is left of the world: ranks 0, 2 and 3>"
        assert found == (text, rank, left, 5.0)


def test_shrink_does_not_wait_longer_than_its_timeout() -> None:
    gave_up = threading.Event()

    def work(comm: Communicator) -> str:
        if comm.rank:
            assert gave_up.wait(60)
            return ""
        try:
            return said(lambda: comm.shrink(timeout=0.1))
        finally:
            gave_up.set()

    sentence = "CollectiveTimeout: shrink: rank 1 did not arrive within 0.1 s, and is not gone"
    assert on_threads(work, 2)[0] == sentence
