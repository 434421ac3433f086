"""Ranks on several hosts, pretended on one machine: every collective and algorithm gives the bits of its schedule, and
messages and groups work across. What goes wrong is in test_pretended_faults.py."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import command, launched

import allfold as af
from allfold import _native
from allfold.collectives import COLLECTIVES
from allfold.communicator.communicator import Communicator
from allfold.engines.islands.crossing import BUILT_IN, Crossing
from allfold.engines.islands.wire import Memory
from allfold.engines.reference.replay import replay
from allfold.errors import ScheduleError
from allfold.launch.environment import Place
from allfold.price.topology.topology import Topology
from allfold.registry import algorithms, schedule
from allfold.schedules import Schedule

HOSTS = [(1, 3), (2, 2), (2, 1, 1)]
LENGTHS = (0, 1, 7, 1000, 70_001)
LONG = 600_001  # every rank crosses, in several segments of this length:
SEGMENT = 1_200_000
LONGER = 1_100_001  # of a broadcast, several segments


def usually(kept: Sequence[int]) -> list[Any]:
    """Parameters of a test: some hosts with a sample of the cases in every run, all hosts with every case at night."""
    return [(kept, False), *(pytest.param(one, True, marks=pytest.mark.exhaustive) for one in HOSTS)]


def some(values: Sequence[Any], number: int, every: bool) -> Sequence[Any]:
    """Every value, or one of them, in turn."""
    return values if every else [values[number % len(values)]]


def islands_of(hosts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(hosts).tolist()
    return [list(range(end - count, end)) for end, count in zip(ends, hosts, strict=True)]


@cache
def drawn(rank: int, length: int, dtype: str) -> Any:
    """An array of random numbers, to be read and not written. It repeats itself after 10,007 of them, a prime: a chunk that is
    put in the wrong place differs, unless it is off by a multiple of that."""
    random = np.random.default_rng(1000 * rank + length)
    different = min(length, 10_007)
    if np.dtype(dtype).kind in "fc":
        numbers = (random.standard_normal(different) * 3).astype(dtype)
    else:
        numbers = random.integers(-9, 9, different).astype(dtype)
    return np.resize(numbers, length)


def two_levels(hosts: Sequence[int]) -> Any:
    """What all reductions do by default, whatever their size: fold inside each host, then over the hosts."""
    groups = islands_of(hosts)
    return schedule("all_reduce", "hierarchical", sum(hosts), groups=groups, up="driver", across="naive", down="driver")


def reductions(comm: Communicator, hosts: Sequence[int], every: bool) -> None:
    whole = two_levels(hosts)
    for dtype, ops in (("float32", ("sum", "avg", "max")), ("float16", ("sum", "avg")), ("int64", ("sum", "bxor"))):
        for number, length in enumerate((*LENGTHS, LONG) if dtype == "float32" else LENGTHS[:4]):
            for op in some(ops if length < LONG else ops[:2], number, every):
                inputs = [drawn(rank, length, dtype) for rank in range(comm.size)]
                expected = replay(whole, inputs, op)[0]
                array = inputs[comm.rank].copy()
                comm.all_reduce(array, op)
                assert array.tobytes() == expected.tobytes(), ("all_reduce", dtype, length, op)
                for root in some((0, comm.size - 1), number, every):
                    array = inputs[comm.rank].copy()
                    comm.reduce(array, root, op)
                    assert comm.rank != root or array.tobytes() == expected.tobytes(), ("reduce", dtype, length, op)
                inputs = [drawn(rank, length * comm.size, dtype) for rank in range(comm.size)]
                part = np.empty(length, dtype)
                comm.reduce_scatter(inputs[comm.rank], part, op)
                mine = slice(comm.rank * length, (comm.rank + 1) * length)
                assert part.tobytes() == replay(whole, inputs, op)[0][mine].tobytes(), ("scatter", dtype, length, op)


def copies(comm: Communicator, hosts: Sequence[int], every: bool) -> None:
    for dtype in ("float32", "complex128", "uint8"):
        for number, length in enumerate((*LENGTHS, LONG) if dtype == "float32" else LENGTHS[:4]):
            parts = [drawn(rank, length, dtype) for rank in range(comm.size)]
            wholes = [drawn(rank, length * comm.size, dtype) for rank in range(comm.size)]
            mine = slice(comm.rank * length, (comm.rank + 1) * length)
            for root in some((0, comm.size - 1), number, every):
                array = parts[comm.rank].copy()
                comm.broadcast(array, root)
                assert array.tobytes() == parts[root].tobytes()
                gathered = np.empty(length * comm.size, dtype) if comm.rank == root else None
                comm.gather(parts[comm.rank], gathered, root)
                assert gathered is None or gathered.tobytes() == np.concatenate(parts).tobytes()
                array = np.empty(length, dtype)
                comm.scatter(array=wholes[root] if comm.rank == root else None, output=array, root=root)
                assert array.tobytes() == wholes[root][mine].tobytes()
            gathered = np.empty(length * comm.size, dtype)
            comm.all_gather(parts[comm.rank], gathered)
            assert gathered.tobytes() == np.concatenate(parts).tobytes()
            exchanged = np.empty(length * comm.size, dtype)
            comm.all_to_all(wholes[comm.rank], exchanged)
            assert exchanged.tobytes() == np.concatenate([whole[mine] for whole in wholes]).tobytes()
            comm.barrier()


def named_algorithms(comm: Communicator, hosts: Sequence[int], every: bool) -> None:
    for collective in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"):
        root = comm.size - 1 if collective in ("reduce", "broadcast") else None
        for number, name in enumerate(algorithms(collective)):
            try:
                built = schedule(collective, name, comm.size, root)
            except (af.UsageError, ScheduleError):
                continue
            for length in some((1, 37, 5000), number, every):
                sliced = collective == "reduce_scatter"
                inputs = [drawn(rank, length * (comm.size if sliced else 1), "float32") for rank in range(comm.size)]
                expected = replay(built, inputs, "sum")[comm.rank]
                own = inputs[comm.rank].copy()
                if collective == "all_reduce":
                    comm.all_reduce(own, algorithm=name)
                elif collective in ("reduce", "broadcast"):
                    assert root is not None
                    getattr(comm, collective)(own, root, algorithm=name)
                else:
                    output = np.empty(length * comm.size if collective == "all_gather" else length, np.float32)
                    getattr(comm, collective)(own, output, algorithm=name)
                    own = output
                assert expected is None or own.tobytes() == expected.tobytes(), (collective, name, length)
    for name in algorithms("barrier"):  # which have no arrays
        comm.barrier(algorithm=name)


def own_generator(comm: Communicator, hosts: Sequence[int]) -> None:
    def star(ranks: int) -> Any:
        yield [af.reduce(0, rank, 0) for rank in range(1, ranks)]
        yield [af.copy(0, 0, rank) for rank in range(1, ranks)]

    array = np.full(5, comm.rank + 1.0)
    comm.all_reduce(array, algorithm=star)
    assert (array == 10).all()


def messages(comm: Communicator, hosts: Sequence[int]) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for length in (0, 3, 300_000):
        into = np.empty(length, np.int32)
        pending = comm.irecv(into, left, tag=5)
        comm.send(np.full(length, comm.rank, np.int32), right, tag=5)
        assert pending.wait() == (left, 5, length) and (into == left).all()
    # Order between two ranks with one tag is kept, whatever the lengths.
    going = [comm.isend(np.full(length, float(length)), right, tag=1) for length in (100_000, 1, 100_000, 2)]
    for length in (100_000, 1, 100_000, 2):
        array = np.empty(length)
        assert comm.recv(array, left, tag=1).elements == length and (array == length).all()
    # Long messages in two groups at once do not meet.
    everybody = list(range(comm.size))
    pair = [comm.group(everybody), comm.group(everybody[::-1])]
    sizes = (50_000, 70_000)
    for group, length in zip(pair, sizes, strict=True):
        assert group is not None
        going.append(group.isend(np.full(length, float(length)), (group.rank + 2) % group.size))
    for group, length in reversed(list(zip(pair, sizes, strict=True))):
        assert group is not None
        array = np.empty(length)
        assert group.recv(array, (group.rank - 2) % group.size).elements == length and (array == length).all()
    for sent in going:
        sent.wait()
    # From anybody: from the own host and from others.
    if comm.rank:
        comm.send(np.array([comm.rank]), 0, tag=comm.rank)
    else:
        came = np.empty(1, np.int64)
        assert {comm.recv(came, tag=af.ANY_TAG).source for _ in range(comm.size - 1)} == set(range(1, comm.size))
    comm.barrier()


def groups(comm: Communicator, hosts: Sequence[int]) -> None:
    across, inside = [comm.size - 1, 0], [2, 3]
    for ranks in (across, inside):
        group = comm.group(ranks)
        assert (group is None) == (comm.rank not in ranks)
        if group is not None:
            array = np.full(3, comm.rank + 1.0)
            group.all_reduce(array)
            assert group.rank == ranks.index(comm.rank) and (array == sum(ranks) + 2).all()
    handles = []
    arrays = [np.full(length, float(comm.rank)) for length in (1, 1000, 200_000)]
    for array in arrays:
        handles.append(comm.all_reduce(array, async_op=True))
    for handle in handles:
        handle.wait()
    assert all((array == 6).all() for array in arrays)


def traces(comm: Communicator, hosts: Sequence[int]) -> None:
    before = comm.engine.calls()
    with comm.trace() as trace:
        comm.all_reduce(np.ones(3))
        comm.all_reduce(np.ones(LONG, np.float32))
        comm.all_reduce(np.ones(5000), algorithm="ring")
    wire = [event for event in trace.events if event.memory == "wire"]
    inside = [event for event in trace.events if event.memory != "wire"]
    names = {1: "hierarchical", 2: "two_level", 3: "ring"}
    assert {(event.call - before, event.algorithm) for event in wire} == set(names.items())
    assert {event.rank for event in wire} == set(range(comm.size))
    assert {event.rank for event in inside} == {rank for group in islands_of(hosts) for rank in group if len(group) > 1}
    host_of = {rank: number for number, group in enumerate(islands_of(hosts)) for rank in group}
    assert all(host_of[event.rank] != host_of[event.peers[0]] for event in wire)
    assert all(host_of[event.rank] == host_of[peer] for event in inside for peer in event.peers)
    sent, received = (
        Counter(
            (event.call, *((event.rank, *event.peers) if starts == "send" else (*event.peers, event.rank)), event.bytes)
            for event in wire
            if event.what.startswith(starts)
        )
        for starts in ("send", "receive")
    )
    assert sent == received
    ends: dict[Any, float] = {}
    for row in sorted((row for row in trace.to_chrome()["traceEvents"] if row["ph"] == "X"), key=lambda row: row["ts"]):
        track = row["pid"], row["tid"]
        assert ends.get(track, 0) <= row["ts"] + 0.01, row
        ends[track] = row["ts"] + row["dur"]
    comm.barrier()


def everything(comm: Communicator, hosts: Sequence[int], every: bool) -> None:
    for over_cases in (reductions, copies, named_algorithms):
        over_cases(comm, hosts, every)
    for work in (own_generator, messages, groups, traces):
        work(comm, hosts)


# What a call that names no algorithm does is a registered schedule ----------------------------------------------------


def twice_left(left: Any, right: Any) -> Any:
    return 2 * left + right


NOT_COMMUTATIVE = af.op(twice_left, commutative=False)


def default_schedule(comm: Communicator, collective: str, bytes: int, root: int, commutative: bool) -> Schedule:
    name, parameters = comm.engine.crossing.schedule(collective, comm.engine.hosts(), bytes, commutative)
    return schedule(collective, name, comm.size, root if COLLECTIVES[collective].rooted else None, **parameters)


def call(comm: Communicator, collective: str, input: Any, op: Any, root: int) -> Any:
    """A call without an algorithm; what this rank gets."""
    size, rank = comm.size, comm.rank
    if collective == "all_reduce":
        comm.all_reduce(output := input.copy(), op)
    elif collective == "reduce":
        comm.reduce(output := input.copy(), root, op)
    elif collective == "scan":
        comm.scan(output := input.copy(), op)
    elif collective == "exscan":
        comm.exscan(output := input.copy(), op)
    elif collective == "broadcast":
        comm.broadcast(output := input.copy(), root)
    elif collective == "gather":
        comm.gather(input, output := np.empty(input.size * size, input.dtype) if rank == root else None, root)
    elif collective == "scatter":
        output = np.empty(input.size // size, input.dtype)
        comm.scatter(array=input if rank == root else None, output=output, root=root)
    elif collective == "all_gather":
        comm.all_gather(input, output := np.empty(input.size * size, input.dtype))
    elif collective == "reduce_scatter":
        comm.reduce_scatter(input, output := np.empty(input.size // size, input.dtype), op)
    elif collective == "all_to_all":
        comm.all_to_all(input, output := np.empty(input.size, input.dtype))
    else:
        comm.barrier()
        output = None
    return output


def elements_of(comm: Communicator, collective: str, length: int) -> int:
    return length * comm.size if collective in ("scatter", "reduce_scatter", "all_to_all") else length


Results = list[tuple[str, list[bytes | None]]]
"""What was called, and digests of what came out: of this rank's array, or of all ranks'."""


def bits_of_its_schedule(comm: Communicator, collective: str, turn: int, every: bool) -> tuple[Results, Results]:
    """What this rank got, and, on rank 0, what every rank should have got: one rank computes it for all.

    Of every case, or of those whose turn it is: every other one.
    """
    cases = itertools.count(turn)
    found: Results = []
    wanted: Results = []
    promise = COLLECTIVES[collective]
    for dtype, ops in (
        ("float32", ("sum", "avg", "max", NOT_COMMUTATIVE)),
        ("float16", ("sum", "avg")),
        ("complex64", ("prod",)),
        ("int64", ("sum", "bxor")),
        ("uint8", ("min",)),
    ):
        lengths = LENGTHS if dtype == "float32" else LENGTHS[:4]
        if dtype == "float32":
            lengths += (LONGER,) if collective == "broadcast" else (LONG,)
        for length in lengths:
            whole = elements_of(comm, collective, length)
            own = drawn(comm.rank, whole, dtype)
            inputs = [drawn(rank, whole, dtype) for rank in range(comm.size)] if comm.rank == 0 else []
            for op in ops if promise.reduces else ("sum",):
                if (length >= LONG and op in ("max", NOT_COMMUTATIVE)) or (op == "avg" and promise.has_order):
                    continue
                if length >= LONG and op == "avg" and not every:
                    continue
                for root in range(comm.size) if promise.rooted and length == 7 else (comm.size - 1,):
                    if next(cases) % 2 and not every:
                        continue
                    bytes = own.nbytes * (comm.size if collective in ("gather", "all_gather") else 1)
                    made = default_schedule(comm, collective, bytes, root, op is not NOT_COMMUTATIVE)
                    what = f"{made.title}, {dtype}, {length}, {getattr(op, 'name', op)}"
                    found.append((what, [digest(call(comm, collective, own, op, root))]))
                    if comm.rank == 0:
                        wanted.append((what, [digest(one) for one in replay(made, inputs, op)]))
    return found, wanted


def digest(array: Any) -> bytes | None:
    return None if array is None else sha256(array.tobytes()).digest()


HEADER = 128  # bytes: what the leaders of the islands tell each other of every call


def messages_of_its_schedule(comm: Communicator, collective: str, length: int) -> None:
    """On the wire is what the schedule sends from island to island, and what the leaders tell each other."""
    root, own = 1, drawn(comm.rank, elements_of(comm, collective, length), "float32")
    with comm.trace() as trace:
        call(comm, collective, own, "sum", root)
    sent: Counter[tuple[int, int]] = Counter()
    for event in trace.events:
        if event.memory == "wire" and event.what.startswith("send"):
            sent[event.rank, event.peers[0]] += event.bytes
    whole = own.size * (comm.size if collective in ("gather", "all_gather") else 1)
    made = default_schedule(comm, collective, 4 * whole, root, True)
    host_of = {rank: number for number, group in enumerate(comm.engine.hosts()) for rank in group}
    leaders = [group[0] for group in comm.engine.hosts()]
    wanted = Counter({(here, there): HEADER for here in leaders for there in leaders if here != there})
    each, rest = divmod(4 * whole, made.chunks)
    assert not rest
    for move in (move for step in made for move in step):
        if host_of[move.source] != host_of[move.destination] and made.promise.carries_data:
            wanted[move.source, move.destination] += each
    assert sent == wanted, (made.title, length, sent, wanted)


def follows(comm: Communicator, others: Sequence[int], every: bool) -> list[tuple[int, Results, Results]]:
    """`others`: the ranks in another order, so that those of a host are not consecutive. By communicator and
    collective: the rank there, and the two of `bits_of_its_schedule`."""
    group = comm.group(others)
    assert group is not None
    results = []
    for turn, one in enumerate((comm, group)):
        one.engine.cross_by(Crossing(segment=SEGMENT))
        for number, collective in enumerate(COLLECTIVES):
            if COLLECTIVES[collective].carries_data:
                results.append((one.rank, *bits_of_its_schedule(one, collective, turn, every)))
            for length in some((240, 600_000), turn + number, every):
                messages_of_its_schedule(one, collective, length)
    return results


@pytest.mark.parametrize(
    ("hosts", "others", "every"),
    [
        pytest.param((1, 3), [1, 0, 3, 2], True, marks=pytest.mark.exhaustive),
        pytest.param((2, 2), [0, 2, 1, 3], True, marks=pytest.mark.exhaustive),
        pytest.param((2, 1, 1), [3, 1, 2, 0], True, marks=pytest.mark.exhaustive),
        ((2, 1, 1), [3, 1, 2, 0], False),
    ],
)
def test_a_call_without_an_algorithm_follows_a_registered_schedule(
    hosts: tuple[int, ...], others: list[int], every: bool
) -> None:
    compared = 0
    for turn in zip(*af.spawn(follows, sum(hosts), args=(others, every), hosts=hosts, timeout=300), strict=True):
        wanted = next(wanted for rank, _, wanted in turn if rank == 0)
        for rank, found, _ in turn:
            for (what, [got]), (same, expected) in zip(found, wanted, strict=True):
                assert what == same and (expected[rank] is None or got == expected[rank]), (rank, what)
                compared += expected[rank] is not None
    assert compared > (1000 if every else 500)


@pytest.mark.parametrize(
    "islands", [[[0], [1, 2, 3]], [[0, 2], [1, 3]], [[0, 3], [1], [2]], [[0, 4], [1, 2, 6], [3], [5]]]
)
def test_the_schedules_of_calls_without_an_algorithm_are_proved(islands: list[list[int]]) -> None:
    ranks, proved = sum(map(len, islands)), set()
    for collective, promise in COLLECTIVES.items():
        for bytes in (0, 1 << 16, 3 << 20, 1 << 30):
            for root in range(ranks) if promise.rooted else (None,):
                for commutative in (True, False) if promise.reduces and promise.carries_data else (True,):
                    name, parameters = BUILT_IN.schedule(collective, islands, bytes, commutative)
                    key = collective, name, root, commutative, repr(parameters)
                    if key not in proved:
                        proof = af.verify(schedule(collective, name, ranks, root, **parameters))
                        assert proof.rank_order is not False or commutative, (collective, bytes)
                    proved.add(key)


@pytest.mark.parametrize(("hosts", "every"), usually((1, 3)))
def test_across_hosts(hosts: tuple[int, ...], every: bool) -> None:
    af.spawn(everything, sum(hosts), args=(hosts, every), hosts=hosts, timeout=200)


def test_memory_of_messages_is_used_again_and_little_is_kept() -> None:
    memory = Memory()
    for bytes, again in ((100, False), (1 << 20, True), (128 << 20, False)):
        first = memory.take(bytes)
        memory.give_back(first)
        assert (memory.take(bytes) is first) == again
    many = [memory.take(1 << 20) for _ in range(100)]
    for one in many:
        memory.give_back(one)
    assert sum(map(len, memory._free.values())) <= 64


def mixed_ways(comm: Communicator) -> None:
    """The same call, made in different ways by different ranks."""
    torch = pytest.importorskip("torch")
    for turn in range(20):
        way = (comm.rank + turn) % 4
        array = np.full((8, 2), comm.rank + 1.0, np.float32)
        if way == 0:
            comm.all_reduce(array[:, 0])
        elif way == 1:
            array = array[:, :1].copy()
            comm.all_reduce(array, async_op=True).wait()
        elif way == 2:
            array = torch.tensor(array[:, 0])
            comm.all_reduce(array, timeout=20.0)
        else:
            array = array[:, :1].copy()
            comm.all_reduce(array)
        assert np.asarray(array).reshape(8, -1)[:, 0].tolist() == [10.0] * 8


def test_small_calls_may_be_made_in_different_ways() -> None:
    af.spawn(mixed_ways, 4, hosts=(1, 3), timeout=60)


def python_in_small_calls(comm: Communicator) -> tuple[list[str], list[str]]:
    """The Python functions that run in small calls after the first ones, and the calls that were noted."""
    array, called = np.ones(3), []
    comm.all_reduce(array)
    comm.barrier()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    for _ in range(3):
        comm.all_reduce(array)
        comm.barrier()
    sys.setprofile(None)
    noted = [f"{call['call']} {call['collective']} {call['elements']}" for call in comm.engine.flight()["calls"]]
    return called, noted


def test_small_calls_need_no_python() -> None:
    """Only the communicator's own functions run, and the calls are noted with those that Python made."""
    for called, noted in af.spawn(python_in_small_calls, 3, hosts=(2, 1), timeout=60):
        assert called == ["Communicator.all_reduce", "Communicator.barrier"] * 3
        assert noted == [f"{call + 1} {('all_reduce 3', 'barrier 0')[call % 2]}" for call in range(8)]


