"""A bound is a bound: on networks written by hand, on random ones, and with a certificate that is checked elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounds import complaints, trial
from networks import by_all_sets, network
from tasks import task_for

import allfold as af
from allfold.cli import main
from allfold.collectives import COLLECTIVES
from allfold.errors import BoundError, SolverMissing, UsageError
from allfold.price import Topology, cost, find_topology, plan, ring, simulate, torus, without
from allfold.price.check_bound import check_bound
from allfold.price.cost.bounds import LowerBounds, lower_bounds
from allfold.price.cost.certificate import Certificate
from allfold.registry import algorithms
from allfold.search.find import find
from allfold.search.least import least_of
from allfold.view import wins

GB = 10**9
WITH_DATA = [name for name, kind in COLLECTIVES.items() if kind.carries_data]
SOME = ("all_reduce", "all_gather", "reduce", "all_to_all")
SOME_FIRST = [*SOME, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in WITH_DATA if name not in SOME)]


def document(ranks: int, links: dict[str, Any], **how: Any) -> dict[str, Any]:
    return {
        "format": "allfold-topology",
        "version": 1,
        "name": "written",
        "ranks": ranks,
        "port": {"latency": 0, "bandwidth": "inf"},
        "links": [{"name": name, "bandwidth": speed} for name, speed in links.items()],
        **how,
    }


def routed(ranks: int, links: dict[str, Any], table: dict[tuple[int, int], str]) -> Topology:
    routes = [{"from": a, "to": b, "links": list(names)} for (a, b), names in table.items()]
    return Topology.from_json(document(ranks, links, routes=routes))


def graph(ranks: int, links: dict[str, Any], edges: list[tuple[int, int, str]]) -> Topology:
    listed = [{"from": a, "to": b, "link": name} for a, b, name in edges]
    return Topology.from_json(document(ranks, links, graph={"edges": listed}))


# Two links lead from 0 to where 1 begins: X, which only the pair (0, 1) takes, and A.
SECOND_LINK = routed(
    3,
    {"X": 1e9, **dict.fromkeys("ABCDE", 10e9)},
    {(0, 1): "X", (0, 2): "AB", (1, 2): "B", (2, 1): "C", (2, 0): "D", (1, 0): "E"},
)
HALF_DUPLEX = graph(2, {"cable": 2e9}, [(0, 1, "cable"), (1, 0, "cable")])
HUB = routed(3, {"hub": 2e9}, {(a, b): ["hub"] for a in range(3) for b in range(3) if a != b})  # type: ignore[misc]
# Two NVLinks each way, as two edges.
PARALLEL = graph(2, dict.fromkeys("abcd", 1e9), [(0, 1, "a"), (0, 1, "b"), (1, 0, "c"), (1, 0, "d")])
# Rank 0 is reached through others only: from 1 over 2, and from 2 over 1.
NO_NEIGHBOUR = routed(
    3, dict.fromkeys("abcdef", 1e9), {(0, 1): "a", (0, 2): "b", (1, 2): "c", (2, 1): "d", (1, 0): "ce", (2, 0): "df"}
)


BY_HAND = {
    "second link": SECOND_LINK,
    "half duplex": HALF_DUPLEX,
    "hub": HUB,
    "parallel": PARALLEL,
    "no neighbour": NO_NEIGHBOUR,
}
# Two of the four on every network, each of them on two or three.
OF_SOME = [
    pytest.param(
        *case, marks=[] if case[1] in SOME[number % 2 :: 2] else [pytest.mark.exhaustive], id=f"{name}-{case[1]}"
    )
    for number, name in enumerate(BY_HAND)
    for case in ((BY_HAND[name], collective) for collective in WITH_DATA)
]


@pytest.mark.parametrize(("topology", "collective"), OF_SOME)
def test_networks_written_by_hand(topology: Topology, collective: str) -> None:
    root = topology.ranks - 1 if COLLECTIVES[collective].rooted else None
    assert not list(complaints(topology, collective, GB, root, seconds=2.0))


def test_a_second_link_between_two_vertices_counts() -> None:
    found = find("all_reduce", SECOND_LINK, GB, seconds=2)
    assert found.bound == pytest.approx(0.1)
    for name in algorithms("all_reduce"):
        assert found.time <= cost(af.schedule("all_reduce", name, 3), SECOND_LINK, GB).time


@pytest.mark.parametrize(("collective", "seconds"), [("broadcast", 0.5), ("all_gather", 0.5), ("all_reduce", 1.0)])
def test_a_shared_link_carries_what_goes_both_ways(collective: str, seconds: float) -> None:
    assert find(collective, HALF_DUPLEX, GB, seconds=2).bound == pytest.approx(seconds)
    root = 0 if collective == "broadcast" else None
    assert lower_bounds(collective, HALF_DUPLEX, 2, GB, root).time == pytest.approx(seconds)
    # Three ranks on a hub: everything that anybody receives.
    assert find(collective, HUB, GB, seconds=2).bound == pytest.approx(2 * seconds)


def test_without_scipy_nothing_gives_another_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a linear program is needed, one sentence says what to install; elsewhere the bound is the same."""
    shared = routed(3, {"hub": 2e9}, {(a, b): ["hub"] for a in range(3) for b in range(3) if a != b})  # type: ignore[misc]
    greedy = find("all_gather", "ring:ranks=4", GB, method="greedy").bound
    monkeypatch.setitem(sys.modules, "scipy", None)
    install = r"needs scipy.*pip install 'allfold\[find\]'$"
    with pytest.raises(SolverMissing, match=f"^find {install}"):
        find("all_gather", "ring:ranks=4", GB)
    with pytest.raises(SolverMissing, match=f"^find {install}"):
        find("all_gather", "ring:ranks=4", GB, method="greedy", groups=[[0, 1], [2, 3]])
    with pytest.raises(SolverMissing, match=f"^find {install}"):
        find("all_to_all", "ring:ranks=4", GB, method="built_in")
    with pytest.raises(SolverMissing, match=install):
        find("all_gather", shared, GB, method="greedy")
    with pytest.raises(SolverMissing, match=install):
        lower_bounds("all_reduce", shared, 3, GB)
    with pytest.raises(SolverMissing, match=install):
        wins.table("all_reduce", shared, [3])
    assert find("all_gather", "ring:ranks=4", GB, method="greedy").bound == greedy
    assert lower_bounds("all_gather", find_topology("ring:ranks=4"), 4, GB).time == pytest.approx(greedy)
    (tmp_path / "shared.json").write_text(json.dumps(shared.to_json()))
    for words in (["find", "--topology", "dgx1"], ["plan", "--topology", str(tmp_path / "shared.json")]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "pip install 'allfold[find]'" in said


def test_no_ratio_without_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    priced = cost(af.schedule("broadcast", "tree", 2), HALF_DUPLEX, GB)
    assert priced.ratio == 1.0
    assert replace(priced, bounds=LowerBounds(0.0, 0.0, 0.0, "nothing")).ratio is None
    assert replace(priced, time=0.0, bounds=LowerBounds(0.0, 0.0, 0.0, "nothing")).ratio == 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            import_module("allfold.price.cost.cost"), "lower_bounds", lambda *_: LowerBounds(0.0, 0.0, 0.0, "nothing")
        )
        assert main(["plan", "--topology", "ring", "--ranks", "4", "--algorithms", "ring"]) == 0
    assert "–" in capsys.readouterr().out.splitlines()[2]


