"""The simulation: closed forms where there are some, and what must hold where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allfold as af
from allfold.cli import main
from allfold.errors import UsageError
from allfold.price.cost.cost import cost
from allfold.price.simulate.fairness import FairFlows, fair_rates
from allfold.price.simulate.simulate import Noise, simulate
from allfold.price.simulate.symmetry import find_shift
from allfold.price.simulate.timeline import Timeline
from allfold.price.topology.machines import dragonfly, fat_tree, hosts, one_host, ring, torus
from allfold.price.topology.topology import Topology
from allfold.view.timeline import timeline_as_svg, timeline_as_text

OVERHEAD, LATENCY, BANDWIDTH, REDUCTION = 1e-6, 0.7e-6, 1e9, 4e9  # the latency is per port; a route has two
ALPHA = OVERHEAD + 2 * LATENCY
SIZE = 1 << 20
EVERY = [
    (one, name) for one in ("all_reduce", "all_to_all", "broadcast", "gather", "barrier") for name in af.algorithms(one)
]


def homogeneous(ranks: int, overhead: float = OVERHEAD, reduction: float = REDUCTION) -> Topology:
    """Ports with nothing between them: the α-β-γ model."""
    return one_host(ranks, BANDWIDTH, LATENCY, inf, overhead, reduction)


def topologies(ranks: int) -> list[Topology]:
    return [
        homogeneous(ranks),
        one_host(ranks),
        ring(ranks),
        torus((2, 2, -(-ranks // 4))),
        hosts(-(-ranks // 2), 2),
        fat_tree(-(-ranks // 2), 2, 2, 2.0),
        dragonfly(-(-ranks // 4), 2, 2),
    ]


def all_reduce(name: str, ranks: int) -> af.Schedule:
    return af.schedule("all_reduce", name, ranks)


# Closed forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13, 16])
def test_ring(ranks: int) -> None:
    part = SIZE / ranks
    expected = (ranks - 1) * (2 * (ALPHA + part / BANDWIDTH) + part / REDUCTION)
    assert simulate(all_reduce("ring", ranks), homogeneous(ranks), SIZE).duration == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_trees_and_doublings(ranks: int) -> None:
    """⌈log₂P⌉ times a whole buffer, or S(P−1)/P in all where the buffer is halved; α once per step."""
    topology, steps, whole = homogeneous(ranks), (ranks - 1).bit_length(), SIZE / BANDWIDTH
    part, combined = (ranks - 1) / ranks * whole, SIZE / REDUCTION
    for name, expected in {
        "tree": steps * (2 * (ALPHA + whole) + combined),
        "recursive_doubling": steps * (ALPHA + whole + combined),
        "halving_doubling": 2 * (steps * ALPHA + part) + (ranks - 1) / ranks * combined,
    }.items():
        assert simulate(all_reduce(name, ranks), topology, SIZE).duration == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_doubling_folds_odd_ranks_in_first(ranks: int) -> None:
    """One step to fold in the ranks beyond a power of two, and one to send them the result; some latencies overlap."""
    steps = ranks.bit_length() - 1
    expected = (steps + 2) * (ALPHA + SIZE / BANDWIDTH) + (steps + 1) * SIZE / REDUCTION
    found = simulate(all_reduce("recursive_doubling", ranks), homogeneous(ranks), SIZE).duration
    assert expected - (steps + 1) * 2 * LATENCY <= found <= expected * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_driver_is_bound_by_its_port(ranks: int) -> None:
    """All arrive at the root through one port, and leave it through one; starting them overlaps with the bytes."""
    expected = 2 * (OVERHEAD + 2 * LATENCY + (ranks - 1) * SIZE / BANDWIDTH)
    found = simulate(all_reduce("driver", ranks), homogeneous(ranks, reduction=inf), SIZE).duration
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
@pytest.mark.parametrize("size", [0, 8, SIZE])
def test_naive_shares_its_ports(ranks: int, size: int) -> None:
    """P−1 messages through a port: either their bytes take longest, or the starting of them."""
    others, one = ranks - 1, size / BANDWIDTH
    expected = 2 * LATENCY + max(OVERHEAD + others * one, others * OVERHEAD + one)
    simulated = simulate(all_reduce("naive", ranks), homogeneous(ranks, reduction=inf), size).duration
    assert simulated == pytest.approx(expected, rel=1e-12)
    # If starting costs nothing, all arrive at once, and are combined one after the other.
    expected = 2 * LATENCY + others * (one + size / REDUCTION)
    simulated = simulate(all_reduce("naive", ranks), homogeneous(ranks, overhead=0.0), size).duration
    assert simulated == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("segments", [1, 2, 7, 32])
def test_a_chain_is_a_pipeline(segments: int) -> None:
    """Every hop takes one segment's time, and the others follow as fast as a port takes them."""
    ranks, part = 6, SIZE / segments / BANDWIDTH
    expected = (ranks - 1) * (ALPHA + part) + (segments - 1) * (OVERHEAD + part)
    schedule = af.schedule("broadcast", "chain", ranks)
    assert simulate(schedule, homogeneous(ranks), SIZE, segments).duration == pytest.approx(expected, rel=1e-12)


