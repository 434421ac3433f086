"""All-to-all: flows that nothing can beat, and schedules along them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from graphs import topologies, written
from hypothesis import given, settings
from tasks import seconds_of, task_for

import allfold as af
from allfold.price import Topology, cost, find_topology
from allfold.price.cost.cuts import tightest_cut
from allfold.price.cost.divisions import _burden, _improved
from allfold.price.topology.network import network_of
from allfold.search.exact import hops
from allfold.search.least import least_of
from allfold.search.neighbours import neighbours_of
from allfold.search.paths.all_to_all import all_to_all
from allfold.search.paths.flows import flows_of, least_busy_flows, prices_of_flows


@pytest.mark.parametrize(
    ("text", "rounds"),
    [  # with links of equal speed, the hops of all pairs over the number of links if that can be balanced
        ("dgx1", 8 / 3),  # SCCL (Cai et al.): 24 chunks, 3 for each of the others and oneself, in 8 rounds
        ("ring:ranks=5", 3),
        ("torus:shape=4x4", 8),
        ("hypercube:dimensions=4", 8),
        ("mesh:shape=3x3", 6),
        ("dgx_a100:nodes=1", 7),
    ],
)
def test_the_flow_is_the_best(text: str, rounds: float) -> None:
    topology = find_topology(text)
    found = least_busy_flows(neighbours_of(topology, topology.ranks), np.arange(topology.ranks), 100)
    assert found is not None and found.rounds == pytest.approx(rounds)
    assert found.least == pytest.approx(rounds, rel=1e-4) and found.least <= rounds * (1 + 1e-12)


def test_no_schedule_beats_the_flow_and_the_best_is_near_it() -> None:
    for text, within in (("dgx1", 1.04), ("torus:shape=4x4", 1.12), ("ring:ranks=5", 1.001)):
        task = task_for("all_to_all", find_topology(text), size=2**30)
        flows = flows_of(task)
        assert flows is not None
        bound = seconds_of(task, prices_of_flows(task, flows))
        times = []
        for found in all_to_all(replace(task, flows=flows)):
            af.verify(found)
            times.append(cost(found, task.topology, task.size).time)
        assert all(time >= bound for time in times)
        assert min(times) <= within * bound


@settings(max_examples=4, deadline=None)
@given(topologies(most=6))
def test_every_schedule_is_proved_and_none_beats_the_bound(topology: Topology) -> None:
    task = task_for("all_to_all", topology)
    task = replace(task, flows=flows_of(task))
    least = least_of(task)
    cut = tightest_cut("all_to_all", task.network)
    assert cut is not None and least.time >= cut.time(task.size) * (1 - 1e-12) > 0
    for found in (*all_to_all(task), *(af.schedule("all_to_all", name, topology.ranks) for name in QUICK)):
        af.verify(found)
        assert cost(found, topology, task.size).time >= least.time * (1 - 1e-9)


QUICK = [name for name in af.algorithms("all_to_all") if name != "hypercube"]


@settings(max_examples=40, deadline=None)
@given(topologies(8))
def test_the_cut_is_the_worst_of_all(topology: Topology) -> None:
    network = network_of(topology)
    ranks, worst = topology.ranks, Fraction(0)
    for size in range(1, network.vertices):
        for chosen in combinations(range(network.vertices), size):
            inside = sum(vertex < ranks for vertex in chosen)
            leaving = sum(
                Fraction(speed)
                for tail, head, speed in zip(network.tail, network.head, network.bandwidth.tolist(), strict=True)
                if int(tail) in chosen and int(head) not in chosen
            )
            if 0 < inside < ranks:
                worst = max(worst, Fraction(inside * (ranks - inside), ranks) / leaving)
    cut = tightest_cut("all_to_all", network)
    assert cut is not None and cut.time(1.0) == pytest.approx(float(worst), rel=1e-12)
    # Larger networks start from likely sets, and can only come to the worst or to a better one.
    likely = np.stack([np.arange(network.vertices) == rank for rank in range(ranks)])
    ends = [_improved(network, start) for start in likely]
    assert max(_burden(network, network.bandwidth, np.stack(ends))) <= float(worst) * ranks * (1 + 1e-12)
    assert max(_burden(network, network.bandwidth, np.stack(ends))) >= max(_burden(network, network.bandwidth, likely))


@pytest.mark.parametrize("method", ["built_in", "greedy", "auto"])
def test_two_groups_are_bounded_by_what_is_between_them(method: str) -> None:
    # Two triangles, and one cable of 1 GB/s between them: 3 · 3 sixths of a buffer of 6 GB must cross it.
    fast = [(a, b, 8e9) for group in ((0, 1, 2), (3, 4, 5)) for a in group for b in group if a != b]
    found = af.find("all_to_all", written(6, [*fast, (2, 3, 1e9), (3, 2, 1e9)]), size=6 * 10**9, method=method)
    assert found.bound == pytest.approx(9.0, rel=1e-9) and found.cut is not None
    assert "can send no more than 1 GB/s to the rest: 1 link" in found.why


@pytest.mark.parametrize(
    ("shape", "crossing"), [("torus:shape=8x4", 8), ("mesh:shape=6x6", 6), ("torus:shape=4x4x4", 32)]
)
def test_larger_networks_are_cut_in_half(shape: str, crossing: int) -> None:
    topology = find_topology(shape)
    cut = tightest_cut("all_to_all", network_of(topology))
    bandwidth = float(topology.bandwidth[np.isfinite(topology.bandwidth)].min())
    assert cut is not None and cut.time(1.0) == pytest.approx(topology.ranks / 4 / (crossing * bandwidth))


@settings(max_examples=25, deadline=None)
@given(topologies())
def test_flows_arrive(topology: Topology) -> None:
    among = neighbours_of(topology, topology.ranks)
    found = least_busy_flows(among, np.arange(topology.ranks), 100)
    assert found is not None
    for start, flow in enumerate(found.by_pair):
        kept = np.bincount(among.destination, flow, among.ranks) - np.bincount(among.source, flow, among.ranks)
        assert np.delete(kept, start) == pytest.approx(1)
    load = np.zeros(len(among.bandwidth))
    pair = np.repeat(np.arange(len(among.source)), np.diff(among.offsets))
    np.add.at(load, among.links, found.by_pair.sum(axis=0)[pair])
    rounds = (load / among.bandwidth).max() * among.bandwidth.min()
    assert rounds == pytest.approx(found.rounds, rel=1e-4) and rounds == pytest.approx(found.least, rel=1e-3)


def test_larger_networks_take_shortest_paths() -> None:
    topology = find_topology("torus:shape=5x5x4")
    task = task_for("all_to_all", topology, chunks=1)
    first = next(all_to_all(task))
    af.verify(first)
    travelled = first.columns["source"] != first.columns["destination"]
    assert int(travelled.sum()) == int(hops(neighbours_of(topology, 100)).sum())


def test_too_many_ranks_get_a_sentence() -> None:
    with pytest.raises(af.UsageError, match="at most 512 ranks, not 729"):
        next(all_to_all(task_for("all_to_all", find_topology("torus:shape=9x9x9"))))


test_every_schedule_is_proved_and_none_beats_the_bound_more = pytest.mark.exhaustive(
    settings(max_examples=25, deadline=None)(
        given(topologies(most=6))(test_every_schedule_is_proved_and_none_beats_the_bound.hypothesis.inner_test)
    )
)