def test_parallel_edges_add_up() -> None:
    assert find("broadcast", PARALLEL, GB, seconds=2).time == pytest.approx(0.5)
    unequal = graph(2, {"a": 1e9, "b": 3e9, "c": 4e9}, [(0, 1, "a"), (0, 1, "b"), (1, 0, "c")])
    found = find("broadcast", unequal, GB, seconds=2)
    assert (found.time, found.bound) == (pytest.approx(0.25), pytest.approx(0.25))
    assert "a, b" in found.why
    # With one of them missing the other is what is left.
    broken = af.find("broadcast", Topology.from_json({**PARALLEL.to_json(), "without": ["a"]}), size=GB, seconds=2)
    assert broken.bound == pytest.approx(1.0)


def test_messages_are_split_over_paths() -> None:
    """Two switches between two ranks, by ECMP and by shares: both carry their part, in price, simulation and bound."""
    pairs = [(0, "s"), ("s", 1), (0, "t"), ("t", 1), (1, 0)]
    links = {f"{a}→{b}": 1e9 for a, b in pairs}
    edges = [{"from": a, "to": b, "link": f"{a}→{b}"} for a, b in pairs]
    times = {}
    for ties in ("first", "split"):
        nodes = {"nodes": ["s", "t"], "edges": edges, "ties": ties}
        topology = Topology.from_json(document(2, links, graph=nodes))
        tree = af.schedule("broadcast", "tree", 2)
        assert simulate(tree, topology, GB).duration == pytest.approx(cost(tree, topology, GB).time)
        times[ties] = cost(tree, topology, GB).time
        assert find("broadcast", topology, GB, seconds=1).bound == pytest.approx(times[ties])
    assert times == {"first": pytest.approx(1.0), "split": pytest.approx(0.5)}
    routes = [
        {"from": 0, "to": 1, "paths": [{"links": ["a"], "share": 3}, {"links": ["b", "c"], "share": 1}]},
        {"from": 1, "to": 0, "links": ["d"]},
    ]
    uneven = Topology.from_json(document(2, {"a": 3e9, "b": 1e9, "c": 2e9, "d": 1e9}, routes=routes))
    assert find("broadcast", uneven, GB, seconds=1).time == pytest.approx(0.25)
    for wrong, sentence in (
        ({"paths": []}, "expected 1 to 32"),
        ({"paths": [{"links": ["z"]}]}, "not listed"),
        ({"paths": [{"links": ["a"], "share": 0}]}, "more than 0"),
        ({"paths": [{"links": ["a"]}], "links": ["a"]}, "either links or paths"),
    ):
        with pytest.raises(UsageError, match=sentence):
            Topology.from_json(document(2, {"a": 1e9, "d": 1e9}, routes=[{"from": 0, "to": 1, **wrong}, routes[1]]))


