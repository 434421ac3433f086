"""Tuning: the model of the engine, the fit to what was measured, and what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
from tune_cases import CROWDED, SETTING, every_item

import allfold as af
from allfold import _native
from allfold.collectives import COLLECTIVES
from allfold.engines.shared_memory.choice import ALWAYS, _expressions, choices, folds_from_left, ways
from allfold.tune.caches import Setting
from allfold.tune.choose import choose
from allfold.tune.fit import _not_negative, fit, held_out, judge, usual_terms
from allfold.tune.model import TERMS, Item, amounts, cut, paths, predict
from allfold.tune.model import _walk as walk

REDUCING = ("all_reduce", "reduce", "reduce_scatter")


# The order of folding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("collective", REDUCING)
def test_the_built_in_rule_folds_from_left_whatever_the_root(collective: str, ranks: int) -> None:
    from_left = _expressions(af.schedule("all_reduce", "naive", ranks))
    assert len(from_left) == 1
    for name in {name for _, name, _ in choices(collective, ranks)}:
        for root in range(ranks) if COLLECTIVES[collective].rooted else (None,):
            assert _expressions(af.schedule(collective, name, ranks, root)) == from_left


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("name", af.algorithms("all_reduce"))
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


# The model ------------------------------------------------------------------------------------------------------------


def segments_of(comm: Any, name: str, elements: int) -> int:
    with comm.trace() as trace:
        comm.all_reduce(np.zeros(elements, np.float32), algorithm=name)
    assert {event.memory for event in trace.events} == {"private"}
    return 1 + max(event.segment for event in trace.events)


@pytest.mark.parametrize("elements", [1000, 700_001])
def test_the_model_makes_as_many_segments_as_the_engine(elements: int) -> None:
    def work(comm: Any) -> list[int]:
        return [segments_of(comm, name, elements) for name in names]

    names = ("naive", "ring", "tree", "direct")
    assert not any(way.fetches for way in ways("all_reduce", 3))
    expected = [cut(walk("all_reduce", name, 3, "private").programs, 4 * elements)[0] for name in names]
    assert af.spawn(work, ranks=3) == [expected] * 3


@pytest.mark.parametrize("setting", [SETTING, CROWDED], ids=["a core each", "crowded"])
@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_every_algorithm_can_be_predicted(ranks: int, setting: Setting) -> None:
    sizes = (64, 4096, 2**18, 2**24)
    items = every_item(ranks, sizes, tuple(COLLECTIVES))
    times = predict(items, setting, usual_terms())
    assert np.isfinite(times).all() and (times > 0).all()
    by_item = dict(zip(items, times, strict=True))
    for item in items:
        if item.size == 2**18 and COLLECTIVES[item.collective].carries_data:
            assert by_item[item] < by_item[replace(item, size=2**24)]
            assert by_item[item] > by_item[replace(item, size=64)]


def test_the_least_of_a_call_is_what_must_be_on_its_path() -> None:
    """Two ranks, one instruction each: fold what is mine from both arrays and hand it out."""
    items = [Item("all_reduce", "direct", 2, True, 4096)]
    row = amounts(items, paths(items, SETTING, usual_terms()), SETTING)[0]
    on_path = dict(zip(TERMS, row, strict=True))
    assert on_path["call"] == 1 and on_path["instruction"] == 1
    assert on_path["fold"] == 2048  # half of the buffer, with one additional operand
    # Both were written by this rank in the call before, and what it writes it has just read.
    assert on_path["read, own cache"] == on_path["write, own cache"] == 4096
    assert on_path["read, peer's cache"] == on_path["write, peer's cache"] == on_path["first byte"] == 0
    assert on_path["switch"] == on_path["fetch"] == 0


def places_of(item: Item, setting: Setting) -> dict[str, float]:
    return dict(zip(TERMS, amounts([item], paths([item], setting, usual_terms()), setting)[0], strict=True))


def test_what_counts_is_what_a_rank_touches_and_not_how_large_the_arrays_are() -> None:
    """Each of four ranks folds its quarter of everybody's array: 1 MiB in all, of arrays of 4 MiB together."""
    small_caches = replace(SETTING, own_cache=2.0**21, last_cache=2.0**21)
    here = places_of(Item("all_reduce", "direct", 4, True, 2**20), small_caches)
    assert here["read, own cache"] == 2**20 and here["read, memory"] == here["read, last-level cache"] == 0
    # Eight times as much no longer fits; but what is written in place has just been read.
    away = places_of(Item("all_reduce", "direct", 4, True, 2**23), small_caches)
    assert away["read, own cache"] == 0 and away["read, memory"] == 2**23 and away["write, own cache"] == 2**23


