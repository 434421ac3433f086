"""Scatter and gather: paths at the rate of the tightest cut, proved, and none beats the bound."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import topologies, written
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks import seconds_of, task_for

import allfold as af
from allfold.errors import UsageError
from allfold.price import Topology, find_topology
from allfold.price.cost.cuts import tightest_cut
from allfold.price.topology.network import network_of
from allfold.search.paths.arrange import along_flows, balanced, far_from
from allfold.search.paths.flows import flows_of, prices_of_flows


@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("dgx1", 1.07),
        pytest.param("mi250:nodes=1", 1.16, marks=pytest.mark.exhaustive),
        pytest.param("mesh:shape=5x5", 1.05, marks=pytest.mark.exhaustive),
        pytest.param("torus:shape=3x3x3", 1.02, marks=pytest.mark.exhaustive),
        ("dgx_a100:nodes=2", 1.06),
        pytest.param("dgx_h100:nodes=4", 1.18, marks=pytest.mark.exhaustive),  # a port serves one step at a time
    ],
)
def test_named_networks(text: str, within: float, collective: str) -> None:
    found = af.find(collective, text, size=2**30, root=1, seconds=10)
    assert 1 <= found.ratio <= within
    assert found.method == "throughput" and found.schedule.root == 1 and found.cut is not None


@settings(max_examples=4, deadline=None)
@given(topologies(8), st.sampled_from(["scatter", "gather"]), st.data())
def test_random_networks(topology: Topology, collective: str, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, topology.ranks - 1))
    found = af.find(collective, topology, size=2**20, root=root, method="throughput", seconds=2)
    assert af.verify(found.schedule).schedule.root == root
    cut = tightest_cut(collective, network_of(topology), root)
    assert cut is not None and found.bound >= cut.time(2**20) * (1 - 1e-12)
    assert 1 - 1e-9 <= found.ratio <= 1.5


@settings(max_examples=20, deadline=None)
@given(topologies(7), st.sampled_from(["scatter", "gather"]))
def test_on_direct_networks_flows_meet_the_cut(topology: Topology, collective: str) -> None:
    task = task_for(collective, topology, root=1)
    flows, cut = flows_of(task), tightest_cut(collective, task.network, 1)
    assert flows is not None and cut is not None
    least = seconds_of(task, prices_of_flows(task, flows))
    assert least >= cut.time(task.size) * (1 - 1e-4)
    if task.network.vertices == topology.ranks:
        assert least == pytest.approx(cut.time(task.size), rel=1e-4)


def test_whole_chunks_are_balanced() -> None:
    task = task_for("scatter", find_topology("mi250:nodes=1"), root=1)
    flows = flows_of(task)
    assert flows is not None
    among, far = flows.among, far_from(flows.among, np.array([1]))
    for chunks in (1, 3, 8):
        paths = balanced(among, along_flows(among, {1: flows.by_pair[0]}, far, chunks), flows.rounds * chunks, task)
        load = np.zeros(len(among.bandwidth))
        for (start, end, _), path in paths.items():
            ranks = [start, *among.destination[path].tolist()]
            assert among.source[path].tolist() == ranks[:-1] and ranks[-1] == end
            for pair in path:
                load[among.links[among.offsets[pair] : among.offsets[pair + 1]]] += 1
        assert len(paths) == 15 * chunks
        assert (load / among.bandwidth).max() * among.bandwidth.min() <= np.ceil(flows.rounds * chunks)


def test_a_relay_that_takes_no_part() -> None:
    found = af.find("scatter", "dgx1", ranks=5, size=2**24, seconds=5)
    assert found.schedule.ranks == 5 and found.ratio < 1.3


def test_one_way_links_and_one_rank() -> None:
    # To the root, rank 2 has 1 GB/s; from it, 8.
    edges = [(0, 1, 8e9), (1, 2, 8e9), (2, 0, 1e9), (1, 0, 7e9)]
    times = [af.find(one, written(3, edges), size=3 * 10**9).bound for one in ("scatter", "gather")]
    assert times == [pytest.approx(2 / 8), pytest.approx(1.0)]
    assert af.find("gather", "laptop", ranks=1).schedule.moves == 0


@pytest.mark.parametrize("method", ["steps", "greedy"])
def test_other_methods_say_what_they_are_for(method: str) -> None:
    with pytest.raises(UsageError, match="not gather"):
        af.find("gather", "dgx1", method=method)


test_random_networks_more = pytest.mark.exhaustive(
    settings(max_examples=20, deadline=None)(
        given(topologies(8), st.sampled_from(["scatter", "gather"]), st.data())(
            test_random_networks.hypothesis.inner_test
        )
    )
)