def folding(leaves: int, per_leaf: int, folds: list[str]) -> Topology:
    """Ranks under leaves under a spine (or one switch, if there is one leaf), some of which combine and copy messages."""
    nodes = [f"leaf {leaf}" for leaf in range(leaves)] + (["spine"] if leaves > 1 else [])
    pairs: list[tuple[Any, Any]] = [(rank, f"leaf {rank // per_leaf}") for rank in range(leaves * per_leaf)]
    pairs += [(f"leaf {leaf}", "spine") for leaf in range(leaves if leaves > 1 else 0)]
    pairs += [(end, start) for start, end in pairs]
    edges = [{"from": a, "to": b, "link": f"{a} → {b}"} for a, b in pairs]
    links = {f"{a} → {b}": 1e9 for a, b in pairs}
    return Topology.from_json(
        document(leaves * per_leaf, links, graph={"nodes": nodes, "edges": edges, "folds": folds}, reduction=4e9)
    )


@pytest.mark.parametrize("collective", SOME_FIRST)
@pytest.mark.parametrize(
    "switches",
    [["leaf 0"], ["leaf 0", "leaf 1", "spine"], pytest.param(["spine"], marks=pytest.mark.exhaustive)],
    ids=len,
)
def test_switches_that_fold(collective: str, switches: list[str]) -> None:
    topology = folding(1, 4, switches) if switches == ["leaf 0"] else folding(2, 2, switches)
    root = 1 if COLLECTIVES[collective].rooted else None
    assert not list(complaints(topology, collective, GB, root, seconds=0.5))


