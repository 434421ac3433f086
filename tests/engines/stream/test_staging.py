"""Arrays of a GPU, staged and on the GPU: with a device that is made of NumPy, so that no GPU is needed."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy_device import DeviceArray, device_of, ways_of
from saying import AT_ONCE, said_by

import allfold as af
from allfold import Move, copy, reduce
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.engines.buffer import Buffer
from allfold.engines.engine import Call
from allfold.engines.stream import compose, engine, runner, staging, ways
from allfold.ops import OPS
from allfold.registry import algorithms

WAYS = ["staged", "on the device"]


def contribution(rank: int, length: int, dtype: Any) -> np.ndarray[Any, Any]:
    return (np.arange(length) % 7 + rank + 1).astype(dtype)


def all_collectives(comm: Communicator, dtype: str, length: int, way: str) -> list[str]:
    """What was wrong: every collective on arrays of the device, against NumPy."""
    device = device_of(way)
    stream, rank, size = device.new_stream(), comm.rank, comm.size
    whole = [contribution(one, length * size, dtype) for one in range(size)]
    part = slice(rank * length, (rank + 1) * length)
    root, wrong = size - 1, []

    def expect(what: str, array: DeviceArray, wanted: Any) -> None:
        if not np.array_equal(array.memory, wanted):
            wrong.append(f"{what}: {array.memory[:5]} instead of {wanted[:5]}")

    def here(values: Any) -> DeviceArray:
        return device.array(values, stream)

    total = np.sum(whole, axis=0, dtype=dtype)
    array = here(whole[rank])
    comm.all_reduce(array)
    expect("all_reduce", array, total)
    array = here(whole[rank])
    comm.all_reduce(array, "max", algorithm="ring")
    expect("all_reduce max by ring", array, np.max(whole, axis=0))
    array = here(whole[rank])
    comm.reduce(array, root)
    expect("reduce", array, total if rank == root else whole[rank])  # the others keep theirs
    array = here(whole[rank])
    comm.broadcast(array, root)
    expect("broadcast", array, whole[root])
    array = here(whole[rank])
    comm.scan(array)
    expect("scan", array, np.sum(whole[: rank + 1], axis=0, dtype=dtype))
    array = here(whole[rank])
    comm.exscan(array)
    expect("exscan", array, np.sum(whole[: max(rank, 1)], axis=0, dtype=dtype))
    output = here(np.zeros(length, dtype))
    comm.reduce_scatter(here(whole[rank]), output)
    expect("reduce_scatter", output, total[part])
    output = here(np.zeros(length * size, dtype))
    comm.all_gather(here(whole[rank][part]), output)
    expect("all_gather", output, np.concatenate([one[i * length : (i + 1) * length] for i, one in enumerate(whole)]))
    output = here(np.zeros(length * size, dtype))
    comm.all_to_all(here(whole[rank]), output)
    expect("all_to_all", output, np.concatenate([one[part] for one in whole]))
    gathered = here(np.zeros(length * size, dtype)) if rank == root else None
    comm.gather(here(whole[rank][part]), gathered, root)
    if gathered is not None:
        expect("gather", gathered, np.concatenate([one[i * length : (i + 1) * length] for i, one in enumerate(whole)]))
    output = here(np.zeros(length, dtype))
    comm.scatter(array=here(whole[root]) if rank == root else None, output=output, root=root)
    expect("scatter", output, whole[root][part])
    if way == "on the device" and comm.size > 1 and length and not device.folds:
        wrong.append("nothing was folded on the device")
    comm.close()
    if device.registered or device.memory:
        wrong.append("memory is still held")
    return wrong


# In every run each array with both numbers of ranks and both ways, and each way with both numbers of ranks.
PAIRWISE = [
    pytest.param(*array, ranks, way, marks=[pytest.mark.exhaustive] if (number + (ranks == 3) + second) % 2 else [])
    for number, array in enumerate([("float32", 1), ("int64", 1001), ("float64", 300_000), ("uint8", 0)])
    for ranks in (1, 3)
    for second, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("dtype", "length", "ranks", "way"), PAIRWISE)
def test_every_collective_gives_what_numpy_gives(ranks: int, dtype: str, length: int, way: str) -> None:
    assert af.spawn(all_collectives, ranks, args=(dtype, length, way), timeout=60) == [[]] * ranks


def test_the_same_across_hosts() -> None:
    pytest.importorskip("torch")
    assert (
        af.spawn(all_collectives, 3, args=("float32", 1001, "on the device"), hosts=2, timeout=60)
        == [
            ["nothing was folded on the device"]  # there is no memory that all of them reach: it is staged
        ]
        * 3
    )


def every_algorithm(comm: Communicator, area: int, every: bool) -> list[str]:
    """Which schedules, run on the device, have other bits than in main memory: at every length, or at one, in turn."""
    device = device_of("on the device")
    compose.AREA_BYTES = runner.AREA_BYTES = area
    stream, wrong = device.new_stream(), []
    rng = np.random.default_rng(comm.rank)
    for collective in COLLECTIVES:
        for number, name in enumerate(algorithms(collective) if collective != "barrier" else ()):
            lengths = (1, 5, 1001)
            for length in lengths if every else lengths[(number + comm.size) % 3 :][:1]:
                arrays = arguments(comm, collective, rng.standard_normal(length * comm.size).astype(np.float32))
                there = [None if array is None else DeviceArray(array.copy(), stream) for array in arrays]
                getattr(comm, collective)(*there, algorithm=name)
                getattr(comm, collective)(*arrays, algorithm=name)
                pairs = zip(there, arrays, strict=True)
                same = all(one is None or np.array_equal(one.memory, other) for one, other in pairs)
                if not same and not (collective == "reduce" and comm.rank):  # where it is workspace
                    wrong.append(f"{collective} {name} of {length}")
    return wrong


def arguments(comm: Communicator, collective: str, values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any] | None]:
    """The arrays of a call, in the order of its parameters."""
    part, zeros = values[: len(values) // comm.size], np.zeros_like(values)
    is_root = comm.rank == 0
    return {
        "gather": [part, zeros if is_root else None],
        "scatter": [np.zeros_like(part), values if is_root else None],
        "all_gather": [part, zeros],
        "reduce_scatter": [values, np.zeros_like(part)],
        "all_to_all": [values, zeros],
    }.get(collective, [values])


@pytest.mark.parametrize(
    ("ranks", "area", "every"),
    [
        (2, 1 << 20, False),
        (4, 16 << 10, False),
        *(
            pytest.param(ranks, area, True, marks=pytest.mark.exhaustive)
            for ranks, area in ((2, 1 << 20), (4, 1 << 20), (4, 16 << 10))
        ),
    ],
)
def test_every_schedule_runs_on_the_device_with_the_same_bits(ranks: int, area: int, every: bool) -> None:
    assert af.spawn(every_algorithm, ranks, args=(area, every), timeout=250) == [[]] * ranks


def to_the_first(ranks: int) -> Iterator[list[Move]]:
    yield [reduce(0, source=rank, destination=0) for rank in range(1, ranks)]
    yield [copy(0, source=0, destination=rank) for rank in range(1, ranks)]


def along_a_chain(ranks: int) -> Iterator[list[Move]]:
    for rank in range(ranks - 1):
        yield [reduce(0, source=rank, destination=rank + 1)]
    yield [copy(0, source=ranks - 1, destination=rank) for rank in range(ranks - 1)]


def own_algorithms(comm: Communicator, way: str) -> list[bool]:
    """A function, and a name that comes to mean another one, as when a cell of a notebook is run again."""
    device = device_of(way)
    stream, right = device.new_stream(), []
    for function in (to_the_first, along_a_chain):
        function.__qualname__ = "mine"  # as if it were defined again
        af.algorithm("all_reduce", "mine")(function)
        for algorithm in (function, "mine"):
            values = np.random.default_rng(comm.rank).standard_normal(1001).astype(np.float32)
            there = device.array(values, stream)
            comm.all_reduce(there, algorithm=algorithm)
            comm.all_reduce(values, algorithm=algorithm)
            right.append(np.array_equal(there.memory, values))
    return right


@pytest.mark.parametrize("way", WAYS)
def test_algorithms_of_ones_own(way: str) -> None:
    assert af.spawn(own_algorithms, 3, args=(way,), timeout=60) == [[True] * 4] * 3


def long_array(comm: Communicator) -> tuple[bool, int, int]:
    device = device_of()
    staging.PIECE_BYTES = 1 << 20
    array = device.array(contribution(comm.rank, 1_000_003, np.float32), device.new_stream())
    comm.all_reduce(array)
    total = sum(contribution(rank, 1_000_003, np.float32) for rank in range(comm.size))
    return np.array_equal(array.memory, total), max(device.copied), sum(device.registered.values())


def test_a_long_array_goes_in_pieces() -> None:
    for right, longest, pinned in af.spawn(long_array, 2, timeout=60):
        assert right and longest == 1 << 20 and pinned < 3 << 20


def around_pieces(comm: Communicator) -> list[str]:
    """What was wrong: collectives in place on arrays about as long as some pieces, one after the other, on two streams."""
    device = device_of()
    staging.PIECE_BYTES = 4000
    streams, wrong = [device.new_stream(), device.new_stream()], []
    rank, size, root = comm.rank, comm.size, comm.size - 1
    for number, length in enumerate((999, 1000, 1001, 2000, 2001, 3999, 4000, 9001, 1, 5000)):
        values = [contribution(one, length, np.float32) for one in range(size)]
        total = np.sum(values, axis=0, dtype=np.float32)
        wanted = {
            "all_reduce": total,
            "broadcast": values[root],
            "reduce": total if rank == root else values[rank],
            "scan": np.sum(values[: rank + 1], axis=0, dtype=np.float32),
        }
        arrays = {name: device.array(values[rank], streams[number % 2]) for name in wanted}
        by_root = {"broadcast", "reduce"}
        handles = [
            getattr(comm, name)(array, **({"root": root} if name in by_root else {}), async_op=True)
            for name, array in arrays.items()
        ]
        for handle in handles[:: -1 if number % 3 else 1]:
            handle.wait()
        for name, array in arrays.items():
            if not np.array_equal(array.memory, wanted[name]):
                wrong.append(f"{name} of {length}: {array.memory[:3]} … {array.memory[-3:]}")
    comm.close()
    return wrong


@pytest.mark.parametrize("hosts", [1, 2])
def test_pieces_of_every_length(hosts: int) -> None:
    assert af.spawn(around_pieces, 3, hosts=hosts, timeout=60) == [[]] * 3


def copied_meanwhile(comm: Communicator) -> bool:
    """While the call of the first piece waits for the other rank, the second piece is copied."""
    device = device_of()
    staging.PIECE_BYTES = 4000
    values = np.ones(3000, np.float32)
    array = device.array(values, device.new_stream())
    comm.all_reduce(device.array(values[:10], device.new_stream()))
    if comm.rank == 0:
        begun = len(device.copied)
        handle = comm.all_reduce(array, async_op=True)
        assert handle is not None
        while len(device.copied) < begun + 2:
            time.sleep(0.001)
        comm.send(np.zeros(1), 1)
        handle.wait()
    else:
        comm.recv(np.zeros(1), 0)
        comm.all_reduce(array)
    return bool((array.memory == 2).all())


def test_a_piece_is_copied_during_the_call_of_another_one() -> None:
    assert af.spawn(copied_meanwhile, 2, timeout=30) == [True, True]


def in_order(comm: Communicator, way: str) -> tuple[bool, float, float]:
    """The call comes after what the stream holds, what comes later sees its result, and nobody waits in between:
    whoever did would wait for a gate that is opened later."""
    device = device_of(way)
    stream = device.new_stream()
    array = device.array(np.zeros(1000), stream)
    comm.all_reduce(array)  # makes what the first call makes
    gate, seen = threading.Event(), [0.0]
    device.later(stream, lambda: gate.wait() and None)
    device.later(stream, lambda: array.memory.fill(comm.rank + 1.0))
    first = comm.all_reduce(array, async_op=True)
    second = comm.all_reduce(array, async_op=True)
    device.later(stream, lambda: seen.__setitem__(0, array.memory[0]))
    assert first is not None and second is not None
    early = first.done() or second.done()
    gate.set()
    second.wait()
    first.wait()
    device.synchronize(stream)
    return early, seen[0], float(array.memory[0])


@pytest.mark.parametrize("way", WAYS)
def test_calls_are_in_the_order_of_the_stream_and_block_nobody(way: str) -> None:
    for early, seen, after in af.spawn(in_order, 2, args=(way,), timeout=60):
        assert not early and seen == after == 6.0


def by_the_engine_itself(comm: Communicator, way: str) -> tuple[list[float], bool, str]:
    """Calls as torch's backend makes them: a stream waits for them when it is told to, and the same one is remembered."""
    device = device_of(way)
    own = comm.engine.group(range(comm.size), 10.0)
    assert own is not None
    streams, user = engine.Stream(own), device.new_stream()
    array = device.array(np.ones(3), user)
    with pytest.raises(af.UsageError, match="captured") as caught:
        streams.meet_on_gpu(True)
    context, made = streams.meet_on_gpu(False), []

    def make() -> engine.Arguments:
        made.append(1)
        return Call("all_reduce", op=OPS["sum"]), None, Buffer.of("all_reduce", array, None, True)

    for holds in (True, False):
        ticket = streams.enqueue(context, "a key", make, user, holds)
        ticket.hold(user)
    device.synchronize(user)
    assert ticket.is_over() and ticket.behind == user and ticket.wait(10.0) and ticket.error() is None
    ticket.hold(user)  # it is over: nothing to wait for
    around = streams.around(context, user, lambda stream: None)
    around.wait(10.0)
    sums = array.memory.tolist()
    streams.close(compares=True)
    return sums, len(made) == 1 and around.behind == user, str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_calls_made_by_the_engine_itself(way: str) -> None:
    for sums, is_right, said in af.spawn(by_the_engine_itself, 2, args=(way,), timeout=60):
        assert sums == [4.0] * 3 and is_right and "make the call outside the capture" in said


