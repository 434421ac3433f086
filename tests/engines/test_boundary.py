"""The engine boundary: the same program on every engine gives the same results, bit for bit, and errors of the same kinds;
an engine that leaves something out says so. Calls on the arrays of a GPU are tried too, on a device made of NumPy."""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
import threading
from array import array as python_array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_device import DeviceArray, NumpyDevice

import allfold as af
from allfold import Move, copy, reduce
from allfold.communicator.communicator import Communicator, join
from allfold.engines.engine import Engine, Processes
from allfold.engines.signature import Signature
from allfold.engines.stream import engine as stream_engine
from allfold.engines.stream import ways
from allfold.engines.table import ENGINES
from allfold.fabrics.board import Board
from allfold.fabrics.stores import FolderStore
from allfold.launch.threads import run_threads

LENGTHS = (0, 1, 5, 1000, 4097)
MAIN = [name for name in ENGINES if name != "stream"]
"""The engines for arrays in main memory."""
STAGED_UP_TO = {"stream, staged": 1 << 60, "stream": -1}
"""The ways of calls on the arrays of a GPU, and up to how many bytes they are staged."""
ALL = [*MAIN, *STAGED_UP_TO]
devices: list[NumpyDevice] = []  # kept: what calls leave behind is given back later, and asks them


def run(work: Callable[[Communicator], Any], ranks: int, engine: str) -> list[Any]:
    """The results of ranks that are threads, by rank. On a GPU, collectives take NumPy arrays as arrays of the device."""
    if engine in MAIN:
        return run_threads(work, ranks, timeout=60, engine=engine)
    here = threading.local()

    def on_device(comm: Communicator) -> Any:
        here.device = NumpyDevice()
        devices.append(here.device)
        stream, entry = here.device.new_stream(), comm._call

        def located(array: Any) -> Any:
            return DeviceArray(array, stream) if isinstance(array, np.ndarray) else array

        def call(code: int, source: Any, target: Any, *rest: Any) -> Any:
            return entry(code, located(source), located(target), *rest)

        comm._call = call
        return work(comm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_engine, "driver", lambda: here.device)
        patch.setattr(ways, "STAGED_UP_TO", STAGED_UP_TO[engine])
        patch.setattr(ways, "_takes_turns", lambda *_: True)
        return run_threads(on_device, ranks, timeout=60, engine="stream")


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads are switched as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def whole_numbers(comm: Communicator) -> list[Any]:
    return collectives(comm, whole=True)


def collectives(comm: Communicator, whole: bool = False) -> list[Any]:
    """With whole numbers the order of a fold does not matter; otherwise it does."""
    random = np.random.default_rng(comm.rank)
    draw = (lambda length: random.integers(1, 4, length)) if whole else (lambda n: random.standard_normal(n) * 10)
    results: list[Any] = []
    for length in LENGTHS:
        for dtype in ("float32", "float16", "int64", "complex64"):
            own = draw(length).astype(dtype)  # type: ignore[no-untyped-call]
            slices = np.concatenate([own + rank for rank in range(comm.size)]).astype(dtype)
            for op in ("sum", "product") if dtype in ("int64", "complex64") else ("sum", "max", "avg"):
                array = own.copy()
                comm.all_reduce(array, op)
                results.append(array)
            for scan in (comm.scan, comm.exscan):
                array = own.copy()
                scan(array, algorithm="hillis_steele")
                results.append(array)
            array = own.copy()
            comm.reduce(array, root=1)
            results.append(array if comm.rank == 1 else None)
            array = own.copy()
            handle = comm.broadcast(array, root=comm.size - 1, async_op=True)
            handle.wait()  # type: ignore[union-attr]
            results.append(array)
            gathered = np.empty(length * comm.size, dtype)
            comm.all_gather(own, gathered, algorithm="ring")
            results.append(gathered.copy())
            comm.gather(own, gathered if comm.rank == 0 else None)
            part = np.empty(length, dtype)
            comm.reduce_scatter(slices, part)
            results.append(part.copy())
            comm.scatter(array=slices if comm.rank == 0 else None, output=part)
            results.append(part.copy())
            exchanged = np.empty_like(slices)
            comm.all_to_all(slices, exchanged, algorithm="pairwise")
            results += [exchanged, gathered]
    comm.barrier()
    return results


