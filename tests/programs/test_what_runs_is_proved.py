"""No gap between a proved schedule and what ranks execute: lengths, names, lists, and what the engine relies on."""

from __future__ import annotations

import functools
import gc
import json
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold import _native, registry
from allfold.communicator.communicator import Communicator
from allfold.dtypes import find_dtype
from allfold.engines.shared_memory.programs import facts
from allfold.errors import ScheduleError, UsageError
from allfold.programs.check import check
from allfold.programs.compile import compile
from allfold.programs.rows import Lists
from allfold.proved import message_programs_of, programs_of, schedule_of
from allfold.registry import REGISTRY, Algorithm
from allfold.schedules import Move, copy, reduce
from allfold.symbolic import State

Steps = Iterator[list[Move]]

# Lengths --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "chunks", "step", "what"),
    [
        # In a slice of 1 element, the second chunk has the element and the first is empty.
        (
            "all_gather",
            4,
            [copy(1, 0, 1, into=0)],
            "puts chunk 1 (of slice 0) into chunk 0 of rank 1, which can be shorter",
        ),
        ("all_to_all", 6, [copy(1, 0, 1, into=3)], "of slices of 2 elements chunk 1 has one, chunk 3 none"),
        ("all_reduce", 3, [copy(2, 0, 1, into=1)], "of a buffer of 1 elements chunk 2 has one, chunk 1 none"),
    ],
)
def test_what_does_not_fit_is_refused(collective: str, chunks: int, step: list[Move], what: str) -> None:
    made = Algorithm(collective, "long", lambda ranks: iter([step]), chunks)
    with pytest.raises(ScheduleError, match=r"test_what_runs_is_proved\.py:\d+") as caught:
        af.verify(af.schedule(collective, made, 2))
    assert what in str(caught.value)
    assert (caught.value.rank, caught.value.step) == (1, 0)
    assert caught.value.chunk == step[0].into


@pytest.mark.parametrize(
    ("collective", "chunks", "step"),
    [
        ("all_gather", 4, [copy(1, 0, 1, into=4)]),  # scratch holds anything
        ("all_gather", 4, [copy(1, 0, 1, into=3)]),  # second to second
        ("all_gather", 4, [copy(0, 0, 1, into=3)]),  # the first is never the longer one
        ("all_reduce", 5, [copy(1, 0, 1, into=3)]),  # equally long for every length
    ],
)
def test_what_always_fits_is_accepted(collective: str, chunks: int, step: list[Move]) -> None:
    """That it then runs correctly is tested with random schedules."""
    made = Algorithm(collective, "short", lambda ranks: iter([step]), chunks)
    State(af.schedule(collective, made, 2)).advance()


def swapped(comm: Communicator, elements: int, shared: bool) -> list[float]:
    """A longer chunk passes through the place of a shorter one; it once overwrote the first element of the next."""
    source = comm.empty(elements, np.float32) if shared else np.empty(elements, np.float32)
    source[:] = np.arange(elements) + 100 * comm.rank
    out = comm.empty(2 * elements, np.float32) if shared else np.empty(2 * elements, np.float32)
    out[:] = -1

    @af.algorithm("all_gather", "swapped", chunks=lambda ranks: 2 * ranks)
    def swapped(ranks: int) -> Steps:
        yield [copy(2 * r + k, r, 1 - r, into=2 * r + 1 - k) for r in range(2) for k in range(2)]
        yield [copy(2 * r + 1 - k, 1 - r, 1 - r, into=2 * r + k) for r in range(2) for k in range(2)]

    comm.all_gather(source, out, algorithm=swapped)
    return [float(value) for value in out]


@pytest.mark.parametrize("shared", [False, True])
def test_a_chunk_never_overwrites_its_neighbour(shared: bool) -> None:
    with pytest.raises(af.RankFailed, match="can be shorter"):
        af.spawn(swapped, 2, args=(5, shared))


# Names ----------------------------------------------------------------------------------------------------------------


