"""The greedy method: as few rounds as there can be where every rank's own cables are the limit, and always a proof."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from graphs import topologies
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks import task_for

import allfold as af
from allfold import _native
from allfold.price import Topology, cost, find_topology, torus, without
from allfold.price.topology.network import network_of
from allfold.schedules import Schedule
from allfold.search.greedy import fits, greedy
from allfold.search.neighbours import chunks_per_round, neighbours_of
from allfold.search.spreading import KNOWN

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size", "chunks", "rounds", "micros"),
    [  # the figures of TACOS's own tests (Won et al.): rounds = ⌈chunks · (ranks − 1) / least degree⌉
        ("mesh:shape=5x5,bandwidth=53687091200,latency=0.5us,overhead=0", GIB, 1, 12, 9_606),
        ("torus:shape=3x3x3,bandwidth=53687091200,latency=0.5us,overhead=0", GIB, 1, 5, 3_706),
        ("torus:shape=3x4x5,bandwidth=53687091200,latency=0.5us,overhead=0", 2 * GIB, 2, 20, 6_677),
        ("mesh:shape=10x10,bandwidth=107374182400,latency=1us,overhead=0", GIB, 2, 99, 5_049),
    ],
)
def test_meshes_and_tori_take_no_round_too_many(text: str, size: int, chunks: int, rounds: int, micros: int) -> None:
    task = task_for("all_gather", find_topology(text), size=size, chunks=chunks)
    found = next(greedy(task))
    assert found.steps == rounds
    assert cost(found, task.topology, size, segments=1).time * 1e6 == pytest.approx(micros, abs=1)
    af.verify(found)


def test_a_dgx_1_takes_seven_rounds_for_six_chunks() -> None:
    found = next(greedy(task_for("all_gather", find_topology("dgx1"), chunks=6)))
    assert found.steps == 7
    af.verify(found)


@pytest.mark.parametrize("side", [6, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_a_torus_of_many_ranks(side: int) -> None:
    ranks = side**3
    among = neighbours_of(torus((side, side, side)), ranks)
    everyone = np.arange(ranks, dtype=np.int32)
    columns = (among.source, among.destination, among.offsets, among.links, among.capacity)
    found = _native.spread(ranks, *columns, everyone, 0, 60.0)
    assert found is not None
    starts, chunk, _, destination = (column[0] for column in found)
    assert len(starts) - 1 <= -(-(ranks - 1) // 6) + 1  # one more than every rank's six cables need
    assert len(np.unique(chunk.astype(np.int64) * ranks + destination)) == len(chunk) == ranks * (ranks - 1)


def within_capacity(found: Schedule, topology: Topology) -> bool:
    """Whether no link carries more in any step than it does in one round of the slowest link."""
    among = neighbours_of(topology, found.ranks)
    limit = np.zeros(len(topology.links)) + np.inf
    limit[among.names] = among.capacity
    for step in range(found.steps):
        moves = slice(found.starts[step], found.starts[step + 1])
        routes = topology.routes(found.columns["source"][moves], found.columns["destination"][moves])
        if (np.bincount(routes.links, minlength=len(limit)) > limit).any():
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(topologies(), st.sampled_from(KNOWN), st.integers(0, 3), st.integers(1, 3))
def test_every_schedule_is_proved_and_keeps_to_its_rounds(
    topology: Topology, collective: str, root: int, chunks: int
) -> None:
    task = task_for(collective, topology, root=root, chunks=chunks)
    for found in greedy(task):
        af.verify(found)
        assert within_capacity(found, topology)
        assert cost(found, topology, task.size).time > 0


@pytest.mark.parametrize(
    "text", ["dgx_h100:nodes=2", "dgx_a100:nodes=2", "fat_tree:hosts=2", "dragonfly:groups=2", "hosts:hosts=3"]
)
def test_switches_are_shared(text: str) -> None:
    topology = find_topology(text)
    found = next(greedy(task_for("all_gather", topology, chunks=2)))
    af.verify(found)
    assert within_capacity(found, topology)


def test_ranks_that_take_no_part_pass_on() -> None:
    line = find_topology("mesh:shape=5")
    among = neighbours_of(line, 5)
    assert len(among.source) == 8
    circle = find_topology("ring:ranks=4")
    three = neighbours_of(circle, 3)
    pairs = sorted(zip(three.source.tolist(), three.destination.tolist(), strict=True))
    assert pairs == [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)]  # from 2 to 0 over 3, from 0 to 2 over 1, who takes part
    found = next(greedy(task_for("all_gather", circle, ranks=3, chunks=1)))
    assert found.ranks == 3
    af.verify(found)


def test_neighbours_are_the_ends_of_cables() -> None:
    for text in ("torus:shape=2x3x4", "mesh:shape=3x4", "hypercube:dimensions=4", "torus:shape=1x5", "ring:ranks=2"):
        topology = find_topology(text)
        among = neighbours_of(topology, topology.ranks)
        network = network_of(topology)
        cables = set(zip(network.tail.tolist(), network.head.tolist(), strict=True))
        assert set(zip(among.source.tolist(), among.destination.tolist(), strict=True)) == cables
        assert among.direct
    for text, name in (("dgx1", "rank 0 to rank 1"), ("torus:shape=3x4", "node 5 dimension 1 cable 0")):
        whole = find_topology(text)
        left = neighbours_of(without(whole, [name]), whole.ranks)
        assert len(left.source) == len(neighbours_of(whole, whole.ranks).source) - 1 and left.direct
    switch = neighbours_of(find_topology("dgx_a100:nodes=1"), 8)
    assert len(switch.source) == 56 and not switch.direct


@pytest.mark.parametrize(
    ("bandwidth", "chunks"),
    [
        ([25e9, 50e9], [1, 2]),
        ([2e9, 3e9], [2, 3]),
        ([300e9, 25e9], [12, 1]),
        ([12.5e9, 125e9, 25e9], [1, 10, 2]),
        ([1.001e9, 0.999e9, 2e9], [1, 1, 2]),
        ([1e9, 1.77e9, 3.14159e9], [1, 1, 3]),
        ([], []),
    ],
)
def test_chunks_per_round_are_in_proportion(bandwidth: list[float], chunks: list[int]) -> None:
    assert chunks_per_round(np.asarray(bandwidth)).tolist() == chunks


def test_the_seed_decides_and_nothing_else() -> None:
    topology = find_topology("mesh:shape=4x4")
    one, again, other = (next(greedy(task_for("all_gather", topology, chunks=1, seed=seed))) for seed in (1, 1, 2))
    assert one == again and one != other


def test_what_it_cannot_do_gets_a_sentence() -> None:
    with pytest.raises(af.UsageError, match=r"finds all_reduce, reduce, .*, not gather"):
        next(greedy(task_for("gather", find_topology("dgx1"))))
    huge = task_for("all_gather", find_topology("torus:shape=100x100"))
    assert not fits(huge)
    with pytest.raises(af.UsageError, match="10000 ranks are too many"):
        next(greedy(huge))


def test_time_that_is_up_ends_it() -> None:
    topology = find_topology("torus:shape=16x16x16")
    started = time.monotonic()
    assert list(greedy(task_for("all_gather", topology, seconds=0.2))) == []
    assert time.monotonic() - started < 60


def test_ctrl_c_ends_it() -> None:
    topology = find_topology("torus:shape=16x16x16")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(greedy(task_for("all_gather", topology)))


def test_the_extension_refuses_what_makes_no_sense() -> None:
    one = np.zeros(1, np.int32)
    offsets = np.asarray([0, 1], np.int64)
    for wrong in (
        (2, one, one + 2, offsets, one, one + 1, one),
        (2, one, one + 1, offsets, one + 1, one + 1, one),
        (2, one, one + 1, offsets, one, one, one),
        (2, one, one + 1, offsets[:1], one, one + 1, one),
        (2, one, one + 1, offsets, one, one + 1, one - 1),
    ):
        with pytest.raises(af.UsageError):
            _native.spread(*wrong, 0, 1.0)
    assert _native.spread(2, one, one + 1, offsets, one, one + 1, one + 1, 0, 1.0)[0].shape == (
        1,
        1,
    )  # no way to rank 0
