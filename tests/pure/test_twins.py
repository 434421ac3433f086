"""What the engine computes for proofs and searches, and the same in Python: equal, to the last bit."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import topologies
from hypothesis import given, settings
from hypothesis import strategies as st

import allfold as af
from allfold import _native, algorithms, pure, schedule, symbolic
from allfold.errors import ScheduleError
from allfold.price import torus
from allfold.price.cost.cuts import whole_numbers
from allfold.price.topology.network import network_of
from allfold.programs.compile import compile
from allfold.proof import verify
from allfold.search.find import find

SOURCE = Path(af.__file__).parent
# What needs ranks has no twin: these rooms are only entered with an engine.
WITH_ENGINE = (
    "mpi4py",  # only where ranks are processes
    "record",
    "engines",
    "communicator",
    "launch",
    "torch",
    "bench",
    "tune",
    "check",
    "cli",
    "_native",
    "fabrics",
    "version.py",
)
NAMES = [name for name in pure.__all__ if callable(getattr(pure, name))]


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every call of the engine's functions is made to both, and both must answer the same."""
    called: list[str] = []

    def both(name: str) -> Any:
        native, python = getattr(_native, name), getattr(pure, name)

        def compare(*arguments: Any) -> Any:
            called.append(name)
            copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
            answer, expected = python(*copies), native(*arguments)
            assert_same(name, answer, expected)
            assert_same(name, copies, list(arguments))  # what was written in place
            return expected

        return compare

    for name in NAMES:
        monkeypatch.setattr(_native, name, both(name))
    yield called


def assert_same(name: str, answer: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        assert len(answer) == len(expected), name
        for one, other in zip(answer, expected, strict=True):
            assert_same(name, one, other)
    elif isinstance(expected, np.ndarray):
        assert isinstance(answer, np.ndarray) and answer.dtype == expected.dtype, name
        assert answer.shape == expected.shape and (answer == expected).all(), name
    else:
        assert type(answer) is type(expected) and answer == expected, name


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "barrier"])
def test_proofs(twins: list[str], collective: str) -> None:
    for name in algorithms(collective):
        for ranks in (1, 2, 3, 6, 8):
            verify(schedule(collective, name, ranks))
    assert set(twins) >= {"order", "folds_of", "fold_symbols", "versions", "conflicts", "rounds", "needed_waits"}
    assert set(twins) >= {"first_unordered", "follow"}


@pytest.mark.parametrize("seed", range(30))
def test_wrong_schedules_are_refused_alike(twins: list[str], seed: int) -> None:
    """Moves are dropped, doubled or redirected: whatever the verdict is, it is the same sentence."""
    rng = random.Random(seed)
    name = rng.choice(algorithms("all_reduce"))
    document = schedule("all_reduce", name, rng.choice([3, 4, 5])).to_json()
    for _ in range(rng.randint(1, 3)):
        moves = rng.choice([step for step in document["steps"] if step])
        at = rng.randrange(len(moves))
        what = rng.choice(["drop", "double", "redirect"])
        if what == "drop":
            del moves[at]
        elif what == "double":
            moves.insert(at, list(moves[at]))
        else:
            moves[at][2], moves[at][3] = moves[at][3], moves[at][2]  # source and destination
    document["steps"] = [step for step in document["steps"] if step]
    try:
        verify(af.Schedule.from_json(document))
    except ScheduleError as error:
        assert str(error)
    assert "folds_of" in twins


def test_damaged_programs(twins: list[str]) -> None:
    programs = compile(symbolic.State(schedule("all_reduce", "ring", 4)).run_to_end().schedule)
    starts = np.append(programs.starts, []).astype(np.int64)
    rng = np.random.default_rng(0)
    waits = programs.waits
    for _ in range(20):
        count = waits.value.copy()
        at = rng.integers(len(count))
        count[at] = rng.integers(1, starts[waits.rank[at] + 1] - starts[waits.rank[at]] + 1)
        when = _native.rounds(starts, waits.starts, waits.rank, count)
        if when.min() >= 0:
            rows = rng.integers(0, starts[-1], (2, 40))
            _native.needed_waits(starts, waits.starts, waits.rank, count, when, int(rng.integers(0, 9)))
            _native.first_unordered(starts, waits.starts, waits.rank, count, when, rows[0].copy(), rows[1].copy())


