"""The collectives between neighbours: their schedules, proofs and prices, and MPI's calls, which do what these say."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from each import each

import allfold as af
from allfold.algorithms.between_neighbours import name_of
from allfold.collectives import find_collective


def _graph(seed: int) -> tuple[int, list[tuple[int, int]]]:
    draw = random.Random(seed)
    ranks = draw.randint(1, 9)
    return ranks, [(draw.randrange(ranks), draw.randrange(ranks)) for _ in range(draw.randint(0, 4 * ranks))]


@each("seed", range(20))
@each("kind", ["neighbor_alltoall", "neighbor_allgather"])
def test_any_graph_is_proved_and_replayed(seed: int, kind: str) -> None:
    ranks, edges = _graph(seed)
    promise = find_collective(name_of(kind, edges))
    degree = max(
        [*Counter(one[1] for one in promise.wanted).values(), *Counter(one[2] for one in promise.wanted).values(), 0]
    )
    for algorithm in af.algorithms(promise.name):
        made = af.schedule(promise.name, algorithm, ranks)
        proof = af.verify(made, uneven=True)
        assert proof.counts.bytes == proof.bounds.bytes
        assert proof.counts.messages >= proof.bounds.messages
        assert proof.counts.rounds >= proof.bounds.rounds
        if algorithm == "rounds":
            assert made.steps == made.counts.rounds == degree
        assert af.Schedule.from_json(made.to_json()) == made
        if kind == "neighbor_allgather":
            results = af.replay(made, [np.array([10 * rank, 10 * rank + 1]) for rank in range(ranks)])
            wanted = [
                [10 * one + more for one in sorted({s for s, t in edges if t == rank}) for more in (0, 1)]
                for rank in range(ranks)
            ]
        else:
            own = [[number for number, (source, _) in enumerate(edges) if source == rank] for rank in range(ranks)]
            results = af.replay(made, [np.repeat(np.array(one, int), 2) for one in own])
            wanted = [
                [number for number, (_, target) in enumerate(edges) if target == rank for _ in (0, 1)]
                for rank in range(ranks)
            ]
        assert [[] if one is None else one.tolist() for one in results] == wanted


def test_a_schedule_that_forgets_an_edge_is_refused() -> None:
    def up(ranks: int, wanted: list[tuple[int, int, int]]) -> Any:
        yield [af.copy(*piece) for piece in wanted if piece[2] > piece[1]]

    with pytest.raises(af.ScheduleError, match="rank 0 chunk 1 holds nothing instead of slice 1"):
        af.verify(af.schedule("neighbor_alltoall(0>1,1>0,1>2,2>1)", up, 3))


@each(
    ("name", "ranks", "words"),
    [
        ("neighbor_alltoall(0>x)", 2, "'0>x' is no edge"),
        ("neighbor_alltoall(0>5)", 2, "it needs 6 ranks, not 2"),
        ("neighbor_foo(0>1)", 2, "unknown collective"),
    ],
)
def test_names_that_are_wrong(name: str, ranks: int, words: str) -> None:
    with pytest.raises(af.UsageError, match=words):
        af.schedule(name, "direct", ranks)


def test_algorithms_between_neighbours_are_not_registered() -> None:
    with pytest.raises(af.UsageError, match="are not registered"):
        af.algorithm("neighbor_alltoall(0>1)", "mine")(lambda ranks, wanted: iter(()))


def test_pictures_and_prices() -> None:
    from allfold.price import cost, simulate
    from allfold.price.topology.parse import find_topology

    made = af.schedule("neighbor_alltoall(0>1,1>0,1>2,2>1)", "rounds", 3)
    assert "1:1→0  3:2→1" in str(made)
    assert "<svg" in made.to_svg() and "neighbor_alltoall" in made.to_html()
    for name in ("one_host", "ring"):
        topology = find_topology(name, 3)
        found = cost(made, topology, 2**20)
        assert 0 < found.bounds.time <= found.time
        assert simulate(made, topology, 2**20).duration > 0


def _grids(_: object) -> None:
    from allfold.mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    for dims in ([size], [1, size]):
        for periods in product([False, True], repeat=len(dims)):
            grid = world.Create_cart(dims, periods)
            near = grid.inedges
            got = np.full((len(near), 2), -1.0)
            grid.Neighbor_alltoall(np.arange(2.0 * len(near)) + 100 * rank, got)
            for place, other in enumerate(near):  # what is sent up arrives from below
                first = 100 * other + 2 * (place ^ 1)
                assert got[place].tolist() == ([-1, -1] if other == MPI.PROC_NULL else [first, first + 1])
            grid.Ineighbor_allgather(np.array([rank, -rank], float), got).Wait()
            assert all(got[place].tolist() == [other, -other] for place, other in enumerate(near) if other >= 0)
            sent = grid.neighbor_alltoall([(rank, place) for place in range(len(near))])
            assert sent == [None if other < 0 else (other, place ^ 1) for place, other in enumerate(near)]
            for kind in ("neighbor_alltoall", "neighbor_allgather"):
                for algorithm in ("direct", "rounds"):
                    af.verify(grid.Get_schedule(kind, algorithm))


@pytest.mark.parametrize("ranks", [1, 3])
def test_grids(ranks: int) -> None:
    af.spawn(_grids, ranks=ranks)


def _graphs(_: object) -> str:
    from allfold.mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    draw = random.Random(size)
    for _ in range(6):
        edges = [(draw.randrange(size), draw.randrange(size)) for _ in range(draw.randrange(3 * size))]
        sources, targets = [s for s, t in edges if t == rank], [t for s, t in edges if s == rank]
        graph = world.Create_dist_graph_adjacent(sources, targets)
        numbers = [number for number, (source, _) in enumerate(edges) if source == rank]
        arriving = [number for number, (_, target) in enumerate(edges) if target == rank]
        assert graph.neighbor_alltoall(numbers) == arriving
        assert graph.neighbor_allgather(rank) == sources
        got = np.empty(len(sources))
        graph.Neighbor_allgather(np.array([float(rank)]), got)
        assert got.tolist() == sources
        uneven = np.empty(sum(one + 1 for one in sources))
        graph.Neighbor_alltoallv(
            [np.repeat(np.array(numbers, float), rank + 1), [rank + 1] * len(targets)],
            [uneven, [one + 1 for one in sources]],
        )
        assert uneven.tolist() == [n for n, s in zip(arriving, sources, strict=True) for _ in range(s + 1)]
        af.verify(graph.Get_schedule(algorithm="rounds"), uneven=True)
        graph.Free()
    lonely = world.Create_dist_graph_adjacent([(rank - 1) % size], [])
    with pytest.raises(MPI.Exception) as raised:
        lonely.neighbor_allgather(1)
    assert raised.value.Get_error_class() == MPI.ERR_TOPOLOGY
    return str(raised.value)


def test_graphs_and_neighbours_that_do_not_match() -> None:
    said = af.spawn(_graphs, ranks=3)
    assert "rank 2 sends to rank 0 0 times, and rank 0 receives from rank 2 once" in said[1]
