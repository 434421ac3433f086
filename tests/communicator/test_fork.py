"""Forked children: of a rank, during its calls, inside an operation."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.launch.threads import run_threads


def in_child(work: Callable[[], object]) -> int:
    """Run a function in a forked child that exits normally; returns its exit status, negative for a signal."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except SystemExit as end:
            raise SystemExit(end.code) from None
        raise SystemExit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def busy(comm: Communicator) -> None:
    """Start every thread that a communicator can have."""
    comm.all_reduce(np.ones(3), async_op=True).wait()  # type: ignore[union-attr]
    neighbour = (comm.rank + 1) % comm.size
    pending = comm.irecv(np.empty(3), (comm.rank - 1) % comm.size)
    comm.isend(np.ones(3), neighbour).wait()
    pending.wait()


def forks_and_goes_on(comm: Communicator) -> list[int | float]:
    busy(comm)
    shared = comm.empty(1000)
    shared[:] = 1
    group = comm.group(list(range(comm.size)))
    assert group is not None
    found: list[int | float] = [
        in_child(lambda: None),
        in_child(lambda: sys.exit(7)),
        in_child(lambda: (gc.collect(), sys.exit(8))),
    ]
    comm.all_reduce(shared)  # a child that exited did not free its memory
    group.all_reduce(shared)
    return [*found, float(shared[5])]


def test_a_forked_child_that_only_exits_does_so() -> None:
    assert af.spawn(forks_and_goes_on, 2) == [[0, 7, 8, 4.0]] * 2


def forks_after_it_dropped_a_group(comm: Communicator) -> list[int]:
    group = comm.group(list(range(comm.size)))
    assert group is not None
    if comm.rank == 0:
        handle = group.all_reduce(np.ones(10), async_op=True)
        del group, handle
        gc.collect()  # the call waits for the other rank
        comm.barrier()
    else:
        comm.barrier()
        group.all_reduce(np.ones(10))
        del group
    comm.barrier()
    return [in_child(lambda: None) for _ in range(3)]


def test_a_rank_that_dropped_a_group_during_its_call_can_fork() -> None:
    assert af.spawn(forks_after_it_dropped_a_group, 2) == [[0, 0, 0]] * 2


def returns_in_the_child(comm: Communicator) -> str:
    if os.fork() == 0:
        return "the child's"  # returned through the same frames as the rank's own result
    os.wait()
    comm.barrier()
    return "the rank's"


def raises_in_the_child(comm: Communicator) -> str:
    if os.fork() == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        raise ValueError("of the child")
    status = os.waitstatus_to_exitcode(os.wait()[1])
    comm.barrier()
    return f"the child ended with {status}"


def test_a_forked_child_does_not_speak_for_its_rank() -> None:
    assert af.spawn(returns_in_the_child, 2) == ["the rank's"] * 2
    assert af.spawn(raises_in_the_child, 2) == ["the child ended with 1"] * 2


def uses_everything_in_the_child(comm: Communicator) -> list[str]:
    busy(comm)
    handle = comm.all_reduce(np.ones(10), async_op=True)
    assert handle is not None
    handle.wait()
    reading, writing = os.pipe()
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(np.ones(3)),
        lambda: comm.all_reduce(np.ones(100_000), async_op=True),
        lambda: comm.barrier(algorithm="direct"),
        lambda: comm.send(np.ones(3), 0),
        lambda: comm.recv(np.ones(3)),
        lambda: comm.isend(np.ones(3), 0),
        lambda: comm.irecv(np.ones(3)),
        lambda: comm.empty(3),
        lambda: comm.group([0, 1]),
        lambda: comm.flight(),
        lambda: comm.shrink(),
        lambda: comm.abort(),
    ]

    def child() -> None:
        for call in calls:
            try:
                call()
                os.write(writing, b"nothing\n")
            except af.UsageError as error:
                os.write(writing, f"{error}\n".encode())
        comm.close()  # does not affect the parent's
        handle.wait()  # done long ago

    status = in_child(child)
    os.close(writing)
    with open(reading) as said:
        lines = said.read().splitlines()
    comm.barrier()
    return [str(status), *lines]


def test_a_forked_child_that_uses_the_communicator_hears_why_not() -> None:
    for status, *lines in af.spawn(uses_everything_in_the_child, 2):
        assert status == "0" and len(lines) == 12
        assert all("was forked from rank process" in line for line in lines), lines