def by_name(comm: Communicator) -> str:
    @af.algorithm("all_reduce", "half of a chain")
    def half_of_a_chain(ranks: int) -> Steps:
        """Wrong: the last rank's contribution reaches nobody."""
        yield [reduce(0, 0, 1)]
        yield [reduce(0, 1, 2), copy(0, 1, 0)]

    array = np.full(4, comm.rank + 1.0)
    try:
        comm.all_reduce(array, algorithm="half of a chain")
    except ScheduleError as error:
        return str(error)
    return f"it ran, and gave {array[0]}"


def test_a_registered_algorithm_is_proved_before_it_runs() -> None:
    for said in af.spawn(by_name, 3):
        assert "half of a chain(ranks=3): after step 2, rank 0 chunk 0 lacks rank 2" in said


def different(comm: Communicator, name: str | None, elements: int) -> str:
    def everyone(ranks: int) -> Steps:
        yield [reduce(0, r, q) for r in range(ranks) for q in range(ranks) if r != q]

    def through_zero(ranks: int) -> Steps:
        yield [reduce(0, r, 0) for r in range(1, ranks)]
        yield [copy(0, 0, r) for r in range(1, ranks)]

    mine = everyone if comm.rank else through_zero
    mine.__name__ = name or "mine"
    algorithm: Any = mine
    if name:
        af.algorithm("all_reduce", name)(mine)
        algorithm = name
    try:
        comm.all_reduce(np.ones(elements), algorithm=algorithm, timeout=20)
    except af.MismatchError as error:
        return str(error)
    return "nobody noticed"


@pytest.mark.parametrize("elements", [4, 100_000])
@pytest.mark.parametrize("name", [None, "one", "a name that is longer than what there is room for in a record, " * 2])
def test_one_name_for_different_schedules_is_a_mismatch(name: str | None, elements: int) -> None:
    said = af.spawn(different, 3, args=(name, elements))
    for one in said:  # nobody waits long for a rank that comes later
        assert "rank 0 called it with " in one and one.count("(schedule ") == 2
        assert "ranks 1 and 2 with " in one or re.search(r"rank [12] did not arrive", one)
    assert any("ranks 1 and 2 with " in one for one in said)


def redefined(comm: Communicator) -> list[str]:
    """A notebook cell is run again: the name then means the new function, even if a communicator knows the old one."""
    said = []
    for wrong in (False, True, False):

        @af.algorithm("all_reduce", "of a cell")
        def of_a_cell(ranks: int, wrong: bool = wrong) -> Steps:
            yield [reduce(0, r, q) for r in range(ranks) for q in range(ranks) if r != q and not wrong]

        array = np.ones(3)
        try:
            comm.all_reduce(array, algorithm="of a cell")
            said.append(str(array[0]))
        except ScheduleError as error:
            said.append(str(error)[:40])
            comm.barrier()
    return said


def test_a_name_that_is_defined_anew_means_the_new_function() -> None:
    for said in af.spawn(redefined, 2):
        assert said == ["2.0", "of a cell(ranks=2): without any step, ra", "2.0"]


SCRIPT = """
import allfold as af, numpy as np

@af.algorithm("all_gather", "in two parts", chunks=lambda ranks: 2 * ranks)
def in_two_parts(ranks):
    for step in range(ranks - 1):
        yield [af.copy(2 * ((r - step) % ranks) + k, r, (r + 1) % ranks) for r in range(ranks) for k in range(2)]

def work(comm):
    found = []
    for algorithm in (in_two_parts, "in two parts"):
        out = np.empty(5 * comm.size)
        comm.all_gather(np.full(5, comm.rank), out := np.empty(5 * comm.size, np.int64), algorithm=algorithm)
        found.append(out.tolist())
    return found

print(af.spawn(work, 3))
"""