def joined(left: Any, right: Any) -> Any:
    """The digits of one number behind those of another: in any brackets, but in no other order."""
    return np.array([int(f"{one}{other}") for one, other in zip(left.tolist(), right.tolist(), strict=True)])


def odd_arrays(comm: Communicator) -> list[Any]:
    strided = np.arange(24.0).reshape(4, 6)[:, ::2] * (comm.rank + 1)
    comm.all_reduce(strided, op=af.op(lambda a, b: np.where(b == 0, a, b), commutative=False))
    for name in ("direct", "chain", "hillis_steele"):
        for scan in (comm.scan, comm.exscan):
            digits = np.full(5, comm.rank + 1)
            scan(digits, af.op(joined, commutative=False), algorithm=name)
            last = comm.rank + 1 if scan == comm.scan else max(comm.rank, 1)
            assert digits.tolist() == [int("123456789"[:last])] * 5
    carried = np.full(7, 0x3F80 + 0x80 * comm.rank, np.uint16)  # a power of two
    comm.all_reduce(carried, dtype="bfloat16")
    buffer = np.arange(4.0 * comm.size) + comm.rank
    comm.all_to_all(buffer, buffer)
    shared = comm.empty((3, 2), np.int32)
    shared[...] = comm.rank
    comm.all_reduce(shared, "max")
    return [strided, carried, buffer, shared]


def messages(comm: Communicator) -> list[Any]:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    first, second, any_one = np.empty(3), np.empty(2, np.int32), np.empty(4)
    pending = [comm.irecv(first, left, tag=1), comm.irecv(second, left, tag=2)]
    comm.send(np.full(2, comm.rank, np.int32), right, tag=2)
    comm.isend(np.full(3, 1.5 * comm.rank), right, tag=1).wait()
    came = [one.wait() for one in pending]
    comm.send(np.full(2, 7.0), comm.rank, tag=3)
    mine = comm.recv(any_one, tag=af.ANY_TAG)
    return [first, second, any_one[:2], came, mine]


def groups(comm: Communicator) -> list[Any]:
    odd = [rank for rank in range(comm.size) if rank % 2]
    even = [rank for rank in range(comm.size) if not rank % 2]
    group = comm.group(odd if comm.rank % 2 else even[::-1])
    assert group is not None
    array = np.full(3, float(comm.rank))
    group.all_reduce(array)
    outside = comm.group([0])
    return [array, group.rank, repr(group), outside is None]


def through(hub: int) -> Callable[[int], Iterator[list[Move]]]:
    """An algorithm for all_reduce: everything goes to one rank, and from there to all."""

    def mine(ranks: int) -> Iterator[list[Move]]:
        others = [rank for rank in range(ranks) if rank != hub % ranks]
        yield [reduce(0, source=rank, destination=hub % ranks) for rank in others]
        yield [copy(0, source=hub % ranks, destination=rank) for rank in others]

    return mine