def forks_during_a_call(comm: Communicator) -> list[int]:
    """Like DataLoader workers: other threads are in calls, hold locks and wait when the process forks."""
    stop = threading.Event()
    group = comm.group(list(range(comm.size)))
    assert group is not None

    def until_told() -> None:
        more = np.ones(1)
        while more[0]:
            group.all_reduce(np.ones(20_000))
            handle = group.all_reduce(np.ones(10), async_op=True)
            assert handle is not None
            handle.wait()
            more[0] = not stop.is_set()
            group.all_reduce(more, op="min")

    thread = threading.Thread(target=until_told)
    thread.start()
    found = [in_child(lambda: gc.collect()) for _ in range(5)]
    stop.set()
    thread.join()
    comm.barrier()
    return found


def test_forks_while_calls_are_under_way() -> None:
    """Children do not wait for the parent's threads when they exit: that took five seconds each."""
    assert af.spawn(forks_during_a_call, 2, timeout=60) == [[0] * 5] * 2


def reads_in_the_child(comm: Communicator) -> tuple[int, float]:
    shared = comm.empty(5000)
    shared[:] = comm.rank + 1

    def child() -> None:
        assert float(shared.sum()) == 5000 * (comm.rank + 1)
        shared[0] = 99  # it is shared memory

    return in_child(child), float(shared[0])


def test_arrays_in_shared_memory_are_shared_with_children() -> None:
    assert af.spawn(reads_in_the_child, 2) == [(0, 99.0)] * 2


def test_the_memory_of_ranks_goes_with_them_though_a_child_lives_on() -> None:
    """A daemon that a rank forked has none of its arenas open or mapped."""
    script = """
import os, sys, time
import numpy as np, allfold as af
comm = af.init()
comm.all_reduce(np.ones(10))
child = os.fork()
if child == 0:
    os.setsid()
    os.close(0); os.close(1); os.close(2)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-m", "allfold", "run", "-n", "1", "--", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    child = int(done.stdout)
    try:
        files = [os.readlink(f"/proc/{child}/fd/{number}") for number in os.listdir(f"/proc/{child}/fd")]
        with open(f"/proc/{child}/maps") as maps:
            assert not any("memfd:allfold" in line for line in [*files, *maps])
    finally:
        os.kill(child, signal.SIGKILL)


def leaves_an_operation_in_a_child(comm: Communicator, background: bool) -> tuple[int, float]:
    children: list[int] = []

    def forks(left: Any, right: Any) -> Any:
        process = os.fork()
        if process:
            children.append(process)
        return left + right

    array = np.ones(3)
    try:
        handle = comm.all_reduce(array, op=af.op(forks, commutative=True), async_op=background)
        if handle is not None:
            handle.wait()
    except af.UsageError as error:
        os._exit(3 if "was forked from" in str(error) else 4)
    return os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]), float(array[0])


@pytest.mark.parametrize("background", [False, True])
def test_a_child_that_is_forked_in_an_operation_cannot_go_on_with_the_call(background: bool) -> None:
    assert af.spawn(leaves_an_operation_in_a_child, 2, args=(background,)) == [(1 if background else 3, 2.0)] * 2


def forks_while_programs_are_made(comm: Communicator) -> list[int]:
    def makes() -> None:
        for name in ("ring", "swing", "recursive_doubling", "tree"):
            comm.all_reduce(np.ones(5), algorithm=name)

    def calls() -> None:
        try:
            comm.barrier(timeout=1)
        except af.UsageError:
            os._exit(0)

    thread = threading.Thread(target=makes)
    thread.start()
    statuses = []
    while thread.is_alive():
        statuses.append(in_child(calls))
    thread.join()
    return statuses


def test_a_child_that_was_forked_while_programs_were_made_does_not_hang() -> None:
    assert all(
        status == 0 for statuses in af.spawn(forks_while_programs_are_made, 2, timeout=120) for status in statuses
    )


def makes_programs_of_its_own_in_the_child(comm: Communicator) -> int:
    """Fork while another thread makes programs and holds their lock; the child makes programs for ranks of its own."""
    making, forked = threading.Event(), threading.Event()

    def slow(ranks: int) -> Iterator[list[af.Move]]:
        making.set()
        forked.wait()
        yield []

    def child() -> None:
        signal.alarm(30)  # a child that waits for the lock ends with this
        assert run_threads(adds, 2) == [2.0, 2.0]

    def adds(comm: Communicator) -> float:
        array = np.ones(3)
        comm.all_reduce(array, algorithm="ring")
        return float(array[0])

    thread = threading.Thread(target=lambda: comm.all_reduce(np.ones(3), algorithm=slow))
    thread.start()
    making.wait()
    status = in_child(child)
    forked.set()
    thread.join()
    return status


def test_a_child_that_was_forked_while_programs_were_made_can_make_its_own() -> None:
    assert af.spawn(makes_programs_of_its_own_in_the_child, 1, timeout=60) == [0]
