"""Topologies without links that have failed: routes lead round them, and nothing else changes."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allfold as af
from allfold.price import Topology, cost, find_topology, without
from allfold.price.topology.routing import Graph

NETWORKS = {
    "dgx1": 8,
    "dgx1:nodes=2": 16,
    "mi250": 16,
    "dgx_a100:nodes=2": 16,
    "dgx_h100:nodes=2": 16,
    "torus:shape=3x4": 12,
    "torus:shape=3x4,port=80GB/s": 12,
    "mesh:shape=3x3": 9,
    "hypercube:dimensions=3": 8,
    "fat_tree:ranks_per_host=2,hosts_per_leaf=2,hosts=4,cards=2": 8,
    "dragonfly:groups=2,routers=3,ranks_per_router=1": 6,
}


def routes(topology: Topology) -> dict[tuple[int, int], list[str]]:
    source, destination = np.divmod(np.arange(topology.ranks**2), topology.ranks)
    found = topology.routes(source, destination)
    names = [link.name for link in topology.links]
    return {(int(source[i]), int(destination[i])): [names[link] for link in found[i]] for i in range(len(source))}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(NETWORKS)), st.data())
def test_routes_lead_round_what_is_gone_and_others_stay(text: str, data: st.DataObject) -> None:
    topology = find_topology(text)
    beyond = [link.name for link in topology.links[2 * topology.ranks :]]
    gone = data.draw(st.lists(st.sampled_from(beyond), min_size=1, max_size=3, unique=True))
    before = routes(topology)
    try:
        left = without(topology, gone)
    except af.UsageError as error:
        assert all(repr(name) in str(error) for name in gone) and "cannot be reached from rank" in str(error)
        return
    after = routes(left)
    assert [link.name for link in left.links] == [link.name for link in topology.links if link.name not in gone]
    for pair, route in after.items():
        assert not set(route) & set(gone)
        if not set(before[pair]) & set(gone):
            assert route == before[pair]
            continue
        assert (route[0], route[-1]) == (f"rank {pair[0]} out", f"rank {pair[1]} in")
        assert leads(topology, pair, route) if isinstance(topology.router, Graph) else joined(before, route), route


def leads(topology: Topology, pair: tuple[int, int], route: list[str]) -> bool:
    """Whether the links between the ports are a way through the graph from one rank to the other."""
    router = topology.router
    assert isinstance(router, Graph)
    numbers = {link.name: number for number, link in enumerate(topology.links)}
    columns = (router.edge_start, router.edge_end, router.edge_link)
    edges = list(zip(*(column[:-1].tolist() for column in columns), strict=True))
    at = {pair[0]}
    for name in route[1:-1]:
        at = {end for start, end, link in edges if link == numbers[name] and start in at}
    return pair[1] in at


def joined(before: dict[tuple[int, int], list[str]], route: list[str]) -> bool:
    """Whether one link ends where the next starts, by what the routes before say of where links start and end."""
    place: dict[tuple[str, str], tuple[str, str]] = {}

    def find(end: tuple[str, str]) -> tuple[str, str]:
        while place.get(end, end) != end:
            end = place[end]
        return end

    met = [pair for links in before.values() for pair in pairwise(links)]
    met += [(f"rank {rank} in", f"rank {rank} out") for rank, _ in before]
    for one, other in met:
        place[find(("end", one))] = find(("start", other))
    return all(find(("end", one)) == find(("start", other)) for one, other in pairwise(route))


def test_the_way_round_is_the_shortest() -> None:
    topology = find_topology("dgx1")
    left = without(topology, ["rank 0 to rank 1"])
    assert routes(left)[0, 1] == ["rank 0 out", "rank 0 to rank 2", "rank 2 to rank 1", "rank 1 in"]
    assert routes(left)[1, 0] == routes(topology)[1, 0]
    ring = without(find_topology("ring:ranks=5"), ["node 0 ring 0 cable 0"])
    assert [one for one in routes(ring)[0, 1] if "ring" in one] == [
        "node 0 ring 0 cable 1", "node 4 ring 0 cable 1", "node 3 ring 0 cable 1", "node 2 ring 0 cable 1",
    ]  # fmt: skip


def test_a_second_failure_adds_to_the_first() -> None:
    topology = find_topology("dgx1")
    once = without(without(topology, ["rank 0 to rank 1"]), ["rank 0 to rank 2"])
    at_once = without(topology, ["rank 0 to rank 1", "rank 0 to rank 2"])
    assert routes(once) == routes(at_once) and once.to_json() == at_once.to_json()
    assert without(topology, []) is topology


def test_json_keeps_what_is_missing() -> None:
    left = without(find_topology("torus:shape=3x3"), ["node 4 dimension 0 cable 1"])
    again = Topology.from_json(json.dumps(left.to_json()))
    assert routes(again) == routes(left) and again.to_json() == left.to_json()
    assert "Without node 4 dimension 0 cable 1" in again.source
    for wrong, says in ((7, "without"), ([7], "expected the names of links"), (["a"], "has no link 'a'")):
        with pytest.raises(af.UsageError, match=says):
            Topology.from_json({**find_topology("dgx1").to_json(), "without": wrong})


def test_it_is_priced_like_any_other() -> None:
    topology = find_topology("ring:ranks=6")
    left = without(topology, ["node 2 ring 0 cable 0"])
    ring = af.schedule("all_gather", "ring", 6)
    whole, broken = cost(ring, topology, 2**24), cost(ring, left, 2**24)
    assert whole.link_bytes is not None and broken.link_bytes is not None
    # What went from node 2 to 3 goes all the way back instead, over the five cables that were idle.
    assert broken.link_bytes.sum() == pytest.approx(whole.link_bytes.sum() + 4 * 5 / 6 * 2**24)
    assert broken.time > whole.time


@pytest.mark.parametrize(
    ("text", "names", "says"),
    [
        ("dgx1", ["rank 0 to rank 9"], "topology dgx1 has no link 'rank 0 to rank 9'; did you mean 'rank 0 to rank 4'"),
        ("dgx1", ["rank 3 out"], "'rank 3 out' is the port of rank 3, and without it rank 3 cannot reach any other"),
        (
            "ndv2:nodes=2",
            ["rank 0 to rank 9"],
            "topology ndv2 without 'rank 0 to rank 9': ranks 8, 9, .* cannot be reached from rank 0",
        ),
        ("hosts:hosts=2,ranks_per_host=1", ["host 1 card 0 in"], "rank 1 cannot be reached from rank 0"),
        ("one_host:ranks=3", ["host 0 memory bus"], "ranks 1 and 2 cannot be reached from rank 0"),
    ],
)
def test_what_cannot_be_gets_a_sentence(text: str, names: list[str], says: str) -> None:
    with pytest.raises(af.UsageError, match=says):
        without(find_topology(text), names)


test_routes_lead_round_more = pytest.mark.exhaustive(
    settings(max_examples=100, deadline=None)(
        given(st.sampled_from(sorted(NETWORKS)), st.data())(
            test_routes_lead_round_what_is_gone_and_others_stay.hypothesis.inner_test
        )
    )
)