def waits_with_a_limit(comm: Communicator) -> str:
    device = device_of()
    stream = device.new_stream()
    array = device.array(np.zeros(10), stream)
    comm.all_reduce(array)
    gate = threading.Event()
    device.later(stream, lambda: gate.wait() and None)
    handle = comm.all_reduce(array, async_op=True)
    assert handle is not None
    try:
        handle.wait(0.05)
    except af.CollectiveTimeout as error:
        said = str(error)
    gate.set()
    handle.wait()
    return said


def test_waiting_has_a_limit_and_the_call_goes_on() -> None:
    assert all("continues" in said for said in af.spawn(waits_with_a_limit, 2, timeout=60))


def refused(comm: Communicator) -> list[str]:
    device = device_of()
    stream = device.new_stream()
    array = device.array(np.zeros((4, 4)), stream)
    transposed, fixed = DeviceArray(array.memory.T, stream), DeviceArray(np.zeros(4), stream)
    fixed.memory.flags.writeable = False
    captured = device.new_stream()
    comm.all_reduce(array)
    said = []
    for call in (
        lambda: comm.all_gather(array, np.zeros((8, 4))),
        lambda: comm.all_reduce(transposed),
        lambda: comm.all_reduce(fixed),
        lambda: comm.all_reduce(array, dtype="float32"),
        lambda: comm.all_gather(array, device.array(np.zeros(9), stream)),
    ):
        with pytest.raises(af.UsageError) as error:
            call()
        said.append(str(error.value))
    device.captured = {*device._streams}
    del captured
    with pytest.raises(af.UsageError) as error:
        comm.all_reduce(array)
    device.captured = set()
    comm.all_reduce(array)  # nothing was broken
    return [*said, str(error.value)]


