"""The language itself: columns, equality, printing, JSON, registration."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

import allfold as af
from allfold import Schedule
from allfold.collectives import COLLECTIVES
from allfold.registry import REGISTRY, Algorithm
from allfold.schedules import paths_of

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]


@each(("collective", "name"), EVERY)
def test_json_keeps_everything(collective: str, name: str) -> None:
    for ranks in (1, 2, 5):
        schedule = af.schedule(collective, name, ranks)
        again = Schedule.from_json(json.dumps(schedule.to_json()))
        assert again == schedule
        assert hash(again) == hash(schedule)
        assert again.sites == schedule.sites
        assert all((again.columns[column] == schedule.columns[column]).all() for column in schedule.columns)


def test_schedules_differ_by_any_part() -> None:
    ring = af.schedule("all_reduce", "ring", 4)
    assert ring == af.schedule("all_reduce", "ring", 4)
    assert ring != af.schedule("all_reduce", "ring", 5)
    assert ring != af.schedule("all_reduce", "swing", 4)
    assert af.schedule("broadcast", "tree", 4, root=1) != af.schedule("broadcast", "tree", 4, root=2)
    document = ring.to_json()
    document["steps"][0][0][4] = 0
    assert Schedule.from_json(document) != ring


def test_schedules_cannot_be_changed() -> None:
    schedule = af.schedule("all_reduce", "ring", 4)
    with pytest.raises(ValueError, match="read-only"):
        schedule.columns["source"][0] = 3
    with pytest.raises(AttributeError):
        schedule.ranks = 5  # type: ignore[misc]


def test_every_move_knows_its_line() -> None:
    schedule = af.schedule("all_reduce", "ring", 4)
    assert {site.split(":")[0] for site in schedule.sites} == {"ring.py"}
    assert len({schedule.where(move) for move in range(schedule.moves)}) == 2
    (first, *_), *_ = list(af.schedule("all_reduce", lambda ranks: iter([[af.reduce(0, 0, 1)]]), 2))
    assert str(first) == "+0:0→1"


def test_a_function_that_made_moves_can_be_freed_and_the_next_one_knows_its_own_lines() -> None:
    """The functions are at the same address in turn, and their code is equal but for the line or the file."""
    source = "move = lambda: af.copy(0, 0, 1)"
    for name, line in [("one.py", 1), ("one.py", 7), ("two.py", 7)] * 5:
        scope: dict[str, Any] = {"af": af}
        exec(compile("\n" * (line - 1) + source, f"/somewhere/{name}", "exec"), scope)
        freed = weakref.ref(scope["move"].__code__)
        assert (scope["move"]().where, scope["move"]().where) == (f"{name}:{line}",) * 2
        assert paths_of([f"{name}:{line}"]) == [f"/somewhere/{name}"]
        scope.clear()
        assert freed() is None


def test_steps_are_lists_of_moves() -> None:
    schedule = af.schedule("all_gather", "ring", 3)
    assert len(schedule) == 2
    assert [[str(move) for move in step] for step in schedule] == [
        ["0:0→1", "1:1→2", "2:2→0"],
        ["2:0→1", "0:1→2", "1:2→0"],
    ]


def test_arrays_make_many_moves() -> None:
    def at_once(ranks: int) -> Any:
        r = np.arange(ranks)
        yield [
            af.copy(r, r, (r + 1) % ranks),
            af.copy(0, 0, 2, into=ranks),
            af.copy(r[:, None], 1, r[1:3], into=r[:, None]),
        ]
        yield [af.reduce(r[:0], 0, 0), af.copy(np.array(1), 0, 1)]
        yield [af.reduce(r[:0], 0, 0)]  # no moves, no step

    def one_by_one(ranks: int) -> Any:
        around = [af.copy(r, r, (r + 1) % ranks) for r in range(ranks)]
        yield [*around, af.copy(0, 0, 2, into=ranks), *(af.copy(c, 1, d) for c in range(ranks) for d in (1, 2))]
        yield [af.copy(1, 0, 1)]

    for ranks in (3, 5):
        many, single = (af.schedule("all_gather", function, ranks) for function in (at_once, one_by_one))
        assert many.digest == single.digest and many.scratch == 1
        assert {site.split(":")[0] for site in many.sites} == {"test_schedule.py"}


def test_print_shows_the_steps() -> None:
    text = str(af.schedule("all_gather", "ring", 3))
    assert "all_gather by ring: 3 ranks" in text
    assert "0:0→1" in text
    assert "1:2→0" in text


WRONG: list[tuple[Any, str]] = [
    ("[]", "expected an object, got list"),
    ("{", "not JSON"),
    ({}, "format is None"),
    ({"version": 2}, "version is 2"),
    ({"collective": "all_reuce"}, "did you mean 'all_reduce'"),
    ({"ranks": 0}, "ranks is 0"),
    ({"ranks": True}, "ranks is True"),
    ({"ranks": 10**30}, "ranks is"),
    ({"root": 1}, "all_reduce has no root"),
    ({"chunks": 0}, "chunks is 0"),
    ({"algorithm": 3}, "algorithm is 3"),
    ({"sites": "x"}, "sites must be"),
    ({"steps": [[]]}, "steps must be lists"),
    ({"steps": [[[1, 2]]]}, "every move must be 6 whole numbers"),
    ({"steps": [[[1, 0, 0, 1, 0, 99]]]}, "site that is not listed"),
    ({"steps": [[[2, 0, 0, 1, 0, 0]]]}, "reduces must be 0 or 1"),
    ({"steps": [[[1, 0, 0, 9, 0, 0]]]}, "destination rank 9 is out of range"),
    ({"steps": [[[1, 9, 0, 1, 0, 0]]]}, "chunk 9 is named"),
    ({"steps": [[[1, -1, 0, 1, 0, 0]]]}, "chunk -1 is out of range"),
]


@pytest.mark.parametrize(("change", "what"), WRONG)
def test_json_that_is_no_schedule_is_refused(change: Any, what: str) -> None:
    document: Any = change
    if isinstance(change, dict):
        document = af.schedule("all_reduce", "ring", 2).to_json() | change if change else {}
    with pytest.raises(af.UsageError, match=what.replace("(", r"\(")):
        Schedule.from_json(document)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(af.schedule("all_reduce", "ring", 2).to_json())), json_values)
def test_fuzzed_json_gives_typed_errors_only(key: str, value: Any) -> None:
    document = af.schedule("all_reduce", "ring", 2).to_json() | {key: value}
    try:
        schedule = Schedule.from_json(document)
        af.verify(schedule)
    except af.AllfoldError:
        pass


@pytest.fixture
def forget_what_tests_register() -> Iterator[None]:
    with REGISTRY.scope():
        yield


@pytest.mark.usefixtures("forget_what_tests_register")
def test_registration() -> None:
    @af.algorithm("all_reduce", "test_registration_once")
    def once(ranks: int) -> Any:
        yield [af.reduce(0, r, 0) for r in range(1, ranks)]
        yield [af.copy(0, 0, r) for r in range(1, ranks)]

    assert "test_registration_once" in af.algorithms("all_reduce")
    af.verify(af.schedule("all_reduce", "test_registration_once", 4))
    af.verify(af.schedule("all_reduce", once, 4))
    with pytest.raises(af.UsageError, match="already has an algorithm 'ring'"):
        af.algorithm("all_reduce", "ring")(once)
    with pytest.raises(af.UsageError, match="unknown collective 'all_redu'; did you mean 'all_reduce'"):
        af.algorithm("all_redu")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("all_reduce", "rng", 4), "did you mean 'ring'"),
        (("all_reduce", "ring", 0), "ranks must be at least 1, not 0"),
        (("all_reduce", "ring", 2.5), "ranks must be a whole number"),
        (("all_reduce", "ring", True), "ranks must be a whole number"),
        (("all_reduce", "ring", 4, 1), "all_reduce has no root"),
        (("broadcast", "tree", 4, 4), "root must be between 0 and 3, not 4"),
        (("all_reduce", 7, 4), "an algorithm is a name, a generator function or a schedule"),
    ],
)
def test_bad_arguments(arguments: Any, what: str) -> None:
    with pytest.raises(af.UsageError, match=what):
        af.schedule(*arguments)


def test_numpy_integers_are_integers() -> None:
    ranks = np.int64(4)
    schedule = af.schedule("all_reduce", lambda n: ([af.reduce(np.int32(0), r, (r + 1) % n)] for r in range(n)), ranks)
    assert schedule.moves == 4


def test_an_algorithm_that_never_ends_is_stopped() -> None:
    def endless(ranks: int) -> Any:
        while True:
            yield []

    with pytest.raises(af.ScheduleError, match="does it ever end"):
        af.schedule("all_reduce", endless, 2)


@pytest.mark.parametrize("chunks", ["2", lambda ranks: "x", True, lambda: 1, 1.5])
def test_chunks_that_are_no_number_are_refused(chunks: Any) -> None:
    with pytest.raises(af.UsageError, match="chunks"):
        af.schedule("all_reduce", Algorithm("all_reduce", "mine", lambda ranks: [], chunks), 2)


@pytest.mark.parametrize("step", [-1, 6, 99, True, 1.0, None])
def test_a_step_that_is_not_there(step: Any) -> None:
    with pytest.raises(af.UsageError, match=r"step: expected a step from 0 to 5, not"):
        af.schedule("all_reduce", "ring", 4).step(step)


def test_load_needs_a_path() -> None:
    with pytest.raises(af.UsageError, match="load: expected the path of a file, not None"):
        af.load(None)  # type: ignore[arg-type]
    with pytest.raises(af.UsageError, match="save: expected the path of a file, not None"):
        af.schedule("all_reduce", "ring", 4).save(None)  # type: ignore[arg-type]