def test_a_switch_that_folds_halves_an_all_reduce() -> None:
    """Every rank sends the buffer once and receives it once: 2(P−1)/P times as fast as without."""
    plain, folds = folding(1, 8, []), folding(1, 8, ["leaf 0"])
    direct = af.schedule("all_reduce", "direct", 8)
    crossed = {one: cost(direct, one, GB).link_bytes for one in (plain, folds)}
    assert crossed[plain].max() == pytest.approx(2 * 7 / 8 * GB)  # type: ignore[union-attr]
    assert crossed[folds].max() == pytest.approx(GB)  # type: ignore[union-attr]
    assert simulate(direct, folds, GB).link_bytes() == pytest.approx(crossed[folds])
    found = find("all_reduce", folds, GB, method="built_in", seconds=2)
    assert found.bound == pytest.approx(1.0) and found.time < 1.05
    assert find("broadcast", folds, GB, method="built_in", seconds=2).time == pytest.approx(1.0)
    # What the switch has combined is one message to combine with one's own; a ring gains nothing.
    assert cost(direct, folds, GB, segments=1).parts["combining"] == pytest.approx(GB / 8 / 4e9)
    ring_of_eight = af.schedule("all_reduce", "ring", 8)
    assert cost(ring_of_eight, folds, GB).link_bytes.max() == cost(ring_of_eight, plain, GB).link_bytes.max()  # type: ignore[union-attr]
    for wrong, sentence in ((["nobody"], "names of nodes"), ([3], "names of nodes")):
        with pytest.raises(UsageError, match=sentence):
            folding(1, 4, wrong)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="without '0 → leaf 0', topology written: rank 1 cannot be reached from rank 0"
    ):
        without(folds, ["0 → leaf 0"])