def test_what_a_script_registers_reaches_its_ranks() -> None:
    """Its chunks too: the function is pickled by value, and is another object when it arrives."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    whole = [rank for rank in range(3) for _ in range(5)]
    assert json.loads(done.stdout) == [[whole, whole]] * 3


def test_a_wrapped_function_does_not_change_what_it_wraps() -> None:
    with REGISTRY.scope():

        @af.algorithm("all_reduce", "wrapped", chunks=2)
        def inner(ranks: int) -> Steps:
            yield from ()

        @functools.wraps(inner)
        def outer(ranks: int) -> Steps:
            yield from inner(ranks)

        af.algorithm("all_reduce", "wrapping", chunks=3)(outer)
        assert af.schedule("all_reduce", inner, 1).chunks == 2
        assert af.schedule("all_reduce", outer, 1).chunks == 3


# What the engine relies on --------------------------------------------------------------------------------------------


def many_places(comm: Communicator) -> float:
    def spread(ranks: int) -> Steps:
        """One reduction whose result is then copied into 1,100 scratch chunks: one instruction may write them all."""
        yield [reduce(0, 1, 0)]
        yield [copy(0, 0, 1), *(copy(0, 0, 0, into=1 + i) for i in range(1100))]

    array = np.full(3, comm.rank + 1.0)
    made = af.algorithm("all_reduce", "spread", chunks=1)(spread)
    comm.all_reduce(array, algorithm=made)
    shared = comm.empty(3, np.float64)
    shared[:] = comm.rank + 1.0
    comm.all_reduce(shared, algorithm=made)
    assert shared.tolist() == array.tolist()
    return float(array[0])


def test_an_instruction_may_have_any_number_of_destinations() -> None:
    assert af.spawn(many_places, 2) == [3.0, 3.0]


def changed(what: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(facts: dict[str, Any]) -> None:
        facts[what] = change(facts[what])

    return apply


def first(value: int) -> Callable[[Any], Any]:
    def put(array: Any) -> Any:
        array = array.copy()
        array[0] = value
        return array

    return put


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (changed("rank", lambda _: 7), "a rank that does not exist"),
        (changed("ranks", lambda _: 5000), "1 to 1024 ranks"),
        (changed("memory", lambda _: 9), "an unknown kind of memory"),
        (changed("chunks", lambda _: 0), "a wrong number of chunks"),
        (changed("slices", lambda _: 3), "a wrong number of chunks"),
        (changed("work_slots", lambda _: 10**6), "too many chunks"),
        (changed("work_slots", lambda _: 0), "a work slot that does not exist"),
        (changed("lengths", lambda lengths: lengths[:-1]), "a rank that does not exist"),
        (changed("lengths", first(99)), "a list of another length than the program"),
        (changed("length_of", lambda lengths: lengths[:-1]), "a list of another length than the program"),
        (changed("length_of", first(17)), "the length of a chunk that does not exist"),
        (changed("length_of", first(-1)), "out of range"),
        (changed("announce", lambda rows: rows[:-1]), "a list of another length than the program"),
        (changed("source_starts", first(1)), "lists that do not fit the instructions"),
        (changed("source_starts", lambda starts: starts * 0), "lists that do not fit the instructions"),
        (changed("source_rank", first(4)), "a slot of a rank that does not exist"),
        (changed("source_rank", first(2**40)), "out of range"),
        (changed("source_slot", first(-1)), "out of range"),
        (changed("source_slot", first(0)), "a chunk that the array does not have"),
        (changed("source_slot", lambda slots: slots[:-1]), "lists of different lengths"),
        (changed("destination_slot", first(10**6)), "a work slot that does not exist"),
        (changed("wait_rank", first(0)), "a wait for a rank that is no peer"),
        (changed("wait_rank", first(4)), "a wait for a rank that is no peer"),
        (changed("wait_count", first(0)), "a wait for an instruction that does not exist"),
        (changed("wait_count", first(1000)), "a wait for an instruction that does not exist"),
        (changed("input_end", first(99)), "an array with impossible bounds"),
        (changed("output_end", lambda ends: ends[:-1]), "different lengths"),
        (changed("silent", lambda _: True), "publish"),
    ],
)
def test_what_enters_the_engine_is_checked_there(change: Callable[[dict[str, Any]], None], what: str) -> None:
    good = facts(programs_of("all_reduce", "ring", 4, None, "private"), 0, "ring")
    _native.check_program(good)
    bad = dict(good)
    change(bad)
    with pytest.raises(ValueError, match=what):
        _native.check_program(bad)


def test_peers_reach_only_what_the_memory_lets_them() -> None:
    shared = facts(programs_of("all_reduce", "ring", 4, None, "shared"), 0, "ring")
    for memory in (0, 1):
        with pytest.raises(UsageError, match=r"an array that peers cannot reach|that can be longer"):
            _native.check_program({**shared, "memory": memory})


def test_a_length_that_does_not_fit_is_seen_at_the_boundary_too() -> None:
    good = facts(programs_of("all_reduce", "direct", 4, None, "shared"), 0, "direct")
    assert good["length_of"].tolist() == [0]
    with pytest.raises(UsageError, match="a chunk that can be longer than its place"):
        _native.check_program({**good, "length_of": np.array([2])})


# What the check of compiled programs sees -----------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["private", "readable", "shared"])
def test_every_instruction_that_is_waited_for_is_published(memory: Any) -> None:
    programs = compile(af.schedule("all_reduce", "ring", 4), memory)
    for row in np.flatnonzero(programs.announce).tolist():
        announce = programs.announce.copy()
        announce[row] = False
        with pytest.raises(ScheduleError, match=r"waited for and not published|silent all through"):
            check(replace(programs, announce=announce))


@pytest.mark.parametrize(
    ("collective", "name"), [("reduce", "direct"), ("all_gather", "ring"), ("broadcast", "driver")]
)
@pytest.mark.parametrize("memory", ["readable", "shared"])
def test_nobody_returns_while_its_arrays_are_used(collective: str, name: str, memory: Any) -> None:
    programs = compile(af.schedule(collective, name, 4), memory)
    check(programs)
    refused = []
    for rank in np.unique(programs.leave.row).tolist():
        kept = np.flatnonzero(programs.leave.row != rank)
        leave = Lists(
            np.searchsorted(kept, programs.leave.starts), programs.leave.rank[kept], programs.leave.value[kept]
        )
        try:
            check(replace(programs, leave=leave))
        except ScheduleError as error:  # the others return late enough even without it
            assert f"the return of rank {rank}" in str(error)
            refused.append(rank)
    assert refused


def test_programs_that_do_something_else_than_the_schedule_are_refused() -> None:
    """In order, and free of races, but wrong: only running them in symbols shows it."""
    programs = compile(af.schedule("all_reduce", "direct", 3), "shared")
    backwards = replace(programs, sources=replace(programs.sources, rank=programs.sources.rank[::-1].copy()))
    with pytest.raises(ScheduleError, match="does not end with chunk 0 as the schedule makes it"):
        check(backwards)
    with pytest.raises(ScheduleError, match="an average divides in the wrong place"):
        check(replace(programs, complete=~programs.complete))
    with pytest.raises(ScheduleError, match=r"another length than its data|does not fit"):
        check(replace(programs, length_of=(programs.length_of + 1) % 3))


def test_rounding_belongs_to_an_expression() -> None:
    """Three float16 in one fold round once, in two folds twice: ranks that differ in this differ in bits."""

    def uneven(ranks: int) -> Steps:
        yield [reduce(0, 1, 0), reduce(0, 2, 0), reduce(0, 0, 1), copy(0, 1, 2, into=1), copy(0, 2, 1, into=1)]
        yield [reduce(1, 1, 1, into=0), copy(0, 0, 2)]

    schedule = af.schedule("all_reduce", Algorithm("all_reduce", "uneven", uneven, 1), 3)
    assert af.verify(schedule).same_bits is False
    inputs = [np.array([value], np.float16) for value in (2048, 1, 1)]
    results = af.replay(schedule, inputs)
    assert [float(result[0]) for result in results if result is not None] == [2050, 2048, 2050]
    assert af.verify(af.schedule("all_reduce", "naive", 3)).same_bits


# Generators that are asked once ---------------------------------------------------------------------------------------


class Counts:
    """A generator that counts how often it was asked."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, ranks: int) -> Steps:
        self.runs += 1
        yield [reduce(0, source=rank, destination=0) for rank in range(1, ranks)]
        yield [copy(0, source=0, destination=rank) for rank in range(1, ranks)]

    def method(self, ranks: int) -> Steps:
        return self(ranks)