def test_what_cannot_be_is_refused_and_breaks_nothing() -> None:
    expected = ("the other is not", "not contiguous", "cannot be written", "float32", "got 16 and 9", "CUDA graph")
    for said in af.spawn(refused, 2, timeout=60):
        assert len(said) == len(expected)
        for sentence, words in zip(said, expected, strict=True):
            assert words in sentence


def killed(comm: Communicator, victim: int, way: str) -> tuple[list[str], float, int]:
    """What the survivors hear, how long it took, and how much memory stays registered."""
    device = device_of(way)
    array = device.array(np.ones(100_000), device.new_stream())
    comm.all_reduce(array)
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    began, said = time.monotonic(), []
    for _ in range(2):
        try:
            comm.all_reduce(array)
        except af.AllfoldError as error:
            said.append(f"{type(error).__name__}: {error}")
    comm.close()
    return said, time.monotonic() - began, len(device.registered)


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_dies_is_named(way: str) -> None:
    results = af.spawn(killed, 3, args=(1, way), survive=True, timeout=60)
    assert results[1] is None
    for said, seconds, registered in (results[0], results[2]):
        assert len(said) == 2 and all(one.startswith("RankLost: ") and "rank 1" in one for one in said)
        assert seconds < AT_ONCE and registered == 0


