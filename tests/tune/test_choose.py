"""Tuning: the order of folding, the segments of the engine, and what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from each import each

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.engines.shared_memory.choice import ALWAYS, _expressions, choices, folds_from_left, ways
from allfold.proved import programs_of
from allfold.tune.choose import choose
from allfold.tune.ordinary import segments
from allfold.tune.timing import Measurement

REDUCING = ("all_reduce", "reduce", "reduce_scatter")


# The order of folding -------------------------------------------------------------------------------------------------


@each("ranks", [1, 2, 3, 4, 5, 8, 13])
@each("collective", REDUCING)
def test_the_built_in_rule_folds_from_left_whatever_the_root(collective: str, ranks: int) -> None:
    from_left = _expressions(af.schedule("all_reduce", "naive", ranks))
    assert len(from_left) == 1
    for name in {name for _, name, _ in choices(collective, ranks)}:
        for root in range(ranks) if COLLECTIVES[collective].rooted else (None,):
            assert _expressions(af.schedule(collective, name, ranks, root)) == from_left


@each("ranks", [2, 3, 4, 6])
@each("name", af.algorithms("all_reduce"))
def test_folding_from_left_is_a_promise_about_bits(name: str, ranks: int) -> None:
    same = True
    for dtype in (np.float16, np.float32):  # the first is rounded at the end of a fold, so that has to match too
        inputs = [(np.random.default_rng(rank).standard_normal(97) * 3.0**rank).astype(dtype) for rank in range(ranks)]
        naive, other = (af.replay(af.schedule("all_reduce", one, ranks), inputs) for one in ("naive", name))
        same &= all(a.tobytes() == b.tobytes() for a, b in zip(naive, other, strict=True))
    assert same or not folds_from_left("all_reduce", name, ranks)
    assert same == folds_from_left("all_reduce", name, ranks)  # with these numbers every difference shows


def test_what_only_moves_data_may_always_be_chosen() -> None:
    assert all(
        folds_from_left(name, one, 4) for name in ("broadcast", "all_to_all", "barrier") for one in af.algorithms(name)
    )


# The segments ---------------------------------------------------------------------------------------------------------


def segments_of(comm: Any, name: str, elements: int) -> int:
    with comm.trace() as trace:
        comm.all_reduce(np.zeros(elements, np.float32), algorithm=name)
    assert {event.memory for event in trace.events} == {"private"}
    return 1 + max(event.segment for event in trace.events)


@pytest.mark.parametrize("elements", [1000, 700_001])
def test_tuning_counts_as_many_segments_as_the_engine(elements: int) -> None:
    def work(comm: Any) -> list[int]:
        return [segments_of(comm, name, elements) for name in names]

    names = ("naive", "ring", "tree", "direct")
    assert not any(way.fetches for way in ways("all_reduce", 3))
    expected = [segments(programs_of("all_reduce", name, 3, None, "private"), 4 * elements) for name in names]
    assert af.spawn(work, ranks=3) == [expected] * 3


# The choice -----------------------------------------------------------------------------------------------------------


def timed(collective: str, ranks: int, time_of: Callable[[str, bool, int], float]) -> list[Measurement]:
    return [
        Measurement(collective, name, shared, size, time_of(name, shared, size))
        for name in af.algorithms(collective, ranks)
        for shared in (False, True)
        for size in (256 * 4**power for power in range(9))
    ]


def test_the_crossing_is_where_the_lines_cross() -> None:
    """10 µs against 1 µs + 1 ns per byte: 9,000 bytes."""

    def time_of(name: str, shared: bool, size: int) -> float:
        return {"tree": 1e-6 + size * 1e-9, "scatter_all_gather": 1e-5}.get(name, 1.0)

    row = choose(4, timed("broadcast", 4, time_of))["broadcast"]
    assert [name for _, name, _ in row] == ["tree", "scatter_all_gather"]
    assert 6_000 < row[0][0] < 13_000 and row[-1][0] == ALWAYS


def test_a_reduction_keeps_its_order_unless_told_otherwise() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        return {"ring": 1.0, "driver": 2.0}.get(name, 3.0)

    measurements = timed("all_reduce", 4, time_of)
    assert {name for _, name, _ in choose(4, measurements)["all_reduce"]} == {"driver"}
    assert {name for _, name, _ in choose(4, measurements, any_order=True)["all_reduce"]} == {"ring"}


def test_differences_of_chance_change_nothing() -> None:
    random = np.random.default_rng(0)

    def time_of(name: str, shared: bool, size: int) -> float:
        return (1e-6 + size * 1e-10) * (1 - 0.3 * (shared and size > 16384)) * (1 + 0.02 * random.random())

    names = {name for _, name, _ in choose(2, timed("all_gather", 2, time_of))["all_gather"]}
    assert names == {"direct"}  # between two ranks all of them compile to the same programs


def test_the_more_restless_the_machine_the_more_a_change_must_gain() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        return 1.0 if name == "chain" else 1.2

    measurements = timed("broadcast", 4, time_of)
    assert {name for _, name, _ in choose(4, measurements)["broadcast"]} == {"chain"}
    assert {name for _, name, _ in choose(4, measurements, unrest=0.5)["broadcast"]} == {"driver"}


def test_arrays_are_reached_into_from_where_that_pays() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        base = 1e-6 + size * 1e-9 if name == "direct" else 1.0
        return base if not shared else 4e-6 + size * 1e-10

    row = choose(4, timed("all_to_all", 4, time_of))["all_to_all"]
    assert [(name, reach) for _, name, reach in row] == [("direct", False), ("direct", True)]
    assert 1024 < row[0][0] < 16384


def test_a_barrier_has_one_choice() -> None:
    measured = [
        Measurement("barrier", name, False, 0, 1.0 if name == "tree" else 2.0) for name in af.algorithms("barrier")
    ]
    assert choose(4, measured) == {"barrier": [(ALWAYS, "tree", False)]}