def named_algorithms(comm: Communicator) -> list[Any]:
    """Every algorithm of every collective by its name, and one of a function."""
    whole = np.arange(5 * comm.size) % 3 + comm.rank  # whole numbers: the order of folds does not matter
    own, results = whole[:5].copy(), list[Any]()
    for name in af.algorithms("all_reduce"):
        results.append(own.copy())
        comm.all_reduce(results[-1], algorithm=name)
    results.append(own.copy())
    comm.all_reduce(results[-1], algorithm=through(1))
    for name in af.algorithms("reduce"):
        array = own.copy()
        comm.reduce(array, 1, algorithm=name)
        results.append(array if comm.rank == 1 else None)
    for name in af.algorithms("broadcast"):
        results.append(own.copy())
        comm.broadcast(results[-1], 1, algorithm=name)
    for name in af.algorithms("gather"):
        results.append(np.empty_like(whole) if comm.rank == 1 else None)
        comm.gather(own, results[-1], 1, algorithm=name)
    for name in af.algorithms("scatter"):
        results.append(np.empty_like(own))
        comm.scatter(array=whole if comm.rank == 1 else None, output=results[-1], root=1, algorithm=name)
    for name in af.algorithms("all_gather"):
        results.append(np.empty_like(whole))
        comm.all_gather(own, results[-1], algorithm=name)
    for name in af.algorithms("reduce_scatter"):
        results.append(np.empty_like(own))
        comm.reduce_scatter(whole, results[-1], algorithm=name)
    for name in af.algorithms("all_to_all"):
        results.append(np.empty_like(whole))
        comm.all_to_all(whole, results[-1], algorithm=name)
    for name in af.algorithms("barrier"):
        comm.barrier(algorithm=name)
    return results


def uneven_parts(comm: Communicator) -> list[Any]:
    """Every algorithm of every collective that has parts, on parts with lengths of their own."""
    rows = [[3, 0, 5], [1, 4, 0], [0, 2, 7]]
    counts, own, results = [4, 0, 9], np.arange([4, 0, 9][comm.rank]) + 100 * comm.rank, list[Any]()
    whole, sent = np.arange(13) * (comm.rank + 1), np.arange(sum(rows[comm.rank])) + 100 * comm.rank
    for name in (None, *af.algorithms("gather")):
        results.append(np.empty(13, int) if comm.rank == 1 else None)
        comm.gather(own, results[-1], 1, algorithm=name, counts=counts)
    for name in (None, *af.algorithms("scatter")):
        results.append(np.empty_like(own))
        comm.scatter(array=whole if comm.rank == 1 else None, output=results[-1], root=1, algorithm=name, counts=counts)
    for name in (None, *af.algorithms("all_gather")):
        results.append(np.empty_like(whole))
        comm.all_gather(own, results[-1], algorithm=name, counts=counts)
    for name in (None, *af.algorithms("reduce_scatter")):
        results.append(np.empty_like(own))
        comm.reduce_scatter(whole, results[-1], algorithm=name, counts=counts)
    for name in (None, "direct", "pairwise"):
        results.append(np.empty(sum(row[comm.rank] for row in rows), int))
        comm.all_to_all(sent, results[-1], algorithm=name, counts=rows)
    return results


def on_gpus(comm: Communicator) -> list[Any]:
    """Some of `collectives`: the device of NumPy is slow."""
    results: list[Any] = []
    for length in (0, 5, 1000):
        own = (np.random.default_rng(comm.rank).standard_normal(length) * 10).astype("float32")
        for op in ("sum", "max", "avg"):
            results.append(own.copy())
            comm.all_reduce(results[-1], op)
        results.append(own.copy())
        comm.broadcast(results[-1], root=1, async_op=True).wait()
        results.append(np.empty(length * comm.size, "float32"))
        comm.all_gather(own, results[-1])
    return results


@pytest.mark.parametrize("work", [collectives, whole_numbers, odd_arrays, messages, groups])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_engines_give_the_same(work: Callable[[Communicator], list[Any]], ranks: int) -> None:
    if work in (collectives, whole_numbers) and ranks == 1:
        ranks = 5  # it has a root 1
    reference = run_threads(work, ranks, engine="reference")
    # Islands fold in two levels, which is not the reference's order.
    for engine in [engine for engine in MAIN if not (work is collectives and engine == "islands")]:
        for found, expected in zip(run_threads(work, ranks, engine=engine), reference, strict=True):
            for one, other in zip(found, expected, strict=True):
                if isinstance(other, np.ndarray):
                    assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
                else:
                    assert one == other


@pytest.mark.parametrize("engine", [one for one in ALL if one != "reference"])
def test_algorithms_by_name_and_by_function_give_the_same(engine: str) -> None:
    works = (named_algorithms, uneven_parts)
    for work in (*works, on_gpus) if engine in STAGED_UP_TO else works:
        for found, expected in zip(run(work, 3, engine), run(work, 3, "reference"), strict=True):
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert (one is None and other is None) or one.tobytes() == other.tobytes()


