"""What a schedule costs: by hand, by closed form and by counting, and never less than the lower bounds."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from importlib import import_module
from math import inf, log2

import numpy as np
import pytest
from each import each

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.patterns import Everybody, Pattern, fold
from allfold.price import Topology, closed_form, find_topology, hosts, one_host
from allfold.price.cost.bounds import least_spread, lower_bounds, must_cross
from allfold.price.cost.closed_form import patterns_of
from allfold.price.cost.cost import cost, price
from allfold.price.cost.load import Load, RoutesDiffer, fewest_segments
from allfold.price.simulate.simulate import simulate
from allfold.price.topology.routing import all_alike
from allfold.registry import find_algorithm

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]
MANY = [*range(1, 34), 64, 128]
SOME = [1, 2, 3, 4, 6, 7, 8, 13, 16, 33]

# α = 3 µs: 1 µs to start and 2 µs on the way; 10 GB/s per port; combining at 20 GB/s.
PLAIN = {
    "port": 10e9,
    "port_latency": 0.5e-6,
    "bandwidth": 10e9,
    "latency": 0.5e-6,
    "overhead": 1e-6,
    "reduction": 20e9,
}


def plain(ranks: int) -> Topology:
    """One rank per host, under a non-blocking switch: the textbook's α-β-γ model."""
    return hosts(ranks, 1, **PLAIN)


def priced(collective: str, name: str, ranks: int, topology: Topology, size: int, segments: int | None = 1) -> float:
    return cost(af.schedule(collective, name, ranks), topology, size, segments).time


@cache
def folded(collective: str, name: str, ranks: int, root: int | None) -> list[Pattern]:
    return fold(af.schedule(collective, name, ranks, root))


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_textbook_formulas(ranks: int) -> None:
    size, alpha, beta, gamma, log = 2**20, 3e-6, 1 / 10e9, 1 / 20e9, int(log2(ranks))
    part = (ranks - 1) / ranks
    expected = {
        "ring": 2 * (ranks - 1) * alpha + 2 * part * size * beta + part * size * gamma,
        "halving_doubling": 2 * log * alpha + 2 * part * size * beta + part * size * gamma,
        "recursive_doubling": log * (alpha + size * beta + size * gamma),
        "tree": 2 * log * (alpha + size * beta) + log * size * gamma,
        "naive": (ranks - 1) * 1e-6 + 2e-6 + (ranks - 1) * size * (beta + gamma),
        "driver": 2 * ((ranks - 1) * 1e-6 + 2e-6 + (ranks - 1) * size * beta) + (ranks - 1) * size * gamma,
    }
    for name, seconds in expected.items():
        assert priced("all_reduce", name, ranks, plain(ranks), size) == pytest.approx(seconds), name


def test_a_chain_in_segments() -> None:
    """P−1 hops, then one segment after the other at the rate of a port; the best number is √(hops·bytes·β/overhead)."""
    ranks, size = 9, 2**24
    schedule = af.schedule("broadcast", "chain", ranks)
    for segments in (1, 4, 64):
        x = size / segments / 10e9
        by_hand = (ranks - 1) * (3e-6 + x) + (segments - 1) * (1e-6 + x)
        assert cost(schedule, plain(ranks), size, segments).time == pytest.approx(by_hand)
    best = cost(schedule, plain(ranks), size)
    ideal = (7 * size / 10e9 / 1e-6) ** 0.5
    at_ideal = cost(schedule, plain(ranks), size, round(ideal)).time
    assert at_ideal <= best.time <= 1.01 * at_ideal and best.segments <= ideal


def test_what_is_shared_is_shared() -> None:
    """Eight ranks of a host send through one card, and the bytes of one link never exceed what all links are given."""
    topology = hosts(2, 8, cards=1, port=inf, bus=inf, bandwidth=1e9, latency=0.0, overhead=0.0, reduction=inf)
    schedule = af.schedule("all_to_all", "direct", 16)
    found = cost(schedule, topology, 16_000_000, 1)
    assert found.parts["transfer"] == pytest.approx(8 * 8 * 1_000_000 / 1e9)
    assert found.link_bytes is not None
    names = {topology.links[i].name: found.link_bytes[i] for i in range(len(topology.links))}
    assert names["host 0 card 0 out"] == pytest.approx(64_000_000) and names["rank 3 in"] == pytest.approx(15_000_000)
    assert str(found.limit).startswith("host 0 card 0 out and 3 like it") and found.limit.kind == "nic"


