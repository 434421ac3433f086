"""Networks and their tightest cuts: as drawn by hand, and against all cuts of small networks."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from graphs import topologies, worst_of_all, written
from hypothesis import given, settings
from tasks import least_all_reduce

import allfold as af
from allfold.errors import UsageError
from allfold.price import Topology, cost, dgx_h100, find_topology, one_host, torus
from allfold.price.cost.bounds import lower_bounds
from allfold.price.cost.cuts import tightest_cut, whole_numbers
from allfold.price.topology.network import network_of
from allfold.registry import algorithms
from allfold.search.found import Task


def edges_of(text: str, ranks: int | None = None) -> set[tuple[int, int, str]]:
    network = network_of(find_topology(text, ranks), ranks)
    return {(int(a), int(b), network.name(i)) for i, (a, b) in enumerate(zip(network.tail, network.head, strict=True))}


def test_ports_without_a_limit_vanish() -> None:
    network = network_of(torus((3, 3)))
    assert (network.vertices, network.edges) == (9, 36)
    assert (np.bincount(network.tail) == 4).all() and (np.bincount(network.head) == 4).all()


def test_a_bus_is_one_edge_between_two_vertices() -> None:
    ports = {(rank, 4, f"rank {rank} out") for rank in range(4)} | {(5, rank, f"rank {rank} in") for rank in range(4)}
    assert edges_of("one_host:ranks=4") == ports | {(4, 5, "host 0 memory bus")}


def test_ranks_are_never_joined() -> None:
    # Both pairs cross the same link, and ports without a limit lie on both sides of it.
    topology = written(
        4, [(0, "left", 1e9), (1, "left", 1e9), ("left", 2, 1e9), ("left", 3, 1e9), (2, 0, 1e9), (3, 1, 1e9)], ("left",)
    )
    network = network_of(topology)
    assert network.vertices == 5
    shared = one_host(2, bandwidth=float("inf"))
    assert network_of(shared).vertices == 4  # two ranks, and the ends of the bus


def test_ranks_that_take_no_part_relay() -> None:
    network = network_of(find_topology("ring", 6), 3)
    assert network.ranks == 3
    assert tightest_cut("all_gather", network) is not None


@pytest.mark.parametrize("topology", [dgx_h100(3), torus((2, 3)), one_host(5)], ids=lambda one: one.name)
def test_every_route_is_a_path(topology) -> None:  # type: ignore[no-untyped-def]
    network = network_of(topology)
    ends = {int(link): (int(a), int(b)) for link, a, b in zip(network.link, network.tail, network.head, strict=True)}
    for source in range(topology.ranks):
        for destination in range(topology.ranks):
            if source == destination:
                continue
            links = [int(link) for link in topology.routes(np.array([source]), np.array([destination]))[0]]
            path = [ends[link] for link in links if link in ends]
            assert path[0][0] == source and path[-1][1] == destination
            assert all(before[1] == after[0] for before, after in pairwise(path))


@settings(max_examples=40, deadline=None)
@given(topologies(8))
def test_the_tightest_cut_is_the_worst_of_all(topology) -> None:  # type: ignore[no-untyped-def]
    network, everyone = network_of(topology), set(range(topology.ranks))
    each = dict.fromkeys(everyone, 1)
    wanted = {
        "all_gather": (worst_of_all(network, each, everyone) / topology.ranks),
        "reduce_scatter": (worst_of_all(network.transposed(), each, everyone) / topology.ranks),
        "broadcast": worst_of_all(network, {0: 1}, everyone - {0}),
        "reduce": worst_of_all(network.transposed(), {0: 1}, everyone - {0}),
        "gather": worst_of_all(network, each | {0: 0}, {0}) / topology.ranks,
        "scatter": worst_of_all(network.transposed(), each | {0: 0}, {0}) / topology.ranks,
    }
    for collective, seconds in wanted.items():
        cut = tightest_cut(collective, network, 0)
        assert cut is not None
        assert cut.time(1.0) == pytest.approx(float(seconds), rel=1e-12), collective
        # The cut is its own proof: what it names adds up.
        assert cut.bandwidth == pytest.approx(sum(network.bandwidth[edge] for edge in cut.edges))


@settings(max_examples=20, deadline=None)
@given(topologies(6))
def test_all_reduce_is_bounded_by_what_each_side_must_send(topology) -> None:  # type: ignore[no-untyped-def]
    network, everyone = network_of(topology), set(range(topology.ranks))
    cut = tightest_cut("all_reduce", network)
    assert cut is not None
    # Any side of any cut must send its part of every element, and all messages together are 2(P−1) times the buffer.
    one_side = max(worst_of_all(network, {rank: 1}, everyone - {rank}) for rank in everyone)
    ports = sum(
        Fraction(float(speed)) for a, speed in zip(network.tail, network.bandwidth, strict=True) if a < len(everyone)
    )
    together = Fraction(2 * (len(everyone) - 1)) / ports
    assert cut.time(1.0) == pytest.approx(float(max(one_side, together)), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(topologies(6))
def test_the_linear_program_bounds_all_reduce(topology) -> None:  # type: ignore[no-untyped-def]
    network = network_of(topology)
    task = Task("all_reduce", topology, network, topology.ranks, None, 2**20)
    least = least_all_reduce(task)
    cuts = [tightest_cut(one, network) for one in ("all_reduce", "all_gather", "reduce_scatter")]
    assert all(cut is not None for cut in cuts)
    direct = network.vertices == topology.ranks
    # Never below the bound by cuts; and where both can be met, one after the other is an all_reduce.
    assert least >= cuts[0].time(2**20) * (1 - 1e-5)  # type: ignore[union-attr]
    if direct:
        assert least <= sum(cut.time(2**20) for cut in cuts[1:]) * (1 + 1e-9)  # type: ignore[union-attr]


def test_links_that_go_one_way_bound_all_reduce() -> None:
    # Two pairs; one way between them over one link, back over another: each carries every element once.
    near = [(0, 1, 9e9), (1, 0, 9e9), (2, 3, 9e9), (3, 2, 9e9)]
    topology = written(4, [*near, (0, 2, 1e9), (3, 1, 1e9)])
    task = Task("all_reduce", topology, network_of(topology), 4, None, 10**9)
    assert least_all_reduce(task) == pytest.approx(1.0, rel=1e-5)


def test_whole_numbers_keep_ratios() -> None:
    assert whole_numbers(np.array([25e9, 50e9, 12.5e9])).tolist() == [2, 4, 1]
    measured = np.array([11.73e9 + 0.25, 9.81e9 + 1 / 3])
    whole = whole_numbers(measured)
    assert whole[0] / whole[1] == pytest.approx(measured[0] / measured[1], rel=1e-8)


def test_the_sentence_names_ranks_and_links() -> None:
    cut = tightest_cut("all_gather", network_of(written(3, [(0, 1, 2e9), (1, 0, 2e9), (1, 2, 1e9), (2, 1, 1e9)])))
    assert str(cut) == "ranks 0–1 can send no more than 1 GB/s to the rest: 1 link (1→2 2)"
    back = tightest_cut("reduce_scatter", network_of(written(3, [(0, 1, 2e9), (1, 0, 2e9), (1, 2, 1e9), (2, 1, 1e9)])))
    assert str(back) == "ranks 0–1 can receive no more than 1 GB/s from the rest: 1 link (2→1 3)"


def test_plan_and_cost_know_the_exact_cut() -> None:
    # Two triangles with one slow cable between them: no port says so, and nobody named it.
    fast = [(a, b, 8e9) for group in ((0, 1, 2), (3, 4, 5)) for a in group for b in group if a != b]
    topology = written(6, [*fast, (2, 3, 1e9), (3, 2, 1e9)])
    bounds = lower_bounds("all_gather", topology, 6, 6e9)
    assert bounds.bandwidth == pytest.approx(3.0)
    assert bounds.cut.startswith("ranks 3–5 can send no more than 1 GB/s to the rest")


def test_nothing_leads_there() -> None:
    with pytest.raises(UsageError, match="cannot be reached"):
        written(3, [(0, 1, 1e9), (1, 0, 1e9), (2, 0, 1e9)])


@pytest.mark.parametrize("shared", [[0, 0, 0], [0, 0, 1]])
@pytest.mark.parametrize("bandwidth", [1e9, "inf"])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "scatter", "all_reduce"])
def test_links_without_a_limit_bound_nothing(collective: str, bandwidth: float | str, shared: list[int]) -> None:
    """A ring of three ranks whose links are shared, with ports without a limit: in the graph the ranks fall together."""
    topology = Topology.from_json(
        {
            "format": "allfold-topology",
            "version": 1,
            "name": "bus",
            "ranks": 3,
            "port": {"latency": 0, "bandwidth": "inf"},
            "links": [{"name": name, "bandwidth": bandwidth} for name in ("a", "b")],
            "graph": {
                "edges": [{"from": one, "to": (one + 1) % 3, "link": "ab"[link]} for one, link in enumerate(shared)]
            },
        }
    )
    root = 0 if collective in ("broadcast", "scatter") else None
    least = lower_bounds(collective, topology, 3, 1000, root).time
    for name in algorithms(collective):
        built = af.schedule(collective, name, 3, root)
        assert least <= cost(built, topology, 1000).time * (1 + 1e-9), name
