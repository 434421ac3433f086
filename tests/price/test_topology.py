"""Topologies: every route is what the network implies, bad input is refused with the reason, JSON loses nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

import allfold as af
from allfold.price import (
    Topology,
    dgx1,
    dgx2,
    dgx_a100,
    dragonfly,
    fat_tree,
    find_topology,
    hosts,
    hypercube,
    mesh,
    mi250,
    ndv2,
    one_host,
    ring,
    torus,
)
from allfold.price.cost.cuts import tightest_cut
from allfold.price.topology.machines import CONSTRUCTORS
from allfold.price.topology.network import network_of
from allfold.price.topology.parse import near_cube
from allfold.price.topology.routing import Graph
from allfold.price.topology.this_machine import (
    Machine,
    read_machine,
    topology_of_the_gpus,
    topology_of_this_machine,
)
from allfold.price.topology.topology import PLACES

NAMES = sorted(CONSTRUCTORS)


def named(topology: Topology, source: int, destination: int) -> list[str]:
    return [topology.links[int(link)].name for link in topology.routes(np.array([source]), np.array([destination]))[0]]


def all_pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    source, destination = np.divmod(np.arange(ranks * ranks), ranks)
    return source, destination


# Routes --------------------------------------------------------------------------------------------------------------


@each("name", NAMES)
@each("ranks", [1, 2, 7, 24, 100])
def test_every_route_goes_from_port_to_port(name: str, ranks: int) -> None:
    topology = find_topology(name, ranks)
    assert topology.ranks >= ranks and topology.source and len(topology.host) == topology.ranks
    source, destination = all_pairs(ranks)
    routes = topology.routes(source, destination)
    for pair in range(len(routes)):
        links = routes[pair]
        if source[pair] == destination[pair]:
            assert len(links) == 0
            continue
        assert (links[0], links[-1]) == (source[pair], topology.ranks + destination[pair])
        assert len(set(links.tolist())) == len(links), "a route crosses no link twice"
    kinds = [link.kind for link in topology.links[: 2 * topology.ranks]]
    assert set(kinds) == {"port"}


@each("name", NAMES)
def test_links_are_one_sequence(name: str) -> None:
    topology = find_topology(name, 24)
    links = list(topology.links)
    assert len(links) == len(topology.links) and links[5] == topology.links[5] and links[-1] == topology.links[-1]
    assert len({link.name for link in links}) == len(links)
    assert [link.latency for link in links] == topology.latency.tolist()
    assert [link.bandwidth for link in links] == topology.bandwidth.tolist()
    with pytest.raises(IndexError):
        topology.links[len(links)]


def test_what_is_shared_lies_on_the_routes_that_share_it() -> None:
    assert named(one_host(4), 0, 3) == ["rank 0 out", "host 0 memory bus", "rank 3 in"]
    two = hosts(2, 4, cards=2)
    assert named(two, 0, 3) == ["rank 0 out", "host 0 memory bus", "rank 3 in"]
    assert named(two, 1, 6) == ["rank 1 out", "host 0 card 0 out", "host 1 card 1 in", "rank 6 in"]
    tree = fat_tree(4, 2, hosts_per_leaf=2)
    assert named(tree, 0, 2) == ["rank 0 out", "host 0 card 0 out", "host 1 card 0 in", "rank 2 in"]
    assert named(tree, 0, 7) == [
        "rank 0 out", "host 0 card 0 out", "leaf 0 up 1", "leaf 1 down 1", "host 3 card 0 in", "rank 7 in",
    ]  # fmt: skip


def test_a_torus_goes_dimension_by_dimension_the_shorter_way() -> None:
    grid = torus((4, 5))
    assert named(grid, 0, 9) == ["rank 0 out", "node 0 dimension 0 cable 0", "node 5 dimension 1 cable 1", "rank 9 in"]
    source, destination = all_pairs(20)
    hops = grid.routes(source, destination).lengths - 2 * (source != destination)
    rows, columns = (abs(a - b) for a, b in zip(divmod(source, 5), divmod(destination, 5), strict=True))
    assert (hops == np.minimum(rows, 4 - rows) + np.minimum(columns, 5 - columns)).all()
    assert ring(6).routes(np.array([0, 0]), np.array([2, 4])).lengths.tolist() == [4, 4]


def test_a_dragonfly_takes_at_most_one_cable_between_groups() -> None:
    topology = dragonfly(5, routers=3, ranks_per_router=2)
    source, destination = all_pairs(topology.ranks)
    routes = topology.routes(source, destination)
    group = np.arange(topology.ranks) // 6
    across = np.array(
        [sum(topology.links[int(link)].kind == "uplink" for link in routes[i]) for i in range(len(routes))]
    )
    assert (across == (group[source] != group[destination])).all()
    ends = {}
    for pair in range(len(routes)):  # all routes between two groups take the same cable
        for link in routes[pair]:
            if topology.links[int(link)].kind == "uplink":
                ends.setdefault((group[source[pair]], group[destination[pair]]), set()).add(int(link))
    assert all(len(cables) == 1 for cables in ends.values()) and len(ends) == 20


def test_a_fat_tree_spreads_a_shift_over_its_uplinks() -> None:
    """Every host sends to the host one leaf further: no two of them share an uplink."""
    topology = fat_tree(64, 1, hosts_per_leaf=16)
    everyone = np.arange(64)
    routes = topology.routes(everyone, (everyone + 16) % 64)
    assert np.bincount(routes.links).max() == 1


def test_oversubscription_is_exact() -> None:
    topology = fat_tree(32, 1, hosts_per_leaf=16, oversubscription=3)
    up = [link.bandwidth for link in topology.links if link.name.startswith("leaf 0 up")]
    assert sum(up) == pytest.approx(16 * 12.5e9 / 3)


@given(st.integers(1, 3000))
def test_a_torus_leaves_no_rank_over(ranks: int) -> None:
    assert np.prod(near_cube(ranks)) == ranks


@each("name", NAMES)
def test_every_link_says_where_it_is(name: str) -> None:
    links = list(find_topology(name, 24).links)
    for link in links:
        assert link.place is not None and set(link.place) in [set(keys) for keys in PLACES]
        unnamed = ("way", "leaf") if "card" in link.place else ("way",)  # the name of a card does not say its leaf
        numbers = [number for key, number in link.place.items() if key not in unnamed]
        assert numbers == [int(word) for word in link.name.split() if word.isdecimal()]
        assert link.place.get("way", link.name.split()[-1]) in link.name
    assert len({json.dumps(link.place) for link in links}) == len(links)


@pytest.mark.parametrize("name", ["fat_tree:ranks_per_host=4,hosts_per_leaf=2,cards=2", "dgx_h100"])
def test_a_card_hangs_on_the_leaf_that_its_messages_climb_to(name: str) -> None:
    topology = find_topology(name, 32)
    routes = topology.routes(*all_pairs(32))
    climbed = 0
    for pair in range(len(routes)):
        places = [topology.links[int(link)].place or {} for link in routes[pair]]
        uplinks = [place["leaf"] for place in places if "uplink" in place]
        if uplinks:
            climbed += 1
            assert uplinks == [place["leaf"] for place in places if "card" in place]
    assert climbed


# GPU servers ---------------------------------------------------------------------------------------------------------


def speeds(topology: Topology) -> dict[tuple[int, int], float]:
    """The bandwidth of the cables between two ranks, in GB/s."""
    cables = [link for link in topology.links if link.place and "from" in link.place]
    return {(int(one.place["from"]), int(one.place["to"])): one.bandwidth / 1e9 for one in cables if one.place}


def enters(topology: Topology) -> list[float]:
    """What can enter each rank, by the edges of its graph, in GB/s."""
    router = topology.router
    assert isinstance(router, Graph)
    every = zip(router.edge_end[:-1].tolist(), router.edge_link[:-1].tolist(), strict=True)
    found = [0.0] * topology.ranks
    for end, link in every:
        if end < topology.ranks:
            found[end] += topology.bandwidth[link] / 1e9
    return found


def test_the_wires_of_a_dgx_1() -> None:
    cables = speeds(dgx1())
    assert len(cables) == 32 and all(cables[b, a] == speed for (a, b), speed in cables.items())
    twice = sorted((a, b) for (a, b), speed in cables.items() if speed == 50 and a < b)
    assert twice == [(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)]
    assert set(enters(dgx1())) == {150}
    assert named(dgx1(), 0, 5) == ["rank 0 out", "rank 0 to rank 1", "rank 1 to rank 5", "rank 5 in"]
    two = dgx1(2)
    assert named(two, 3, 8)[1:-1] == [
        "rank 3 out to PCIe switch 1", "host 0 card 1 out", "host 1 card 0 in", "rank 8 in from PCIe switch 4",
    ]  # fmt: skip
    assert named(two, 2, 8)[2:] == named(two, 3, 8)[2:]


def test_gpus_under_switches() -> None:
    assert set(enters(dgx2(1))) == {125} and enters(dgx2(2))[:2] == [137.5, 125] and enters(dgx2(3))[:2] == [137.5, 125]
    assert named(dgx2(2), 3, 18)[1:-1] == ["rank 3 to rank 18"]
    assert named(dgx2(3), 3, 18)[1:-1] == ["host 0 card 1 out", "host 1 card 1 in"]
    assert set(enters(dgx_a100(1))) == {300} and set(enters(dgx_a100(4))) == {325}
    assert named(dgx_a100(1), 0, 7)[1:-1] == ["rank 0 out to NVSwitch 0", "rank 7 in from NVSwitch 0"]
    assert named(dgx_a100(2), 1, 11)[1:-1] == ["host 0 card 1 out", "host 1 card 3 in"]
    # From an odd GPU to an even one of another system there is no network: over an even GPU of the same system.
    assert named(dgx_a100(2), 1, 10)[1:-1] == [
        "rank 1 out to NVSwitch 0", "rank 0 in from NVSwitch 0", "host 0 card 0 out", "host 1 card 2 in",
    ]  # fmt: skip


def test_the_wires_of_mi250_and_ndv2() -> None:
    cables = speeds(mi250(1))
    assert [sum(speed == 50 * many for speed in cables.values()) for many in (1, 2, 4)] == [32, 8, 16]
    assert cables[1, 10] == cables[10, 1] == 50 and cables[3, 7] == 100 and cables[14, 15] == 200
    assert sum(cables[a, b] for a, b in cables if a > 1 and b < 2) == 300  # the tightest cut: all but GCDs 0 and 1
    assert speeds(ndv2(2))[0, 9] == speeds(ndv2(2))[8, 1] == 12.5 and len(speeds(ndv2(2))) == 66
    assert named(ndv2(4), 8, 1)[1:-1] == ["host 1 card 0 out", "host 0 card 0 in"]


@pytest.mark.parametrize(
    ("text", "ranks", "bandwidth"),
    [  # ranks and GB/s of the tightest cut of an all_gather, as published (ForestColl: Zhao et al., arXiv 2402.06787)
        ("dgx1", 7, 150), ("ndv2:nodes=2", 8, 12.5), ("ndv2:nodes=4", 24, 12.5), ("dgx2:nodes=2", 31, 125),
        ("dgx_a100:nodes=1", 7, 300), ("dgx_a100:nodes=2", 15, 325), ("dgx_a100:nodes=4", 24, 200),
        ("mi250:nodes=1", 14, 300), ("mi250:nodes=2", 30, 332), ("mesh:shape=5x5", 24, 100),
    ],
)  # fmt: skip
def test_cuts_as_published(text: str, ranks: int, bandwidth: float) -> None:
    cut = tightest_cut("all_gather", network_of(find_topology(text)), None)
    assert cut is not None and (len(cut.ranks), cut.bandwidth / 1e9) == (ranks, bandwidth)


def test_a_mesh_has_no_way_round() -> None:
    grid = mesh((3, 4))
    assert len(grid.links) == 24 + 2 * (2 * 4 + 3 * 3)
    assert named(grid, 0, 3)[1:-1] == [f"node {node} dimension 1 cable 0" for node in range(3)]
    assert named(grid, 11, 0)[1:-1] == [
        "node 11 dimension 0 cable 1", "node 7 dimension 0 cable 1",
        "node 3 dimension 1 cable 1", "node 2 dimension 1 cable 1", "node 1 dimension 1 cable 1",
    ]  # fmt: skip
    source, destination = all_pairs(12)
    hops = grid.routes(source, destination).lengths - 2 * (source != destination)
    rows, columns = (abs(a - b) for a, b in zip(divmod(source, 4), divmod(destination, 4), strict=True))
    assert (hops == rows + columns).all()


def test_a_hypercube_has_a_cable_per_bit() -> None:
    cube = hypercube(4)
    source, destination = all_pairs(16)
    hops = cube.routes(source, destination).lengths - 2 * (source != destination)
    assert hops.tolist() == [int(a ^ b).bit_count() for a, b in zip(source, destination, strict=True)]
    assert len(cube.links) == 32 + 64 and hypercube(0).ranks == 1
    with pytest.raises(af.UsageError, match="dimensions is 25; expected a whole number from 0 to 24"):
        hypercube(25)


# Text and JSON -------------------------------------------------------------------------------------------------------


@each("name", NAMES)
def test_json_gives_the_same_topology_back(name: str) -> None:
    topology = find_topology(name, 24)
    text = json.dumps(topology.to_json(), allow_nan=False)
    again = Topology.from_json(text)
    assert json.dumps(again.to_json()) == text
    assert list(again.links) == list(topology.links) and again.host.tolist() == topology.host.tolist()


def test_text_names_parameters_with_units() -> None:
    topology = find_topology("fat_tree:ranks_per_host=4,hosts_per_leaf=2,bandwidth=400Gb/s,latency=2us", 16)
    card = next(link for link in topology.links if link.kind == "nic")
    assert (topology.ranks, card.bandwidth, card.latency) == (16, 50e9, 2e-6)
    assert find_topology("torus:shape=4x6").ranks == 24
    assert find_topology("ring:port=inf", 5).ranks == 5


BY_HAND: dict[str, Any] = {
    "format": "allfold-topology",
    "version": 1,
    "name": "two boxes",
    "ranks": 4,
    "hosts": [0, 0, 1, 1],
    "overhead": 1e-6,
    "reduction": 1e10,
    "source": "a test",
    "port": {"latency": 1e-7, "bandwidth": 1e10},
    "links": [
        {"name": "bus {0}", "kind": "bus", "bandwidth": 2e10},
        {"name": "bus 1", "kind": "bus", "bandwidth": 2e10},
        {"name": "cable", "kind": "cable", "latency": 1e-6, "bandwidth": 1e9},
        {"name": "cable back", "kind": "cable", "latency": 1e-6, "bandwidth": 1e9},
    ],
    "graph": {
        "nodes": ["box 0", "box 1"],
        "edges": [
            *({"from": rank, "to": f"box {rank // 2}", "link": ("bus {0}", "bus 1")[rank // 2]} for rank in range(4)),
            *({"from": f"box {rank // 2}", "to": rank} for rank in range(4)),
            {"from": "box 0", "to": "box 1", "link": "cable"},
            {"from": "box 1", "to": "box 0", "link": "cable back"},
        ],
    },
}


def by_hand(**changes: Any) -> dict[str, Any]:
    document = {**json.loads(json.dumps(BY_HAND)), **changes}
    return {key: value for key, value in document.items() if value is not None}


def test_a_graph_written_by_hand() -> None:
    topology = Topology.from_json(json.dumps(by_hand()))
    assert named(topology, 0, 1) == ["rank 0 out", "bus {0}", "rank 1 in"]
    assert named(topology, 1, 2) == ["rank 1 out", "bus {0}", "cable", "rank 2 in"]
    assert named(topology, 3, 3) == []
    assert Topology.from_json(topology.to_json()).to_json() == topology.to_json()


def test_links_written_by_hand_may_say_where_they_are() -> None:
    topology = Topology.from_json(edited("links/0/place", {"host": 0}))
    assert [link.place for link in topology.links[7:10]] == [{"rank": 3, "way": "in"}, {"host": 0}, None]
    card = {"host": 1, "card": 0, "leaf": 3, "way": "out"}
    again = Topology.from_json(Topology.from_json(edited("links/2/place", card)).to_json())
    assert again.links[10].place == card


def test_routes_written_by_hand() -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    routes = [{"from": a, "to": b, "links": ["cable"] if abs(a - b) > 1 else []} for a, b in pairs]
    topology = Topology.from_json(by_hand(ranks=3, hosts=[0, 1, 2], graph=None, routes=routes))
    assert named(topology, 0, 2) == ["rank 0 out", "cable", "rank 2 in"]
    assert named(topology, 2, 1) == ["rank 2 out", "rank 1 in"]
    assert topology.routes(np.array([0, 1, 2]), np.array([2, 1, 0])).lengths.tolist() == [3, 0, 3]


def edited(path: str, value: Any) -> dict[str, Any]:
    document = by_hand()
    *way, last = path.split("/")
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("[1", "not JSON"),
        ([], "expected an object"),
        ({"format": "allfold-schedule"}, "format is 'allfold-schedule'"),
        (edited("version", 2), "version is 2"),
        (edited("colour", "red"), "unknown key 'colour'"),
        (edited("ranks", 0), "ranks is 0"),
        (edited("ranks", 5), "a host for each of 5 ranks"),
        (edited("ranks", 4.0), "ranks is 4.0"),
        (edited("hosts/0", -1), "a host is -1"),
        (edited("overhead", -1e-6), "overhead of -1e-06 s"),
        (edited("overhead", float("nan")), "overhead of nan"),
        (edited("reduction", 0), "combines 0.0 B/s"),
        (edited("port", None), "port is None"),
        (edited("port/bandwidth", 0), "a port has a bandwidth of 0.0 B/s; expected more than 0"),
        (edited("links/2/bandwidth", 0), "link 'cable' has a bandwidth of 0.0 B/s"),
        (edited("links/2/bandwidth", float("nan")), "link 'cable' has a bandwidth of nan"),
        (edited("links/2/bandwidth", "fast"), "bandwidth is 'fast'; expected a number"),
        (edited("links/2/latency", -1), "link 'cable' has a latency of -1.0 s"),
        (edited("links/2/latency", "inf"), "link 'cable' has a latency of inf"),
        (edited("links/2/name", "bus 1"), "there are two links 'bus 1'"),
        (edited("links/2/name", "rank 3 in"), "there are two links 'rank 3 in'"),
        (edited("links/2/name", 7), "name 7"),
        (edited("links/2/speed", 7), "unknown key 'speed'"),
        (edited("links/2/place", "host 0"), "place is 'host 0'; expected an object"),
        (
            edited("links/2/place", {"host": 0, "shelf": 1}),
            "the place says host, shelf; expected one of: host; host, card",
        ),
        (edited("links/2/place", {"rank": 0, "way": "out"}), "the place says rank, way; expected one of"),
        (edited("links/2/place", {"host": -1}), "host is -1; expected a number"),
        (edited("links/2/place", {"host": 0, "card": 0, "way": "up"}), "way is 'up'; expected out or in"),
        (edited("graph/edges/0/link", "nowhere"), "names the link 'nowhere', which is not listed"),
        (edited("graph/edges/0/to", "box 9"), "'box 9', which is neither a rank below 4 nor a node"),
        (edited("graph/edges/0/to", True), "True, which is neither"),
        (edited("graph/edges/9", {"from": "box 1", "to": "box 1"}), "rank 0 cannot be reached from rank 2"),
        (edited("graph/nodes", ["box 0", "box 0"]), "each once"),
        (edited("routes", []), "either a graph or routes"),
        (by_hand(graph=None), "either a graph or routes"),
        (by_hand(graph=None, routes=[]), "rank 1 cannot be reached from rank 0"),
        (by_hand(graph=None, routes=[{"from": 1, "to": 1, "links": []}]), "leads back to its start"),
        (by_hand(graph=None, routes=[{"from": 0, "to": 9, "links": []}]), "'to' is 9"),
        ({"format": "allfold-topology", "version": 1, "constructor": "fat_treee"}, "did you mean 'fat_tree'?"),
        ({"format": "allfold-topology", "version": 1, "constructor": ["ring"]}, "unknown topology"),
        ({"format": "allfold-topology", "version": 1, "constructor": "ring"}, "needs ranks"),
        (
            {
                "format": "allfold-topology",
                "version": 1,
                "constructor": "ring",
                "parameters": {"ranks": 4, "latency": "a"},
            },
            "latency is 'a'; expected a number",
        ),
        (
            {"format": "allfold-topology", "version": 1, "constructor": "ring", "parameters": {"ranks": 10**9}},
            "expected a whole number from 1 to",
        ),
    ],
)
def test_bad_topologies_are_refused_with_the_reason(document: Any, says: str) -> None:
    with pytest.raises(af.UsageError, match="(?s)" + says.replace("(", r"\(").replace("{", r"\{").replace("?", r"\?")):
        Topology.from_json(document)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fattree", "did you mean 'fat_tree'"),
        ("fat_tree:oversubscription=0", "oversubscription is 0"),
        ("fat_tree:oversubscription=nan", "expected a number"),
        ("fat_tree:hosts=2,ranks_per_host=4", "has 8 ranks; you asked for 64"),
        ("fat_tree:hosts_per_leaf=4,oversubscription=1e-9", "means more than 16777216 uplinks"),
        ("fat_tree:bandwidth=0", "bandwidth of 0"),
        ("fat_tree:bandwidth=1e-300", "bandwidth of 1e-300 B/s; expected at least"),
        ("fat_tree:latency=1e300", "latency of 1e\\+300 s; expected at most"),
        ("fat_tree:overhead=1e300", "overhead of 1e\\+300 s a message; expected at most"),
        ("fat_tree:reduction=1e-300", "combines 1e-300 B/s; expected at least"),
        ("a" * 5000, "unknown topology"),
        ("fat_tree:bandwidth=3 parsecs", "expected a number"),
        ("fat_tree:latency=-1", "expected a number"),
        ("fat_tree:colour=3", "no parameter 'colour'"),
        ("fat_tree:bandwidth", "expected key=value"),
        ("hosts:ranks_per_host=2.5", "expected a whole number"),
        ("torus:shape=4xx4", "numbers joined by x"),
        ("dgx_a100:nodes=0", "nodes is 0; expected a whole number from 1"),
        ("mi250:nodes=2000", "the number of ranks is 32000; expected a whole number from 1 to 4096"),
        ("torus:shape=0x4", "expected a whole number from 1"),
        ("torus:shape=4096x4096x4096", "expected a whole number from 1"),
        ("nowhere.json", "cannot be read"),
        (".", "unknown topology '.'"),
    ],
)
def test_bad_names_are_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(af.UsageError, match=says):
        find_topology(text, 64)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)  # on a busy machine anything may take long
@given(st.sampled_from(sorted({*BY_HAND, "sizes"} - {"format", "version"})), JSON)
def test_no_document_raises_anything_but_usage_errors(key: str, value: Any) -> None:
    try:
        topology = Topology.from_json({**by_hand(), key: value})
    except af.UsageError:
        return
    topology.routes(*all_pairs(topology.ranks))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["ranks", "hosts", "shape", "groups", "nodes", "bus", "cards"]), JSON),
    st.sampled_from(NAMES),
)
def test_no_parameters_raise_anything_but_usage_errors(parameters: dict[str, Any], name: str) -> None:
    with suppress(af.UsageError):
        Topology.from_json({"format": "allfold-topology", "version": 1, "constructor": name, "parameters": parameters})


def test_ranks_that_are_not_there_have_no_routes() -> None:
    with pytest.raises(af.UsageError, match="has the ranks 0–3"):
        one_host(4).routes(np.array([0]), np.array([4]))
    with pytest.raises(af.UsageError, match="2 sources, but 1 destinations"):
        one_host(4).routes(np.array([0, 1]), np.array([2]))


# This machine --------------------------------------------------------------------------------------------------------

GPU_MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-1\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\t0-1\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t0-1\t0\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine as the kernel shows it: two memory nodes, two threads per core, a container limit, two kinds of
    cards."""
    files = {
        "proc/meminfo": "MemTotal:       2048 kB",
        "proc/cpuinfo": "processor : 0\nmodel name\t: Some  CPU\n",
        "proc/self/cgroup": "0::/box/inner\n",
        "sys/fs/cgroup/box/cpu.max": "150000 100000",
        "sys/fs/cgroup/box/inner/cpu.max": "max 100000",
        "sys/class/net/eth0/speed": "100000",
        "sys/class/net/eth0/device/vendor": "",
        "sys/class/net/eth1/speed": "-1",
        "sys/class/net/eth1/device/vendor": "",
        "sys/class/net/lo/speed": "10",
        "sys/class/net/veth/speed": "10000",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "sys/devices/system/node/node0/cpulist": "0",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1024 kB",
        "sys/devices/system/node/node1/cpulist": "1-99",
    }
    for cpu in (0, 1, 100):
        cache = f"sys/devices/system/cpu/cpu{cpu}/cache"
        files |= {
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": "0,100" if cpu != 1 else "1",
            f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": "0",
            f"{cache}/index0/level": "1",
            f"{cache}/index0/type": "Instruction",
            f"{cache}/index0/size": "32K",
            f"{cache}/index2/level": "3",
            f"{cache}/index2/type": "Unified",
            f"{cache}/index2/size": "30M",
            f"{cache}/index2/shared_cpu_list": "0-1,100",
        }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_kernel_says_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 100}, raising=False)
    machine = read_machine(root, GPU_MATRIX, "NVIDIA A\nNVIDIA A\nNVIDIA B\n")
    assert machine.processor == "Some CPU" and machine.memory == 2048 * 1024
    assert [core.cpus for core in machine.cores] == [(0, 100), (1,)]
    assert [(cache.level, cache.size, cache.cpus) for cache in machine.caches] == [(3, 30 * 2**20, (0, 1, 100))]
    assert [(node.number, node.cpus, node.memory) for node in machine.nodes] == [(0, (0,), 1024 * 1024), (1, (1,), 0)]
    assert machine.limit == 1.5 and machine.usable == 2
    assert [(gpu.number, gpu.name, gpu.links) for gpu in machine.gpus] == [
        (0, "NVIDIA A", {1: "NV18", 2: "SYS"}),
        (1, "NVIDIA A", {0: "NV18", 2: "SYS"}),
        (2, "NVIDIA B", {0: "SYS", 1: "SYS"}),
    ]
    cards = [(card.name, card.kind, card.speed) for card in machine.cards]
    assert cards == [("eth0", "ethernet", 12.5e9), ("eth1", "ethernet", None), ("mlx5_0", "infiniband", 50e9)]
    topology = topology_of_this_machine(2, machine)
    assert named(topology, 0, 1) == ["rank 0 out", "node 0 memory bus", "node 0 to node 1", "rank 1 in"]
    gpus = topology_of_the_gpus(machine)
    assert gpus is not None and named(gpus, 0, 1) == ["rank 0 out", "rank 1 in"]
    assert named(gpus, 0, 2) == ["rank 0 out", "GPU 0 PCIe out", "GPU 2 PCIe in", "rank 2 in"]


def test_a_machine_that_says_nothing_is_still_a_machine(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, "", "")
    assert machine.cores and machine.usable >= 1 and machine.processor == "unknown processor"
    assert len(machine.absent) == 4 and topology_of_the_gpus(machine) is None
    assert topology_of_this_machine(3, machine).ranks == 3


def test_a_limit_of_the_old_kind(tmp_path: Path) -> None:
    for name, text in {
        "proc/self/cgroup": "3:cpu,cpuacct:/box\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = read_machine(tmp_path, "", "")
    assert machine.limit == 0.5 and machine.usable == 1


def test_this_machine_is_read_and_its_ranks_take_turns() -> None:
    machine = read_machine()
    assert isinstance(machine, Machine) and machine.usable >= 1
    assert json.dumps(machine.to_json())
    alone, crowded = (topology_of_this_machine(many, machine) for many in (machine.usable, 4 * machine.usable))
    assert crowded.bandwidth[0] == pytest.approx(alone.bandwidth[0] / 4)
    assert crowded.overhead == pytest.approx(alone.overhead * 4)
