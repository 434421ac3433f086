"""Bad manners: what a program does to its communicator gets a typed error or simply works; nothing hangs or crashes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator

# Fork -----------------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked child that ends as any process does; its exit status, negative for a signal."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except SystemExit as end:
            raise SystemExit(end.code) from None
        raise SystemExit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def busy(comm: Communicator) -> None:
    """Have every thread that a communicator can have."""
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
    comm.all_reduce(shared)  # its memory was not given back by a child that ended
    group.all_reduce(shared)
    return [*found, float(shared[5])]


def test_a_forked_child_that_only_exits_does_so() -> None:
    assert af.spawn(forks_and_goes_on, 2) == [[0, 7, 8, 4.0]] * 2


def returns_in_the_child(comm: Communicator) -> str:
    if os.fork() == 0:
        return "the child's"  # through the same frames as the rank's own result
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
        comm.close()  # leaves the parent's alone
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
        assert all("was forked off rank process" in line for line in lines), lines


def forks_during_a_call(comm: Communicator) -> list[int]:
    """What a DataLoader's workers do: other threads are in calls, hold locks and wait, when the process forks."""
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
    found = [in_child(lambda: gc.collect()) for _ in range(15)]
    stop.set()
    thread.join()
    comm.barrier()
    return found


def test_forks_while_calls_are_under_way() -> None:
    assert af.spawn(forks_during_a_call, 2, timeout=120) == [[0] * 15] * 2


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
    """A daemon that a rank forked off has none of its arenas open, nor mapped."""
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


# Calls inside calls ---------------------------------------------------------------------------------------------------


def calls_inside(comm: Communicator, what: str, background: bool) -> str:
    inside: dict[str, Callable[[], Any]] = {
        "barrier": lambda: comm.barrier(),
        "in the background": lambda: comm.all_reduce(np.ones(3), async_op=True),
        "close": lambda: comm.close(),
        "group": lambda: comm.group([0]),
        "trace": lambda: comm.trace().__enter__(),
        "another thread": lambda: in_thread(lambda: comm.barrier(timeout=0.5)),
    }

    def in_thread(work: Callable[[], Any]) -> None:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def plus(left: Any, right: Any) -> Any:
        inside[what]()
        return left + right

    try:
        handle = comm.all_reduce(
            np.ones(3), op=af.op(plus, commutative=True), async_op=background, timeout=20, algorithm="naive"
        )
        if handle is not None:
            handle.wait()
    except af.AllfoldError as error:
        return f"{type(error).__name__}: {error}"
    return "it went through"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", ["barrier", "in the background", "close", "group", "trace", "another thread"])
def test_a_call_inside_an_operation_is_refused(what: str, background: bool) -> None:
    for said in af.spawn(calls_inside, 2, args=(what, background), timeout=60):
        if what == "another thread":
            assert said.startswith(
                "CollectiveTimeout: barrier: another call of this rank was still under way after 0.5 s"
            )
        else:
            assert said.startswith("UsageError: ") and "would wait for itself" in said, said


def signalled(comm: Communicator) -> str:
    def handler(*_: object) -> None:
        comm.barrier()

    signal.signal(signal.SIGALRM, handler)
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    else:
        time.sleep(0.5)
    try:
        comm.barrier()
    except af.AllfoldError as error:
        return f"{type(error).__name__}: {error}"
    return "it went through"


def test_a_call_in_the_handler_of_a_signal_is_refused() -> None:
    first, second = af.spawn(signalled, 2, timeout=60)
    assert first.startswith("UsageError: barrier: this thread is in a call")
    assert second.startswith("RankLost: ") or second == "it went through"


def messages_inside(comm: Communicator) -> float:
    """Messages are another matter: they may go where a collective may not."""

    def plus(left: Any, right: Any) -> Any:
        comm.send(np.array([7.0]), comm.rank, tag=3)
        came = np.empty(1)
        comm.recv(came, comm.rank, tag=3)
        return left + right + 0 * came

    array = np.ones(3)
    comm.all_reduce(array, op=af.op(plus, commutative=True))
    return float(array[0])


def test_messages_inside_an_operation_go_through() -> None:
    assert af.spawn(messages_inside, 2) == [2.0, 2.0]


# Operands, arrays, ends -----------------------------------------------------------------------------------------------


def keeps_operands(comm: Communicator, shared: bool) -> list[float]:
    kept: list[Any] = []

    def plus(left: Any, right: Any) -> Any:
        kept.extend((left, right))
        return left + right

    array = comm.empty(100_000, np.float64) if shared else np.empty(100_000)
    array[:] = comm.rank + 1
    comm.all_reduce(array, op=af.op(plus, commutative=True))
    array[:] = 0
    comm.close()
    del array, comm
    gc.collect()
    assert all(not one.flags.writeable for one in kept)
    return sorted({float(value) for one in kept for value in one})


