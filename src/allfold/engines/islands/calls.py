"""The calls of one rank in a group, one after the other: by the thread that calls, or in the background by another.

The thread that watches over the run ends calls whose time is up, and those that a signal interrupts.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, RankLost, UsageError
from ...fabrics.fabric import Disconnected
from ...ops import Op
from ..engine import FAILURES, Background, Call
from ..shared_memory.flight import keep
from .flight import Flight
from .job import Job
from .membership import Membership
from .post import Frame, News, Progress
from .roster import Roster
from .world import GRACE_SECONDS

_ANSWER_SECONDS = 0.5  # how long to ask the others how far they are
_CUTTING_SECONDS = 5.0  # how long an error waits until all connections are cut; a moment, unless the machine is busy

_HOLDS_UP = {  # by progress of a rank: what it has not done, if others wait for it
    Progress.NOT_MADE: "did not come",
    None: "did not answer",
    Progress.IN_OPERATION: "did not return from the operation",
}

_Queue = queue.SimpleQueue[Callable[[], None] | None]


class Calls:
    """`execute` carries out a call whose turn has come."""

    def __init__(self, roster: Roster, membership: Membership, execute: Callable[[Job], None]) -> None:
        self._roster, self._membership, self._execute = roster, membership, execute
        self.made = 0
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._open: list[Job] = []
        self._thread_at_work = 0  # the thread that makes a call
        self._at_work: Job | None = None  # that call
        self._answers: dict[int, dict[int, Progress]] = {}  # by call that is asked about, and rank
        self._flight, self._flight_is_kept = Flight(), False
        self._queue: _Queue = queue.SimpleQueue()
        self._worker = threading.Thread(target=_work, args=(self._queue,), name="allfold calls", daemon=True)

    def start(self) -> None:
        """Start the thread that makes calls in the background."""
        self._worker.start()
        weakref.finalize(self, self._queue.put, None).atexit = False

    def close(self) -> None:
        self._queue.put(None)
        self._worker.join(None if self._membership.error is None else 0.1)

    # Making calls ----------------------------------------------------------------------------------------------------

    def check_open(self, name: str, needed: Iterable[int]) -> None:
        """Raise an error unless a call, or a message, with these ranks may begin."""
        self._membership.check_open(name)
        if self._thread_at_work == threading.get_ident():
            label = self._roster.label
            raise UsageError(f"{name}: called inside an operation of a call of the same communicator ({label})")
        self._membership.check_present(name, needed, self.made)

    def begin(
        self, call: Call, async_op: bool, prepared: Sequence[_native.Prepared] | None = None
    ) -> Background | None:
        """Make a call; or begin it, if async, and return its ticket. `prepared`: see `Job`."""
        membership = self._membership
        job = Job(call, self._roster.timeout if call.timeout is None else call.timeout, prepared)
        if prepared is None:
            job.take(self._roster.rank, self._roster.size)
        try:
            self.check_open(call.collective, range(self._roster.size))
        except RankLost as error:
            # A rank has left. Others may wait in this call, and must not take our own end for the cause.
            if membership.error is None:
                membership.give_up(error)
            raise
        with self._lock:
            self.made += 1
            job.number = self.made
            here = not async_op and not self._open
            self._open.append(job)
            if here:
                self._turn.acquire()  # free, or about to be: before a queued call can take it
            else:
                job.bell = threading.Event()
                self._queue.put(lambda: self._make_queued(job))
        if async_op:
            if membership.error is not None:  # it failed meanwhile
                job.end(membership.error)
                job.release()
            return Background(job.done, partial(self.wait, job))
        if here:
            self._make(job)
        elif job.bell is not None:
            try:
                job.bell.wait()
            except BaseException as error:  # the caller has its arrays back, so nobody may use them any more
                why = f"{type(error).__name__} ({self._roster.label})"
                membership.give_up(RankLost(f"rank {self._roster.rank} gave up {call.collective}: {why}"))
                raise
        self._raise(job.error)
        return None

    def wait(self, job: Job, timeout: float | None) -> bool:
        assert job.bell is not None
        if not job.bell.wait(timeout):
            return False
        self._raise(job.error)
        return True

    def _raise(self, error: BaseException | None) -> None:
        if isinstance(error, AllfoldError):
            error = type(error)(*error.args)
            self.explain(error)
        if error is not None:
            raise error

    def _make_queued(self, job: Job) -> None:
        if not job.is_over:
            self._turn.acquire()
            self._make(job)

    def _make(self, job: Job) -> None:
        """Make the call whose turn it is."""
        membership = self._membership
        self._thread_at_work, self._at_work = threading.get_ident(), job
        try:
            if membership.error is not None:
                raise type(membership.error)(*membership.error.args)
            noted = self._flight.begins(job)
            self._execute(job)
            noted.ended = time.time()
            job.end(None)
        except Disconnected as error:
            job.end(membership.explained(error))
        except AllfoldError as error:
            better = membership.better(error)
            if membership.error is None:
                membership.give_up(better)
            job.end(better)
        except BaseException as error:  # the user's operation raised
            what = f"{type(error).__name__}: {error} (call {job.number} of {self._roster.label})"
            job.end(error)
            membership.give_up(RankLost(f"rank {self._roster.rank} failed in {job.call.collective}: {what}"))
        finally:
            self._thread_at_work, self._at_work = 0, None
            with self._lock:
                self._open.remove(job)
            self._turn.release()
            if job.error is not None:
                membership.cut_off.wait(_CUTTING_SECONDS)
            job.release()

    # Time, and what ends calls ---------------------------------------------------------------------------------------

    def fail(self, error: AllfoldError) -> None:
        """The group has failed: end all calls that wait for their turn. The one at work ends by itself, when its thread is
        no longer at its arrays."""
        with self._lock:
            jobs = list(self._open)
        for job in jobs:
            if job is not self._at_work:
                job.end(error)
                job.release()

    def somebody_left(self, who: int) -> None:
        """A rank of the world has left the run, or this group: calls that it has not made cannot end."""
        done = self._membership.left_after.get(who, 0)
        if self._has_open(done):
            timer = threading.Timer(GRACE_SECONDS, self._fail_open, (done, self._membership.gone([who])))
            timer.daemon = True
            timer.start()

    def _fail_open(self, done: int, error: AllfoldError) -> None:
        if self._has_open(done):
            self._membership.give_up(error)

    def _has_open(self, done: int) -> bool:
        return any(job.number > done for job in list(self._open))

    def interrupt(self) -> None:
        """A signal ends the call that the main thread makes."""
        if self._open:
            name = self._open[0].call.collective
            self._membership.give_up(
                RankLost(f"rank {self._roster.rank} was interrupted in {name} ({self._roster.label})")
            )

    def look(self, now: float) -> None:
        """End calls whose time is up; called by the thread that watches."""
        for job in list(self._open):
            if now > job.deadline and not job.is_over and not job.is_late:
                job.is_late = True
                threading.Thread(target=self._time_out, args=(job,), daemon=True).start()

    def _time_out(self, job: Job) -> None:
        membership, name, limit = self._membership, job.call.collective, job.limit
        call = f"call {job.number} of {self._roster.label}"
        far = self.ask(job.number)
        if job.is_over or membership.error is not None:  # meanwhile, and then not everybody was asked to the end
            return
        by = {one: membership.where([rank for rank in far if far[rank] is one]) for one in far.values()}
        facts = [f"{by[one]} {words}" for one, words in _HOLDS_UP.items() if one in by]
        what = " and ".join(facts) or f"every rank has come, but these were not done: {by[Progress.MADE]}"
        membership.give_up(
            RankLost(f"rank {self._roster.rank} gave up {name} after {limit:g} s: {what} ({call})"),
            CollectiveTimeout(f"{name}: {what} within {limit:g} s ({call})"),
        )

    def ask(self, number: int) -> dict[int, Progress | None]:
        """The progress of every rank with a call; None for ranks that do not answer."""
        roster, membership = self._roster, self._membership
        answers = self._answers[number] = {roster.rank: self.progress(number)}
        membership.world.post.send_all(
            (roster.ranks[rank] for rank in roster.others), Frame(News.ASKED, roster.number, 0, (number, 0, 0))
        )
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < roster.size and time.monotonic() < deadline and not membership.failed.wait(0.01):
            pass
        del self._answers[number]
        return {rank: answers.get(rank) for rank in range(roster.size)}

    def answered(self, number: int, rank: int, progress: Progress) -> None:
        """A rank has said how far it is with a call."""
        self._answers.get(number, {})[rank] = progress

    def progress(self, number: int) -> Progress:
        """The progress of this rank with a call."""
        if number > self.made:
            return Progress.NOT_MADE
        job = self._at_work
        if job is not None and job.number <= number and _is_in_operation(self._thread_at_work):
            return Progress.IN_OPERATION
        return Progress.MADE if any(job.number <= number for job in list(self._open)) else Progress.DONE

    # The record of calls ---------------------------------------------------------------------------------------------

    def explain(self, error: BaseException) -> None:
        """Attach the last calls of this rank to the first error; the other ranks do the same with theirs."""
        if isinstance(error, FAILURES) and not self._flight_is_kept:
            self._flight_is_kept = True
            roster = self._roster
            number = (self._membership.world.identity + roster.number) % 2**64
            keep(error, roster.rank, roster.label, number, roster.size, lambda: [self.flight()])

    def flight(self) -> dict[str, Any]:
        """The last calls of this rank."""
        return self._flight.facts(self._roster.rank, self._membership.standing, self.made)


def _is_in_operation(thread: int) -> bool:
    """Whether a thread is inside a function of the user's that folds."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Op._call.__code__:
        frame = frame.f_back
    return frame is not None


def _work(calls: _Queue) -> None:
    """Make the calls of a queue, which alone keeps their group alive: one that was dropped can be freed after them."""
    while (make := calls.get()) is not None:
        make()
        del make