def test_a_shared_bus_is_shared() -> None:
    """8 ranks on a bus that carries two ports' worth: each gets a quarter of what it could take."""
    topology = one_host(8, BANDWIDTH, LATENCY, 2 * BANDWIDTH, OVERHEAD, inf)
    expected = 14 * (ALPHA + SIZE / 8 / (BANDWIDTH / 4))
    assert simulate(all_reduce("ring", 8), topology, SIZE).duration == pytest.approx(expected, rel=1e-12)


def test_steps_do_not_wait_for_each_other() -> None:
    """Only ranks that need a straggler's data are late: the two chains are independent of each other."""

    def chains(ranks: int):  # type: ignore[no-untyped-def]
        yield [af.copy(0, 0, 1), af.copy(1, 2, 3)]
        yield [af.copy(0, 1, 0, into=2), af.copy(1, 3, 2, into=2)]

    schedule = af.schedule("all_reduce", chains, 4)
    timeline = simulate(schedule, homogeneous(4), SIZE, noise=Noise(slow={0: 5.0}))
    alone = simulate(schedule, homogeneous(4), SIZE)
    assert timeline.end[[1, 3]] == pytest.approx(alone.end[[1, 3]], rel=1e-12)
    assert timeline.end[0] > 4 * alone.end[0] * 0.9


# Fairness ------------------------------------------------------------------------------------------------------------


def brute_force(routes: list[list[int]], bandwidth: list[float], limit: list[float]) -> list[float]:
    """Raise all rates together until one bottleneck after the other is full: the textbook's algorithm."""
    rate, rising = [0.0] * len(routes), set(range(len(routes)))
    while rising:
        room = []
        for link, width in enumerate(bandwidth):
            crossings = sum(routes[flow].count(link) for flow in rising)
            if crossings:
                used = sum(rate[flow] * routes[flow].count(link) for flow in range(len(routes)))
                room.append((width - used) / crossings)
        more = min([*room, *(limit[flow] - rate[flow] for flow in rising)])
        for flow in rising:
            rate[flow] += more
        used = [sum(rate[f] * routes[f].count(link) for f in range(len(routes))) for link in range(len(bandwidth))]
        full = {link for link, width in enumerate(bandwidth) if used[link] >= width * (1 - 1e-9)}
        rising -= {flow for flow in rising if full & set(routes[flow]) or rate[flow] >= limit[flow] * (1 - 1e-9)}
    return rate


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], list[float], list[float]]:
    links = draw(st.integers(1, 6))
    speeds = st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0, 10.0])
    routes = draw(st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=4), min_size=1, max_size=9))
    bandwidth = draw(st.lists(speeds, min_size=links, max_size=links))
    narrowest = [min(bandwidth[link] for link in route) for route in routes]
    factors = draw(st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=len(routes), max_size=len(routes)))
    return routes, bandwidth, [one * factor for one, factor in zip(narrowest, factors, strict=True)]


