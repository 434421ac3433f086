"""Two simulated hosts connected by UCX, against NumPy. `make ucx` runs the other tests of simulated hosts over it, too."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from saying import AT_ONCE, said_by
from ucx_here import need_ucx

import allfold as af
from allfold.communicator.communicator import Communicator


@pytest.fixture(autouse=True)
def over_ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    need_ucx()
    monkeypatch.setenv("ALLFOLD_FABRIC", "ucx")


def whole_numbers(rank: int, length: int) -> np.ndarray:
    return (np.arange(length, dtype=np.float32) % 1000) + rank


def collectives(comm: Communicator, lengths: tuple[int, ...]) -> str:
    """Whole numbers, so that sums are exact in any order. Lengths on both sides of what is sent eagerly."""
    for length in lengths:
        everybody = [whole_numbers(rank, length * comm.size) for rank in range(comm.size)]
        own, total = everybody[comm.rank], np.sum(everybody, axis=0, dtype=np.float32)
        mine = slice(comm.rank * length, (comm.rank + 1) * length)
        array = own.copy()
        comm.all_reduce(array)
        assert np.array_equal(array, total)
        array = own.copy()
        comm.broadcast(array, root=comm.size - 1)
        assert np.array_equal(array, everybody[-1])
        out = np.empty(length, np.float32)
        comm.reduce_scatter(own, out)
        assert np.array_equal(out, total[mine])
        gathered = np.empty(length * comm.size, np.float32)
        comm.all_gather(own[:length], gathered)
        assert np.array_equal(gathered, np.concatenate([one[:length] for one in everybody]))
        comm.all_to_all(own, gathered)
        assert np.array_equal(gathered, np.concatenate([one[mine] for one in everybody]))
        # To the next rank, and so once from every host to the other.
        request = comm.isend(own, (comm.rank + 1) % comm.size)
        came = np.empty_like(own)
        comm.recv(came, (comm.rank - 1) % comm.size)
        request.wait()
        assert np.array_equal(came, everybody[comm.rank - 1])
    group = comm.group([0, comm.size - 1])
    if group is not None:
        array = np.ones(5)
        group.all_reduce(array)
        assert array[0] == 2
    engine = comm.engine
    return engine.fabric_name  # type: ignore[attr-defined, no-any-return]


def test_collectives_and_messages() -> None:
    assert af.spawn(collectives, 4, args=((0, 1000, 30_001, 100_001),), hosts=2, timeout=120) == ["ucx"] * 4


def killed(comm: Communicator) -> tuple[str, str, float, float]:
    """One rank dies in the middle of large calls; the others go on without it."""
    array = np.ones(2_000_000)
    comm.all_reduce(array)
    if comm.rank == 3:
        comm.isend(array, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    kind, text, seconds = said_by(lambda: comm.all_reduce(array))
    smaller, one = comm.shrink(), np.ones(3)
    smaller.all_reduce(one)
    return kind, text, seconds, float(one[0])


def test_a_rank_that_dies_is_named_and_the_others_go_on() -> None:
    for kind, text, seconds, left in af.spawn(killed, 4, hosts=2, survive=True, timeout=60)[:3]:
        assert kind == "RankLost" and "rank 3 on host1" in text and seconds < AT_ONCE and left == 3