def python_in_general_calls(comm: Communicator) -> tuple[list[str], list[str]]:
    """The functions of the engine that run in calls that were made before with other data, and what has changed."""
    size, rank, called, wrong = comm.size, comm.rank, list[str](), list[str]()
    ones, large, whole = np.ones(6, np.float32), np.ones(100_001, np.float32), np.ones(6 * size, np.float32)
    sum_of_all = size * (size + 1) / 2

    def make_calls(factor: float) -> None:
        for name, array, arguments, expected in (
            ("all_reduce", ones, {"op": "avg"}, factor * sum_of_all / size),
            ("all_reduce", ones, {"algorithm": "ring"}, factor * sum_of_all),
            ("all_reduce", large, {}, factor * sum_of_all),
            ("all_reduce", large, {"op": "max", "timeout": 20.0}, factor * size),
            ("broadcast", ones, {"root": 1}, factor * 2),
            ("reduce", ones, {"root": 0}, factor * sum_of_all if rank == 0 else None),
            ("scan", ones, {}, factor * (rank + 1) * (rank + 2) / 2),
        ):
            array[:] = factor * (rank + 1)
            getattr(comm, name)(array, **arguments)
            if expected is not None and not np.allclose(array, expected):
                wrong.append(f"{name} {arguments} {factor}")
        ones[:] = factor * (rank + 1)
        comm.all_gather(ones, whole)
        by_rank = np.repeat(np.arange(1, size + 1), 6) * factor
        wrong.extend([] if np.array_equal(whole, by_rank) else [f"all_gather {factor}"])
        comm.reduce_scatter(whole, ones)
        wrong.extend(
            [] if np.array_equal(ones, np.full(6, (rank + 1) * factor * size)) else [f"reduce_scatter {factor}"]
        )
        comm.all_to_all(whole[::-1].copy(), whole)
        comm.gather(ones, whole if rank == 2 else None, root=2)
        comm.scatter(array=whole if rank == 2 else None, output=ones, root=2)
        wrong.extend([] if np.array_equal(ones, np.full(6, (rank + 1) * factor * size)) else [f"scatter {factor}"])

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "/engines/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    for factor in (1.0, 2.0):  # the memory that the first round has asked for is there in the second
        make_calls(factor)
    comm.barrier()
    sys.setprofile(note)
    make_calls(3.0)
    sys.setprofile(None)
    comm.barrier()
    return called, wrong


