"""One rank of a fault trial: it makes its calls, checks the results, fails as planned, and reports what it saw."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import fault_calls
import numpy as np
from fault_calls import Made, Memory, Watched, WrongResult
from fault_plans import MESSAGES, PATIENT, Call, Plan

from allfold import AllfoldError, CollectiveTimeout, MismatchError, RankLost, SharedMemoryError
from allfold.communicator.communicator import Communicator, connect, join
from allfold.engines.engine import Processes

SHRINKING = 25.0  # longer than a late rank may take: others may be in a call with it, whose limit is longer
LATEST = 20.0  # seconds until a late rank comes, whatever the others do
HELD_UP = 0.3
STATUS = 3  # exit status of a rank that exits where it should not
ARENA_BYTES = 64 * 2**20  # where the address space is short, so that "short" means the same on every machine
SMALLEST_ARENA = 2**23
AREA_BYTES = 1 << 18  # of the device made of NumPy: it touches all of it


class Trouble(Exception):
    """What the victim raises."""


def take_part(plan: Plan, rank: int, key: str, folder: str, report: int, control: int) -> int:
    """Returns the exit status of this rank. What it did and saw goes to `report`, one line each."""
    return Rank(plan, rank, key, folder, report, control).runs()


class Rank:
    def __init__(self, plan: Plan, rank: int, key: str, folder: str, report: int, control: int) -> None:
        self.plan, self.rank, self.key, self.folder = plan, rank, key, folder
        self.report, self.control = report, control
        self.is_victim = rank == plan.victim
        self.communicators: list[Communicator | None] = []
        self.pending: list[Made] = []
        self.current: Made | None = None
        self.watched: list[Watched] = []
        self.memory = Memory()
        self.is_through = False  # no fault any more

    def say(self, **facts: Any) -> None:
        times = {"time": time.monotonic(), "queued": _seconds_queued()}
        os.write(self.report, json.dumps({**times, **facts}).encode() + b"\n")

    def runs(self) -> int:
        status = 0
        try:
            if self.plan.fault == "address space":
                os.environ["ALLFOLD_ARENA_BYTES"] = str(ARENA_BYTES)
            if self.is_victim:
                self._before()
            self.say(event="meets")
            if self.is_victim and self.plan.moment == "during":
                self._prepare_blow()
            self.communicators.append(self._meets())
            self.say(event="met", memory=_shared_memory())
            self._make_calls()
            self.is_through = True
            self._say_what_changed([one for one in self.watched if not one.stays])
            self.watched = [one for one in self.watched if one.stays]
            self.say(event="closes")
            for communicator in self.communicators:
                if communicator is not None:
                    communicator.close()
            self.say(event="end", error=None)
            self._waits_for_the_others()
        except (Exception, KeyboardInterrupt) as raised:
            # Thread.start() may turn what a signal handler raises in it into a KeyError of its own.
            lost = isinstance(raised, KeyError) and isinstance(raised.__context__, Trouble)
            error = raised.__context__ if lost else raised
            if isinstance(error, Trouble) and self.plan.family == "death":
                return 1
            if isinstance(error, (AllfoldError, Trouble, KeyboardInterrupt)):
                try:
                    status = self._failed(error)
                except Exception:
                    self.say(event="wrong", text=traceback.format_exc())
            else:  # any other error is wrong, and the judge should see it
                text = str(error) if isinstance(error, WrongResult) else traceback.format_exc()
                self.say(event="end", error=type(error).__name__, text=text)
        return status

    def _meets(self) -> Communicator:
        plan = self.plan
        if plan.engine == "islands":
            from allfold.fabrics.table import board_from_environment

            hosts = [host for host, ranks in enumerate(plan.hosts) for _ in range(ranks)]
            os.environ.update(ALLFOLD_HOSTID=f"host{hosts[self.rank]}", ALLFOLD_STORE=f"{self.folder}/store")
            board = partial(board_from_environment, os.environ, self.rank, plan.ranks, PATIENT)
            return join(Processes(self.rank, plan.ranks, board=board, is_spread=True), PATIENT)
        if plan.engine == "gpu":
            self.memory = Memory(_device(plan))
        meeting = plan.moment in ("before", "during")
        return connect(self.rank, plan.ranks, self.key, plan.timeout if meeting else PATIENT)

    # Calls ------------------------------------------------------------------------------------------------------------

    def _make_calls(self) -> None:
        plan, world = self.plan, self.communicators[0]
        assert world is not None
        reaches = any(call.memory(0) == "reached" for call in plan.calls)
        if plan.engine == "gpu" and (plan.warm or reaches):
            warm = self._made(world, Call("all_reduce", elements=1, arrays=("device",)), "the first call")
            self.current = warm  # a rank that fails right after it may end before the others are through
            warm.begin(PATIENT)
            warm.check()
            self.current = None
        prepared: dict[int, Made] = {}
        for number, call in enumerate(plan.calls):
            if call.memory(0) == "reached":  # a collective call of its own, so before everything that may go wrong
                prepared[number] = self._made(world, call, f"call {number}")
        for number, call in plan.calls_of(self.rank):
            self.say(event="calls", call=number, where=call.where)
            timeout = plan.timeouts[self.rank] if number >= plan.at else PATIENT
            if call.kind == "group":
                named = plan.groups[call.salt] if call.salt >= 0 else plan.groups[0][1:] or (1 - self.rank,)
                self._comes_to(number, None)
                self.communicators.append(world.group(named))
                continue
            comm = self.communicators[call.where]
            assert comm is not None
            meant = plan.calls[number] == call
            made = prepared.pop(number) if number in prepared and meant else self._made(comm, call, f"call {number}")
            self.current = made
            self._comes_to(number, comm)
            made.begin(timeout)
            self._disarm()
            self.current = None
            if made.handle is None:
                made.check()
            else:
                self.pending.append(made)
            if len(self.pending) > 2 or not call.background:
                # Waited for in turn, some of them only after another call was made.
                self._finish()
        self._finish()

    def _made(self, comm: Communicator, call: Call, label: str) -> Made:
        made = Made(comm, call, self.memory, label)
        self.watched += made.watched
        return made

    def _finish(self) -> None:
        while self.pending:
            self.current = self.pending.pop(0)
            self.current.finish()
            self.current.check()
            self.current = None

    def _comes_to(self, number: int, comm: Communicator | None) -> None:
        """The planned fault, if this is its rank and its call."""
        plan = self.plan
        if number != plan.at:
            return
        if not self.is_victim:
            # One of the others comes a little later, so that the victim may be found waiting.
            if plan.moment == "inside" and self.rank == (plan.victim + 1) % plan.ranks:
                time.sleep(min(HELD_UP, 3 * plan.delay))
            return
        if plan.moment == "between":
            self._blow(comm)
        elif plan.moment == "inside":
            self._prepare_blow(comm)

    # After an error ---------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> int:
        self.is_through = True
        self._disarm()
        fault_calls.hook = lambda where: None
        plan, failed, moment = self.plan, self.current, time.monotonic()
        wrong: list[str] = []
        try:
            self._react(failed, error, wrong)
        except Exception as lie:
            text = str(lie) if isinstance(lie, WrongResult) else traceback.format_exc()
            wrong.append(f"after the error: {type(lie).__name__}: {text}")
        self.say(event="end", error=type(error).__name__, text=str(error), time=moment)
        if plan.afterwards != "exit" and failed is not None and _breaks(error, failed.call):
            wrong += self._again(failed)
        goes_on = plan.afterwards != "exit" and self.communicators and not isinstance(error, SharedMemoryError)
        if goes_on and plan.afterwards == "shrink":
            self._shrinks()
        for complaint in wrong:
            self.say(event="wrong", text=complaint)
        if not goes_on:
            self._check_arrays()
            return 0
        return self._waits_for_the_others()

    def _react(self, failed: Made | None, error: BaseException, wrong: list[str]) -> None:
        """Use the arrays again, at once; then wait for what is still under way, and use its arrays as well."""
        how = self.plan.reactions[self.rank]
        in_the_background = failed is not None and failed.handle is not None
        only_waited = in_the_background and not isinstance(error, AllfoldError)  # only the waiting was interrupted
        # Its stream may hold calls of other communicators, which are under way until they are aborted.
        is_held_up = failed is not None and failed.is_in_a_stream and bool(self.pending)
        if only_waited:
            self.pending.insert(0, failed)  # type: ignore[arg-type]
        elif failed is not None and not is_held_up:
            self._takes_back(failed, how)
        others = {made.comm for made in self.pending if failed is None or made.comm is not failed.comm}
        if self.plan.afterwards != "exit" and self.communicators:
            # Or ranks that wait in another communicator would wait until their timeout. On the GPU, calls on its arrays
            # have a group of their own.
            broken = self.communicators[0] if failed is None else failed.comm if self.plan.engine != "gpu" else None
            others |= {comm for comm in self.communicators if comm is not None and comm is not broken}
        if failed is not None and not _breaks(error, failed.call):
            others.add(failed.comm)
        for comm in others:
            with contextlib.suppress(AllfoldError):  # it may be closed
                comm.abort()
        if failed is not None and is_held_up and not only_waited:
            self._takes_back(failed, how)
        for made in self.pending:
            began = time.monotonic()
            try:
                made.finish()
                made.check()
            except (AllfoldError, Trouble):
                self._takes_back(made, how)
            except WrongResult as lie:
                wrong.append(f"WrongResult: {lie}")
            if time.monotonic() - began > PATIENT:
                wrong.append(f"{made.label} was waited for for {time.monotonic() - began:.1f} s after an error")
        self.pending.clear()

    def _takes_back(self, made: Made, how: str) -> None:
        gone = {id(one) for one in made.watched}
        self.watched = [one for one in self.watched if id(one) not in gone]
        self.current = None
        self.watched += made.react(how)

    def _again(self, failed: Made) -> list[str]:
        """A broken communicator says so in every later call."""
        arrays = ("device",) if failed.call.memory(0) in ("device", "reached") else ()
        again = self._made(failed.comm, Call("all_reduce", elements=1, arrays=arrays), "the call after the error")
        began = time.monotonic()
        try:
            again.begin(PATIENT)
        except AllfoldError:
            took = time.monotonic() - began
            again.react("keep")
            return [f"the call after the error took {took:.1f} s"] if took > PATIENT / 2 else []
        return ["the call after the error returned"]

    def _shrinks(self) -> None:
        world = self.communicators[0]
        assert world is not None
        made: Made | None = None
        began = time.monotonic()
        try:
            left = world.shrink(SHRINKING)
            arrays = ("device",) if self.plan.engine == "gpu" else ("shared", "ordinary")
            for call in (
                Call("all_reduce", elements=1000, arrays=arrays, salt=1),
                Call("shift", elements=50, salt=2),
                Call("all_gather", elements=300, arrays=arrays[:1], salt=3),
            ):
                made = self._made(left, call, f"{call.kind} after shrink()")
                made.begin(SHRINKING)
                made.check()
            self.communicators.append(left)
            self.say(event="went on", size=left.size, rank=left.rank, took=time.monotonic() - began)
        except (AllfoldError, WrongResult) as error:
            self.say(event="went on", size=None, text=f"{type(error).__name__}: {error}")
            if made is not None:
                made.react("keep")

    def _waits_for_the_others(self) -> int:
        """Until all ranks have done what they do, the late ones too: no array may have changed."""
        self.say(event="settled")
        while os.read(self.control, 1):
            pass
        self._check_arrays()
        if self.plan.seed % 2:
            for communicator in self.communicators:
                if communicator is not None:
                    with contextlib.suppress(AllfoldError):
                        communicator.close()
        return 0

    def _check_arrays(self) -> None:
        self._say_what_changed(self.watched)
        if self.plan.fault == "descriptors":  # as many as are needed to look around
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        self.say(event="checked", arrays=len(self.watched), files=_files_in_shared_memory(), memory=_shared_memory())

    def _say_what_changed(self, watched: list[Watched]) -> None:
        for one in watched:
            if (complaint := one.complaint()) is not None:
                self.say(event="wrong", text=f"written outside of calls: {complaint}")

    # The fault --------------------------------------------------------------------------------------------------------

    def _before(self) -> None:
        plan = self.plan
        if plan.fault == "arena":
            os.environ["ALLFOLD_ARENA_BYTES"] = str(SMALLEST_ARENA)
        if plan.moment != "before":
            return
        if plan.family in ("death", "slow"):
            self._blow(None)
        elif plan.fault == "address space":
            # There may be room for its own arena, but never for those of the others.
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + ARENA_BYTES * (1 + plan.seed % 2) - 2**20,) * 2)
        elif plan.fault == "file size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        elif plan.fault == "descriptors":
            few = len(os.listdir("/proc/self/fd")) - 1 + plan.seed % 4
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def _blow(self, comm: Communicator | None) -> None:
        """Here and now."""
        plan = self.plan
        if plan.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.fault == "segfault":
            ctypes.string_at(0)
        elif plan.fault == "exit":
            os._exit(STATUS)
        elif plan.fault == "raise":
            raise Trouble
        elif plan.fault == "leave":
            for one in self.communicators:
                if one is not None:
                    one.close()
            os._exit(0)
        elif plan.fault in ("stop", "stop and go on"):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif plan.fault == "late":
            self._is_late()
        elif plan.fault == "hold the interpreter":
            # Unlike CDLL, it keeps the interpreter's lock.
            if plan.comes == "racing":
                ctypes.PyDLL(None).usleep(int(1e6 * self.plan.lateness))
            else:
                ctypes.PyDLL(None).read(self.control, ctypes.create_string_buffer(1), ctypes.c_size_t(1))
        elif plan.fault in ("operation waits", "operation raises", "generator raises"):
            fault_calls.hook = self._inside_a_function
        elif plan.fault == "stream waits":
            self.memory.device.later(self.memory.stream, self._is_late)
        elif plan.fault == "abort":
            if comm is not None and not self.is_through:
                comm.abort()
        elif plan.fault == "slow":
            time.sleep(min(0.5, 20 * plan.delay))
        elif plan.fault == "arena":
            assert comm is not None
            try:
                comm.empty(SMALLEST_ARENA, np.uint8)
            except SharedMemoryError as error:
                if "ALLFOLD_ARENA_BYTES" not in str(error):
                    raise WrongResult(f"the error does not say what to set: {error}") from error
            else:
                raise WrongResult("an arena gave more than it has")

    def _is_late(self) -> None:
        """Until the runner says so, or for about as long as the others wait."""
        if self.plan.comes == "racing":
            time.sleep(self.plan.lateness)
        elif select.select([self.control], [], [], LATEST)[0]:
            os.read(self.control, 1)

    def _inside_a_function(self, where: str) -> None:
        fault_calls.hook = lambda where: None
        if where not in self.plan.fault:
            fault_calls.hook = self._inside_a_function
        elif "waits" in self.plan.fault:
            self._is_late()
        else:
            raise Trouble

    def _prepare_blow(self, comm: Communicator | None = None) -> None:
        """After a delay, wherever the rank is by then: with a kernel timer, which does not need the interpreter."""
        plan = self.plan
        if plan.fault in ("kill", "segfault", "stop", "stop and go on"):
            number = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV}.get(plan.fault, signal.SIGSTOP)
            _signal_after(plan.delay, number)
        elif plan.fault in ("raise", "interrupt"):
            if plan.fault == "interrupt" and plan.seed % 2:  # as Ctrl-C
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._timer = _signal_after(plan.delay, signal.SIGINT)
            else:
                signal.signal(signal.SIGALRM, _raise)
                signal.setitimer(signal.ITIMER_REAL, plan.delay)
        else:
            # These need the interpreter lock, which a thread gets while the call waits.
            threading.Timer(plan.delay, self._blow, (comm,)).start()

    def _disarm(self) -> None:
        """The interrupt is meant for the call."""
        if self.plan.fault != "interrupt" or not self.is_victim:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if (timer := getattr(self, "_timer", None)) is not None:
            ctypes.CDLL(None).timer_delete(timer)
            del self._timer


def _breaks(error: BaseException, call: Call) -> bool:
    """Whether a communicator is broken after an error; not by a message, nor by a call that waited for its turn in vain."""
    is_of_all = call.kind not in MESSAGES and "take turns" not in str(error)
    return is_of_all and isinstance(error, (CollectiveTimeout, MismatchError, RankLost))


def _device(plan: Plan) -> Any:
    """A device made of NumPy in place of the driver; see tests/engines/stream."""
    from numpy_device import device_of

    from allfold.engines.stream import compose, runner, ways

    device = device_of()
    ways.STAGED_UP_TO = plan.staged_up_to
    ways._takes_turns = lambda *_: plan.takes_turns
    compose.AREA_BYTES = runner.AREA_BYTES = AREA_BYTES
    return device


def _seconds_queued() -> float:
    """How long this process's longest-waiting thread has waited for a core so far."""
    total = 0
    with contextlib.suppress(OSError, IndexError):  # a thread that has just ended; no descriptor to be had
        for thread in os.listdir("/proc/self/task"):
            total = max(total, int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]))
    return total / 1e9


def _shared_memory() -> list[tuple[int, int]]:
    """The memory files that this process holds: devices and inodes."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed them
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                facts = os.stat(f"/proc/self/fd/{name}")
                found.append((facts.st_dev, facts.st_ino))
    return found


def _files_in_shared_memory() -> list[str]:
    return [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]


def _raise(*_: object) -> None:
    raise Trouble


class _Event(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    ]


def _signal_after(delay: float, number: int) -> ctypes.c_void_p:
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = _Event(signal=number, notify=0)
    moment = (ctypes.c_long * 4)(0, 0, int(delay), max(1, int(delay % 1 * 1e9)))
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) or libc.timer_settime(
        timer, 0, ctypes.byref(moment), None
    ):
        raise OSError(ctypes.get_errno(), "no timer to be had")
    return timer
