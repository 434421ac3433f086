"""All-to-all: flows that nothing can beat, and schedules along them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import topologies
from hypothesis import given, settings
from tasks import task_for

import allfold as af
from allfold.find.all_to_all import all_to_all, least_busy_flows
from allfold.find.exact import hops
from allfold.find.neighbours import neighbours_of
from allfold.price import Topology, cost, find_topology


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
    found = least_busy_flows(neighbours_of(topology, topology.ranks), 100)
    assert found is not None and found[0] == pytest.approx(rounds)


def test_no_schedule_beats_the_flow_and_the_best_is_near_it() -> None:
    for text, within in (("dgx1", 1.04), ("torus:shape=4x4", 1.12), ("ring:ranks=5", 1.001)):
        task = task_for("all_to_all", find_topology(text), size=2**30)
        times = []
        for found in all_to_all(task):
            af.verify(found)
            times.append(cost(found, task.topology, task.size).time)
        bound = task.notes["flow_bound"]
        assert all(time >= bound for time in times)
        assert min(times) <= within * bound


@settings(max_examples=8, deadline=None)
@given(topologies(most=6))
def test_every_schedule_is_proved(topology: Topology) -> None:
    task = task_for("all_to_all", topology)
    for found in all_to_all(task):
        af.verify(found)
        if "flow_bound" in task.notes:
            assert cost(found, topology, task.size).time >= task.notes["flow_bound"] * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(topologies())
def test_flows_arrive(topology: Topology) -> None:
    among = neighbours_of(topology, topology.ranks)
    found = least_busy_flows(among, 100)
    assert found is not None
    rounds, flows = found
    for start, flow in enumerate(flows):
        kept = np.bincount(among.destination, flow, among.ranks) - np.bincount(among.source, flow, among.ranks)
        assert np.delete(kept, start) == pytest.approx(1)
    load = np.zeros(len(among.capacity))
    pair = np.repeat(np.arange(len(among.source)), np.diff(among.offsets))
    np.add.at(load, among.links, flows.sum(axis=0)[pair])
    assert (load / among.capacity).max() == pytest.approx(rounds, rel=1e-4)


def test_larger_networks_take_shortest_paths() -> None:
    topology = find_topology("torus:shape=5x5x4")
    task = task_for("all_to_all", topology, chunks=1)
    first = next(all_to_all(task))
    af.verify(first)
    travelled = first.columns["source"] != first.columns["destination"]
    assert int(travelled.sum()) == int(hops(neighbours_of(topology, 100)).sum())


def test_too_many_ranks_get_a_sentence() -> None:
    with pytest.raises(af.UsageError, match="at most 256 ranks, not for 343"):
        next(all_to_all(task_for("all_to_all", find_topology("torus:shape=7x7x7"))))
