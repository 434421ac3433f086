"""Groups that share a network: schedules found together, what they take, and a bound for all of them."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from networks import network

import allfold as af
from allfold.cli import main
from allfold.collectives import COLLECTIVES
from allfold.errors import BoundError, UsageError
from allfold.price import Topology, check_bound_of_groups, cost
from allfold.price.topology.seen import seen_from
from allfold.registry import algorithms
from allfold.search.together import FoundTogether

GB = 10**9


def triangle_beside_a_pair() -> Topology:
    """Ranks 0, 1 and 2 have a link each way between any two; 3 and 4 have only those between 0 and 1."""
    names = {(a, b): f"{a} to {b}" for a in range(3) for b in range(3) if a != b}
    shared = {(3, 4): "0 to 1", (4, 3): "1 to 0"}
    routes = [
        {"from": a, "to": b, "links": [names.get((a, b)) or shared.get((a, b), "a slow way")]}
        for a in range(5)
        for b in range(5)
        if a != b
    ]
    links = [*({"name": name, "bandwidth": 1e9} for name in names.values()), {"name": "a slow way", "bandwidth": 1e6}]
    document = {
        "name": "beside",
        "ranks": 5,
        "port": {"latency": 0, "bandwidth": "inf"},
        "links": links,
        "routes": routes,
    }
    return Topology.from_json({"format": "allfold-topology", "version": 1, **document})


GROUPS = [[0, 1, 2], [3, 4]]


def busiest(found: FoundTogether, topology: Topology) -> float:
    """The seconds of the busiest link, by adding up moves."""
    seconds = np.zeros(len(topology.links))
    for group, schedule in zip(found.groups, found.schedules, strict=True):
        for source, destination in zip(
            *(schedule.columns[end].tolist() for end in ("source", "destination")), strict=True
        ):
            if source != destination:
                route = topology.routes(np.array([group[source]]), np.array([group[destination]]))
                share = np.ones(len(route.links)) if route.share is None else route.share
                np.add.at(seconds, route.links, share * found.size / schedule.chunks / topology.bandwidth[route.links])
    return float(seconds.max())


@pytest.mark.parametrize(
    "collective,at_most",
    [
        ("all_gather", 1.1),
        pytest.param("all_to_all", 1.05, marks=pytest.mark.exhaustive),
        pytest.param("broadcast", 1.2, marks=pytest.mark.exhaustive),
    ],
)
def test_together_beats_one_by_one(collective: str, at_most: float) -> None:
    topology = triangle_beside_a_pair()
    found = af.find(collective, topology, GB, groups=GROUPS, seconds=120)  # it ends by itself
    assert found.bound <= busiest(found, topology) * (1 + 1e-9) <= found.time * (1 + 2e-9)
    assert found.time < 0.8 * found.one_by_one and found.time <= at_most * found.bound
    assert max(found.alone) <= found.time < sum(found.alone)
    for schedule in found.schedules:
        af.verify(schedule)
    assert check_bound_of_groups(json.loads(json.dumps(found.certificate)), topology) == found.seconds_proved
    json.dumps(found.to_json())


def test_what_must_cross_the_same_links_adds_up() -> None:
    """The pair needs half of its buffer each way over the shared links; then 1/12 is left of them for the triangle."""
    found = af.find("all_gather", triangle_beside_a_pair(), GB, groups=GROUPS, method="built_in", seconds=1)
    assert found.bound == pytest.approx(7 / 12)
    assert "however the groups share the links" in found.why


def test_groups_that_share_nothing_take_as_long_as_the_slowest() -> None:
    found = af.find("all_gather", "ring:ranks=6", 10**6, groups=[[0, 1], [3, 4]], seconds=2)
    assert found.time == pytest.approx(max(found.alone)) == pytest.approx(found.one_by_one)


def test_the_topology_is_the_same_from_every_group() -> None:
    """A price does not depend on how ranks are numbered."""
    whole = Topology.from_json(json.loads(json.dumps(triangle_beside_a_pair().to_json())))
    seen = seen_from(whole, [2, 0, 1])
    for old, new in (((2, 0), (0, 1)), ((3, 4), (3, 4)), ((1, 2), (2, 0))):
        routes = [one.routes(np.array([a]), np.array([b])) for one, (a, b) in ((whole, old), (seen, new))]
        names = [
            [one.links[int(link)].name for link in route.links]
            for one, route in zip((whole, seen), routes, strict=True)
        ]
        assert names[0] == names[1]
    made = af.schedule("all_gather", "ring", ranks=3)
    assert cost(made, seen, GB).time == pytest.approx(cost(made, whole, GB).time)


def least_by_all_sets(collective: str, topology: Topology, groups: list[list[int]]) -> float:
    """Seconds per byte: the linear program over all pairs of each group and all sets, written without a look at ours."""
    from scipy.optimize import linprog

    pairs = [(number, a, b) for number, group in enumerate(groups) for a in group for b in group if a != b]
    rows, most = [], []
    for link in np.flatnonzero(np.isfinite(topology.bandwidth)):
        row = np.zeros(len(pairs) + 1)
        for at, (_, a, b) in enumerate(pairs):
            route = topology.routes(np.array([a]), np.array([b]))
            share = np.ones(len(route.links)) if route.share is None else route.share
            row[at] = share[route.links == link].sum()
        row[-1] = -topology.bandwidth[link] / 1e9
        rows.append(row)
        most.append(0.0)
    for number, group in enumerate(groups):
        for many in range(1, len(group)):
            for inside in combinations(group, many):
                leaves = [one == number and a in inside and b not in inside for one, a, b in pairs]
                need = {"all_gather": many / len(group), "broadcast": float(group[0] in inside)}[collective]
                rows.append(-np.append(np.asarray(leaves, float), 0.0))
                most.append(-need)
    answer: Any = linprog([0.0] * len(pairs) + [1.0], np.vstack(rows), most)
    return float(answer.x[-1]) / 1e9


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 40))])
def test_random_networks(seed: int) -> None:
    """No schedules together are priced below the bound, which is that of all sets, or more."""
    random, topology = Random(seed), None
    for other in range(seed * 100, seed * 100 + 100):
        try:
            made = network(other, 6)
        except UsageError:
            continue
        if made.ranks >= 4 and not made.folding:
            topology = made
            break
    assert topology is not None
    seats = random.sample(range(topology.ranks), topology.ranks)
    middle = random.randint(2, len(seats) - 2)
    groups = [seats[:middle], seats[middle:]]
    for collective in random.sample([*COLLECTIVES], 2):
        size = random.choice([1000, 10**8])
        found = af.find(collective, topology, size, groups=groups, method="built_in", seconds=2)
        assert check_bound_of_groups(found.certificate, topology) == found.seconds_proved
        assert found.bound <= found.time * (1 + 1e-9) and found.time <= found.one_by_one * (1 + 1e-9)
        if COLLECTIVES[collective].carries_data:
            assert busiest(found, topology) <= found.time * (1 + 1e-9)
        for many, time in zip((len(group) for group in groups), found.alone, strict=True):
            root = 0 if COLLECTIVES[collective].rooted else None
            best = min(
                cost(af.schedule(collective, name, many, root), seen_from(topology, group), size).time
                for group in groups
                if len(group) == many
                for name in algorithms(collective, many, root)
            )
            assert time >= best * (1 - 1e-9)
        if collective in ("all_gather", "broadcast") and not topology.by_size:
            least = least_by_all_sets(collective, topology, groups) * size
            assert found.bound >= least * (1 - 1e-6)


def test_wrong_groups_and_certificates_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = triangle_beside_a_pair()
    wrong: list[tuple[list[Any], str]] = [
        ([[0, 1], [1, 2]], "rank 1 is in two groups"),
        ([[0, 1], [2, 5]], "rank 5"),
        ([[0, 1], [2]], "group by itself"),
        ([[0, 1], []], "without ranks"),
        ([[0, "1"]], "rank '1'"),
    ]
    for groups, says in wrong:
        with pytest.raises(UsageError, match=says):
            af.find("all_gather", topology, GB, groups=groups, seconds=1)
    with pytest.raises(UsageError, match="both given"):
        af.find("all_gather", topology, GB, 3, groups=GROUPS)
    file, saved = str(tmp_path / "bound.json"), str(tmp_path / "both.json")
    written = str(tmp_path / "beside.json")
    Path(written).write_text(json.dumps(topology.to_json()))
    words = [
        "--collective",
        "all_gather",
        "--topology",
        written,
        "--size",
        "1GB",
        "--method",
        "built_in",
        "--seconds",
        "1",
    ]
    assert main(["find", *words, "--groups", "0-2", "3,4", "--certificate", file, "--save", saved]) == 0
    assert "one by one" in capsys.readouterr().out
    assert [af.load(str(tmp_path / f"both.{number}.json")).ranks for number in (0, 1)] == [3, 2]
    assert main(["check-bound", file, written]) == 0
    assert "in each of 2 groups on beside takes at least 583 ms" in capsys.readouterr().out
    good = json.loads(Path(file).read_text())
    for change in ({"seconds": "1"}, {"groups": good["groups"][:1]}):
        with pytest.raises(BoundError):
            check_bound_of_groups({**good, **change}, topology)
    swapped = [
        {**one, "ranks": other["ranks"]} for one, other in zip(good["groups"], good["groups"][::-1], strict=True)
    ]
    dearer = [
        good["groups"][0],
        {**good["groups"][1], "certificate": {**good["groups"][1]["certificate"], "prices": {}}},
    ]
    twice = [good["groups"][0], {**good["groups"][0]}]
    for groups in (swapped, dearer, twice, [], 7):
        with pytest.raises((BoundError, UsageError)):
            check_bound_of_groups({**good, "groups": groups}, topology)
    for text in ("0-", "3-1", "a", "0,,1", ""):
        assert main(["find", *words, "--groups", text, "3,4"]) == 2
    assert main(["find", *words, "--groups", "0-2", "3,4", "--html", str(tmp_path / "page.html")]) == 2