def rails(hosts: int, per_host: int, folds: list[str]) -> Topology:
    """Hosts whose ranks share a fast switch, and a network card for every rank at a slow one."""
    ends: dict[tuple[Any, Any], float] = {}
    for rank in range(hosts * per_host):
        for switch, speed in ((f"host {rank // per_host}", 12e9), ("network", 1e9)):
            ends[rank, switch] = ends[switch, rank] = speed
    nodes = [*(f"host {host}" for host in range(hosts)), "network"]
    edges = [{"from": a, "to": b, "link": f"{a} → {b}"} for a, b in ends]
    links = {f"{a} → {b}": speed for (a, b), speed in ends.items()}
    seats = [rank // per_host for rank in range(hosts * per_host)]
    graph = {"nodes": nodes, "edges": edges, "folds": folds}
    return Topology.from_json(document(hosts * per_host, links, graph=graph, hosts=seats))


def test_what_is_found_where_switches_fold_is_better_than_what_is_built_in() -> None:
    """Inside hosts and across them: of what a host has, each card sends its part once and receives it once."""
    topology = rails(3, 4, ["network"])
    found = find("all_reduce", topology, GB, method="levels", seconds=60)
    assert found.bound == pytest.approx(0.25) and found.time < 1.02 * found.bound
    assert plan("all_reduce", topology, 12, GB).winner.time > 1.5 * found.time
    assert not list(complaints(rails(3, 2, ["network", "host 1"]), "all_reduce", GB, None, seconds=0.5))
    # Without hosts, the ranks at the same switch are a group.
    pairs = rails(2, 2, ["host 0", "host 1", "network"]).to_json()
    del pairs["hosts"]
    assert "direct" in find("all_gather", Topology.from_json(pairs), GB, method="levels", seconds=60).schedule.algorithm


def test_links_of_networks_that_fold_can_fail() -> None:
    """Routes lead round over other ranks; those of all other pairs stay, and what is left still folds."""
    whole = rails(2, 2, ["host 0", "host 1", "network"])
    broken = without(whole, ["0 → host 0"])
    both = [one.routes(*(np.array(side) for side in zip(*WAYS, strict=True))) for one in (whole, broken)]
    names = [
        [[one.links[int(link)].name for link in routes[at]] for at in range(len(WAYS))]
        for one, routes in zip((whole, broken), both, strict=True)
    ]
    assert names[1][0] == ["rank 0 out", "0 → network", "network → 1", "rank 1 in"]
    assert names[0][1:] == names[1][1:]
    assert broken.folding == whole.folding and Topology.from_json(broken.to_json()).to_json() == broken.to_json()
    again = without(broken, ["1 → host 0"])
    assert again.to_json()["without"] == ["0 → host 0", "1 → host 0"]
    assert not list(complaints(again, "all_reduce", GB, None, seconds=0.5))
    with pytest.raises(UsageError, match="no link '0 → host 0'"):
        without(broken, ["0 → host 0"])
    with pytest.raises(UsageError, match="cannot be reached"):
        without(again, ["0 → network"])


WAYS = [(0, 1), (1, 0), (0, 2), (2, 3), (3, 0)]


def test_channels_use_all_network_cards() -> None:
    topology = find_topology("dgx_a100:nodes=2")
    one = cost(af.schedule("all_gather", "ring", 16), topology, 2**30)
    for collective in ("all_gather", "reduce"):
        root = 3 if COLLECTIVES[collective].rooted else None
        found = find(collective, topology, 2**28, method="channels", root=root, seconds=1)
        assert "channels" in found.schedule.algorithm and found.schedule.root == root
        if collective == "all_gather":
            assert found.cost.bus_bandwidth > 6 * one.bus_bandwidth


@pytest.mark.parametrize("collective", WITH_DATA)
@pytest.mark.parametrize("seconds", [1e-9, 0.5])
def test_ranks_without_a_neighbour_get_a_schedule_in_time(collective: str, seconds: float) -> None:
    started = time.process_time()
    found = find(collective, NO_NEIGHBOUR, GB, seconds=seconds)
    assert time.process_time() - started < 20 and found.time >= found.bound * (1 - 1e-9)


def test_news_takes_as_long_as_the_farthest_pair() -> None:
    topology = ring(64)
    route = topology.routes(np.array([0]), np.array([32]))
    far = topology.overhead + float(topology.latency[route.links].sum())
    bound = lower_bounds("all_gather", topology, 64, 1).time
    assert bound == pytest.approx(far) == pytest.approx(16.5e-6)
    # From the root of a mesh's corner it is farther than from its middle; and over a short cut it is nearer.
    for root, hops in ((0, 8), (12, 4)):
        mesh = find_topology("mesh:shape=5x5,latency=1us,overhead=0")
        assert lower_bounds("broadcast", mesh, 25, 1, root).latency == pytest.approx(hops * 1e-6)
    assert lower_bounds("barrier", torus((64, 64)), 4096, 0).latency > 64 * 0.4e-6


def test_ties_load_all_cables_alike() -> None:
    for shape in ((4, 4), (6, 6), (4, 6), (8,), (2, 4), (4, 4, 4)):
        topology = torus(shape)
        everyone = np.arange(topology.ranks)
        source, destination = np.repeat(everyone, topology.ranks), np.tile(everyone, topology.ranks)
        other = source != destination
        routes = topology.routes(source[other], destination[other])
        cables = np.bincount(routes.links, minlength=len(topology.links))[2 * topology.ranks :]
        along = cables.reshape(topology.ranks, len(shape), 2)
        assert (along == along.mean(axis=(0, 2))[None, :, None]).all(), shape


@pytest.mark.parametrize(
    "shape", [(4,), *(pytest.param(shape, marks=pytest.mark.exhaustive) for shape in ((6,), (4, 4), (2, 4)))], ids=str
)
def test_more_network_is_never_slower(shape: tuple[int, ...]) -> None:
    """No algorithm gains by a cable that failed, and no bound falls."""
    whole = torus(shape)
    cables = [link.name for link in whole.links if link.kind == "cable"]
    ranks = whole.ranks
    for cable in cables[:: max(1, len(cables) // 4)]:
        broken = af.price.without(whole, [cable])
        for collective in ("all_reduce", "all_to_all", "all_gather"):
            times = {one.algorithm: one.time for one in plan(collective, whole, ranks, 2**26).costs}
            for one in plan(collective, broken, ranks, 2**26).costs:
                assert times[one.algorithm] <= one.time * (1 + 1e-9), (cable, one.algorithm)
            before, after = (lower_bounds(collective, one, ranks, 2**26).time for one in (whole, broken))
            assert before <= after * (1 + 1e-9)


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(8, 60))]
)
def test_random_networks(seed: int) -> None:
    assert not list(trial(seed, seconds=0.3, most=4))


