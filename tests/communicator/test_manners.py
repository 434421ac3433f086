"""Misuse: whatever a program does to its communicator gives a typed error or works; nothing hangs or crashes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold import _native
from allfold.communicator.communicator import Communicator

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
                "CollectiveTimeout: barrier: another call of this rank was still in progress after 0.5 s"
            )
        else:
            assert said.startswith("UsageError: ") and "would wait for itself" in said, said


def signalled(comm: Communicator) -> str:
    def handler(*_: object) -> None:
        comm.barrier()

    signal.signal(signal.SIGALRM, handler)
    comm.barrier()  # so that the next one does not begin with making its program
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1.0)
    try:
        comm.barrier()
    except af.AllfoldError as error:
        return f"{type(error).__name__}: {error}"
    return "it went through"


def test_a_call_in_the_handler_of_a_signal_is_refused() -> None:
    first, second = af.spawn(signalled, 2, timeout=60)
    assert first.startswith("UsageError: barrier: this thread is already in a call")
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
    assert any("must return one float64[10] for two" in said for said in af.spawn(gives_another_length, 2))


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
        comm.scatter(array=np.array(one) if rank == 0 else None, output=wanted)
        call("scatter", one[own], one if rank == 0 else None)
        found.append(bool((np.asarray(one[own]) == wanted).all()))
    return found


OVERLAPS = list(product((1, 3, 40_000), (False, True), (False, True)))  # elements, shared memory, torch


def overlapping_in_every_way(comm: Communicator) -> dict[tuple[int, bool, bool], list[bool]]:
    return {case: overlapping(comm, *case) for case in OVERLAPS}


def test_input_and_output_may_overlap() -> None:
    assert af.spawn(overlapping_in_every_way, 3) == [{case: [True] * 14 for case in OVERLAPS}] * 3


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


def ends_without_closing(comm: Communicator) -> bool:
    comm.all_reduce(np.ones(3), async_op=True).wait()  # type: ignore[union-attr]
    comm.engine.native.end()  # as when the interpreter ends
    return _native.await_threads(30.0)


def test_nobody_waits_for_a_communicator_that_is_not_closed_at_exit() -> None:
    assert af.spawn(ends_without_closing, 2) == [True, True]


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


def drops_the_communicator(comm: Communicator) -> float:
    """The background call of a dropped communicator goes on, and `del` does not wait for it."""
    group = comm.group([0, 1])
    assert group is not None
    array = np.ones(3)
    if comm.rank == 0:
        group.all_reduce(array, async_op=True, timeout=60)
        del group
        comm.barrier()  # only now does the other rank make the call
    else:
        comm.barrier()
        group.all_reduce(array, timeout=60)
    while array[0] == 1:
        time.sleep(0.001)
    return float(array[0])


def test_a_dropped_communicator_finishes_its_background_calls() -> None:
    assert af.spawn(drops_the_communicator, 2, timeout=30) == [2.0, 2.0]


def drops_and_keeps_handles(comm: Communicator) -> str:
    group, other = comm.group([0, 1]), comm.group([0, 1])
    assert group is not None and other is not None
    array = np.ones(3)
    handle = group.all_reduce(array, async_op=True)
    del group
    assert handle is not None
    handle.wait()  # it keeps the communicator
    assert (array == 2).all()
    if comm.rank == 0:
        other.isend(np.ones(1 << 20), 1)  # longer than a ring, so that it is still under way
        del other
        comm.barrier()
        comm.barrier()  # a rank that has ended would be named as lost
        return ""
    comm.barrier()
    with pytest.raises(af.CollectiveTimeout) as caught:
        other.recv(np.ones(1 << 20), 0, timeout=0.1)
    comm.barrier()
    return str(caught.value)


def test_handles_keep_a_dropped_communicator_and_messages_without_one_are_given_up() -> None:
    _, said = af.spawn(drops_and_keeps_handles, 2, timeout=30)
    assert said.startswith("recv: only ") and "arrived from rank 0" in said


def job_has_the_last_reference(comm: Communicator) -> bool:
    group = comm.group([0, 1])
    assert group is not None
    may_end = threading.Event()

    def plus(left: Any, right: Any, group: Communicator | None = group) -> Any:
        may_end.wait()
        return left + right

    ended = weakref.ref(group)
    handle: Any = group.all_reduce(np.ones(3), af.op(plus, commutative=True), async_op=True)
    del group, plus, handle
    gc.collect()
    held = ended() is not None
    may_end.set()
    while ended() is not None:
        time.sleep(0.001)
    comm.barrier()
    return held


def test_a_background_call_may_hold_the_last_reference_to_its_communicator() -> None:
    assert af.spawn(job_has_the_last_reference, 2, timeout=30) == [True, True]


def keeps_only_the_entry(comm: Communicator) -> list[float]:
    group = comm.group([0, 1])
    assert group is not None
    with pytest.warns(DeprecationWarning, match=r"use all_reduce\(array, timeout=…\)"):
        add = group.summing()
    del group
    others = [comm.group([0, 1]) for _ in range(3)]
    sums = []
    for bytes in (8, 1 << 16):  # another size may need another program
        array = np.full(bytes // 8, comm.rank + 1.0)
        add(array, 10.0)
        sums.append(float(array[0]))
    for other in others:
        assert other is not None
        other.barrier(timeout=10)
    return sums


def test_an_entry_keeps_its_communicator() -> None:
    assert af.spawn(keeps_only_the_entry, 2, timeout=30) == [[3.0, 3.0]] * 2


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


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("what", ["calls", "recv"])
def test_a_process_may_end_while_a_daemon_thread_is_in_a_call(what: str, times: int, tmp_path: Any) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    command = [sys.executable, "-m", "allfold", "run", "-n", "2", str(script), what]
    for _ in range(times):
        came = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert came.returncode == 0, came.stderr


ENDED = """
import atexit, sys, threading, time