@pytest.mark.parametrize("how", ["object", "method", "function"])
def test_a_generator_is_asked_once_for_all_that_is_made_of_it(how: str) -> None:
    counts = Counts()
    function = lambda ranks: counts(ranks)  # noqa: E731
    for _ in range(3):
        generator = {"object": counts, "method": counts.method, "function": function}[how]
        schedule = schedule_of("all_reduce", generator, 4, None)
        assert message_programs_of("all_reduce", generator, 4, None).schedule is schedule
        assert message_programs_of("all_reduce", schedule, 4, None).schedule is schedule
        assert programs_of("all_reduce", generator, 4, None, "shared").schedule is schedule
    assert counts.runs == 1


def test_generators_that_are_made_for_one_call_are_forgotten() -> None:
    counts = [Counts() for _ in range(600)]
    known = [weakref.ref(one) for one in counts]
    while counts:
        schedule_of("all_reduce", counts.pop(0), 2, None)
    gc.collect()
    assert sum(one() is not None for one in known) < 400


def test_a_function_that_is_registered_after_its_first_use_gets_its_new_name() -> None:
    def later(ranks: int) -> Steps:
        yield [reduce(0, source=1, destination=0)]

    assert registry.algorithm_of("reduce", later) is registry.algorithm_of("reduce", later)
    setattr(later, registry._REGISTERED_AS, {"reduce": ("sooner", 1)})
    assert registry.algorithm_of("reduce", later).name == "sooner"