@given(networks(), st.booleans())
def test_rates_are_max_min_fair(network: tuple[list[list[int]], list[float], list[float]], arrays: bool) -> None:
    routes, bandwidth, limit = network
    expected = brute_force(routes, bandwidth, limit)
    if arrays:
        table = np.full((len(routes), 4), len(bandwidth))
        for row, route in zip(table, routes, strict=True):
            row[: len(route)] = route
        found = fair_rates(table, np.append(bandwidth, inf), np.asarray(limit)).tolist()
    else:
        flows = FairFlows(bandwidth)
        for number, route in enumerate(routes):
            flows.start(number, route, 1.0, limit[number], 0.0)
        flows.settle(0.0)
        found = [flows._flows[number].rate for number in range(len(routes))]
    assert found == pytest.approx(expected, rel=1e-7)


test_rates_are_max_min_fair_more = pytest.mark.exhaustive(
    settings(max_examples=200, deadline=None)(
        given(networks(), st.booleans())(test_rates_are_max_min_fair.hypothesis.inner_test)
    )
)


@given(networks(), st.randoms(use_true_random=False))
def test_flows_that_come_and_go_finish_as_if_all_were_solved_anew(
    network: tuple[list[list[int]], list[float], list[float]], random: object
) -> None:
    """Rates that `FairFlows` does not recompute would have come out the same."""
    routes, bandwidth, limit = network
    start = [float(random.randint(0, 3)) for _ in routes]  # type: ignore[attr-defined]
    size = [float(random.randint(1, 9)) for _ in routes]  # type: ignore[attr-defined]
    flows, finished, now = FairFlows(bandwidth), {}, 0.0
    left, active, expected = dict(enumerate(size)), set[int](), {}
    pending = sorted(range(len(routes)), key=start.__getitem__)
    waiting = list(pending)
    while len(finished) < len(routes):
        now = min(flows.next(), start[waiting[0]] if waiting else inf)
        for number in flows.take_finished(now * (1 + 1e-12)):
            finished[number] = now
        while waiting and start[waiting[0]] <= now:
            number = waiting.pop(0)
            flows.start(number, routes[number], size[number], limit[number], now)
        flows.settle(now)
    now = 0.0
    while len(expected) < len(routes):
        chosen = sorted(active)
        rates = brute_force([routes[f] for f in chosen], bandwidth, [limit[f] for f in chosen])
        ends = {flow: left[flow] / rate for flow, rate in zip(chosen, rates, strict=True)}
        following = min([*(now + end for end in ends.values()), *(start[flow] for flow in pending)])
        for flow, rate in zip(chosen, rates, strict=True):
            left[flow] -= rate * (following - now)
            if left[flow] <= 1e-9:
                expected[flow] = following
                active.discard(flow)
        now = following
        active |= {flow for flow in pending if start[flow] <= now}
        pending = [flow for flow in pending if start[flow] > now]
    assert [finished[flow] for flow in range(len(routes))] == pytest.approx(
        [expected[flow] for flow in range(len(routes))], rel=1e-6
    )


# What holds for every schedule on every topology ---------------------------------------------------------------------


