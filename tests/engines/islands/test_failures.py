"""How an error on one rank reaches the others, and how it names groups and ranks."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.errors import AllfoldError
from allfold.launch.threads import run_threads


def parts(comm: Communicator) -> Any:
    return comm.engine.parts  # type: ignore[attr-defined]


def test_a_group_inside_an_island_has_the_name_that_its_users_know() -> None:
    def work(comm: Communicator) -> str:
        comm.group([0, 1])
        group = comm.group([3, 2])
        if comm.rank != 3:
            return ""
        assert group is not None
        with pytest.raises(af.CollectiveTimeout) as late:
            group.barrier(timeout=0.1)
        return str(late.value)

    assert "group 2 of the world: ranks 3 and 2" in run_threads(work, 4, engine="islands")[3]


def test_the_others_know_before_a_rank_that_gives_up_raises() -> None:
    memberships: dict[int, Any] = {}
    heard = []
    ready = threading.Barrier(2)

    def work(comm: Communicator) -> None:
        memberships[comm.rank] = membership = parts(comm).membership
        ready.wait(20)
        if comm.rank == 0:
            fail = membership.fail

            def watched(error: AllfoldError) -> None:
                heard.append(memberships[1].failed.wait(2))
                fail(error)

            membership.fail = watched
            comm.abort()
        assert membership.failed.wait(20)

    run_threads(work, 2, engine="islands")
    assert heard == [True]


def test_a_rank_that_finds_another_one_gone_tells_the_rest() -> None:
    """Rank 2 leaves, rank 0 needs it; rank 1 makes no call meanwhile."""
    rank_1_is_idle = threading.Event()  # before that, the failure would end its barrier

    def work(comm: Communicator) -> str:
        group = parts(comm)
        comm.barrier()
        if comm.rank == 0:
            assert rank_1_is_idle.wait(20)
            deadline = time.monotonic() + 20
            while not group.world.lost() and time.monotonic() < deadline:
                time.sleep(0.001)
            with pytest.raises(af.RankLost, match="rank 2 on host1 has left"):
                comm.barrier()
        elif comm.rank == 1:
            rank_1_is_idle.set()
            assert group.membership.failed.wait(20)
        return str(group.membership.error)

    assert "rank 2 on host1 has left" in run_threads(work, 3, engine="islands")[1]


def test_after_a_failure_a_closed_channel_is_no_misuse() -> None:
    def work(comm: Communicator) -> str:
        group = parts(comm)
        comm.abort()
        assert group.membership.failed.wait(20)
        return type(group.membership.better(af.UsageError("irecv: this communicator is closed"))).__name__

    assert run_threads(work, 2, engine="islands") == ["RankLost"] * 2


def test_a_host_that_others_go_on_without_hears_why() -> None:
    """Ranks 0 and 1 live, but rank 2 has not heard of their host, whose first rank sends the heartbeats."""

    all_have_met = threading.Barrier(3)

    def work(comm: Communicator) -> str:
        group = parts(comm)
        comm.barrier()
        all_have_met.wait(60)
        deadline = time.monotonic() + 20
        while comm.rank == 2 and not group.membership.failed.is_set() and time.monotonic() < deadline:
            group.world._heard[0] = -1e9
            time.sleep(0.001)
        assert group.membership.failed.wait(20)
        return str(group.membership.error)

    for said in run_threads(work, 3, engine="islands"):
        assert "ranks 0 and 1 on host0: no heartbeat from the host" in said


def test_a_message_that_does_not_come_names_its_source() -> None:
    def work(comm: Communicator) -> list[str]:
        said = []
        for source in (0, 2) if comm.rank == 1 else ():  # one of the same island, and one of the other
            with pytest.raises(af.CollectiveTimeout) as late:
                comm.recv(np.ones(1), source, timeout=0.01)
            said.append(str(late.value))
        comm.barrier()
        return said

    said = run_threads(work, 3, engine="islands")[1]
    assert said == [f"recv: rank 1 got no message from rank {one} within 0.01 s (the world)" for one in (0, 2)]


def test_a_group_that_is_dropped_is_freed() -> None:
    def work(comm: Communicator) -> bool:
        group = comm.group(range(comm.size))
        assert group is not None
        group.barrier()
        freed = weakref.ref(parts(group))
        del group
        deadline = time.monotonic() + 20
        while freed() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.001)
        comm.barrier()
        return freed() is None

    assert all(run_threads(work, 2, engine="islands"))