begin = threading.Event()
inside = threading.Semaphore(0)

@atexit.register  # before allfold registers its own function, and so called after it
def late():
    begin.set()
    assert inside.acquire(timeout=30)

import numpy as np
import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.engines.shared_memory import engine

def forever(*_, **__):
    inside.release()
    while True:
        time.sleep(0.01)

def waits(comm):
    begin.wait()
    inside.release()
    comm.recv(np.ones(3), 1, timeout=0.1)

class Endless:
    __dlpack__ = __dlpack_device__ = __repr__ = __index__ = forever

class Holds:  # destroyed once the interpreter has begun to end: time for threads to ask for its lock
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

op = af.op(forever, commutative=True)
calls = [  # and the number of ranks that make them
    (2, lambda comm: comm.all_reduce(np.ones(3), op=op, algorithm="naive")),
    (2, lambda comm: comm.all_reduce(np.ones(3), op=op, algorithm="naive", async_op=True)),
    (1, lambda comm: comm.all_reduce(np.ones(3), algorithm=forever)),
    (1, lambda comm: comm.all_reduce(Endless())),
    (1, lambda comm: comm.broadcast(np.ones(3), root=Endless())),
    (1, lambda comm: comm.send(np.ones(3), 0, tag=Endless())),
    (1, lambda comm: comm.barrier(timeout=0.01)),
    (1, waits),
]
engine.SharedMemory.failed = forever
engine._SECONDS_TO_COME_OUT = 0.1
holds, comms = Holds(), []
for ranks, call in calls:
    engines = engine.in_threads(2, 60.0)
    comms += map(Communicator, engines)
    if call is waits:
        engine._all.difference_update(engines)  # as if they were made later
    for comm in comms[-2 : -2 + ranks or None]:
        threading.Thread(target=call, args=(comm,), daemon=True).start()
    assert call is waits or inside.acquire(timeout=30)
sys.exit(3)
"""


def test_threads_that_are_in_calls_when_the_interpreter_ends_do_not_end_the_process() -> None:
    """Before Python 3.14, the interpreter unwinds threads that ask for its lock too late."""
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3, done.stderr


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
            "rank 0 called it with float64[3] custom operation mine0, rank 1 with float64[3] custom operation mine1"
            in message
        )
    for message in af.spawn(different_operations, 2, args=("code",)):
        assert message.count("custom operation <lambda> (operation ") == 2


def commutative_on_one_rank(comm: Communicator) -> str:
    op = af.op(lambda a, b: a * b, commutative=comm.rank == 0)
    with pytest.raises(af.MismatchError) as caught:
        comm.all_reduce(np.full(3, 2.0), op=op, algorithm="direct")  # by name: else they would differ in that
    return str(caught.value)


def test_an_operation_that_is_commutative_on_some_ranks_only_is_told_apart() -> None:
    for message in af.spawn(commutative_on_one_rank, 2):
        assert message.count("custom operation <lambda> by direct (operation ") == 2


def waits_behind(comm: Communicator, background: bool) -> str:
    """Two calls time out in the same moment: one that waits for ranks, and one that waits for its turn.

    The first asks the three ranks where they are, each for 0.3 s."""
    comm.barrier()
    if comm.rank > 0:
        ctypes.PyDLL(None).sleep(3)  # it keeps the interpreter's lock, and does not say where it is
        return ""

    def first() -> None:
        with contextlib.suppress(af.AllfoldError):
            comm.all_reduce(np.ones(3), timeout=1.0)

    if background:
        comm.all_reduce(np.ones(3), timeout=1.0, async_op=True)
    else:
        threading.Thread(target=first).start()
        time.sleep(0.01)
    with pytest.raises(af.AllfoldError) as caught:
        comm.barrier(timeout=1.0)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("background", [True, False])
def test_who_waits_for_its_turn_hears_who_is_late(background: bool) -> None:
    said, *_ = af.spawn(waits_behind, 4, args=(background,), timeout=60, survive=True)
    assert "ranks 1, 2 and 3 did not arrive" in said and "still in progress" not in said, said


def waits_behind_a_patient_call(comm: Communicator, done: str) -> str:
    """The call before it has a longer timeout: who waits for its turn gives up first."""
    comm.barrier()
    if comm.rank > 0:
        while not Path(done).exists():
            time.sleep(0.01)
        return ""
    handle = comm.all_reduce(np.ones(3), timeout=60, async_op=True)
    with pytest.raises(af.CollectiveTimeout) as caught:
        comm.barrier(timeout=1)
    comm.abort()
    with pytest.raises(af.RankLost):
        handle.wait()
    Path(done).touch()
    return str(caught.value)


def test_who_gives_up_its_turn_says_who_keeps_it_waiting(tmp_path: Path) -> None:
    said, *_ = af.spawn(waits_behind_a_patient_call, 3, args=(str(tmp_path / "done"),), timeout=60)
    assert said == (
        "barrier: another call of this rank was still in progress after 1 s, because ranks 1 and 2 did not arrive; "
        "calls on one communicator take turns (the world)"
    )
