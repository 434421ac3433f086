"""Exact steps against published figures and against a search of everything; breadth first against its closed forms."""

from __future__ import annotations

import os
import signal
import threading
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from graphs import topologies, written
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks import task_for

import allfold as af
from allfold.price import Topology, cost, find_topology
from allfold.schedules import Schedule
from allfold.search.breadth_first import breadth_first
from allfold.search.exact import exists, hops
from allfold.search.greedy import greedy
from allfold.search.neighbours import Neighbours, neighbours_of
from allfold.search.spreading import KNOWN
from allfold.search.steps import fits, frontier, least_rounds_per_chunk, steps
from allfold.search.symmetry import renumberings

DGX1 = neighbours_of(find_topology("dgx1"), 8)


def everyones(ranks: int, chunks: int) -> np.ndarray:
    return np.repeat(np.arange(ranks, dtype=np.int32), chunks)


@pytest.mark.parametrize(
    ("chunks", "steps", "rounds", "there"),
    [(1, 2, 2, True), (2, 2, 3, True), (3, 2, 4, False), (3, 3, 4, True), (1, 1, 9, False), (1, 2, 1, False)],
)
def test_a_dgx_1_as_sccl_has_it(chunks: int, steps: int, rounds: int, there: bool) -> None:
    assert exists(DGX1, everyones(8, chunks), steps, rounds, 100).exists is there


def test_the_frontier_of_a_dgx_1() -> None:
    """Without a deadline: every point is decided, however busy the machine is."""
    task = task_for("all_gather", find_topology("dgx1"), size=2**30, seconds=float("inf"))
    found = list(frontier(task))
    tried = {(row["chunks"], row["steps"], row["rounds"]): row["exists"] for row in task.notes["frontier"]}
    assert [point for point, there in tried.items() if there] == [(2, 2, 3), (6, 3, 7)]
    assert tried[3, 2, 4] is False and None not in tried.values()
    assert [(one.chunks, one.steps) for one in found] == [(16, 2), (48, 3)]
    for one in found:
        af.verify(one)
    last = cost(found[-1], task.topology, 2**30, segments=1)
    assert last.parts["transfer"] == pytest.approx(7 * 2**30 / 48 / 25e9)


def test_a_pair_that_no_link_limits_has_no_capacity_to_run_out_of() -> None:
    """Wherever it is in the list: it was the last one that failed, and others took the capacity of the next."""
    for free in (0, 5):
        pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
        speeds = ["inf" if number == free else 1e9 for number in range(6)]
        topology = written(3, [(a, b, speed) for (a, b), speed in zip(pairs, speeds, strict=True)])  # type: ignore[misc]
        found = af.find("all_gather", topology, size=2**20, method="steps", seconds=60)
        assert found.time <= 2**20 / 3 / 1e9 * (1 + 1e-9)  # every rank gets one slice from each of the others


