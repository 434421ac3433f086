"""One rank of a fault trial: it makes its calls, checks the results, fails as planned, and reports what it heard."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fault_plans import ROOTED, Call, Plan
from numpy.typing import NDArray

from allfold import AllfoldError, SharedMemoryError
from allfold.communicator.communicator import Communicator, connect

Array = NDArray[Any]

SHRINKING = 15.0
STATUS = 3  # exit status of a rank that exits where it should not
ARENA_BYTES = 64 * 2**20  # where the address space is short, so that "short" means the same on every machine
SMALLEST_ARENA = 2**23


class Trouble(Exception):
    """What the victim raises."""


class WrongResult(Exception):
    pass


def take_part(plan: Plan, rank: int, key: str, report: int, control: int) -> int:
    """Returns the exit status of this rank. What it did and heard goes to `report`, one line each."""

    def say(**facts: Any) -> None:
        times = {"time": time.monotonic(), "queued": _seconds_queued()}
        os.write(report, json.dumps({**times, **facts}).encode() + b"\n")

    is_victim = rank == plan.victim
    communicators: list[Communicator | None] = []
    status = 0
    try:
        if plan.fault == "address space":
            os.environ["ALLFOLD_ARENA_BYTES"] = str(ARENA_BYTES)
        if is_victim:
            _before(plan)
        say(event="meets")
        if is_victim and plan.moment == "during":
            _prepare_blow(plan)
        world = connect(rank, plan.ranks, key, plan.timeout)
        communicators.append(world)
        facts = os.fstat(world._engine.members[rank][0].descriptor)
        say(event="met", memory=[facts.st_dev, facts.st_ino])
        _make_calls(plan, rank, communicators, say)
        say(event="closes")
        for communicator in communicators:
            if communicator is not None:
                communicator.close()
        say(event="end", error=None)
    except AllfoldError as error:
        say(event="end", error=type(error).__name__, text=str(error))
        status = _afterwards(plan, communicators, say, control, error)
    except Trouble:
        status = 1
    except Exception as error:  # any other error is wrong, and the judge should see it
        say(event="end", error=type(error).__name__, text=str(error))
    return status


def _make_calls(plan: Plan, rank: int, communicators: list[Communicator | None], say: Callable[..., None]) -> None:
    world = communicators[0]
    assert world is not None
    pending: list[tuple[Any, Callable[[], None]]] = []
    for number, call in plan.calls_of(rank):
        say(event="calls", call=number, where=call.where)
        if rank == plan.victim and number == plan.at:
            if plan.moment == "between":
                _blow(plan, world)
            elif plan.moment == "inside":
                _prepare_blow(plan)
        if call.kind == "group":
            named = plan.groups[call.salt] if call.salt >= 0 else plan.groups[0][1:] or (1 - rank,)
            communicators.append(world.group(named))
            continue
        communicator = communicators[call.where]
        assert communicator is not None
        handle, check = begin(communicator, call)
        if handle is None:
            check()
        else:
            pending.append((handle, check))
        if len(pending) > 1 or not call.background:
            # Waited for in turn, some of them only after another call was made.
            _finish(pending)
    _finish(pending)


def _finish(pending: list[tuple[Any, Callable[[], None]]]) -> None:
    while pending:
        handle, check = pending.pop(0)
        handle.wait()
        check()


def _afterwards(
    plan: Plan, communicators: list[Communicator | None], say: Callable[..., None], control: int, error: AllfoldError
) -> int:
    if plan.afterwards == "exit" or not communicators or isinstance(error, SharedMemoryError):
        return 0
    for communicator in communicators:  # or ranks that wait in another one would wait until their timeout
        if communicator is not None:
            communicator.abort()
    if plan.afterwards == "shrink":
        world = communicators[0]
        assert world is not None
        try:
            left = world.shrink(SHRINKING)
            for call in (
                Call("all_reduce", elements=1000),
                Call("shift", elements=50),
                Call("all_gather", elements=300),
            ):
                begin(left, call)[1]()
            say(event="went on", size=left.size, rank=left.rank)
        except (AllfoldError, WrongResult) as error:
            say(event="went on", size=None, text=f"{type(error).__name__}: {error}")
    os.read(control, 1)  # until all ranks have reported
    return 0


def _seconds_queued() -> float:
    """How long this process's longest-waiting thread has waited for a core so far."""
    total = 0
    with contextlib.suppress(OSError, IndexError):  # a thread that has just ended; no descriptor to be had
        for thread in os.listdir("/proc/self/task"):
            total = max(total, int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]))
    return total / 1e9


# The fault
# ---------------------------------------------------------------------------------------------------------------


def _before(plan: Plan) -> None:
    if plan.fault == "arena":
        os.environ["ALLFOLD_ARENA_BYTES"] = str(SMALLEST_ARENA)
    if plan.moment != "before":
        return
    if plan.family in ("death", "slow"):
        _blow(plan, None)
    elif plan.fault == "address space":
        # There may be room for its own arena, but never for those of the others.
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ARENA_BYTES * (1 + plan.seed % 2) - 2**20,) * 2)
    elif plan.fault == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    elif plan.fault == "descriptors":
        few = len(os.listdir("/proc/self/fd")) - 1 + plan.seed % 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))


