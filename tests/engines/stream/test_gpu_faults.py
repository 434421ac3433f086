"""Calls on GPU arrays when something goes wrong: on the NumPy device, so that no GPU is needed."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy_device
import pytest
from numpy_device import DeviceArray, NumpyDevice, device_of, ways_of
from test_staging import along_a_chain, to_the_first

import allfold as af
from allfold import Move, copy, reduce
from allfold.communicator.communicator import Communicator
from allfold.engines import choose
from allfold.engines.engine import Call
from allfold.engines.shared_memory.engine import SharedMemory
from allfold.engines.stream import kernels, retire, runner, ways
from allfold.engines.stream.engine import Stream


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def said_by(action: Callable[[], object]) -> str:
    """The error that it raises, or nothing."""
    try:
        action()
    except af.AllfoldError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def without_group(text: str) -> str:
    """An error without the name of the group, which lists its members."""
    return re.sub(r"(group \d+ of )+the world(: ranks? \d+((, | and )\d+)*)*", "", text)


def gated(device: NumpyDevice, stream: int) -> threading.Event:
    """The stream goes on when the event is set."""
    gate = threading.Event()
    device.later(stream, lambda: gate.wait() and None)
    return gate


def shared_array(comm: Communicator, length: int, stream: int) -> DeviceArray:
    """In memory that all ranks reach."""
    made = ways_of(comm)
    found = made.empty(8 * length)
    assert found is not None
    return DeviceArray(np.frombuffer((ctypes.c_char * (8 * length)).from_address(found[0])), stream)


# Ranks that differ ---------------------------------------------------------------------------------------------------


def first(left: Any, right: Any) -> Any:
    return left + right * 0


def second(left: Any, right: Any) -> Any:
    return right + left * 0


def differs(comm: Communicator, what: str) -> str:
    device, is_last = device_of("on the device"), comm.rank == comm.size - 1
    array = device.array(np.ones(1200), device.new_stream())
    comm.all_reduce(array)
    comm.barrier()  # the next calls differ, which a rank must not hear of in its first one
    how: dict[str, Any] = {}
    if what == "algorithm":
        how["algorithm"] = "direct" if is_last else "naive"
    elif what == "schedule":
        function = along_a_chain if is_last else to_the_first
        function.__name__ = "mine"
        how["algorithm"] = function
    elif what == "operation":
        function = second if is_last else first
        how["op"] = af.op(function, commutative=False, name="mine")
    elif what == "way":
        array = device.array(np.ones(1000), array.stream)
        ways.STAGED_UP_TO = 1 << 60 if is_last else -1
    if what == "root":
        return said_by(lambda: comm.reduce(array, int(is_last)))
    return said_by(lambda: comm.all_reduce(array, **how))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("algorithm", ("by naive", "by direct")),
        ("schedule", ("by mine", "schedule")),
        ("operation", ("custom operation mine", "operation ")),
        ("way", ("on the GPU", "through main memory")),
        ("root", ("root 0", "root 1")),
    ],
)
def test_ranks_that_differ_are_named_on_every_rank(ranks: int, what: str, words: tuple[str, str]) -> None:
    for said in af.spawn(differs, ranks, args=(what,), timeout=60):
        assert said.startswith("MismatchError: ") and all(one in said for one in words)
        assert "rank 0" in said or "ranks 0" in said


# Streams that were let go --------------------------------------------------------------------------------------------


def late(comm: Communicator, kind: str, has_called: bool) -> tuple[str, bool]:
    """Rank 0 gives up; rank 1 then makes the call, or has made it, and its stream then comes to it."""
    device, algorithm = device_of("on the device"), None if kind == "reached" else kind
    stream = device.new_stream()
    array = device.array(np.zeros(1000), stream)
    comm.all_reduce(array, algorithm=algorithm)
    if kind == "reached":
        array = shared_array(comm, 1000, stream)
    array.memory[:] = comm.rank + 1
    comm.barrier()
    if comm.rank == 0:
        said = said_by(lambda: comm.all_reduce(array, algorithm=algorithm, timeout=0.3))
        array.memory[:] = 100  # it belongs to the user again
        comm.barrier()
        comm.barrier()
        return said, True
    gate = gated(device, stream)
    handle = comm.all_reduce(array, algorithm=algorithm, async_op=True) if has_called else None
    comm.barrier()
    untouched = bool((array.memory == 2).all())
    gate.set()
    said = said_by(handle.wait if handle is not None else lambda: comm.all_reduce(array, algorithm=algorithm))
    comm.barrier()
    return said, untouched


@pytest.mark.parametrize("has_called", [False, True])
@pytest.mark.parametrize("kind", ["direct", "naive", "tree", "reached"])
def test_nobody_finishes_on_a_rank_that_timed_out(kind: str, has_called: bool) -> None:
    for said, untouched in af.spawn(late, 2, args=(kind, has_called), timeout=60):
        assert said.startswith("CollectiveTimeout: ") and untouched


def orphaned(comm: Communicator, algorithm: str, has_called: bool, folder: str) -> str:
    """The host of rank 2 has made the call, its stream has not come to it, and it is killed. Rank 0 gives up first."""
    device = device_of("on the device")
    stream = device.new_stream()
    array = device.array(np.zeros(1200), stream)
    comm.all_reduce(array, algorithm=algorithm)
    array.memory[:] = comm.rank + 1
    if comm.rank == 2:
        gated(device, stream)
        comm.all_reduce(array, algorithm=algorithm, async_op=True)
        wait_until(Path(folder, "called").exists)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        handle = comm.all_reduce(array, algorithm=algorithm, async_op=True)
        assert handle is not None
        if not has_called:
            Path(folder, "called").touch()
        said = said_by(handle.wait)
        Path(folder, "gave up").touch()
        return said
    gate = gated(device, stream)
    handle = comm.all_reduce(array, algorithm=algorithm, async_op=True) if has_called else None
    if has_called:
        Path(folder, "called").touch()
    wait_until(Path(folder, "gave up").exists)
    gate.set()
    return said_by(handle.wait if handle is not None else lambda: comm.all_reduce(array, algorithm=algorithm))


@pytest.mark.parametrize("has_called", [False, True])
@pytest.mark.parametrize("algorithm", ["tree", "driver"])
def test_nobody_finishes_on_a_rank_that_gave_up_for_a_dead_one(
    algorithm: str, has_called: bool, tmp_path: Path
) -> None:
    said = af.spawn(orphaned, 3, args=(algorithm, has_called, str(tmp_path)), survive=True, timeout=60)
    assert said[2] is None
    for one in said[:2]:
        assert one.startswith("RankLost: ") and "rank 2" in one


def over_before(comm: Communicator) -> list[str]:
    """A call that is over on all ranks stays right, whatever comes later."""
    device, group = device_of("on the device"), comm.group(range(comm.size))
    assert group is not None
    array = device.array(np.ones(100), device.new_stream())
    group.all_reduce(array)
    first = group.all_reduce(array, async_op=True)
    assert first is not None
    device.synchronize(array.stream)
    made = ways_of(group)
    wait_until(lambda: not made.runner._launched)  # it was seen to be over on all ranks
    comm.barrier()
    if comm.rank == 0:
        group.abort()
    comm.barrier()
    return [said_by(first.wait), said_by(lambda: group.all_reduce(array)), str(array.memory[0])]


def test_a_call_that_was_over_before_stays_right() -> None:
    for before, after, value in af.spawn(over_before, 2, timeout=60):
        assert before == "" and after.startswith("RankLost: ") and value == "4.0"


def interrupted(comm: Communicator) -> str:
    device = device_of("on the device")
    array = device.array(np.ones(100), device.new_stream())
    comm.all_reduce(array)
    comm.barrier()
    if comm.rank == 0:
        made = ways_of(comm)
        calls, over = made.runner._ledger, threading.Event()

        def keep_interrupting() -> None:
            wait_until(lambda: calls.made == 2)
            while not over.wait(0.01):
                os.kill(os.getpid(), signal.SIGINT)

        def interrupt(_: int, frame: types.FrameType | None) -> None:
            while frame is not None:  # not inside the driver: a real one does not run Python code
                if frame.f_code.co_filename == numpy_device.__file__:
                    return
                frame = frame.f_back
            over.set()
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        threading.Thread(target=keep_interrupting).start()
        try:
            comm.all_reduce(array)
        except KeyboardInterrupt:
            return said_by(lambda: comm.all_reduce(array))
        finally:
            comm.barrier()
        return "not interrupted"
    comm.barrier()
    return said_by(lambda: comm.all_reduce(array))


def test_an_interrupted_call_ends_the_call_of_all_ranks() -> None:
    for said in af.spawn(interrupted, 2, timeout=60):
        assert said.startswith("RankLost: ")


def interrupted_as_the_wait_begins(comm: Communicator) -> str:
    """Rank 0 is interrupted when its call is in the stream, where the next function begins. Then rank 1 makes the call."""
    device = device_of("on the device")
    array = device.array(np.ones(100), device.new_stream())
    comm.all_reduce(array)
    comm.barrier()
    if comm.rank:
        comm.barrier()
        return said_by(lambda: comm.all_reduce(array))

    is_launched = False

    def interrupt(frame: types.FrameType, event: str, _: object) -> None:
        nonlocal is_launched
        if event == "call" and is_launched:
            sys.setprofile(None)
            raise KeyboardInterrupt
        is_launched = is_launched or (event == "return" and frame.f_code is Stream._put.__code__)

    sys.setprofile(interrupt)
    try:
        comm.all_reduce(array)
    except KeyboardInterrupt:
        comm.barrier()
        return said_by(lambda: comm.all_reduce(array))
    return "not interrupted"


def test_an_interrupt_between_the_launch_and_the_wait_ends_the_call_of_all_ranks() -> None:
    for said in af.spawn(interrupted_as_the_wait_begins, 2, timeout=60):
        assert said.startswith("RankLost: ")


def interrupted_at_first(comm: Communicator, module: str, name: str) -> str:
    """Rank 0 is interrupted while all ranks prepare their first call on the device, before it calls `name`."""
    device = device_of("on the device")
    array = device.array(np.ones(100), device.new_stream())
    if comm.rank:
        return said_by(lambda: comm.all_reduce(array))
    called = getattr(sys.modules[module], name)

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return called(*arguments)

    setattr(sys.modules[module], name, interrupted)
    try:
        comm.all_reduce(array)
    except KeyboardInterrupt:
        return said_by(lambda: comm.all_reduce(array))
    return "not interrupted"


@pytest.mark.parametrize(("module", "name"), [(choose.__name__, "over"), (ways.__name__, "_takes_turns")])
def test_an_interrupt_during_the_first_call_keeps_nobody_waiting(module: str, name: str) -> None:
    for said in af.spawn(interrupted_at_first, 2, args=(module, name), timeout=60):
        assert said.startswith("RankLost: ")


def fails_while_all_prepare(comm: Communicator) -> list[str]:
    """Rank 0 fails before and behind every step in which all ranks prepare their first call on the device."""
    device = device_of("on the device")
    array = device.array(np.ones(100), device.new_stream())
    steps, said = 5, list[str]()
    run = SharedMemory.run
    for fault, step, is_behind in product(("abort", "interrupt"), range(steps), (False, True)):
        group = comm.group(range(comm.size))
        made = count()

        # Raised in this thread: kill() may have another one handle it, and the call goes on for a while.
        fail = group.abort if fault == "abort" else partial(signal.raise_signal, signal.SIGINT)

        def failing(*call: Any, fails: tuple[Callable[[], None], int, bool], made: Iterator[int]) -> Any:
            fail, step, is_behind = fails
            number = next(made)
            if number == step and not is_behind:
                fail()
            ticket = run(*call)
            if number == step and is_behind:
                fail()
            return ticket

        if comm.rank == 0:
            SharedMemory.run = partialmethod(failing, fails=(fail, step, is_behind), made=made)  # type: ignore
        try:
            said.append(said_by(partial(group.all_reduce, array, timeout=20.0)))
        except KeyboardInterrupt:
            said.append("interrupted")
        SharedMemory.run = run  # type: ignore[method-assign]
        comm.barrier()
    assert comm.rank or next(made) == steps
    return said


def test_a_rank_that_fails_while_all_prepare_the_first_call_is_named_at_once() -> None:
    failed, *others = af.spawn(fails_while_all_prepare, 3, timeout=60)
    assert all(said.startswith("RankLost: ") for said in failed[:10])
    assert failed[10:] == ["interrupted"] * 10
    for said in zip(*others, strict=True):
        assert all(one.startswith("RankLost: ") and "rank 0" in without_group(one) for one in said), said


def staged_and_not(comm: Communicator) -> tuple[Any, Any]:
    """Two arrays of one stream, each used in a call: calls on the short one are staged, on the long one they are not."""
    device = device_of("on the device")
    ways.STAGED_UP_TO = 10_000
    stream = device.new_stream()
    short, long = device.array(np.ones(100), stream), device.array(np.ones(100_000), stream)
    comm.all_reduce(short)
    comm.all_reduce(long)
    return short, long


def behind_a_staged_call(comm: Communicator) -> list[str]:
    """A staged call, and one on the device behind it, that the other rank never makes."""
    short, long = staged_and_not(comm)
    if comm.rank == 0:
        handles = [comm.all_reduce(array, async_op=True, timeout=0.3) for array in (short, long, short)]
        said = [said_by(lambda one=handle: one.wait(10.0)) for handle in handles]  # type: ignore[misc]
    comm.barrier()
    return said if comm.rank == 0 else [said_by(lambda: comm.all_reduce(short))]


def test_a_staged_call_that_fails_ends_the_calls_behind_it() -> None:
    first, second = af.spawn(behind_a_staged_call, 2, timeout=60)
    assert len(set(first)) == 1 and first[0].startswith("CollectiveTimeout: all_reduce: rank 1 did not arrive")
    assert second[0].startswith("CollectiveTimeout: ")


def staged_behind(comm: Communicator) -> str:
    """A staged call behind one on the device that fails: it must not wait for its own timeout."""
    short, long = staged_and_not(comm)
    said = ""
    if comm.rank == 0:
        comm.all_reduce(long, async_op=True, timeout=0.3)
        handle = comm.all_reduce(short, async_op=True)
        assert handle is not None
        said = said_by(lambda: handle.wait(20.0))
    comm.barrier()
    return said


def test_a_call_that_fails_ends_the_staged_calls_behind_it() -> None:
    said, _ = af.spawn(staged_behind, 2, timeout=60)
    assert "did not arrive in time" in said


# What is kept, and what is given back --------------------------------------------------------------------------------


def drops_at_once(comm: Communicator) -> tuple[bool, bool]:
    """Array and handle are dropped while the call is in the stream."""
    device = device_of("on the device")
    stream = device.new_stream()
    array = device.array(np.ones(100), stream)
    comm.all_reduce(array)
    gate, alive = gated(device, stream), weakref.ref(array)
    comm.all_reduce(array, async_op=True)
    del array
    gc.collect()
    kept = alive() is not None
    gate.set()
    device.synchronize(stream)
    comm.all_reduce(device.array(np.ones(100), stream))
    return kept, alive() is None


def test_arrays_belong_to_the_call_until_it_is_over() -> None:
    assert af.spawn(drops_at_once, 2, timeout=60) == [(True, True)] * 2


def drops_groups(comm: Communicator) -> tuple[int, int]:
    device = device_of("on the device")
    stream = device.new_stream()
    for _ in range(4):
        group = comm.group(range(comm.size))
        assert group is not None
        group.all_reduce(device.array(np.ones(1000), stream))
        del group
        gc.collect()
    wait_until(lambda: not device.memory and not device.registered)
    comm.barrier()
    return len(device.memory), len(device.registered)


def test_groups_that_are_dropped_leave_nothing() -> None:
    assert af.spawn(drops_groups, 2, timeout=60) == [(0, 0)] * 2


def own_generators(comm: Communicator, way: str) -> tuple[int, int, int]:
    """How often a generator ran, and how many schedules and programs are kept of many that were used once."""
    device, runs = device_of(way), [0]
    ways._MOST_SCHEDULES = runner._MOST_PROGRAMS = 3
    array = device.array(np.zeros(100), device.new_stream())

    def mine(ranks: int) -> Iterator[list[Move]]:
        runs[0] += 1
        yield [reduce(0, source=1, destination=0)]
        yield [copy(0, source=0, destination=1)]

    for _ in range(5):
        comm.all_reduce(array, algorithm=mine)
    for number in range(6):
        comm.all_reduce(array, algorithm=lambda ranks, number=number: to_the_first(ranks))
    made = ways_of(comm)
    return runs[0], len(made._schedules), len(made.runner._programs)


@pytest.mark.parametrize("way", ["staged", "on the device"])
def test_generators_run_once_and_programs_are_bounded(way: str) -> None:
    for runs, schedules, programs in af.spawn(own_generators, 2, args=(way,), timeout=60):
        assert runs == 1 and schedules <= 3 and programs <= 3


# Threads, captures, files --------------------------------------------------------------------------------------------


def captures(comm: Communicator) -> bool:
    """Another stream is captured into a graph, in the global mode, while a call is watched."""
    device = device_of("on the device")
    stream = device.new_stream()
    array = device.array(np.ones(100), stream)
    comm.all_reduce(array)
    gate = gated(device, stream)
    handle = comm.all_reduce(array, async_op=True)
    assert handle is not None
    device.captured, before = {device.new_stream()}, device.queries
    wait_until(lambda: device.queries > before + 3)
    device.captured = set()
    gate.set()
    handle.wait()
    return device.invalidated


def test_watching_a_call_leaves_a_capture_alone() -> None:
    assert af.spawn(captures, 2, timeout=60) == [False, False]


def prepares_meanwhile(comm: Communicator) -> list[int]:
    """The memory for staging is not replaced while another thread puts a call into the stream."""
    device = device_of("staged")
    stream = device.new_stream()
    comm.all_reduce(device.array(np.ones(100), stream))
    made = ways_of(comm)
    long = device.array(np.ones(1_000_000), stream)
    with made._lock:
        other = threading.Thread(target=lambda: comm.all_reduce(long))
        other.start()
        other.join(0.2)
        during = made.staging.rooms_made
    other.join()
    return [during, made.staging.rooms_made]


def test_staging_memory_is_replaced_under_the_lock() -> None:
    assert af.spawn(prepares_meanwhile, 2, timeout=60) == [[1, 2]] * 2


class Counted:
    """A compiler that counts."""

    version = "1.0"

    def __init__(self) -> None:
        self.compiled = 0

    def compile(self, source: str, architecture: str) -> bytes:
        self.compiled += 1
        return b"own"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_kernels_that_others_could_have_written_are_not_loaded(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Counted()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "compiler", lambda: compiler)
    for _ in range(2):
        assert kernels.compiled("sum", "int32", 2, "sm_90") == b"own"
    assert compiler.compiled == 1
    folder = tmp_path / "allfold" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    file.write_bytes(b"planted")
    (file if what == "file" else folder).chmod(0o777)
    assert kernels.compiled("sum", "int32", 2, "sm_90") == b"own" and compiler.compiled == 2
    assert kernels.compiled("sum", "int32", 2, "sm_90") == b"own" and compiler.compiled == 2


def test_a_kernel_cache_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counted()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "compiler", lambda: compiler)
    kernels.compiled("sum", "int32", 2, "sm_90")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    kernels.compiled("sum", "int32", 2, "sm_90")
    assert compiler.compiled == 2


def differs_before_the_others_are_told(comm: Communicator, comes_late: bool) -> str:
    """Rank 1 meets rank 0 in a staged call that differs, before it says what it calls; the stream of rank 2 is held up, or
    rank 2 comes when the others have given up."""
    device = device_of("staged")
    stream = device.new_stream()
    array = device.array(np.ones(100), stream)
    comm.all_reduce(array)
    gate = gated(device, stream) if comm.rank == 2 and not comes_late else None
    if comm.rank == 2 and comes_late:
        memory = ways_of(comm).runner.memory  # type: ignore[union-attr]
        wait_until(lambda: memory.standing(0) and memory.standing(1))
    if comm.rank == 1:
        keep = runner.Runner.keep

        def keep_later(*call: Any) -> Any:
            comm.barrier()
            return keep(*call)

        runner.Runner.keep = keep_later  # type: ignore[method-assign, assignment]
    said = said_by(lambda: comm.all_reduce(array, op="max" if comm.rank == 1 else "sum"))
    if gate:
        gate.set()
    if comm.rank != 1:
        comm.barrier()
    return said


@pytest.mark.parametrize("comes_late", (False, True))
def test_who_hears_of_a_mismatch_elsewhere_hears_what_differs(comes_late: bool) -> None:
    said = af.spawn(differs_before_the_others_are_told, 3, args=(comes_late,), timeout=30)
    assert all(one.startswith("MismatchError: ") for one in said)
    assert "rank 0 called it with float64[100] sum, rank 1 with float64[100] max" in said[2]


# Who is to blame, and what must not wait ------------------------------------------------------------------------------


def blames(comm: Communicator, what: str) -> str:
    device = device_of("on the device")
    stream = device.new_stream()
    array = device.array(np.ones(1000), stream)
    comm.all_reduce(array)
    gate = gated(device, stream) if what == "held" and comm.rank == 2 else None
    comm.barrier()
    timeout = 0.5 if comm.rank == 0 or what == "held" else 30.0
    comes = comm.rank < 2 or what == "held"
    said = said_by(lambda: comm.all_reduce(array, timeout=timeout)) if comes else ""
    if gate:
        gate.set()
    if not comes:  # its end would be heard of
        made = ways_of(comm)
        memory = made.runner.memory  # type: ignore[union-attr]
        wait_until(lambda: memory.standing(0) and memory.standing(1))
    return said


def test_who_hears_that_a_rank_gave_up_hears_because_of_whom() -> None:
    said = af.spawn(blames, 3, args=("late",), timeout=60)
    assert said[0].startswith("CollectiveTimeout: all_reduce: rank 2 did not arrive in time")
    assert said[1].startswith("CollectiveTimeout: rank 0 ") and said[1].endswith("because of rank 2")


def hears_in_a_staged_call(comm: Communicator) -> str:
    """Ranks 2 and 3 do not come to a call on the GPU, and rank 0 gives up. Rank 3 is in a staged call, which ends then."""
    device = device_of("on the device")
    array = device.array(np.ones(1000), device.new_stream())
    comm.all_reduce(array)
    comm.barrier()
    if comm.rank < 2:
        return said_by(lambda: comm.all_reduce(array, timeout=0.5 if comm.rank == 0 else 30.0))
    made = ways_of(comm)
    said = said_by(lambda: made.staging.engine.run(Call("barrier", timeout=30.0), False)) if comm.rank == 3 else ""
    memory = made.runner.memory  # type: ignore[union-attr]
    wait_until(lambda: memory.standing(0) and memory.standing(1))  # the end of a rank would be heard of
    return said


def test_who_is_in_a_staged_call_hears_because_of_whom_others_gave_up_on_the_gpu() -> None:
    said = af.spawn(hears_in_a_staged_call, 4, timeout=60)
    assert "gave up because of ranks 2 and 3 (call " in said[3], said


def test_the_rank_whose_stream_is_held_up_is_named() -> None:
    for said in af.spawn(blames, 3, args=("held",), timeout=60):
        assert "the stream of rank 2 has not come to it" in said or said.endswith("because of rank 2")


def gives_up_and_drops_the_group(comm: Communicator) -> str:
    """Rank 0 aborts a group and drops it; the others hear of it when both has happened."""
    device = device_of("on the device")
    array = device.array(np.ones(1000), device.new_stream())
    group = comm.group(range(comm.size))
    group.all_reduce(array)
    comm.barrier()
    if comm.rank:
        comm.barrier()
        return said_by(partial(group.all_reduce, array))
    group.abort()
    calls = weakref.ref(ways_of(group).runner)
    del group
    wait_until(lambda: calls() is None)
    comm.barrier()
    return ""


def test_a_rank_that_gave_up_and_dropped_its_group_is_named() -> None:
    for said in af.spawn(gives_up_and_drops_the_group, 3, timeout=60)[1:]:
        assert "of group 1 of group 1 of the world" in said
        assert said.startswith("RankLost: rank 0 of") or said.endswith("because of rank 0")


def waits_for_the_first_call(comm: Communicator, folder: Path) -> str:
    device = device_of("on the device")
    array = device.array(np.ones(1000), device.new_stream())
    if comm.rank == 0:
        said = said_by(lambda: comm.all_reduce(array, timeout=0.3))
        (folder / "gave up").touch()
        wait_until((folder / "came late").exists)
        return said
    wait_until((folder / "gave up").exists)
    said = said_by(lambda: comm.all_reduce(array, timeout=10.0))
    (folder / "came late").touch()
    return said


def test_the_first_call_keeps_its_timeout(tmp_path: Path) -> None:
    first, late = af.spawn(waits_for_the_first_call, 2, args=(tmp_path,), timeout=60)
    assert "within 0.3 s" in first
    assert late.startswith("CollectiveTimeout: all_gather: rank 0 gave up: it had waited too long for rank 1")


def gives_back(comm: Communicator) -> tuple[int, int, bool]:
    """A group is dropped while a call of another waits in the stream: the memory it holds before, meanwhile, in the end."""
    device = device_of("on the device")
    array = device.array(np.ones(1000), device.new_stream())
    comm.all_reduce(array)
    group = comm.group(range(comm.size))
    group.all_reduce(array)
    comm.barrier()
    handle = comm.all_reduce(array, async_op=True) if comm.rank == 0 else None
    before = len(device.memory)
    del group
    gc.collect()
    retire.sweep()
    meanwhile = len(device.memory)
    comm.barrier()
    if handle is None:
        comm.all_reduce(array)
    else:
        handle.wait()
    wait_until(lambda: not retire.sweep())
    return before, meanwhile, len(device.memory) < before


def test_memory_is_given_back_when_no_call_waits_in_the_stream() -> None:
    before, meanwhile, is_back = af.spawn(gives_back, 2, timeout=60)[0]
    assert meanwhile == before and is_back


class Trouble(Exception):
    pass


def raises(left: Any, right: Any) -> Any:
    raise Trouble


def fails_in_its_operation(comm: Communicator) -> str:
    device = device_of("staged")
    array = device.array(np.ones(10), device.new_stream())
    comm.all_reduce(array)
    try:
        comm.all_reduce(array, op=af.op(raises, commutative=False, name="mine"))
    except (Trouble, af.RankLost):
        comm.abort()
        return "well"
    return "returned"


def test_an_error_of_an_operation_ends_the_call_and_nothing_else() -> None:
    assert af.spawn(fails_in_its_operation, 2, timeout=60) == ["well", "well"]


def ends_with_a_call_left(comm: Communicator) -> None:
    device = device_of("staged")
    comm.all_reduce(device.array(np.ones(10), device.new_stream()))
    made = ways_of(comm)
    left: list[Any] = [dict(made.remembered)]
    left.append(left)
    # A cycle that nobody holds any more when the interpreter ends, and that is destroyed after it has begun to end.
    atexit.register(left.copy)


def test_a_process_ends_with_calls_left() -> None:
    assert af.spawn(ends_with_a_call_left, 2, timeout=20) == [None, None]