def test_a_route_that_crosses_a_link_twice_pays_twice() -> None:
    """In the price of a single message, in the simulation and in the bound."""
    there = routed(2, {"a": 1e9, "b": 1e9}, {(0, 1): "aa", (1, 0): "b"})
    sent = af.schedule("broadcast", "tree", 2)
    assert cost(sent, there, GB).time == pytest.approx(2.0)
    assert simulate(sent, there, GB).duration == pytest.approx(2.0)
    assert find("broadcast", there, GB, method="built_in", seconds=1).bound == pytest.approx(2.0)
    assert plan("broadcast", there, 2, GB).winner.bounds.time == pytest.approx(2.0)


def bytes_take(schedule: af.Schedule, topology: Topology, size: int) -> float:
    """Seconds of the busiest link in every step, message by message, by the tables of the file."""
    tables, total = topology.recipe["sizes"], 0.0
    for step in range(schedule.steps):
        moves = range(int(schedule.starts[step]), int(schedule.starts[step + 1]))
        pairs = [(int(schedule.columns["source"][move]), int(schedule.columns["destination"][move])) for move in moves]
        busy: dict[int, float] = {}
        for a, b in {(a, b) for a, b in pairs if a != b}:
            bytes = size * pairs.count((a, b)) / schedule.chunks
            route = topology.routes(np.array([a]), np.array([b]))
            shares = np.ones(len(route.links)) if route.share is None else route.share
            for link, share in zip(route.links.tolist(), shares.tolist(), strict=True):
                own = topology.links[link]
                speed = own.rows[0][2]
                for row in tables.get(own.kind, []):
                    speed = row["bandwidth"] if row["bytes"] <= bytes * (1 + 1e-12) else speed
                busy[link] = busy.get(link, 0.0) + share * bytes / float(speed)
        total += max(busy.values(), default=0.0)
    return total


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.exhaustive) for first in range(20, 400, 20))]
)
def test_bytes_take_what_the_tables_of_random_networks_say(first: int) -> None:
    for seed in range(first, first + 20):
        with contextlib.suppress(UsageError):
            topology = network(seed, 5)
            if not topology.by_size or topology.folding:
                continue
            for collective, size in (("all_reduce", 300), ("all_to_all", 10**6), ("broadcast", 10**9)):
                root = 0 if COLLECTIVES[collective].rooted else None
                for name in algorithms(collective, topology.ranks, root):
                    made = af.schedule(collective, name, topology.ranks, root)
                    priced = cost(made, topology, size, segments=1).parts["transfer"]
                    assert priced == pytest.approx(bytes_take(made, topology, size)), (seed, collective, name)


def connected_networks(count: int) -> Iterator[Topology]:
    """Random networks; those of some seeds are not connected, and are passed over."""
    for seed in range(100, 100 + 10 * count):
        with contextlib.suppress(UsageError):
            yield network(seed, 4)
            count -= 1
        if count == 0:
            return


@pytest.mark.parametrize("topology", list(connected_networks(12)))
def test_the_least_is_the_worst_of_all_sets_or_more(topology: Topology) -> None:
    """Every collective on one network, without a search."""
    for collective in WITH_DATA:
        if not COLLECTIVES[collective].trees:
            continue  # some need flows, which a search looks for first; of scans only weaker bounds are known
        root = 0 if COLLECTIVES[collective].rooted else None
        task = task_for(collective, topology, size=GB)
        least = least_of(task)
        assert least.time >= float(by_all_sets(collective, topology, root, GB)) * GB * (1 - 1e-6), collective
        assert check_bound(least.certificate.to_json(), topology) == least.certificate.seconds


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "name",
    [
        "dgx1",
        "one_host:ranks=6",
        *(
            pytest.param(one, marks=pytest.mark.exhaustive)
            for one in ("dgx_h100:nodes=3", "torus:shape=3x4", "fat_tree:hosts=3")
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 2**30])
def test_certificates_of_named_topologies_are_good(collective: str, name: str, size: int) -> None:
    topology = find_topology(name)
    task = task_for(collective, topology, size=size, root=1)
    least = least_of(task)
    assert check_bound(json.loads(json.dumps(least.certificate.to_json())), topology) == least.certificate.seconds
    assert 0 < least.time <= float(least.certificate.seconds)
    for algorithm in algorithms(collective, topology.ranks, task.root):
        built = af.schedule(collective, algorithm, topology.ranks, task.root)
        assert cost(built, topology, size).time >= least.time * (1 - 1e-9), algorithm