def check(timeline: Timeline) -> None:
    """No message before what it needs, bytes conserved, and a critical path without a gap."""
    schedule, size = timeline.schedule, timeline.size
    assert not np.isnan(timeline.end).any()
    for earlier, later in (("ready", "start"), ("start", "sent"), ("sent", "arrived"), ("arrived", "landed")):
        assert (getattr(timeline, earlier) <= getattr(timeline, later) * (1 + 1e-12)).all(), (earlier, later)
    assert (timeline.landed <= timeline.end).all()
    if schedule.promise.carries_data:
        assert timeline.bytes[timeline.travels].sum() == pytest.approx(float(schedule.counts.bytes) * size)
    assert timeline.travels.sum() == schedule.counts.messages * timeline.segments
    priced = cost(schedule, timeline.topology, size, timeline.segments)
    assert priced.link_bytes is not None
    np.testing.assert_allclose(timeline.link_bytes(), priced.link_bytes, rtol=1e-9, atol=1e-6)
    # Never faster than what no algorithm can beat, nor than the busiest link allows.
    assert timeline.duration >= priced.bounds.time * (1 - 1e-9)
    assert timeline.duration >= priced.busiest_time * (1 - 1e-9)
    np.testing.assert_array_equal(timeline.spans[1:, 0], timeline.spans[:-1, 1])
    assert (timeline.spans[:, 0] <= timeline.spans[:, 1]).all()
    assert sum(timeline.critical_parts().values()) == pytest.approx(timeline.duration)
    assert ((timeline.idle() >= 0) & (timeline.idle() <= timeline.duration * (1 + 1e-12))).all()
    if timeline.messages:
        assert timeline.spans[0, 0] == 0 and timeline.spans[-1, 1] == timeline.duration
        assert timeline.end[timeline.critical[-1]] == timeline.duration
        assert (timeline.spans[:, 1] <= timeline.end[timeline.critical] * (1 + 1e-12)).all()


def check_order(timeline: Timeline) -> None:
    """The rule of the language, checked on times: every move sees what was made before its step, and nothing later."""
    columns, segments = timeline.schedule.columns, timeline.segments
    step = np.repeat(np.arange(timeline.schedule.steps), np.diff(timeline.schedule.starts))
    number = {}
    for message in range(timeline.messages):
        key = (int(timeline.step[message]), int(timeline.source[message]), int(timeline.destination[message]))
        number[(*key, int(timeline.segment[message]))] = message
    slack = 1e-12 * timeline.duration
    for segment in range(segments):
        writes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        reads: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for move in range(timeline.schedule.moves):
            source, destination = int(columns["source"][move]), int(columns["destination"][move])
            message = number[int(step[move]), source, destination, segment]
            reads.setdefault((source, int(columns["chunk"][move])), []).append((int(step[move]), message))
            writes.setdefault((destination, int(columns["into"][move])), []).append((int(step[move]), message))
        for cell, written in writes.items():
            for when, message in written:
                for earlier, other in written:
                    assert earlier >= when or timeline.end[other] <= timeline.landed[message] + slack
                for reading, reader in reads.get(cell, []):
                    if reading > when:
                        assert timeline.end[message] <= timeline.ready[reader] + slack
                    else:
                        assert timeline.sent[reader] <= timeline.landed[message] + slack


def in_turn(collective: str, name: str, ranks: int) -> list[Topology]:
    """Every other topology, beginning with the first or with the second."""
    return topologies(ranks)[EVERY.index((collective, name)) % 2 :: 2]


def all_of_them(collective: str, name: str, ranks: int) -> list[Topology]:
    return topologies(ranks)