@pytest.mark.parametrize("engine", ALL)
def test_a_generator_runs_once_per_communicator(engine: str) -> None:
    """It yields something else each time. In arrays of several kinds, which have programs of their own."""

    def work(comm: Communicator) -> tuple[int, list[float]]:
        runs, results = [], []

        def mine(ranks: int) -> Iterator[list[Move]]:
            runs.append(ranks)
            yield from through(len(runs))(ranks)

        shared = comm.empty(7, np.float64)
        shared[:] = 1
        for array in (np.ones(7), np.ones(7), np.ones(200_000), shared):
            comm.all_reduce(array, algorithm=mine)
            results.append(array[-1])
        array = np.ones(3, np.int32)
        comm.all_reduce(array, "max", algorithm=mine, async_op=True).wait()
        return len(runs), [*results, array[0]]

    assert run(work, 2, engine) == [(1, [2.0, 2.0, 2.0, 2.0, 1])] * 2


def by(name: str, function: Callable[[Any, Any], Any]) -> af.Op:
    return af.op(function, commutative=True, name=name)


CALLS: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any], str]] = {
    "collective": (
        lambda comm: comm.all_reduce(np.ones(4)),
        lambda comm: comm.broadcast(np.ones(4)),
        "mismatched calls: rank 0 called all_reduce(float64[4] sum…), rank 1 called broadcast(float64[4] root 0…) (call ",
    ),
    "dtype": (
        lambda comm: comm.all_reduce(np.ones(4)),
        lambda comm: comm.all_reduce(np.ones(4, np.int64)),
        "all_reduce: rank 0 called it with float64[4] sum…, rank 1 with int64[4] sum… (call ",
    ),
    "elements": (
        lambda comm: comm.all_reduce(np.ones(4)),
        lambda comm: comm.all_reduce(np.ones(5)),
        "all_reduce: rank 0 called it with float64[4] sum…, rank 1 with float64[5] sum… (call ",
    ),
    "op": (
        lambda comm: comm.all_reduce(np.ones(4)),
        lambda comm: comm.all_reduce(np.ones(4), "max"),
        "all_reduce: rank 0 called it with float64[4] sum…, rank 1 with float64[4] max… (call ",
    ),
    "custom": (
        lambda comm: comm.all_reduce(np.ones(4), by("mine", lambda a, b: a + b), algorithm="direct"),
        lambda comm: comm.all_reduce(np.ones(4), by("mine", lambda a, b: a * b), algorithm="direct"),
        "all_reduce: rank 0 called it with float64[4] custom operation mine by direct… (operation …), "
        "rank 1 with float64[4] custom operation mine by direct… (operation …) (call ",
    ),
    "root": (
        lambda comm: comm.reduce(np.ones(4), 0),
        lambda comm: comm.reduce(np.ones(4), 1),
        "reduce: rank 0 called it with float64[4] sum root 0…, rank 1 with float64[4] sum root 1… (call ",
    ),
    "algorithm": (
        lambda comm: comm.all_reduce(np.ones(4), algorithm="ring"),
        lambda comm: comm.all_reduce(np.ones(4), algorithm="direct"),
        "all_reduce: rank 0 called it with float64[4] sum by ring…, rank 1 with float64[4] sum by direct… (call ",
    ),
    "schedule": (
        lambda comm: comm.all_reduce(np.ones(4), algorithm=through(0)),
        lambda comm: comm.all_reduce(np.ones(4), algorithm=through(1)),
        "all_reduce: rank 0 called it with float64[4] sum by mine()… (schedule …), "
        "rank 1 with float64[4] sum by mine()… (schedule …) (call ",
    ),
    "counts": (
        lambda comm: comm.all_gather(np.ones(3), np.empty(4), counts=[3, 1]),
        lambda comm: comm.all_gather(np.ones(2), np.empty(4), counts=[2, 2]),
        "all_gather: rank 0 called it with float64[4] in uneven parts… (counts …), "
        "rank 1 with float64[4] in uneven parts… (counts …) (call ",
    ),
}


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("field", CALLS)
def test_ranks_that_differ_in_one_field_are_named(engine: str, field: str) -> None:
    usual, other, sentence = CALLS[field]

    def work(comm: Communicator) -> str:
        with pytest.raises(af.MismatchError) as caught:
            (other if comm.rank else usual)(comm)
            comm.barrier()  # ranks that waited for nobody learn of it here
        return str(caught.value)

    for said in run(work, 2, engine):
        assert re.match(re.escape(sentence).replace("…", r"[\w ]*"), said), said