def mismatched(comm: Communicator, way: str) -> str:
    device = device_of(way)
    stream = device.new_stream()
    comm.all_reduce(device.array(np.ones(5), stream))
    try:
        comm.all_reduce(device.array(np.ones(5 + comm.rank), stream))
    except af.MismatchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("way", WAYS)
def test_different_calls_are_named(way: str) -> None:
    for said in af.spawn(mismatched, 2, args=(way,), timeout=60):
        assert "float64[5]" in said and "float64[6]" in said


def left_alone(comm: Communicator, way: str) -> tuple[str, str, float]:
    device = device_of(way)
    array, group = device.array(np.ones(5), device.new_stream()), comm.group(range(comm.size))
    group.all_reduce(array)
    said = said_by(lambda: group.all_reduce(array, timeout=0.3)) if comm.rank == 0 else ("", "", 0.0)
    comm.barrier()
    return said


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_does_not_come_is_named(way: str) -> None:
    kind, text, seconds = af.spawn(left_alone, 2, args=(way,), timeout=60)[0]
    assert kind == "CollectiveTimeout" and "rank 1" in text and seconds < AT_ONCE


def closes_early(comm: Communicator, way: str) -> tuple[float, int]:
    """A call that is in the stream when the communicator is closed, and that the other rank never makes."""
    device = device_of(way)
    array = device.array(np.ones(5), device.new_stream())
    comm.all_reduce(array)
    if comm.rank == 0:
        comm.all_reduce(array, async_op=True)
    else:
        comm.close()
    began = time.monotonic()
    comm.close()
    return time.monotonic() - began, len(device.registered)