def test_general_calls_need_no_python() -> None:
    """Once a call was made, the extension makes calls with the same signature alone."""
    for called, wrong in af.spawn(python_in_general_calls, 3, hosts=(2, 1), timeout=60):
        assert not wrong and not called


def renamed_algorithm(comm: Communicator) -> list[list[float]]:
    """Sums that depend on the order in which they are folded, by algorithms and by a name that stands for each of them."""
    sums = []
    for name in ("direct", "ring"):
        af.register(af.schedule("all_reduce", name, comm.size), "some")
        for algorithm in (name, "some", "some"):
            array = np.full(3, (1e16, 1.0, -1e16)[comm.rank])
            comm.all_reduce(array, algorithm=algorithm)
            sums.append(array.tolist())
    return sums


def test_a_name_that_stands_for_another_algorithm_is_followed_at_once() -> None:
    for sums in af.spawn(renamed_algorithm, 3, hosts=(2, 1), timeout=60):
        assert sums[0] == sums[1] == sums[2] != sums[3] == sums[4] == sums[5]


def on_one_island(comm: Communicator) -> list[float]:
    arrays = [np.full(3, comm.rank + 1.0) for _ in range(4)]
    comm.all_reduce(arrays[0], "avg")
    comm.reduce(arrays[1], 1, "avg")
    comm.scan(arrays[2])
    comm.all_reduce(arrays[3], algorithm="ring")
    comm.barrier()
    return [float(array[0]) for array in arrays]