def test_what_limits_it() -> None:
    ring = af.schedule("all_reduce", "ring", 8)
    assert cost(ring, plain(8), 8).limit.kind == "latency"
    assert cost(ring, plain(8), 2**30).limit.kind == "port"
    slow = hosts(8, 1, **{**PLAIN, "reduction": 1e9})
    assert cost(ring, slow, 2**30).limit.kind == "reduction"
    assert cost(ring, one_host(8, bus=5e9), 2**30).busiest == "host 0 memory bus"


def test_bytes_through_ports_are_those_of_the_counts() -> None:
    for collective, name in EVERY:
        schedule = af.schedule(collective, name, 12)
        found = cost(schedule, plain(12), 1200, 1)
        assert found.busiest_port_bytes == pytest.approx(1200 * float(schedule.counts.busiest_port_bytes)), (
            collective,
            name,
        )
        assert found.counts == schedule.counts and found.steps == schedule.counts.steps


def test_local_work_goes_on_meanwhile() -> None:
    """The whole-buffer ring adds what came last while it forwards the next; only the last addition is waited for."""
    size = 2**20
    step, adding = 3e-6 + size / 10e9, size / 20e9
    assert priced("all_reduce", "rotate", 5, plain(5), size) == pytest.approx(4 * step + adding)
    slow = hosts(5, 1, **{**PLAIN, "reduction": 1e9})
    assert priced("all_reduce", "rotate", 5, slow, size) == pytest.approx(step + 3 * size / 1e9 + size / 1e9)