CHOICES = [in_turn, pytest.param(all_of_them, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("some", [(1, 5), pytest.param((2, 8), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("choose", CHOICES, ids=["half", "all"])
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_every_algorithm_on_every_topology(
    collective: str, name: str, choose: Callable[[str, str, int], list[Topology]], some: tuple[int, ...]
) -> None:
    for ranks in some:
        schedule = af.schedule(collective, name, ranks)
        for topology in choose(collective, name, ranks):
            check(simulate(schedule, topology, 1000))
        for segments in (1, 3):
            noisy = simulate(schedule, one_host(ranks), 1000, segments, Noise(0.3, 0.3, {ranks - 1: 2.0}, seed=ranks))
            check(noisy)
            check_order(noisy)


@pytest.mark.parametrize("ranks", [6, pytest.param(8, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("choose", CHOICES, ids=["half", "all"])
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_symmetry_leaves_nothing_out(
    collective: str, name: str, choose: Callable[[str, str, int], list[Topology]], ranks: int
) -> None:
    """Times derived from other ranks equal those of a simulation of all ranks."""
    schedule = af.schedule(collective, name, ranks)
    for topology in choose(collective, name, ranks):
        some, everything = (simulate(schedule, topology, 100_000, 2, symmetric=yes) for yes in (True, False))
        for column in ("move", "moves", "bytes", "ready", "start", "sent", "arrived", "landed", "end"):
            np.testing.assert_allclose(getattr(some, column), getattr(everything, column), rtol=1e-9, err_msg=column)
        check(some)
        check(everything)


def test_a_ring_is_seen_from_one_rank() -> None:
    assert find_shift(all_reduce("ring", 12), homogeneous(12)).ranks == 1
    assert find_shift(all_reduce("ring", 16), fat_tree(8, 2, 2)).ranks == 4  # a leaf
    assert find_shift(all_reduce("naive", 12), one_host(12)).ranks == 1
    assert find_shift(all_reduce("tree", 8), homogeneous(8)).ranks == 8
    assert find_shift(all_reduce("ring", 6), hosts(4, 2)).ranks == 2


def test_without_barriers_it_is_not_slower_where_all_ports_are_equal() -> None:
    """The steps one after the other are an upper bound there. Elsewhere they are not: a message that leaves early can be
    in the way of one that matters more."""
    for name in af.algorithms("all_reduce"):
        for ranks in (2, 4, 8, 16):
            schedule, topology = all_reduce(name, ranks), homogeneous(ranks)
            assert simulate(schedule, topology, SIZE).duration <= cost(schedule, topology, SIZE, 1).time * (1 + 1e-9), (
                name
            )


# Noise, use of links -------------------------------------------------------------------------------------------------


def test_noise_is_that_of_its_seed() -> None:
    schedule, topology = all_reduce("double_tree", 9), fat_tree(5, 2, 2)
    first, again, other = (simulate(schedule, topology, SIZE, 4, Noise(0.2, 0.2, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.end, again.end)
    np.testing.assert_array_equal(first.critical, again.critical)
    assert first.duration != other.duration
    assert first.duration > simulate(schedule, topology, SIZE, 4).duration


def test_a_slow_rank_slows_what_it_does() -> None:
    ranks, schedule = 8, all_reduce("ring", 8)
    slow = simulate(schedule, homogeneous(ranks), SIZE, noise=Noise(slow={3: 3.0}))
    # Its own messages, in and out, follow each other through every step.
    own = (ranks - 1) * 2 * (3 * OVERHEAD + 2 * LATENCY + 3 * SIZE / ranks / BANDWIDTH)
    assert slow.duration >= own
    assert slow.idle()[7] > slow.idle()[3]


def test_the_use_of_links_adds_up() -> None:
    timeline = simulate(all_reduce("naive", 6), fat_tree(3, 2, 1, 4.0), SIZE)
    use = timeline.link_use(50)
    carried = use.sum(axis=1) * timeline.duration / 50 * timeline.topology.bandwidth
    np.testing.assert_allclose(carried, timeline.link_bytes(), rtol=1e-6, atol=1e-3)
    # Alone on its ports, a message uses all of them from its start until it is sent.
    alone = simulate(all_reduce("ring", 2), homogeneous(2), SIZE).link_use(1000)
    assert set(np.round(alone[0][alone[0] > 0.999], 6)) == {1.0}


def test_wrong_usage_is_refused() -> None:
    schedule = all_reduce("ring", 4)
    for arguments, says in (
        ({"topology": homogeneous(3)}, "has 3 ranks; you asked for 4"),
        ({"size": -1}, "-1 bytes"),
        ({"size": 10**400}, "number of bytes"),
        ({"size": float("nan")}, "number of bytes"),
        ({"segments": 0}, "0 segments"),
        ({"segments": 10**8}, "2,400,000,000 messages"),
        ({"noise": Noise(slow={4: 2.0})}, "slow rank 4"),
    ):
        given_all: dict[str, object] = {"topology": homogeneous(4), "size": 8, **arguments}  # type: ignore[dict-item]
        with pytest.raises(UsageError, match=says):
            simulate(schedule, **given_all)  # type: ignore[arg-type]
    for disturbed, says in (
        ({"latency": -1.0}, "a mean of at least 0"),
        ({"bandwidth": 1e308}, "a mean of at least 0"),
        ({"slow": {0: 1e308}}, "slow rank 0"),
        ({"seed": -1}, "the seed of the noise is -1"),
    ):
        with pytest.raises(UsageError, match=says):
            Noise(**disturbed)  # type: ignore[arg-type]


def test_a_schedule_that_nobody_can_build_is_refused_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "ring", "--ranks", "100000", "--collective", "all_reduce"]) == 2
    assert "19,999,800,000 messages" in capsys.readouterr().err


def test_the_schedule_of_a_file_brings_its_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(all_reduce("ring", 6).to_json()))
    assert main(["simulate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 6


# What is drawn and written -------------------------------------------------------------------------------------------


def test_the_json_holds_everything() -> None:
    timeline = simulate(all_reduce("tree", 4), homogeneous(4), SIZE, 2)
    document = json.loads(json.dumps(timeline.to_json()))
    assert document["format"] == "allfold-timeline" and document["duration"] == timeline.duration
    assert {len(column) for column in document["messages"].values()} == {timeline.messages}
    assert document["messages"]["source"] == timeline.source.tolist()


def test_slices_of_a_track_do_not_overlap() -> None:
    timeline = simulate(all_reduce("naive", 5), homogeneous(5), SIZE)
    rows = timeline.to_chrome()["traceEvents"]
    names = {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}
    assert "rank 0 sends" in names.values() and "rank 0 sends (4)" in names.values()
    for track in names:
        slices = sorted((row["ts"], row["dur"]) for row in rows if row["ph"] == "X" and row["tid"] == track)
        assert all(a + long <= b * (1 + 1e-9) for (a, long), (b, _) in pairwise(slices))
    flows = [(row["ph"], row["id"]) for row in rows if row["ph"] in "sf"]
    assert sorted(flows) == sorted((kind, message) for kind in "sf" for message in range(timeline.messages))


def test_the_picture_has_every_message() -> None:
    timeline = simulate(all_reduce("ring", 4), homogeneous(4), SIZE, noise=Noise(0.5, 0.5))
    picture = ElementTree.fromstring(timeline_as_svg(timeline))
    drawn = list(picture.iter("{http://www.w3.org/2000/svg}polygon"))
    assert len(drawn) == timeline.messages
    outlined = sum("critical" in one.get("class", "") for one in drawn)
    assert outlined == (timeline.spans[:, 0] < timeline.arrived[timeline.critical]).sum() > 0
    rows = [line.plain for line in timeline_as_text(timeline, 60)]
    assert [row.split("  ")[0] for row in rows[1:5]] == [f"rank {rank}" for rank in range(4)]
    assert all(len(row) <= 60 for row in rows[:5])


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["simulate", "--help"]) == 0
    example = capsys.readouterr().out.split("example:\n")[1]
    words, *quoted = example.split("\n\n  $ ")[0].removeprefix("  $ allfold ").splitlines()
    assert main(words.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    quoted = [line[2:].rstrip("… ") for line in quoted if line.strip("… ")]
    assert len(quoted) > 5 and all(any(one.startswith(line) for one in printed) for line in quoted)
    picture, trace = tmp_path / "picture.svg", tmp_path / "trace.json"
    assert main(["simulate", "tree", "--json", "--svg", str(picture), "--trace", str(trace), "--noise", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "tree"
    assert picture.read_text().startswith("<svg") and json.loads(trace.read_text())["traceEvents"]
    for words, says in (
        (["--slow", "3"], "expected RANK=FACTOR"),
        (["--noise", "-1"], "at least 0"),
        (["--topology", "fat_treee"], "did you mean"),
        (["--svg", str(tmp_path / "nowhere" / "x.svg")], "cannot be written"),
    ):
        assert main(["simulate", "tree", "--collective", "all_reduce", *words]) == 2
        assert says in capsys.readouterr().err