def rounds_taken(found: Schedule, among: Neighbours, topology: Topology) -> int:
    """The rounds of all steps: in each, those of the link that needs most."""
    capacity = np.full(len(topology.links), 2**30)
    capacity[among.names] = among.capacity
    total = 0
    for step in range(found.steps):
        moves = slice(found.starts[step], found.starts[step + 1])
        routes = topology.routes(found.columns["source"][moves], found.columns["destination"][moves])
        total += int((-(-np.bincount(routes.links, minlength=len(capacity)) // capacity)).max())
    return total


def looked_for_everywhere(among: Neighbours, holder: list[int], steps: int, rounds: int) -> bool:
    """Whether such a schedule exists, by trying all of them. Whoever can get more in a step loses nothing by it."""
    capacity = [int(among.capacity[among.links[among.offsets[i]]]) for i in range(len(among.source))]
    everything = (1 << len(holder)) - 1

    def search(has: tuple[int, ...], left: int, to_come: int) -> bool:
        if all(one == everything for one in has):
            return True
        if not to_come:
            return False
        for taken in range(1, left - to_come + 2):
            choices = []
            for pair, many in enumerate(capacity):
                new = has[among.source[pair]] & ~has[among.destination[pair]]
                bits = [1 << bit for bit in range(len(holder)) if new >> bit & 1]
                choices.append([sum(some) for some in combinations(bits, min(len(bits), many * taken))])
            for chosen in product(*choices):
                after = list(has)
                for pair, some in enumerate(chosen):
                    after[among.destination[pair]] |= some
                if search(tuple(after), left - taken, to_come - 1):
                    return True
        return False

    at_first = tuple(sum(1 << chunk for chunk, own in enumerate(holder) if own == rank) for rank in range(among.ranks))
    return search(at_first, rounds, steps)


@st.composite
def tiny(draw: st.DrawFn) -> Topology:
    ranks = draw(st.integers(2, 4))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    circle = [(a, (a + 1) % ranks) for a in range(ranks)]
    chosen = list(dict.fromkeys([*circle, *draw(st.lists(st.sampled_from(pairs), max_size=3))]))
    return written(ranks, [(a, b, draw(st.sampled_from([1e9, 2e9]))) for a, b in chosen])


@settings(max_examples=40, deadline=None)
@given(tiny(), st.integers(1, 2), st.integers(0, 1), st.integers(0, 2), st.booleans())
def test_exact_means_exact(topology: Topology, chunks: int, more_steps: int, more_rounds: int, rooted: bool) -> None:
    among = neighbours_of(topology, topology.ranks)
    holder = everyones(1 if rooted else topology.ranks, chunks)
    steps = min(3, int(hops(among).max()) + more_steps)
    least = least_rounds_per_chunk(among, holder[::chunks])
    rounds = max(steps, -(-least.numerator * chunks // least.denominator)) + more_rounds
    if rounds > 5:
        rounds = 5
    there = exists(among, holder, steps, rounds, 100).exists
    assert there is looked_for_everywhere(among, holder.tolist(), steps, rounds)
    if there:
        assert Fraction(rounds, chunks) >= least


@settings(max_examples=8, deadline=None)
@given(topologies(most=5), st.sampled_from(KNOWN), st.integers(0, 3))
def test_the_frontier_is_proved_and_keeps_to_its_rounds(topology: Topology, collective: str, root: int) -> None:
    task = task_for(collective, topology, root=root, seconds=2)
    among = neighbours_of(topology, topology.ranks)
    halves = 2 if collective == "all_reduce" else 1
    for found in frontier(task):
        af.verify(found)
        row = next(row for row in reversed(task.notes["frontier"]) if row["exists"])
        assert found.steps <= halves * row["steps"]
        assert rounds_taken(found, among, topology) <= halves * row["rounds"]


@settings(max_examples=15, deadline=None)
@given(topologies(most=5), st.integers(1, 2))
def test_what_others_find_exists(topology: Topology, chunks: int) -> None:
    among = neighbours_of(topology, topology.ranks)
    task = task_for("all_gather", topology, chunks=chunks)
    for found in (next(greedy(task)), next(breadth_first(task))):
        rounds = rounds_taken(found, among, topology)
        if rounds <= 6:
            assert exists(among, everyones(topology.ranks, chunks), found.steps, rounds, 20).exists in (True, None)
            assert Fraction(rounds, chunks) >= least_rounds_per_chunk(among, everyones(topology.ranks, 1))


@pytest.mark.parametrize(
    ("text", "chunks", "steps", "rounds"),
    [  # as many steps as the diameter, and (P − 1)/degree rounds per chunk
        ("ring:ranks=7", 1, 3, 3),
        ("torus:shape=3x3", 1, 2, 2),
        ("torus:shape=4x4", 4, 4, 15),
        ("torus:shape=3x3x3", 3, 3, 13),
        ("hypercube:dimensions=3", 6, 3, 14),
        ("dgx_a100:nodes=1", 1, 1, 7),
    ],
)
def test_breadth_first_moves_no_more_than_it_must(text: str, chunks: int, steps: int, rounds: int) -> None:
    topology = find_topology(text)
    found = next(breadth_first(task_for("all_gather", topology, chunks=chunks)))
    af.verify(found)
    assert found.steps == steps
    assert rounds_taken(found, neighbours_of(topology, topology.ranks), topology) == rounds


@settings(max_examples=20, deadline=None)
@given(topologies(), st.sampled_from(KNOWN), st.integers(0, 3), st.integers(1, 3))
def test_breadth_first_is_proved_and_takes_the_fewest_steps(
    topology: Topology, collective: str, root: int, chunks: int
) -> None:
    task = task_for(collective, topology, root=root, chunks=chunks)
    far = hops(neighbours_of(topology, topology.ranks))
    spreads = int(far.max() if task.root is None else far[task.root].max())
    collects = int(far.max() if task.root is None else far[:, task.root].max())
    wanted = {"all_reduce": 2 * spreads, "reduce": collects, "reduce_scatter": collects}.get(collective, spreads)
    for found in breadth_first(task):
        af.verify(found)
        assert found.steps == wanted


def test_larger_networks_are_left_to_breadth_first() -> None:
    task = task_for("all_gather", find_topology("torus:shape=5x5x5"), chunks=1)
    assert not fits(task)
    assert [found.algorithm for found in steps(task)] == ["breadth_first_torus"]
    assert "frontier" not in task.notes


def test_ctrl_c_ends_the_solver() -> None:
    among = neighbours_of(find_topology("mi250"), 16)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        exists(among, everyones(16, 3), 5, 7, 4)


def test_renumberings_change_no_capacity() -> None:
    for text, many in (("dgx1", 4), ("ring:ranks=5", 5), ("mi250", 4), ("ndv2:nodes=2", 2), ("mesh:shape=2x3", 2)):
        topology = find_topology(text)
        among = neighbours_of(topology, topology.ranks)
        speed = {
            (int(a), int(b)): int(among.capacity[among.links[among.offsets[pair]]])
            for pair, (a, b) in enumerate(zip(among.source, among.destination, strict=True))
        }
        found = renumberings(among)
        assert len(found) == many
        for one in found:
            assert {(int(one[a]), int(one[b])): many for (a, b), many in speed.items()} == speed
        assert len({int(one[0]) for one in found}) == many  # each brings rank 0 elsewhere
    assert len(renumberings(neighbours_of(find_topology("dgx_a100:nodes=1"), 8))) == 1


def test_what_it_cannot_do_gets_a_sentence() -> None:
    with pytest.raises(af.UsageError, match=r"finds all_reduce, reduce, .*, not all_to_all"):
        next(steps(task_for("all_to_all", find_topology("dgx1"))))


test_exact_means_exact_more = pytest.mark.exhaustive(
    settings(max_examples=60, deadline=None)(
        given(tiny(), st.integers(1, 2), st.integers(0, 1), st.integers(0, 2), st.booleans())(
            test_exact_means_exact.hypothesis.inner_test
        )
    )
)


test_the_frontier_is_proved_and_keeps_to_its_rounds_more = pytest.mark.exhaustive(
    settings(max_examples=15, deadline=None)(
        given(topologies(most=5), st.sampled_from(KNOWN), st.integers(0, 3))(
            test_the_frontier_is_proved_and_keeps_to_its_rounds.hypothesis.inner_test
        )
    )
)


test_breadth_first_is_proved_and_takes_the_fewest_steps_more = pytest.mark.exhaustive(
    settings(max_examples=30, deadline=None)(
        given(topologies(), st.sampled_from(KNOWN), st.integers(0, 3), st.integers(1, 3))(
            test_breadth_first_is_proved_and_takes_the_fewest_steps.hypothesis.inner_test
        )
    )
)