def test_every_field_is_tried() -> None:
    """The place is that of an array on a GPU: tests/engines/stream has it."""
    assert [*CALLS, "place"] == [*Signature._fields]


def late(comm: Communicator) -> None:
    if comm.rank == 0:
        gave_up.clear()
    comm.all_reduce(np.ones(3))
    if comm.rank == 1:
        gave_up.wait(60)
    try:
        comm.all_reduce(np.ones(3), timeout=0.2)
    finally:
        gave_up.set()


gave_up = threading.Event()


def left(comm: Communicator) -> None:
    if comm.rank != 1:
        comm.recv(np.ones(3), source=1)


def left_a_call(comm: Communicator) -> None:
    if comm.rank != 1:
        comm.barrier()


def left_after_an_exception(comm: Communicator) -> None:
    if comm.rank != 1:
        comm.barrier()
    else:
        with contextlib.suppress(ValueError), comm:
            raise ValueError("bad data")


def aborted(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.abort()
    comm.barrier()


def wrong_message(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.send(np.ones(3), 0)
    if comm.rank == 0:
        comm.recv(np.ones(2), 1)


def other_group(comm: Communicator) -> None:
    comm.group([0, 1] if comm.rank else [1, 0])


def group_against_barrier(comm: Communicator) -> None:
    comm.group([0, 1]) if comm.rank else comm.barrier()


@pytest.mark.parametrize("engine", MAIN)
@pytest.mark.parametrize(
    ("work", "kind", "says"),
    [
        (late, af.CollectiveTimeout, r"rank 1( on host1)? did not arrive within 0.2 s"),
        (left, af.RankLost, r"rank 1( on host1)? has left"),
        (left_a_call, af.RankLost, r"rank 1( on host1)? has left"),
        (
            left_after_an_exception,
            af.RankLost,
            r"rank 1( on host1)? has left.*: it is ending after ValueError: bad data",
        ),
        (aborted, af.RankLost, "abort|gave up"),
        (wrong_message, af.MismatchError, r"rank 1 sent float64\[3\]"),
        (group_against_barrier, af.MismatchError, "mismatched calls: "),
        (other_group, af.MismatchError, r"group: rank 0 called it with \[1, 0\], rank 1 with \[0, 1\]"),
    ],
)
def test_errors_travel_alike(
    engine: str, work: Callable[[Communicator], None], kind: type[Exception], says: str
) -> None:
    def raises(comm: Communicator) -> str:
        try:
            work(comm)
        except af.AllfoldError as error:
            if isinstance(error, kind):
                return str(error)
            assert isinstance(error, (af.RankLost, af.MismatchError, af.CollectiveTimeout)), error
        return ""

    said = [one for one in run_threads(raises, 2, engine=engine) if one]
    assert any(re.search(says, one) for one in said), said


@pytest.mark.parametrize("engine", MAIN)
def test_wrong_arguments_leave_the_engine_usable(engine: str) -> None:
    def work(comm: Communicator) -> float:
        for wrong in (
            lambda: comm.all_reduce(np.ones(3, "datetime64[s]")),
            lambda: comm.all_reduce(np.ones(3, bool), "avg"),
            lambda: comm.all_reduce(np.ones(3), root=1),  # type: ignore[call-arg]
            lambda: comm.all_gather(np.ones(3), np.ones(5)),
            lambda: comm.all_gather(np.ones(3), np.ones(6, np.float32)),
            lambda: comm.all_reduce(np.ones(3), algorithm="no such"),
            lambda: comm.send(np.ones(3), 5),
            lambda: comm.send(np.ones(3), 0, tag=-1),
            lambda: comm.all_reduce(np.ones(3, np.float16), dtype="bfloat16"),
            lambda: comm.all_reduce(np.ones(3, np.int64), dtype="float64"),
            lambda: comm.recv(np.ones(3), "x"),  # type: ignore[arg-type]
        ):
            with pytest.raises((af.UsageError, TypeError)):
                wrong()
        with pytest.raises(af.UsageError, match=r"send: expected an array .*, got None"):
            comm.send(None, 0)
        for root in ("0", None, 0.0):
            with pytest.raises(af.UsageError, match="broadcast: root must be a rank"):
                comm.broadcast(np.ones(3), root)  # type: ignore[arg-type]
        array = np.ones(3)
        comm.all_reduce(array, async_op=np.True_).wait()  # type: ignore[arg-type]
        return float(array[0])

    assert run_threads(work, 2, engine=engine) == [2.0, 2.0]


@pytest.mark.parametrize("engine", MAIN)
def test_arrays_that_are_not_of_numpy(engine: str) -> None:
    """`array.array` and memoryviews have elements of several bytes, too."""

    def work(comm: Communicator) -> list[float]:
        numbers, gathered = python_array("d", [1.0, 2.0]), python_array("d", [0.0] * 4)
        view = memoryview(bytearray(8)).cast("d")
        comm.all_reduce(numbers)
        comm.all_gather(python_array("d", [comm.rank] * 2), gathered)
        comm.all_gather(np.float64(comm.rank), numbers)
        comm.all_reduce(view)
        return [*numbers, *gathered, *view]

    assert run_threads(work, 2, engine=engine) == [[0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]] * 2


@pytest.mark.parametrize("engine", ALL)
def test_a_call_goes_on_after_a_wait_that_was_too_short(engine: str) -> None:
    waited = threading.Event()

    def work(comm: Communicator) -> tuple[str, float]:
        array, said = np.ones(3), ""
        comm.all_reduce(array)  # on a GPU, all ranks meet in the first call
        if comm.rank:
            assert waited.wait(60)
        handle = comm.all_reduce(array, async_op=True)
        if comm.rank == 0:
            with pytest.raises(af.UsageError, match="seconds"):
                handle.wait("soon")
            with pytest.raises(af.CollectiveTimeout) as caught:
                handle.wait(0.01)
            said = str(caught.value)
            assert not handle.done()
            waited.set()
        handle.wait()
        assert handle.done() and handle.wait(0) is None
        return said, float(array[2])

    assert run(work, 2, engine) == [("wait: the call was not done within 0.01 s; it continues", 4.0), ("", 4.0)]


@pytest.mark.parametrize("engine", MAIN)
def test_threads_of_one_rank_take_turns(engine: str, hasty: None) -> None:
    def work(comm: Communicator) -> list[float]:
        def calls() -> None:
            for _ in range(300):
                array = np.ones(5)
                comm.all_reduce(array)
                results.append(float(array[4]))

        results: list[float] = []
        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert comm.engine.calls() == 1200
        return results

    assert run_threads(work, 2, timeout=30, engine=engine) == [[2.0] * 1200] * 2


def test_what_an_engine_leaves_out_it_says() -> None:
    def work(comm: Communicator) -> list[str]:
        said = []
        for missing in (comm.flight, comm.trace().__enter__):
            with pytest.raises(af.UsageError) as caught:
                missing()  # type: ignore[operator]
            said.append(str(caught.value))
        return said

    for said in run_threads(work, 2, engine="reference"):
        assert said == [f"{what}: the engine of the world (Reference) cannot do that" for what in ("flight", "trace")]


def test_the_communicator_knows_the_interface_only() -> None:
    """What a communicator asks of its engine is in `Engine`."""

    class Lazy(Engine):  # the least that an engine can be
        rank, size, label, timeout = 0, 1, "the least", 1.0

        def run(self, call: Any, async_op: bool) -> None:
            return None

        def group(self, ranks: Any, timeout: float | None) -> Engine | None:
            return self

        def close(self, compares: bool) -> None:
            return None

        def abort(self) -> None:
            return None

        def calls(self) -> int:
            return 0

    with Communicator(Lazy()) as comm:
        comm.barrier()
        assert comm.all_reduce(comm.empty(3)) is None
        assert comm.group([0]) is not None


def kind_of_engine(comm: Communicator) -> str:
    array = np.ones(3)
    comm.all_reduce(array)
    assert array.tolist() == [comm.size] * 3
    return type(comm.engine).__name__


def test_a_program_may_name_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host, where islands would not be chosen, and on two that are simulated, where they would."""
    assert af.spawn(kind_of_engine, 2, engine="islands", timeout=60) == ["Islands"] * 2
    assert af.spawn(kind_of_engine, 2, engine="shared_memory", hosts=2, timeout=60) == ["SharedMemory"] * 2
    monkeypatch.setenv("ALLFOLD_ENGINE", "islands")
    with af.init(engine="shared_memory") as comm:  # the program goes first
        assert kind_of_engine(comm) == "SharedMemory"
    with af.init() as comm:
        assert kind_of_engine(comm) == "Islands"


@pytest.mark.parametrize(
    ("is_spread", "named"),
    [
        (False, [None, "islands"]),
        (False, ["islands", "shared_memory"]),
        (True, ["shared_memory", None]),
        (True, ["shared_memory", "islands"]),
    ],
)
def test_ranks_that_name_different_engines_are_told(is_spread: bool, named: list[str | None], tmp_path: Path) -> None:
    """Where they meet: in shared memory, or on a board if they may be on several hosts."""
    key = secrets.token_hex(8)

    def come(rank: int) -> str:
        board = Board(FolderStore(tmp_path / "store"), rank, 2)
        with pytest.raises(af.MismatchError) as caught:
            join(Processes(rank, 2, key, lambda: board, is_spread), 30.0, named[rank])
        return str(caught.value)

    with ThreadPoolExecutor(2) as threads:
        said = list(threads.map(come, range(2)))
    first, second = (name or ("islands" if is_spread else "shared_memory") for name in named)
    assert said[0] == said[1]
    assert f"rank 0 uses the engine {first!r} and rank 1 {second!r}" in said[0]


def test_engines_that_do_not_exist_or_are_for_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.UsageError, match=r"^there is no engine 'referenz'; did you mean 'reference'"):
        run_threads(groups, 2, engine="referenz")
    for start in (lambda: af.init(engine="shared"), lambda: af.spawn(groups, 2, engine="shared")):
        with pytest.raises(af.UsageError, match=r"^there is no engine 'shared'; did you mean 'shared_memory'"):
            start()
    for name in ("reference", "stream"):
        sentence = f"^the engine '{name}' is not for ranks that are processes; known: shared_memory, islands$"
        with pytest.raises(af.UsageError, match=sentence):
            af.init(engine=name)
    with pytest.raises(af.UsageError, match=r"^there is no engine \['islands'\]"):
        af.init(engine=["islands"])  # type: ignore[arg-type]
    with pytest.raises(af.UsageError, match="timeout must be a number of seconds"):
        af.init(None)  # type: ignore[arg-type]
    monkeypatch.setenv("ALLFOLD_ENGINE", "thread")
    with pytest.raises(
        af.UsageError, match=r"^ALLFOLD_ENGINE: there is no engine 'thread'; known: shared_memory, islands$"
    ):
        af.init()


def test_an_engine_refuses_arrays_in_other_memory() -> None:
    def work(comm: Communicator) -> str:
        with pytest.raises(af.UsageError) as caught:
            comm.all_reduce(np.ones(3))
        return str(caught.value)

    for said in run_threads(work, 2, engine="stream"):
        assert said == "all_reduce: the engine of the world takes arrays in a GPU's memory only"