@pytest.mark.parametrize("way", WAYS)
def test_closing_leaves_nothing_behind(way: str) -> None:
    for seconds, registered in af.spawn(closes_early, 2, args=(way,), timeout=60):
        assert seconds < AT_ONCE and registered == 0


def arrays_after_close(comm: Communicator) -> bool:
    device = device_of()
    array = device.array(np.ones(5), device.new_stream())
    comm.all_reduce(array)
    known = weakref.ref(array)
    comm.close()
    del array
    return known() is None


def test_a_closed_communicator_keeps_no_array() -> None:
    assert af.spawn(arrays_after_close, 2, timeout=60) == [True, True]


def held_up(comm: Communicator) -> tuple[str, float]:
    """All ranks make the call, and the stream of one of them does not come to it."""
    device = device_of("on the device")
    stream = device.new_stream()
    array = device.array(np.ones(5), stream)
    comm.all_reduce(array)
    gate = threading.Event()
    if comm.rank == 1:
        device.later(stream, lambda: gate.wait() and None)
    began, said = time.monotonic(), ""
    handle = comm.all_reduce(array, async_op=True, timeout=0.5)
    assert handle is not None
    try:
        handle.wait(60.0 if comm.rank == 0 else 2.0)
    except af.CollectiveTimeout as error:
        said = str(error)
    took = time.monotonic() - began
    gate.set()
    return said, took


def test_a_stream_that_does_not_come_to_the_call_is_not_waited_for_for_ever() -> None:
    said, seconds = af.spawn(held_up, 2, timeout=60)[0]
    assert "not over in time" in said and seconds < AT_ONCE


def on_the_border(comm: Communicator) -> tuple[bool, bool]:
    """A root has the whole array, longer than what is staged, and the others a part of it, which is shorter."""
    device = device_of("on the device")
    ways.STAGED_UP_TO = 1000
    stream, part = device.new_stream(), np.full(100, float(comm.rank))
    whole = device.array(np.zeros(100 * comm.size), stream) if comm.rank == 0 else None
    comm.gather(device.array(part, stream), whole, timeout=10.0)
    back = device.array(np.zeros(100), stream)
    comm.scatter(array=whole, output=back, timeout=10.0)
    return np.array_equal(back.memory, part), device.copied == []


def test_all_ranks_go_the_same_way() -> None:
    assert af.spawn(on_the_border, 3, timeout=60) == [(True, True)] * 3


def hindered(comm: Communicator, by: str) -> tuple[float, int]:
    device = device_of("on the device")
    if comm.rank == 1 and by == "no compiler":
        device.can_fold = lambda *_: False  # type: ignore[method-assign]
    device.is_apart = comm.rank == 1 and by == "no access"
    array = device.array(np.ones(1000), device.new_stream())
    comm.all_reduce(array)
    return float(array.memory[0]), device.folds


@pytest.mark.parametrize("by", ["no compiler", "no access"])
def test_where_one_rank_cannot_run_programs_on_the_device_all_calls_are_staged(by: str) -> None:
    assert af.spawn(hindered, 3, args=(by,), timeout=60) == [(3.0, 0)] * 3


