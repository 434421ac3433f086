"""Misuse: whatever a program does to its communicator gives a typed error or works; nothing hangs or crashes."""

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
from allfold.registry import Algorithm

# Fork -----------------------------------------------------------------------------------------------------------------


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
        assert all("was forked off rank process" in line for line in lines), lines


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
    comm.barrier()  # so that the next one does not begin with making its program
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
    """Messages are different: they are allowed where a collective is not."""

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
    assert "exited with status 3" in done.stderr  # with its own status, and not by a signal
    assert "rank 0 ends while a call of the world is under way that nobody waits for" in done.stderr
    assert done.stdout.strip() in ("MismatchError", "RankLost")
    assert time.monotonic() - began < 30


def drops_everything(comm: Communicator) -> float:
    """Arrays and handles without references stay alive until the call is done."""
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


# What strangers tried -------------------------------------------------------------------------------------------------


def waits_twice(comm: Communicator) -> list[str]:
    def fails(left: Any, right: Any) -> Any:
        raise KeyError("mine")

    handle = comm.all_reduce(np.ones(3), op=af.op(fails, commutative=True), async_op=True)
    said: list[str] = []

    def waits() -> None:
        try:
            handle.wait()  # type: ignore[union-attr]
        except (KeyError, af.RankLost) as error:
            said.append(type(error).__name__)

    threads = [threading.Thread(target=waits) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waits()
    return said


def test_everybody_who_waits_for_a_call_hears_how_it_ended() -> None:
    for said in af.spawn(waits_twice, 2):
        assert len(said) == 4 and len(set(said)) == 1


DAEMON = """
import sys, threading, time
import numpy as np
import allfold as af
comm = af.init()
comm.barrier()
def forever():
    while True:
        comm.all_reduce(np.ones(100)) if sys.argv[1] == "calls" else comm.recv(np.ones(3), source=1 - comm.rank)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("what", ["calls", "recv"])
def test_a_process_may_end_while_a_daemon_thread_is_in_a_call(what: str, tmp_path: Any) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    command = [sys.executable, "-m", "allfold", "run", "-n", "2", str(script), what]
    for _ in range(3):
        came = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert came.returncode == 0, came.stderr


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
        os._exit(3 if "was forked off" in str(error) else 4)
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


def different_operations(comm: Communicator, which: str) -> str:
    if which == "code":
        op = af.op((lambda a, b: a * b) if comm.rank else (lambda a, b: a + b), commutative=True)
    else:
        op = af.op(np.multiply, commutative=True, name=f"mine{comm.rank}")
    with pytest.raises(af.MismatchError) as caught:
        comm.all_reduce(np.full(3, 2.0), op=op)
    return str(caught.value)


def test_operations_that_differ_are_told_apart() -> None:
    for message in af.spawn(different_operations, 2, args=("name",)):
        assert (
            "rank 0 came with float64[3] custom operation mine0, rank 1 with float64[3] custom operation mine1"
            in message
        )
    for message in af.spawn(different_operations, 2, args=("code",)):
        assert message.count("custom operation <lambda> (operation ") == 2


def given_wrong_arguments(comm: Communicator) -> list[str]:
    half, x = np.ones(4, np.float16), np.ones(4)
    tries: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(half, dtype="bfloat16"),
        lambda: comm.all_reduce(x, dtype="int64"),
        lambda: comm.all_reduce(x, dtype=np.float64),  # type: ignore[arg-type]
        lambda: comm.send(x, 0, dtype=3),  # type: ignore[arg-type]
        lambda: comm.send(None, 0),
        lambda: comm.all_reduce(x, op=None),  # type: ignore[arg-type]
        lambda: comm.all_reduce(x, timeout=10**400),
        lambda: comm.broadcast(x, root=10**30),
        lambda: comm.broadcast(x, root=7),
        lambda: comm.group([0, 1.5]),  # type: ignore[list-item]
        lambda: comm.group("01"),  # type: ignore[arg-type]
        lambda: comm.group([True]),
        lambda: comm.empty(1.5),  # type: ignore[arg-type]
        lambda: comm.empty((2**32, 2**32)),
        lambda: comm.empty((2**63, 0)),
        lambda: comm.empty([[2]]),  # type: ignore[list-item]
        lambda: comm.scatter(x, x if comm.rank else None),
        lambda: comm.all_reduce(np.lib.stride_tricks.as_strided(x, (4, 3), (8, 0))),
        lambda: comm.all_reduce(x, algorithm=dict),  # type: ignore[arg-type]
    ]
    said = []
    for one in tries:
        with pytest.raises((af.UsageError, af.SharedMemoryError)) as caught:
            one()
        said.append(str(caught.value))
    handle = comm.all_reduce(x, async_op=True)
    for wrong in (-1, float("nan"), "x", 10**400):
        with pytest.raises(af.UsageError):
            handle.wait(wrong)  # type: ignore[union-attr,arg-type]
    handle.wait()  # type: ignore[union-attr]
    comm.broadcast(x, root=np.int64(1))  # nothing was lost
    return said


def test_wrong_arguments_get_a_sentence() -> None:
    said = af.spawn(given_wrong_arguments, np.int64(2))[0]  # type: ignore[arg-type]
    for message, part in zip(
        said,
        [
            "the array is float16, not bfloat16",
            "the array is float64, not int64",
            "dtype is the name of a type",
            "dtype is the name of a type, not 3",
            "got NoneType",
            "an operation is needed, not None",
            "the timeout is more seconds than",
            "root must be a rank, a whole number, not 1000000000000000000000000000000",
            "root must be a rank from 0 to 1, not 7",
            "expected different ranks from 0 to 1, not [0, 1.5]",
            "expected different ranks from 0 to 1, not '01'",
            "not [True]",
            "not 1.5",
            "more than a process has addresses for",
            "more than a process has addresses for",
            "not [[2]]",
            "the root gives an array, and no other rank does",
            "several elements in one place",
            "dict cannot be called for all_reduce",
        ],
        strict=True,
    ):
        assert part in message


def gives_up_early(comm: Communicator) -> str:
    if comm.rank == 1:
        with pytest.raises(af.CollectiveTimeout):
            comm.all_reduce(np.ones(100_000), timeout=0.05)
        time.sleep(3)  # alive, but finished with the communicator
        return ""
    time.sleep(1)
    with pytest.raises(af.CollectiveTimeout) as caught:
        comm.all_reduce(np.ones(100_000), timeout=20)
    return str(caught.value)


def test_who_comes_after_another_gave_up_hears_just_that() -> None:
    message = af.spawn(gives_up_early, 2)[0]
    assert message.startswith("all_reduce: rank 1 gave up: it had waited for too long")


def test_an_algorithm_that_never_ends_is_stopped() -> None:
    def endless(ranks: int) -> Any:
        while True:
            yield []

    with pytest.raises(af.ScheduleError, match="does it come to an end"):
        af.schedule("all_reduce", endless, 2)


@pytest.mark.parametrize("chunks", ["2", lambda ranks: "x", True, lambda: 1, 1.5])
def test_chunks_that_are_no_number_are_refused(chunks: Any) -> None:
    with pytest.raises(af.UsageError, match="chunks"):
        af.schedule("all_reduce", Algorithm("all_reduce", "mine", lambda ranks: [], chunks), 2)


def shrinks_often(comm: Communicator) -> str:
    for _ in range(3):
        comm = comm.shrink()
    return repr(comm)


def test_the_label_does_not_grow_with_every_shrink() -> None:
    assert af.spawn(shrinks_often, 2)[0] == "<Communicator rank 0 of 2, what is left of the world: ranks 0 and 1>"
