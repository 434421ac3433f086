"""The torch backend: how groups begin, live and end, and the ways to start a program that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch_ranks import full, run_ranks

import allfold.torch
from allfold.engines.islands import parts
from allfold.engines.islands.agreement import Fronts
from allfold.errors import AllfoldError, MismatchError
from allfold.torch.work import GroupTimeout

# Life of a group ------------------------------------------------------------------------------------------------------


def come_alone(rank: int, store: str, size: int) -> str:
    with pytest.raises(GroupTimeout) as caught:
        dist.init_process_group(
            "allfold",
            store=dist.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=1),
        )
    return str(caught.value)


def test_ranks_that_do_not_come_are_named() -> None:
    assert run_ranks(come_alone, 2, 4, init=False) == ["init: ranks 2 and 3 of 4 did not arrive within 1 s"] * 2


def name_an_engine(rank: int, store: str, size: int) -> str:
    os.environ["ALLFOLD_ENGINE"] = ("shared_memory", "islands")[rank]
    with pytest.raises(MismatchError) as caught:
        dist.init_process_group("allfold", store=dist.FileStore(store, size), rank=rank, world_size=size)
    return str(caught.value)


def test_ranks_that_name_different_engines_are_told() -> None:
    for said in run_ranks(name_an_engine, 2, 2, init=False):
        assert "rank 0 uses the engine 'shared_memory' and rank 1 'islands'" in said


def come_from_two_hosts(rank: int, store: str, size: int) -> float:
    os.environ["ALLFOLD_HOSTID"] = f"host{rank % 2}"
    dist.init_process_group("allfold", store=dist.FileStore(store, size), rank=rank, world_size=size)
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor[0])


def test_ranks_on_different_hosts_work_together() -> None:
    assert run_ranks(come_from_two_hosts, 3, 3, init=False) == [6.0] * 3


def open_and_close(rank: int) -> tuple[int, int, int]:
    def used() -> tuple[int, int, int]:
        return (
            len(os.listdir("/proc/self/fd")),
            Path("/proc/self/maps").read_text().count("memfd"),
            threading.active_count(),
        )

    for _ in range(3):
        dist.destroy_process_group(dist.new_group())
    before = used()
    for _ in range(20):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()
        dist.destroy_process_group(group)
    del group
    deadline = time.monotonic() + 30
    while True:  # the last threads may still be exiting, and hold what they worked on
        more = tuple(now - then for now, then in zip(used(), before, strict=True))
        if max(more) <= 0 or time.monotonic() > deadline:
            return more  # type: ignore[return-value]


def test_groups_leave_nothing_behind() -> None:
    for descriptors, mappings, threads in run_ranks(open_and_close, 2):
        assert descriptors <= 0 and mappings <= 0 and threads <= 0


def groups_of_all_kinds(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mine = [0, 1] if rank < 2 else [2, 3]
    local = dist.new_group(mine, use_local_synchronization=True)
    dist.all_reduce(one := full(rank, 2), group=local)
    assert one[0] == sum(mine)
    split = dist.split_group(None, [[0, 1], [2, 3]], group_desc="halves")
    dist.all_reduce(one := full(rank, 2), group=split)
    assert one[0] == sum(mine) and split.size() == 2 and split.group_desc == "halves"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    dist.all_reduce(one := full(rank, 2), group=mesh.get_group("rows"))
    assert one[0] == rank + (rank + 2) % 4
    assert (dist.split_group(split_ranks=[[1, 3]]) is None) == (rank in (0, 2))
    pair = dist.new_group([0, 2])
    if rank in (0, 2):
        dist.all_reduce(one := full(rank, 2), group=pair)
        assert torch.equal(one, full(2, 2)) and dist.get_group_rank(pair, 2) == 1
        dist.broadcast(one, 2, group=pair)
    dist.all_reduce(world := full(1, 2))
    assert world[0] == 4


def test_groups() -> None:
    run_ranks(groups_of_all_kinds, 4)


def stay_away(rank: int, absent: list[int], wait_all_ranks: bool) -> str:
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    sentence, store = "", dist.group.WORLD.get_group_store()
    if rank not in absent:
        with pytest.raises(GroupTimeout) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=wait_all_ranks)
        sentence = str(caught.value)
        store.set(f"failed/{rank}", "")
    store.wait([f"failed/{other}" for other in range(4) if other not in absent])
    dist.monitored_barrier(timeout=timedelta(seconds=60))  # the group still works
    dist.all_reduce(torch.ones(3))
    return sentence


def test_monitored_barrier_names_who_did_not_come() -> None:
    first = run_ranks(stay_away, 4, [1, 3], False)
    assert "Rank 1 failed to pass" in first[0] and "Rank 2 successfully reached" in first[2]
    every = run_ranks(stay_away, 4, [1, 3], True)
    assert "Ranks 1, 3 failed to pass" in every[0]


def set_a_timeout(rank: int) -> str:
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    sentence = ""
    if rank == 0:
        with pytest.raises(GroupTimeout) as caught:
            dist.all_reduce(torch.ones(3))
        assert isinstance(caught.value, RuntimeError)
        sentence = str(caught.value)
        dist.group.WORLD.get_group_store().set("late", "")
    dist.group.WORLD.get_group_store().wait(["late"])
    return sentence


def test_timeouts() -> None:
    assert "rank 1 did not arrive within 0.5 s" in run_ranks(set_a_timeout, 2)[0]


def abort_while_others_wait(rank: int) -> str:
    if rank == 0:
        dist.group.WORLD.abort()
        return ""
    with pytest.raises(AllfoldError) as caught:
        dist.all_reduce(torch.ones(3))
    return str(caught.value)


def test_abort_ends_the_calls_of_others() -> None:
    assert "rank 0" in run_ranks(abort_while_others_wait, 2)[1]


def other_device(rank: int) -> str:
    assert [device.type for device in dist.group.WORLD._device_types] == ["cpu", "meta"]
    dist.all_reduce(one := torch.ones(3))
    assert one[0] == 2
    assert dist.group.WORLD._get_backend(torch.device("meta")).name() == "gloo"
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(3, device="meta"))
    return str(caught.value)


def test_other_devices_have_their_own_backend() -> None:
    """There is no CUDA here; what matters is that a tensor of another device reaches the backend named for it."""
    for sentence in run_ranks(other_device, 2, backend="cpu:allfold,meta:gloo"):
        assert "allfold" not in sentence


def slow_to_connect(rank: int) -> bool:
    """Rank 0 has gloo's connections, and needs a moment more. Whether the others wait for it."""
    make, store = c10d.ProcessGroupGloo, dist.group.WORLD.get_group_store()

    def make_slowly(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        time.sleep(0.3)
        store.set("made", "")
        return made

    if rank == 0:
        c10d.ProcessGroupGloo = make_slowly
    dist.group.WORLD._get_backend(torch.device("meta"))
    return bool(store.check(["made"]))


def test_nobody_leaves_while_another_rank_connects_with_gloo() -> None:
    assert run_ranks(slow_to_connect, 2, backend="cpu:allfold,meta:gloo") == [True, True]


def leave_at_once(rank: int, store: str) -> tuple[int, int]:
    """Leave while rank 2 is still busy with connecting, rank 3 last: how much news of it nobody has taken, and how many
    of the threads that move news are left behind."""

    def connect_slowly(*args: Any) -> Any:
        time.sleep(0.3)
        return Fronts(*args)

    if rank == 2:
        parts.Fronts = connect_slowly
    dist.init_process_group("allfold", init_method=f"file://{store}", rank=rank, world_size=4)
    frames = dist.group.WORLD.communicator.engine.parts.world.frames
    if rank == 3:
        time.sleep(0.3)
    dist.destroy_process_group()
    return frames.pending(), sum(thread.is_alive() for thread in frames.threads())


def test_ranks_on_several_hosts_may_leave_at_once() -> None:
    assert run_ranks(leave_at_once, 4, init=False, hosts=3) == [(0, 0)] * 4


# Ways to start --------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, torch, torch.distributed as dist
assert [name for name in sys.modules if name.startswith("allfold")] == ["allfold_autoload"]  # importing torch costs no more

def work(how, port=0, rank=0):
    if how == "env":
        dist.init_process_group("allfold")
    elif "store" in how:
        store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
        dist.init_process_group("allfold", store=store, rank=rank, world_size=2)
    else:
        dist.init_process_group("allfold", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    sys.stdout.write(f"{how}: {dist.get_backend()} {x[0].item()}\\n")  # in one piece: the ranks have one terminal
    sys.stdout.flush()
    if "destroy" in how:
        dist.destroy_process_group()
"""

# Importing torch takes most of the time: it is done once, and every rank of every way is a fork of that process. The ranks
# of the first way find the backend by themselves; the process imports it for the others.
FORKS = """
ways = list(zip(sys.argv[1::2], map(int, sys.argv[2::2])))
for number, (how, port) in enumerate(ways):
    if number:
        import allfold.torch.bootstrap
    for rank in range(2):
        if not os.fork():
            work(how, port, rank)
            sys.exit()  # the interpreter ends as after any program
sys.exit(sum(os.wait()[1] != 0 for _ in range(2 * len(ways))))
"""


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_plain_import_of_torch_suffices() -> None:
    """Also without destroy_process_group, and with a call that nobody waited for, the interpreter ends well."""
    ways = ["tcp", "store and destroy"]
    words = [word for how in ways for word in (how, str(free_port()))]
    command = [sys.executable, "-c", PROGRAM + FORKS, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(2 * [f"{how}: allfold 3.0" for how in ways])


def be_torchrun(rank: int, store: str, *words: str) -> None:
    from torch.distributed.run import main

    del os.environ["ALLFOLD_HOSTID"]  # of ranks of tests
    main(words)


def test_torchrun(tmp_path: Path) -> None:
    """In a process that has torch; the ranks are interpreters that it starts."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + 'work("env")', encoding="utf-8")
    words = ("--standalone", "--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path / 'log'}", str(script))
    run_ranks(be_torchrun, 1, *words, init=False)
    assert [log.read_text() for log in (tmp_path / "log").rglob("stdout.log")] == ["env: allfold 3.0\n"] * 2


def test_an_allfold_that_cannot_be_imported_leaves_torch_alone() -> None:
    code = """
import sys
sys.modules["allfold"] = None
import torch, torch.distributed as dist
assert dist.is_backend_available("allfold")
try:
    dist.init_process_group("allfold", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("No module named 'allfold.torch'"), done.stderr


def test_registering_twice_does_no_harm() -> None:
    allfold.torch.register()
    assert dist.is_backend_available("allfold")