def aborted(comm: Communicator, way: str) -> tuple[str, str, float]:
    device = device_of(way)
    array, group = device.array(np.ones(5), device.new_stream()), comm.group(range(comm.size))
    group.all_reduce(array)
    said = "", "", 0.0
    if comm.rank == 1:
        time.sleep(0.3)
        group.abort()
    else:
        said = said_by(lambda: group.all_reduce(array))
    comm.barrier()  # nobody hears of the end of a process
    return said


@pytest.mark.parametrize("way", WAYS)
def test_abort_ends_the_calls_of_all_ranks(way: str) -> None:
    for kind, text, seconds in af.spawn(aborted, 3, args=(way,), timeout=60)[::2]:
        assert kind == "RankLost" and "rank 1" in text and seconds < AT_ONCE


def overlapping(comm: Communicator) -> tuple[bool, list[str]]:
    """In the rank's own part an output may lie in its input, and an input in its output; elsewhere it is refused."""
    device = device_of("on the device")
    stream, said = device.new_stream(), []
    whole = np.full(30, float(comm.rank))
    parts = [DeviceArray(whole[start : start + 10], stream) for start in range(0, 30, 10)]
    comm.all_gather(parts[comm.rank], DeviceArray(whole, stream))
    gathered = np.array_equal(whole, np.repeat([0.0, 1.0, 2.0], 10))
    for source, target in (
        (parts[(comm.rank + 1) % 3], DeviceArray(whole, stream)),
        (parts[0], device.array(np.zeros(30, np.float32), stream)),
    ):
        with pytest.raises(af.UsageError) as error:
            comm.all_gather(source, target)
        said.append(str(error.value))
    return gathered, said


def test_arrays_that_overlap_or_differ_in_type() -> None:
    for gathered, (overlap, types) in af.spawn(overlapping, 3, timeout=60):
        assert gathered and "overlap" in overlap and "the input is float64, the output float32" in types


def in_blocks(comm: Communicator, area: int) -> list[str]:
    """Every schedule on arrays in memory that all ranks reach; what has other bits than in main memory, or was copied."""
    device = device_of("on the device")
    compose.AREA_BYTES = runner.AREA_BYTES = area
    stream, wrong = device.new_stream(), []
    comm.all_reduce(device.array(np.zeros(1), stream))  # makes what the first call makes
    made = ways_of(comm)
    rng = np.random.default_rng(comm.rank)
    alike = [name for name, one in COLLECTIVES.items() if one.carries_data and ways.has_alike(one)]
    for collective in alike:
        for name in algorithms(collective):
            arrays = arguments(comm, collective, rng.standard_normal(1001 * comm.size).astype(np.float32))
            there, release = [], []
            for array in arrays:
                assert array is not None
                found = made.empty(array.nbytes)
                assert found is not None
                release.append(found[1])
                memory = (ctypes.c_char * array.nbytes).from_address(found[0])
                there.append(DeviceArray(np.frombuffer(memory, np.float32), stream))
                there[-1].memory[:] = array
            getattr(comm, collective)(*there, algorithm=name)
            getattr(comm, collective)(*arrays, algorithm=name)
            if not all(np.array_equal(one.memory, array) for one, array in zip(there, arrays, strict=True)):
                wrong.append(f"{collective} {name}")
            del there
            for let_go in release:
                let_go()
    blocks = made.runner.blocks._blocks
    if len(blocks) > 2:
        wrong.append(f"{len(blocks)} blocks are still there")
    comm.close()
    if device.memory:
        wrong.append("memory is still held")
    return wrong


@pytest.mark.parametrize(("ranks", "area"), [(3, 1 << 20), (4, 16 << 10)])
def test_in_memory_that_all_ranks_reach_every_schedule_has_the_same_bits(ranks: int, area: int) -> None:
    assert af.spawn(in_blocks, ranks, args=(area,), timeout=120) == [[]] * ranks


def in_different_blocks(comm: Communicator) -> str:
    device = device_of("on the device")
    stream = device.new_stream()
    comm.all_reduce(device.array(np.zeros(1), stream))
    made = ways_of(comm)
    pointers = [made.empty(800)[0] for _ in range(2)]  # type: ignore[index]
    memory = (ctypes.c_char * 800).from_address(pointers[comm.rank])
    try:
        comm.all_reduce(DeviceArray(np.frombuffer(memory), stream))
    except af.MismatchError as error:
        return str(error)
    return ""


def test_parts_of_different_blocks_are_refused() -> None:
    for said in af.spawn(in_different_blocks, 2, timeout=60):
        assert "memory of allfold.torch.empty" in said and "rank 0" in said and "rank 1" in said