# Versions in documents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [True, 1.0, "1", None, 2])
def test_a_version_is_a_number_and_nothing_that_equals_it(version: object) -> None:
    from allfold.price import Topology

    schedule = af.schedule("all_reduce", "ring", 2).to_json()
    with pytest.raises(UsageError, match="version is"):
        af.Schedule.from_json({**schedule, "version": version})
    topology = {"format": "allfold-topology", "version": version, "constructor": "uniform", "parameters": {"ranks": 2}}
    with pytest.raises(UsageError, match="version is"):
        Topology.from_json(topology)


# NaN ------------------------------------------------------------------------------------------------------------------


def with_nan(comm: Communicator) -> dict[str, bytes]:
    """Each rank's arrays lie at another distance from a cache line, and every other element is a NaN of some kind."""
    found = {}
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64"):
        known = find_dtype(dtype)
        bits = np.dtype(f"u{known.itemsize // (2 if dtype == 'complex64' else 1)}")
        exponent = {"float16": 0x7C00, "bfloat16": 0x7F80, "float64": 0x7FF0 << 48}.get(dtype, 0x7F800000)
        for elements in (1, 133, 70_001):
            rng = np.random.default_rng([elements, comm.rank])
            words = elements * (2 if dtype == "complex64" else 1)
            data = np.frombuffer(rng.bytes(words * bits.itemsize), bits).copy()
            data[rng.random(words) < 0.5] |= bits.type(exponent)
            for name in af.algorithms("all_reduce"):
                for op in ("sum", "product", *(("min",) if dtype != "complex64" else ())):
                    shared = name in ("direct", "ring")
                    length = elements + comm.rank
                    array = (comm.empty(length, dtype) if shared else np.empty(length, known.carrier))[comm.rank :]
                    array[:] = data.view(known.carrier)
                    comm.all_reduce(array, op=op, algorithm=name, dtype=dtype)
                    result = array.view(bits) & bits.type(2 ** (8 * bits.itemsize - 1) - 1)
                    result[result > exponent] = 0  # a NaN; signs of the others are compared with the rest
                    result |= np.where(result, array.view(bits), 0).astype(bits)
                    found[f"{name} {op} {dtype}[{elements}]"] = blake2b(result.tobytes(), digest_size=8).digest()
    return found


def test_what_is_nan_on_one_rank_is_nan_on_all_and_the_rest_has_the_same_bits() -> None:
    """Which NaN it is may differ: of two, the compiler lets one or the other come out."""
    first, *others = af.spawn(with_nan, 3)
    schedules = {name: af.schedule("all_reduce", name, 3) for name in af.algorithms("all_reduce")}
    proved = {name for name, schedule in schedules.items() if af.verify(schedule).same_bits}
    assert len(proved) > 8
    for other in others:
        assert [case for case, bits in first.items() if other[case] != bits and case.split()[0] in proved] == []