def _changed(certificate: Certificate, **facts: Any) -> dict[str, Any]:
    return {**certificate.to_json(), **facts}


def test_wrong_certificates_are_refused() -> None:
    topology = find_topology("dgx1")
    certificate = least_of(task_for("all_gather", topology, size=GB)).certificate
    data = certificate.to_json()
    more = str(certificate.seconds * 2)
    heavier = [{**one, "weight": "2"} for one in data["sets"]]
    for wrong in (
        {"seconds": more},
        {"sets": heavier},
        {"sets": []},
        {"prices": {name: "0" for name in data["prices"]}},
        {"prices": {**data["prices"], "rank 0 to rank 1": "5"}},
        {"collective": "broadcast", "root": 0},
        {"collective": "reduce_scatter"},
        {"size": GB // 2},
        {"kind": "spread", "among": "ranks"},
        {"kind": "distance", "from": 0, "to": 7},
        {"kind": "nothing"},
    ):
        with pytest.raises((BoundError, UsageError)):
            check_bound(_changed(certificate, **wrong), topology)
    for malformed in (
        {"format": "else"},
        {"ranks": 9},
        {"ranks": "8"},
        {"root": 0},
        {"size": -1},
        {"kind": "faith"},
        {"prices": {"no such link": "1"}},
        {"prices": 7},
        {"prices": {name: "-1" for name in data["prices"]}},
        {"prices": {name: "1e99999999999" for name in data["prices"]}},
        {"sets": [{"ranks": [0]}]},
        {"seconds": "many"},
        {"seconds": None},
        {"kind": "combining"},
    ):
        with pytest.raises(UsageError):
            check_bound(_changed(certificate, **malformed), topology)
    with pytest.raises(UsageError):
        check_bound({}, topology)
    # The same on a faster network is no proof.
    faster = Topology.from_json(
        {"format": "allfold-topology", "version": 1, "constructor": "dgx_h100", "parameters": {"nodes": 1}}
    )
    with pytest.raises((UsageError, BoundError)):
        check_bound(data, faster)


def test_the_command_writes_and_checks_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "bound.json")
    words = ["--collective", "all_gather", "--topology", "dgx1", "--size", "1GiB", "--seconds", "1"]
    assert main(["find", *words, "--certificate", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["certificate"] == json.loads(Path(file).read_text())
    assert main(["check-bound", file, "dgx1"]) == 0
    assert "takes at least 6.26 ms: proved by the prices of 4 links" in capsys.readouterr().out
    assert main(["check-bound", file, "dgx1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"] == pytest.approx(found["bound"])
    Path(file).write_text(json.dumps({**found["certificate"], "seconds": "1"}))
    assert main(["check-bound", file, "dgx1"]) == 1
    assert "claims 1 s, but proves only 0.00626" in capsys.readouterr().err
    for content in ("{", "[]", "{}"):
        Path(file).write_text(content)
        assert main(["check-bound", file, "dgx1"]) == 2
    assert main(["check-bound", str(tmp_path / "nothing.json"), "dgx1"]) == 2
    assert capsys.readouterr().err.count("allfold check-bound: ") == 4


def test_a_price_below_the_bound_is_an_error() -> None:
    """If the bound were wrong, the search would say so and give no schedule."""
    topology = find_topology("ring", 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Certificate, "bound", property(lambda self: 1.0))
        with pytest.raises(BoundError, match="less than the lower bound"):
            find("broadcast", topology, 1000, seconds=1)


def test_the_checker_is_short_and_shares_nothing_with_the_search() -> None:
    lines = Path(check_bound.__code__.co_filename).read_text().splitlines()
    assert len(lines) <= 150
    ours = [line for line in lines if line.startswith("from .")]
    assert ours == [
        "from ..collectives import COLLECTIVES, Collective",
        "from ..errors import BoundError, UsageError",
        "from .topology.topology import Topology",
    ]