@given(st.integers(0, 2**32))
def test_any_moves_make_the_same_folds(seed: int) -> None:
    """Also where they make no sense: nothing to take, two writes, nothing to reduce into."""
    rng = np.random.default_rng(seed)
    ranks, width, moves = (int(rng.integers(low, high)) for low, high in ((1, 5), (1, 6), (0, 9)))
    chunks = int(rng.integers(1, width + 1))
    nothing = rng.random(ranks * width) < rng.choice([0.0, 0.1, 0.5])
    state = [rng.integers(0, end, ranks * width).astype(np.int32) for end in (chunks * ranks, ranks)]
    state[0][nothing] = -1
    table = [rng.integers(0, end, moves).astype(np.int32) for end in (2, width, ranks, ranks, width)]
    table[0] *= rng.random() < 0.7  # else there are copies only
    written = [np.zeros(ranks * width, np.int64) for _ in range(2)]
    sizes = ranks, width, chunks, int(rng.integers(1, 4))
    answer = pure.folds_of(*table, *sizes, *state, written[0], 2)
    assert_same("folds_of", answer, _native.folds_of(*table, *sizes, *state, written[1], 2))
    assert_same("folds_of", *written)


@given(st.integers(0, 2**32))
def test_any_accesses_have_the_same_conflicts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = np.append(0, rng.integers(0, 4, rng.integers(1, 5))).cumsum()
    many = int(rng.integers(0, 30)) if starts[-1] else 0
    row, place = rng.integers(0, max(1, starts[-1]), many), rng.integers(0, rng.choice([1, 4, 2**60]), many)
    when, writes = rng.integers(0, 3, starts[-1]), rng.random(many) < rng.random()
    accesses = row, place, writes, when, starts
    assert_same("conflicts", pure.conflicts(*accesses), _native.conflicts(*accesses))


@settings(max_examples=25, deadline=None)
@given(topologies(8), st.integers(1, 40))
def test_cuts_and_trees(topology: Any, wanted: int) -> None:
    network = network_of(topology)
    capacity, ranks = whole_numbers(network.bandwidth) % 97 + 1, np.arange(topology.ranks, dtype=np.int32)
    weight = (np.arange(network.vertices) < topology.ranks).astype(np.int64)
    graph = network.vertices, network.tail, network.head, capacity
    for name, arguments in (
        ("tightest_cut", (weight, ranks, float("inf"))),
        ("cuts_below", (weight, ranks, wanted, float("inf"))),
        ("can_pack", (weight * (wanted // 8), float("inf"))),
        ("pack_trees", (weight * (wanted // 8), ranks, True, float("inf"))),
    ):
        assert_same(name, getattr(pure, name)(*graph, *arguments), getattr(_native, name)(*graph, *arguments))


@pytest.mark.parametrize("method", ["throughput", "greedy"])
@pytest.mark.parametrize("topology", ["dgx1", "ring:ranks=5"])
def test_searches(twins: list[str], method: str, topology: str) -> None:
    find("all_gather", topology, method=method, seconds=30)
    assert "spread" in twins if method == "greedy" else {"pack_trees", "rounds_of"} <= set(twins)


def test_time_limits_are_kept() -> None:
    network = network_of(torus((4, 4)))
    ranks = np.arange(16, dtype=np.int32)
    ones = np.ones(16, np.int64)
    graph = 16, network.tail, network.head, whole_numbers(network.bandwidth)
    assert pure.tightest_cut(*graph, ones, ranks, -1.0) is None
    assert pure.cuts_below(*graph, ones, ranks, 99, -1.0) is None
    assert pure.can_pack(*graph, ones * 0, -1.0) is None
    assert pure.pack_trees(*graph, ones, ranks, True, -1.0) is None


def test_constants() -> None:
    for name in set(pure.__all__) - set(NAMES):
        assert getattr(pure, name) == getattr(_native, name), name
    for slots in (1, 4, 8, 9, 100):
        for one_area in (False, True):
            assert pure.segment_bytes(slots, one_area) == _native.segment_bytes(slots, one_area)


def test_everything_that_works_without_an_engine_has_a_twin() -> None:
    used = {
        node.attr
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in WITH_ENGINE
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_native"
    }
    assert used and used - {"require_engine", "MISSING"} <= set(pure.__all__)