def test_what_a_peer_wrote_is_read_from_its_cache_until_that_is_full() -> None:
    item = Item("all_gather", "ring", 4, False, 2**18)
    near, full = (places_of(item, replace(SETTING, own_cache=size)) for size in (2.0**23, 2.0**12))
    assert near["read, peer's cache"] > 0 == near["read, last-level cache"]
    assert full["read, last-level cache"] > 0 and full["read, peer's cache"] < near["read, peer's cache"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_an_instruction_fetches_comes_along_for_its_write(ranks: int) -> None:
    """Parts overwrite what peers have read; results that are handed over, parts that their writer has just fetched."""
    size = 2**18
    places = places_of(Item("all_reduce", "direct", ranks, False, size), SETTING)
    parts = size * (ranks - 1) / ranks
    assert places["write, peer's cache"] == (parts if _native.MOST_HANDED else parts + size / ranks)
    assert places["read, peer's cache"] == 2 * parts


def test_ranks_that_read_the_same_at_once_are_counted() -> None:
    four, two = (places_of(Item("broadcast", "driver", ranks, False, 2**16), SETTING) for ranks in (4, 2))
    assert four["contended byte"] == 2 * four["read, peer's cache"] > 0 == two["contended byte"]
    fetching = Item("scatter", "driver", 4, False, 2**21)
    assert fetching.memory(SETTING) == "readable"
    assert places_of(fetching, SETTING)["crowded byte"] == 2 * 2**19  # two others fetch their quarter from the root too
    assert places_of(replace(fetching, size=2**24), SETTING)["crowded byte"] == 0  # in huge pages


def test_with_fewer_cores_than_ranks_they_take_turns() -> None:
    item = Item("all_gather", "direct", 4, True, 2**20)
    wide, narrow = (float(predict([item], setting, usual_terms())[0]) for setting in (SETTING, CROWDED))
    assert 1.8 < narrow / wide < 2.6


# The fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "setting"), [(2, SETTING), (4, SETTING), (4, CROWDED)])
def test_known_numbers_are_found_again(ranks: int, setting: Setting) -> None:
    true = usual_terms() * np.exp(np.random.default_rng(7).uniform(-1, 1, len(TERMS)))
    with_data = tuple(name for name, one in COLLECTIVES.items() if one.carries_data)
    items = every_item(ranks, (1024, 2**18, 2**20, 2**22, 2**24), with_data)
    times = predict(items, setting, true)
    assert judge(items, predict(items, setting, usual_terms()), times).error > 0.1  # it starts far from them
    model = fit(items, times, setting, knees=False)
    assert judge(items, model.predict(items), times, least=0).error < 0.03
    # Reads and writes come in pairs, so the cost of a copy is determined best.
    known, found = (dict(zip(TERMS, terms, strict=True)) for terms in (true, model.terms))
    for place in ("own cache", "last-level cache", "memory"):
        copy = [sum(one[f"{what}, {place}"] for what in ("read", "write")) for one in (known, found)]
        assert copy[1] == pytest.approx(copy[0], rel=0.15), place
    assert found["call"] == pytest.approx(known["call"], rel=0.2)


def test_noise_does_not_lead_the_fit_astray() -> None:
    random = np.random.default_rng(3)
    items = every_item(2, (2**12, 2**16, 2**18, 2**20, 2**22), ("all_reduce", "gather", "all_to_all"))
    true = predict(items, SETTING, 1.7 * usual_terms())
    times = true * np.exp(0.05 * random.standard_normal(len(items)))
    times[::17] *= 4  # rounds that were all disturbed
    assert judge(items, fit(items, times, SETTING, knees=False).predict(items), true).error < 0.05


def test_the_end_of_a_cache_is_found_where_the_system_names_another() -> None:
    items = every_item(2, tuple(2**power for power in range(14, 25)), ("all_gather", "broadcast"))
    full = replace(SETTING, cores=2)  # both ranks have all of it
    times = predict(items, replace(full, last_cache=2.0**22), usual_terms())
    model = fit(items, times, full)
    assert model.setting.last_cache == 2.0**22
    assert judge(items, model.predict(items), times).error < 0.03


def test_held_out_is_judged_on_sizes_that_were_not_fitted() -> None:
    items = every_item(2, (2**14, 2**16, 2**18, 2**20, 2**22), ("all_reduce", "broadcast"))
    times = predict(items, SETTING, 1.5 * usual_terms())
    figures = held_out(items, times, SETTING)
    assert figures.cases == sum(item.size in (2**16, 2**20) for item in items) and figures.error < 0.05
    assert held_out(items[:1], times[:1], SETTING).cases == 0  # with one size there is nothing to hold out


def test_least_squares_without_negative_numbers() -> None:
    """At the least point nothing that is zero would help, and nothing that is not could move, from wherever it began."""
    random = np.random.default_rng(0)
    for _ in range(50):
        matrix = random.random((30, 8))
        wanted = matrix @ np.maximum(random.standard_normal(8), 0) + 0.1 * random.standard_normal(30)
        for start in (np.zeros(8), random.random(8), np.eye(8)[3]):
            found = _not_negative(matrix, wanted, start)
            slope = matrix.T @ (matrix @ found - wanted)
            assert (found >= 0).all() and (slope > -1e-8).all() and np.abs(slope * found).max() < 1e-8


def test_times_that_cannot_be_are_refused() -> None:
    items = [Item("barrier", "direct", 2, False, 0)]
    for times in ([0.0], [-1.0], [np.nan], []):
        with pytest.raises(af.UsageError):
            fit(items, np.array(times), SETTING)


def test_the_judgement_counts_what_it_says() -> None:
    items = [Item("broadcast", name, 4, False, size) for size in (1024, 2**16, 2**20) for name in ("driver", "tree")]
    measured = np.array([1.0, 9.0, 1.0, 2.0, 1.0, 1.04])
    predicted = np.array([9.0, 1.0, 2.0, 1.0, 1.1, 1.0])
    figures = judge(items, predicted, measured)
    assert (figures.cases, figures.contests, figures.right) == (
        4,
        2,
        1,
    )  # 1.04 is as good as 1; 1024 bytes do not count
    assert log(1 + figures.error) == pytest.approx((log(2) + log(2) + log(1.1) + log(1.04)) / 4)


def test_equal_predictions_are_one_winner() -> None:
    items = [Item("broadcast", name, 2, False, 2**16) for name in ("driver", "tree", "chain")]
    assert judge(items, np.array([1.0, 1.0, 2.0]), np.array([1.2, 1.0, 1.1])).right == 1
    assert judge(items, np.array([1.0, 2.0, 2.0]), np.array([1.2, 1.0, 1.1])).right == 0


# The choice -----------------------------------------------------------------------------------------------------------


def timed(collective: str, ranks: int, time_of: Callable[[str, bool, int], float]) -> tuple[list[Item], Any]:
    sizes = tuple(256 * 4**power for power in range(9))
    items = every_item(ranks, sizes, (collective,))
    return items, np.array([time_of(item.algorithm, item.shared, item.size) for item in items])


def test_the_crossing_is_where_the_lines_cross() -> None:
    """10 µs against 1 µs + 1 ns per byte: 9,000 bytes."""

    def time_of(name: str, shared: bool, size: int) -> float:
        return {"tree": 1e-6 + size * 1e-9, "scatter_all_gather": 1e-5}.get(name, 1.0)

    row = choose(4, *timed("broadcast", 4, time_of))["broadcast"]
    assert [name for _, name, _ in row] == ["tree", "scatter_all_gather"]
    assert 6_000 < row[0][0] < 13_000 and row[-1][0] == ALWAYS


def test_a_reduction_keeps_its_order_unless_told_otherwise() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        return {"ring": 1.0, "driver": 2.0}.get(name, 3.0)

    measurements = timed("all_reduce", 4, time_of)
    assert {name for _, name, _ in choose(4, *measurements)["all_reduce"]} == {"driver"}
    assert {name for _, name, _ in choose(4, *measurements, any_order=True)["all_reduce"]} == {"ring"}


def test_differences_of_chance_change_nothing() -> None:
    random = np.random.default_rng(0)
    items, _ = timed("all_gather", 2, lambda name, shared, size: 1.0)
    times = np.array([(1e-6 + item.size * 1e-10) * (1 - 0.3 * (item.shared and item.size > 16384)) for item in items])
    times *= 1 + 0.02 * random.random(len(items))
    names = {name for _, name, _ in choose(2, items, times)["all_gather"]}
    assert names == {"direct"}  # between two ranks all of them compile to the same programs


def test_the_more_restless_the_machine_the_more_a_change_must_gain() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        return 1.0 if name == "chain" else 1.2

    measurements = timed("broadcast", 4, time_of)
    assert {name for _, name, _ in choose(4, *measurements)["broadcast"]} == {"chain"}
    assert {name for _, name, _ in choose(4, *measurements, unrest=0.5)["broadcast"]} == {"driver"}


def test_arrays_are_reached_into_from_where_that_pays() -> None:
    def time_of(name: str, shared: bool, size: int) -> float:
        base = 1e-6 + size * 1e-9 if name == "direct" else 1.0
        return base if not shared else 4e-6 + size * 1e-10

    row = choose(4, *timed("all_to_all", 4, time_of))["all_to_all"]
    assert [(name, reach) for _, name, reach in row] == [("direct", False), ("direct", True)]
    assert 1024 < row[0][0] < 16384


def test_a_barrier_has_one_choice() -> None:
    items = [Item("barrier", name, 4, False, 0) for name in af.algorithms("barrier")]
    times = np.array([1.0 if item.algorithm == "tree" else 2.0 for item in items])
    assert choose(4, items, times) == {"barrier": [(ALWAYS, "tree", False)]}