def test_a_group_of_one_island_makes_its_calls_in_shared_memory() -> None:
    results = af.spawn(on_one_island, 3, engine="islands", timeout=60)
    assert [one[0] for one in results] == [2.0] * 3 and results[1][1] == 2.0
    assert [one[2:] for one in results] == [[1.0, 6.0], [3.0, 6.0], [6.0, 6.0]]


# Commands inside the ranks of a launcher ------------------------------------------------------------------------------


def test_topo_measures_what_is_between_the_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    (status, out, err), *others = launched(command, 4, "topo", "--json", "--emit", str(file), hosts=2)
    assert status == 0 and {(status, out) for status, out, _ in others} == {(0, "")}, err
    found = json.loads(out, parse_constant=pytest.fail)  # Infinity is not JSON
    assert found["hosts"] == [[0, 1], [2, 3]]
    (wire,) = found["wires"]
    assert 1e-6 < wire["overhead"] <= wire["latency"] < 1 and 1e6 < wire["bandwidth"] < 1e12
    topology = Topology.from_json(file.read_text(encoding="utf-8"))
    assert topology.ranks == 4 and found["topology"] == topology.to_json()
    assert [size for size, _ in wire["sizes"]] == [8, *(1 << power for power in range(10, 24))]
    assert topology.by_size  # a message of 8 bytes and one of 8 MiB do not take as long, on any machine


def on_another_processor(place: Place) -> float:
    _native.LAYOUT ^= os.environ["ALLFOLD_HOSTID"] == "host1"
    array = np.ones(3)
    with af.init(timeout=20) as comm:
        comm.all_reduce(array)
    return float(array[0])


def test_hosts_of_different_layouts_meet() -> None:
    assert launched(on_another_processor, 2, hosts=2) == [2.0, 2.0]