def _blow(plan: Plan, world: Communicator | None) -> None:
    """Here and now."""
    if plan.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif plan.fault == "segfault":
        ctypes.string_at(0)
    elif plan.fault == "exit":
        os._exit(STATUS)
    elif plan.fault == "raise":
        raise Trouble
    elif plan.fault == "leave":
        if world is not None:
            world.close()
        os._exit(0)
    elif plan.fault in ("stop", "stop and go on"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif plan.fault == "sleep":
        time.sleep(600)
    elif plan.fault == "hold the interpreter":
        ctypes.PyDLL(None).sleep(600)  # unlike CDLL, it keeps the interpreter's lock
    elif plan.fault == "slow":
        time.sleep(min(0.5, 20 * plan.delay))
    elif plan.fault == "arena":
        assert world is not None
        try:
            world.empty(SMALLEST_ARENA, np.uint8)
        except SharedMemoryError as error:
            if "ALLFOLD_ARENA_BYTES" not in str(error):
                raise WrongResult(f"the error does not say what to set: {error}") from error
        else:
            raise WrongResult("an arena gave more than it has")


def _prepare_blow(plan: Plan) -> None:
    """After a delay, wherever the rank is by then: with a kernel timer, which does not need the interpreter."""
    if plan.fault in ("kill", "segfault", "stop", "stop and go on"):
        number = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV}.get(plan.fault, signal.SIGSTOP)
        _signal_after(plan.delay, number)
    elif plan.fault == "raise":
        signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, plan.delay)
    else:
        # These need the interpreter lock, which a thread gets while the call waits.
        threading.Timer(plan.delay, _blow, (plan, None)).start()


def _raise(*_: object) -> None:
    raise Trouble


class _Event(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    ]


def _signal_after(delay: float, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = _Event(signal=number, notify=0)
    moment = (ctypes.c_long * 4)(0, 0, int(delay), max(1, int(delay % 1 * 1e9)))
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) or libc.timer_settime(
        timer, 0, ctypes.byref(moment), None
    ):
        raise OSError(ctypes.get_errno(), "no timer to be had")


# Calls whose results are known ----------------------------------------------------------------------------------------


def begin(comm: Communicator, call: Call) -> tuple[Any, Callable[[], None]]:
    """Make a call; returns its handle if it runs in the background, and a function that checks the result."""
    size, me, salt = comm.size, comm.rank, call.salt

    def part(rank: int, shift: int = 0) -> Array:
        return ((np.arange(call.elements) + salt + shift) % 11 + rank).astype(call.dtype)

    def folded(shift: int = 0) -> Array:
        if call.op == "sum":
            return (part(0, shift).astype(np.int64) * size + size * (size - 1) // 2).astype(call.dtype)
        return part(size - 1 if call.op == "max" else 0, shift)

    def all_parts(rank: int) -> Array:
        return np.concatenate([part(rank, shift) for shift in range(size)])

    def array(content: Array | int) -> Array:
        length = content if isinstance(content, int) else len(content)
        made = comm.empty(length, call.dtype) if call.shared else np.empty(length, call.dtype)
        made[:] = 99 if isinstance(content, int) else content
        return made

    def expect(got: Array | None, wanted: Callable[[], Array]) -> Callable[[], None]:
        def check() -> None:
            if got is not None and not np.array_equal(got, wanted()):
                raise WrongResult(f"rank {me} of {size}: {call} gave {got[:8]}, expected {wanted()[:8]}")

        return check

    rest: dict[str, Any] = {"algorithm": call.algorithm, "async_op": call.background}
    if call.kind in ROOTED:
        rest["root"] = call.root
    is_root = me == call.root
    if call.kind == "barrier":
        return comm.barrier(**rest), lambda: None
    if call.kind == "all_reduce":
        buffer = array(part(me))
        return comm.all_reduce(buffer, call.op, **rest), expect(buffer, folded)
    if call.kind == "reduce":
        buffer = array(part(me))
        return comm.reduce(buffer, op=call.op, **rest), expect(buffer if is_root else None, folded)
    if call.kind == "broadcast":
        buffer = array(part(me))
        return comm.broadcast(buffer, **rest), expect(buffer, lambda: part(call.root))
    if call.kind in ("gather", "all_gather"):
        output = array(call.elements * size) if is_root or call.kind == "all_gather" else None
        handle = getattr(comm, call.kind)(array(part(me)), output, **rest)
        return handle, expect(output, lambda: np.concatenate([part(rank) for rank in range(size)]))
    if call.kind == "scatter":
        output = array(call.elements)
        handle = comm.scatter(output, array(all_parts(me)) if is_root else None, **rest)
        return handle, expect(output, lambda: part(call.root, me))
    if call.kind == "reduce_scatter":
        output = array(call.elements)
        return comm.reduce_scatter(array(all_parts(me)), output, call.op, **rest), expect(output, lambda: folded(me))
    if call.kind == "all_to_all":
        output = array(call.elements * size)
        handle = comm.all_to_all(array(all_parts(me)), output, **rest)
        return handle, expect(output, lambda: np.concatenate([part(rank, me) for rank in range(size)]))
    if call.kind == "shift":
        buffer, step = array(call.elements), 1 + call.root % max(1, size - 1)
        sending = comm.isend(array(part(me)), (me + step) % size, tag=salt)
        comm.recv(buffer, (me - step) % size, tag=salt)
        sending.wait()
        return None, expect(buffer, lambda: part((me - step) % size))
    assert call.kind == "collect"
    if not is_root:
        comm.send(array(part(me)), call.root, tag=salt)
        return None, lambda: None
    came: dict[int, Array] = {}
    for _ in range(size - 1):
        buffer = array(call.elements)
        came[comm.recv(buffer, None, tag=salt).source] = buffer
    if len(came) != size - 1:
        raise WrongResult(f"rank {me} of {size}: {call} brought messages from {sorted(came)} only")
    rows = [(came[rank], part(rank)) for rank in sorted(came)] or [(array(0), part(0)[:0])]
    return None, expect(np.concatenate([got for got, _ in rows]), lambda: np.concatenate([want for _, want in rows]))