@pytest.mark.parametrize("ranks", [5, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_segments_are_never_worse_and_never_silly(ranks: int) -> None:
    for collective, name in EVERY:
        schedule = af.schedule(collective, name, ranks)
        for size in (0, 1, 4096, 2**26):
            best, one = cost(schedule, plain(ranks), size), cost(schedule, plain(ranks), size, 1)
            assert best.time <= one.time * (1 + 1e-9), (collective, name, size)
            assert best.segments <= max(1, size // 4096)


def test_the_fewest_segments() -> None:
    assert fewest_segments(lambda many: 100 / many + many, 1e9) in range(8, 11)
    assert fewest_segments(lambda many: 1.0, 1e9) == 1
    assert fewest_segments(lambda many: 1 / many, 8192.0) == 2


def test_wrong_arguments_are_refused() -> None:
    ring = af.schedule("all_reduce", "ring", 8)
    for arguments, says in (
        ((plain(4), 8), "has 4 ranks; you asked for 8"),
        ((plain(8), -1), "number of bytes"),
        ((plain(8), 1.5), "number of bytes"),
        ((plain(8), 8, 0), "whole number from 1"),
        (("laptop", 8), r"expected a topology, as of price.find_topology\('laptop', ranks=4\), not 'laptop'"),
    ):
        with pytest.raises(af.UsageError, match=says):
            cost(ring, *arguments)  # type: ignore[arg-type]


def test_json_holds_plain_numbers() -> None:
    found = cost(af.schedule("all_reduce", "ring", 4), one_host(4), 4096)
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["time"] == found.time and again["limit"]["kind"] == found.limit.kind


# Closed forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("some", [SOME, pytest.param(MANY, marks=pytest.mark.exhaustive)], ids=["some", "many"])
@each(("collective", "name"), EVERY)
def test_the_closed_form_is_what_is_counted(collective: str, name: str, some: list[int]) -> None:
    for ranks in some:
        form, counts = closed_form(collective, name, ranks), af.schedule(collective, name, ranks).counts
        for what in ("steps", "rounds", "messages", "bytes", "busiest_port_bytes", "busiest_port_messages"):
            said = getattr(form, what, None)
            assert said is None or float(said) == pytest.approx(float(getattr(counts, what))), f"{what}, {ranks} ranks"


@each(
    ("some", "every"),
    [
        ((1, 2, 3, 6, 8), False),
        pytest.param((1, 2, 3, 5, 6, 8, 9, 16, 22, 33), True, marks=pytest.mark.exhaustive),
    ],
)
@each(("collective", "name"), EVERY)
def test_the_patterns_are_those_of_the_schedule(collective: str, name: str, some: tuple[int, ...], every: bool) -> None:
    """Where routes differ and where they do not: every link, every port and every step."""
    for ranks in some:
        for root in ((0, ranks // 2) if every else (ranks // 2,)) if COLLECTIVES[collective].rooted else (None,):
            patterns = patterns_of(find_algorithm(collective, name), ranks, root)
            if patterns is None:
                continue
            said, found = list(patterns), folded(collective, name, ranks, root)
            for text in (
                "hosts:ranks_per_host=3,cards=2",
                "torus",
                "fat_tree:ranks_per_host=2,hosts_per_leaf=2",
                "one_host",
                *(["hosts:ranks_per_host=1"] if every else []),  # there, too, all routes are alike
            ):
                topology = find_topology(text, ranks)
                ours, theirs = Load.of(said, topology, ranks), Load.of(found, topology, ranks)
                assert ours.steps == theirs.steps
                assert ours.link_share == pytest.approx(theirs.link_share)
                assert ours.port_starts.tolist() == theirs.port_starts.tolist()
                assert ours.combined == pytest.approx(theirs.combined)
                assert ours.parts(10**6, 3) == pytest.approx(theirs.parts(10**6, 3)), (ranks, root, text)


def test_for_which_ranks_there_are_patterns() -> None:
    for collective, name in EVERY:
        found = find_algorithm(collective, name)
        said = {ranks for ranks in range(1, 17) if patterns_of(found, ranks) is not None}
        if name == "neighbor_exchange":
            assert said == {1, *range(2, 17, 2)}
        elif name == "two_level":
            assert said == {1, 2, 4, 6, 9, 12, 16}, "where all groups are alike"
        elif found.function.__module__.startswith("allfold."):
            assert 16 in said, name


TWO_LEVELS = [pair for pair in EVERY if find_algorithm(*pair).takes_groups]


@pytest.mark.parametrize(("collective", "name"), TWO_LEVELS)
def test_patterns_of_given_groups(collective: str, name: str) -> None:
    for sizes in ([4, 4, 4], [5, 5, 3], [1, 1, 1], [6]):
        ends = np.cumsum(sizes).tolist()
        groups = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
        topology = find_topology("fat_tree:ranks_per_host=2,hosts_per_leaf=2", ends[-1])
        for root in (0, ends[-1] - 2) if COLLECTIVES[collective].rooted else (None,):
            patterns = patterns_of(find_algorithm(collective, name), ends[-1], root, groups=groups)
            if patterns is None:
                assert name == "two_level" and len(set(sizes)) > 1
                continue
            made = af.schedule(collective, name, ends[-1], root, groups=groups)
            ours, theirs = (Load.of(one, topology, ends[-1]) for one in (patterns, fold(made)))
            assert ours.link_share == pytest.approx(theirs.link_share) and ours.steps == theirs.steps
            assert ours.parts(10**6, 2) == pytest.approx(theirs.parts(10**6, 2))


@pytest.mark.parametrize(("collective", "name"), TWO_LEVELS)
def test_groups_need_not_be_neighbours(collective: str, name: str) -> None:
    apart, topology = [[0, 3, 6], [1, 4, 7], [2, 5, 8]], find_topology("torus", 9)
    root = 4 if COLLECTIVES[collective].rooted else None
    patterns = patterns_of(find_algorithm(collective, name), 9, root, groups=apart)
    if patterns is None:
        assert COLLECTIVES[collective].has_order, "where a group's sum is that of several runs of ranks"
        return
    made = af.schedule(collective, name, 9, root, groups=apart)
    ours, theirs = (Load.of(one, topology, 9) for one in (patterns, fold(made)))
    assert ours.link_share == pytest.approx(theirs.link_share)
    assert ours.parts(10**6, 2) == pytest.approx(theirs.parts(10**6, 2))


@pytest.mark.parametrize("text", ["hosts:ranks_per_host=8", "fat_tree", "dgx_h100", "torus", "dragonfly"])
def test_an_exchange_that_is_not_taken_apart_is_bounded_from_below(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = find_topology(text, 64)
    patterns = [Everybody(1 / 64, 1 / 64), Everybody(1 / 64, 0.0)]
    whole = Load.of(list(patterns), topology, 64)
    monkeypatch.setattr(import_module("allfold.price.cost.load"), "_EXPANDED", 1)
    least = Load.of(list(patterns), topology, 64)
    assert least.cut is not None and whole.cut is None
    for size in (64, 2**26):
        exact, below = (sum(load.parts(size, 1).values()) for load in (whole, least))
        assert 0.2 * exact < below <= exact * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [4096, pytest.param(65_536, marks=pytest.mark.exhaustive)])
def test_many_ranks(ranks: int) -> None:
    """At powers of two, where all routes are alike, it is the textbook's formula."""
    size, alpha, levels = 2**30, 3e-6, ranks.bit_length() - 1
    topology = plain(ranks)
    expected = {
        "ring": 2 * (ranks - 1),
        "halving_doubling": 2 * levels,
        "recursive_doubling": levels,
        "tree": 2 * levels,
    }
    for name, steps in expected.items():
        patterns = patterns_of(find_algorithm("all_reduce", name), ranks)
        assert patterns is not None
        found = price(Load.of(patterns, topology, ranks), "all_reduce", name, size, 1)
        assert found.steps == steps
        assert found.parts["startup"] + found.parts["latency"] == pytest.approx(steps * alpha)
    form = closed_form("all_reduce", "ring", ranks)
    assert form is not None and form.messages == 2 * ranks * (ranks - 1)
    assert form.busiest_port_bytes == Fraction(2 * (ranks - 1), ranks)


@pytest.mark.parametrize("text", ["one_host", "hosts:ranks_per_host=1"])
@pytest.mark.parametrize("ranks", [2, 5, 6, 9, 16])
def test_where_routes_are_alike_it_does_not_matter_who_meets_whom(text: str, ranks: int) -> None:
    """So a tournament of many ranks need not be written out round by round."""
    topology, said = find_topology(text, ranks), Everybody(1 / ranks, 0.0, steps=ranks - 1 + ranks % 2)
    ours = Load.of([said], topology, ranks)
    theirs = Load.of(folded("all_to_all", "pairwise", ranks, None), topology, ranks)
    assert ours.steps == theirs.steps and ours.port_starts.tolist() == theirs.port_starts.tolist()
    assert ours.link_share == pytest.approx(theirs.link_share)
    for size, segments in ((1000, 1), (2**24, 1), (2**24, 7)):
        assert ours.parts(size, segments) == pytest.approx(theirs.parts(size, segments))
    with pytest.raises(RoutesDiffer, match="does not say which ranks exchange in which step"):
        Load.of([Everybody(1 / 16, 0.0, steps=15)], find_topology("torus", 16), 16)


def test_where_all_routes_are_alike() -> None:
    alike = ("one_host", "laptop", "dgx_h100", "hosts:ranks_per_host=1")
    assert all(all_alike(find_topology(text, 8)) for text in alike)
    differ = ("hosts", "torus", "fat_tree:ranks_per_host=1,hosts_per_leaf=4")
    assert not any(all_alike(find_topology(text, 16)) for text in differ)


# Lower bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("some", [(5,), pytest.param((2, 5, 16), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("text", ["one_host", "hosts:ranks_per_host=1", "fat_tree:ranks_per_host=4,hosts_per_leaf=2",
                                  "dgx_h100", "torus", "ring", "dragonfly", "ethernet_cloud", "dgx1", "mesh"])  # fmt: skip
def test_nothing_is_faster_than_the_bounds(text: str, some: tuple[int, ...]) -> None:
    for collective, name in EVERY:
        for ranks in some:
            topology = find_topology(text, ranks)
            first = [0] if len(some) > 1 else []
            for root in (*first, ranks - 1) if COLLECTIVES[collective].rooted else (None,):
                load = Load.of(folded(collective, name, ranks, root), topology, ranks)
                for size in (0, 1000, 2**24) if len(some) > 1 else (0, 2**24):
                    found = price(load, collective, name, size, root=root)
                    bounds, case = found.bounds, (collective, name, ranks, root, size)
                    assert found.time >= bounds.latency * (1 - 1e-9), case
                    assert found.time >= bounds.bandwidth * (1 - 1e-9), case
                    assert found.time >= bounds.reduction * (1 - 1e-9), case


def test_the_bounds_are_reached() -> None:
    """In some cases; otherwise they would be worth little."""
    assert priced("broadcast", "tree", 16, plain(16), 0) / least_spread(plain(16), 16)[0] < 1.35
    no_way = hosts(16, 1, **{**PLAIN, "port_latency": 0.0, "latency": 0.0})
    assert priced("barrier", "dissemination", 16, no_way, 0) == pytest.approx(least_spread(no_way, 16)[0])
    ring = cost(af.schedule("all_reduce", "ring", 16), plain(16), 2**32)
    assert ring.ratio < 1.02
    card = cost(af.schedule("all_reduce", "two_level", 16, groups=[list(range(8)), list(range(8, 16))]),
                hosts(2, 8, cards=8, port=inf, bus=inf, reduction=inf), 2**34)  # fmt: skip
    assert card.bounds.cut == "network cards of a host" and card.ratio < 1.01


def test_the_latency_bound_counts_who_can_know() -> None:
    """With 1 µs to start and 2 µs on the way: 2 know after 3 µs, 3 after 4, 4 after 5, 6 after 6, 9 after 7, 13 after 8."""
    for ranks, micros in ((2, 3), (3, 4), (4, 5), (5, 6), (6, 6), (9, 7), (10, 8), (13, 8)):
        assert least_spread(plain(ranks), ranks)[0] == pytest.approx(micros * 1e-6), ranks


def test_what_must_cross_is_what_the_collective_says_of_ports() -> None:
    for name, collective in COLLECTIVES.items():
        for ranks in (1, 2, 3, 8, 13):
            own = np.arange(ranks, dtype=np.int32)
            assert must_cross(name, own, 0) == pytest.approx(float(collective.bounds(ranks).busiest_port_bytes)), name


def test_the_root_is_where_gather_and_scatter_are_bound() -> None:
    group = np.array([0, 0, 0, 1], np.int32)
    assert must_cross("gather", group, 0) == 0.25 and must_cross("gather", group, 3) == 0.75
    bounds = lower_bounds("scatter", hosts(1, 4), 4, 1000, 0)
    assert bounds.time == max(bounds.latency, bounds.bandwidth)


# Beside the simulation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rotate", "ring", "tree", "recursive_doubling", "halving_doubling", "two_level"])
@pytest.mark.parametrize(
    "text", ["hosts:ranks_per_host=1", "one_host", "fat_tree:ranks_per_host=4", "dgx_h100", "torus"]
)
def test_it_takes_as_long_in_the_simulation(name: str, text: str) -> None:
    """Step by step or message by message: without segments, regular schedules take the same time."""
    groups = {"groups": [[*range(start, start + 4)] for start in range(0, 16, 4)]} if name == "two_level" else {}
    schedule, topology = af.schedule("all_reduce", name, 16, **groups), find_topology(text, 16)
    for size in (1024, 2**26):
        simulated = simulate(schedule, topology, size, 1).duration
        assert 0.97 * simulated < cost(schedule, topology, size, 1).time < 1.25 * simulated, size


def test_with_segments_the_simulation_is_not_far() -> None:
    for name in af.algorithms("all_reduce"):
        schedule, topology = af.schedule("all_reduce", name, 16), find_topology("hosts:ranks_per_host=1", 16)
        simulated = simulate(schedule, topology, 2**24, 4).duration
        assert 0.6 * simulated < cost(schedule, topology, 2**24, 4).time < 1.8 * simulated, name


def test_a_ring_waits_for_a_card_only_where_a_host_ends() -> None:
    """Of 15 hops in a row at most 4 lead from one host of four ranks to the next, 10 µs each; and that twice."""
    topology = hosts(4, 4, port_latency=0.0, latency=5e-6, overhead=0.0, bus=inf, port=inf, reduction=inf)
    ring = cost(af.schedule("all_reduce", "ring", 16), topology, 0, 1)
    assert ring.parts["latency"] == pytest.approx(2 * 4 * 10e-6)
