"""Ranks as threads of this process: `spawn(…, ranks_are="threads")`, the course, and tests and sanitizers, which see one
process only.

The engine sees no difference: each rank has what it would have in a process of its own. But a thread cannot be ended from
outside. A rank that has to end learns it in its next call, or in the call that it waits in; one that makes no more calls
keeps running, and ends with the process.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..communicator.communicator import Communicator
from ..communicator.timeouts import check_timeout
from ..engines.engine import DEFAULT_TIMEOUT
from ..engines.table import in_threads
from ..errors import RankFailed, UsageError
from .environment import in_this_thread
from .lines import Frame, users_line
from .outcome import check_outcome, in_order
from .spawn import check_ranks, check_work
from .supervise import SECONDS_TO_FINISH, SECONDS_TO_OBEY, Child
from .torch_worlds import leave_groups, worlds
from .worker import check_result, report_of

Result = TypeVar("Result")

ENGINE = "reference"
"""The engine of ranks that are threads, unless another one is named: it needs no extension."""

_LONGEST_SLEEP_SECONDS = 0.5  # on Windows a wait in the main thread keeps Ctrl-C waiting


def spawn_threads(
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    survive: bool = False,
    engine: str | None = None,
) -> list[Result]:
    """`spawn` for ranks that are threads; results are not pickled. The exception of the rank is the cause of RankFailed."""
    __tracebackhide__ = True
    check_ranks(ranks)
    check_timeout("spawn", timeout)
    check_work("spawn", work, args)
    run = ThreadRun(work, ranks, args=args, survive=survive, engine=engine or ENGINE)
    run.watch(timeout)
    try:
        check_outcome(run, timeout, survive)
    except RankFailed as error:
        raise error from run.errors.get(error.rank)
    return run.results


def run_threads(
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float = DEFAULT_TIMEOUT,
    engine: str = "shared_memory",
) -> list[Result]:
    """Run `work(communicator, *args)` in one thread per rank; the results, by rank.

    `timeout` is that of the communicators' calls, in seconds. `engine` is one of `engines.table`. When a rank raises,
    the calls of the others are ended. When all have returned, RankFailed names the rank; the exception itself is its
    cause.
    """
    check_ranks(ranks)
    run = ThreadRun(work, ranks, args=args, engine=engine, timeout=timeout)
    run.watch(None, seconds_to_obey=timeout)
    if run.errors:
        first, *others = [one.child.rank for one in in_order(run.failed)]
        error = run.errors[first]
        raise RankFailed(
            f"rank {first} raised {type(error).__name__}: {error}", rank=first, ranks=[first, *others]
        ) from error
    return run.results


class ThreadRun:
    """The threads of one run, and the state of each rank, as a supervisor has it of processes."""

    def __init__(
        self,
        work: Callable[..., Any],
        ranks: int,
        *,
        args: Sequence[Any] = (),
        survive: bool = False,
        engine: str = ENGINE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.children = [Child(rank) for rank in range(ranks)]
        self.late: list[int] = []
        self.errors: dict[int, BaseException] = {}  # by rank
        self.results: list[Any] = [None] * ranks
        self.places: dict[int, str] = {}  # by rank: where those were that had to be ended
        self.still_running: Mapping[int, str] = {}
        self._work = work
        self._args = args
        self._survive = survive
        self._communicators = [Communicator(made) for made in in_threads(engine, ranks, timeout)]
        self._threads = [
            threading.Thread(target=self._run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)
        ]
        self._ends: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._running: set[int] = set()
        self._shared: dict[str, Any] = {}

    @property
    def failed(self) -> list[Child]:
        told = (child for child in self.children if child.was_told_to_end and not child.has_reported(b"R"))
        return [*(child for child in self.children if child.has_failed), *told]

    def watch(self, timeout: float | None, seconds_to_obey: float = SECONDS_TO_OBEY) -> None:
        """Start the ranks, and return when all have ended or, after a failure or the timeout, have had time to do so."""
        with worlds():
            self._watch(timeout, seconds_to_obey)

    def _watch(self, timeout: float | None, seconds_to_obey: float) -> None:
        begin = time.monotonic()
        try:
            for rank, thread in enumerate(self._threads):
                self._running.add(rank)  # before: an interrupt may come at any moment
                try:
                    thread.start()
                except RuntimeError as error:  # no room for another thread, or none at all, as in a browser
                    self._running.remove(rank)
                    raise UsageError(f"cannot start a thread for rank {rank}: {error}") from None
            limit = None if timeout is None else begin + timeout
            while self._running and self._take_end(limit):
                if self.errors and not self._survive:
                    soon = time.monotonic() + SECONDS_TO_FINISH
                    limit = soon if limit is None else min(limit, soon)
        except BaseException:  # an interrupt, or no room for another thread
            self._end(SECONDS_TO_OBEY)
            raise
        if self._running:
            self.late = [] if self.errors and not self._survive else sorted(self._running)
            self._end(seconds_to_obey)

    def _take_end(self, limit: float | None) -> bool:
        """Wait for the end of a rank; False if there is none before the limit."""
        while True:
            remaining = _LONGEST_SLEEP_SECONDS if limit is None else limit - time.monotonic()
            try:
                self._running.discard(self._ends.get(timeout=min(max(remaining, 0), _LONGEST_SLEEP_SECONDS)))
                return True
            except queue.Empty:
                if remaining <= 0:
                    return False

    def _end(self, seconds_to_obey: float) -> None:
        """End the calls of ranks that are running, and note where they are."""
        for rank in self._running:
            self.children[rank].was_told_to_end = True
            self.places[rank] = self._place(rank)
        for rank in list(self._running):
            self._communicators[rank].engine.thread_ended()
        limit = time.monotonic() + seconds_to_obey
        while self._running and self._take_end(limit):
            pass
        self.still_running = {rank: self._place(rank) for rank in sorted(self._running)}

    def _place(self, rank: int) -> str:
        """The user's line at which a rank is."""
        frame = sys._current_frames().get(self._threads[rank].ident or 0)
        frames: list[Frame] = [
            (one.f_code.co_filename, line, one.f_code.co_name) for one, line in traceback.walk_stack(frame)
        ]
        return users_line(frames) if frame is not None else "its end"

    def _run(self, rank: int) -> None:
        __tracebackhide__ = True
        communicator = in_this_thread.communicator = self._communicators[rank]
        in_this_thread.shared = self._shared
        try:
            result = self._work(communicator, *self._args)
            check_result(rank, result)
            leave_groups(SECONDS_TO_FINISH)
            communicator.close()
            self.results[rank] = result
            self._report(rank, b"R", 0)
        except BaseException as error:  # whatever it is, it is handed to the caller
            if not self.children[rank].was_told_to_end:  # otherwise it follows from that
                self.errors[rank] = error
                self._report(rank, *report_of(error))
            communicator.engine.thread_ended()
            if not self._survive:
                communicator.abort()
            leave_groups(0.0)
        finally:
            del in_this_thread.communicator, in_this_thread.shared
            self._ends.put(rank)

    def _report(self, rank: int, message: bytes, status: int) -> None:
        """As a process sends it to its supervisor."""
        child = self.children[rank]
        child.status, child.ended_at = status, time.monotonic()
        child.report += len(message).to_bytes(8, "big") + message