@pytest.mark.parametrize("shared", [False, True])
def test_an_operation_may_keep_its_operands(shared: bool) -> None:
    assert af.spawn(keeps_operands, 2, args=(shared,)) == [[1.0, 2.0], [1.0, 2.0]]


def gives_another_length(comm: Communicator) -> str:
    try:
        comm.all_reduce(np.ones(10), op=af.op(lambda left, right: (left + right)[:5], commutative=True))
    except af.AllfoldError as error:
        return str(error)
    return "nothing was said"


def test_an_operation_that_gives_something_else_is_told_so() -> None:
    assert any("must make one float64[10] out of two" in said for said in af.spawn(gives_another_length, 2))


def overlapping(comm: Communicator, elements: int, shared: bool, torch_too: bool) -> list[bool]:
    """In place: one array for both, an input that is a part of its output, an output that is a part of its input."""
    size, rank = comm.size, comm.rank

    def array(length: int) -> Any:
        made = comm.empty(length, np.float64) if shared else np.empty(length)
        made[:] = np.arange(length) + 1000.0 * rank
        if not torch_too:
            return made
        import torch

        return torch.from_numpy(made)

    def plain(collective: str, source: Any, length: int) -> Any:
        result = np.empty(length)
        getattr(comm, collective)(np.array(source), result)
        return result

    found = []
    own = slice(rank * elements, (rank + 1) * elements)
    for background in (False, True):

        def call(collective: str, *arguments: Any, background: bool = background, **rest: Any) -> None:
            handle = getattr(comm, collective)(*arguments, async_op=background, **rest)
            if handle is not None:
                handle.wait()

        one = array(size * elements)
        wanted = plain("all_to_all", one, len(one))
        call("all_to_all", one, one)
        found.append(bool((np.asarray(one) == wanted).all()))
        one = array(size * elements)
        wanted = plain("all_gather", one[own], len(one))
        call("all_gather", one[own], one)
        found.append(bool((np.asarray(one) == wanted).all()))
        for part in (slice(0, elements), own, slice(1, 1 + elements) if elements > 1 else own):
            one = array(size * elements)
            wanted = plain("reduce_scatter", one, elements)
            call("reduce_scatter", one, one[part])
            found.append(bool((np.asarray(one[part]) == wanted).all()))
        one = array(size * elements)
        kept = np.array(one[own])
        wanted = np.empty(size * elements) if rank == 1 else None
        comm.gather(kept, wanted, root=1)
        call("gather", one[own], one if rank == 1 else None, root=1)
        found.append(rank != 1 or bool((np.asarray(one) == wanted).all()))
        one = array(size * elements)
        wanted = np.empty(elements)
        comm.scatter(wanted, np.array(one) if rank == 0 else None)
        call("scatter", one[own], one if rank == 0 else None)
        found.append(bool((np.asarray(one[own]) == wanted).all()))
    return found


@pytest.mark.parametrize("torch_too", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("elements", [1, 3, 40_000])
def test_input_and_output_may_overlap(elements: int, shared: bool, torch_too: bool) -> None:
    assert af.spawn(overlapping, 3, args=(elements, shared, torch_too)) == [[True] * 14] * 3


PENDING = """
import sys, time
import numpy as np, allfold as af
comm = af.init()
if comm.rank == 0:
    comm.all_reduce(np.ones(1000), async_op=True)  # nobody waits for it
    comm.irecv(np.empty(3), 1)
    sys.exit(3)
try:
    time.sleep(1)
    comm.barrier(timeout=20)
except af.AllfoldError as error:
    print(type(error).__name__)
"""


def test_exit_with_work_pending_ends_at_once() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "allfold", "run", "-n", "2", "--survive", "--", sys.executable, "-c", PENDING],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "exited with status 3" in done.stderr  # as it said, and not by a signal
    assert "rank 0 ends while a call is under way that was not waited for" in done.stderr
    assert done.stdout.strip() in ("MismatchError", "RankLost")
    assert time.monotonic() - began < 30


def drops_everything(comm: Communicator) -> float:
    """Arrays and handles that nobody holds any more belong to the call until it is done."""
    total = 0.0
    for _ in range(20):
        shared = comm.empty(60_000)
        shared[:] = 1
        comm.all_reduce(shared, async_op=True)
        comm.all_reduce(np.ones(60_000), async_op=True)
        del shared
        gc.collect()
        junk = np.full(60_000, 7.0, np.float32)
        total += float(junk[0])
    last = np.ones(3)
    comm.all_reduce(last)
    return float(last[0])


def test_arrays_may_be_dropped_while_they_are_used() -> None:
    assert af.spawn(drops_everything, 2) == [2.0, 2.0]
