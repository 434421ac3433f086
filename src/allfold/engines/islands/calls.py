"""The calls of one rank in a group, made one after the other: by the calling thread, or by one in the background.

The thread that watches over the run ends calls at their timeout, and calls that a signal interrupts.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, RankLost, UsageError
from ...fabrics.fabric import Disconnected
from ...ops import Op
from ..engine import FAILURES, Background, Call
from ..shared_memory.flight import keep
from .execution.native import NativeRuns, weakly
from .flight import Flight
from .frames import Frame, News, Progress
from .job import Job
from .membership import Membership
from .roster import Roster
from .world import GRACE_SECONDS

_ANSWER_SECONDS = 0.5  # for other ranks to answer how far they are
_CUTTING_SECONDS = 5.0  # for all connections to be cut before an error is raised; usually an instant

_HOLDS_UP = {  # by a rank's progress: why others wait for it
    Progress.NOT_MADE: "did not arrive",
    None: "did not answer",
    Progress.IN_OPERATION: "did not return from the operation",
}

_Queue = queue.SimpleQueue[Callable[[], None] | None]


class Calls:
    """`execute` carries out a call when it is its turn. `explain_failure` raises the error of a call that the extension
    has made itself."""

    def __init__(
        self,
        roster: Roster,
        membership: Membership,
        execute: Callable[[Job], None],
        explain_failure: Callable[[Job, Any], None],
        native: NativeRuns,
    ) -> None:
        self._roster, self._membership, self._execute = roster, membership, execute
        self._explain_failure = explain_failure
        self._lock = threading.Lock()
        self._late = 0  # the number of the last direct call that timed out
        self.direct, self._turn, native.on_failure = native.direct, native.turn, weakly(self._failed_directly)
        native.check_group = weakly(self._check_group)
        self._open: list[Job] = []
        self._thread_at_work = 0  # the thread that is making a call
        self._at_work: Job | None = None  # that call
        self._answers: dict[int, dict[int, Progress]] = {}  # by number of the call in question, and by rank
        self._flight, self._flight_is_kept = Flight(), False
        self._queue: _Queue = queue.SimpleQueue()
        self._worker = threading.Thread(target=_work, args=(self._queue,), name="allfold calls", daemon=True)

    def start(self) -> None:
        """Start the thread for calls in the background."""
        self._worker.start()
        weakref.finalize(self, self._queue.put, None).atexit = False

    def close(self) -> None:
        self._queue.put(None)
        self._worker.join(None if self._membership.error is None else 0.1)

    # Making calls ----------------------------------------------------------------------------------------------------

    def check_open(self, name: str, needed: Iterable[int]) -> None:
        """Raise an error unless a call or a message that needs these ranks may begin."""
        self._membership.check_open(name)
        work = self.direct.at_work()
        if threading.get_ident() in (self._thread_at_work, None if work is None else work[-1]):
            label = self._roster.label
            raise UsageError(f"{name}: called inside a user-defined operation of the same communicator ({label})")
        self._membership.check_present(name, needed, self.direct.made())

    def begin(self, call: Call, async_op: bool) -> Background | None:
        """Make a call; if async, begin it and return its ticket."""
        membership = self._membership
        job = Job(call, self._roster.timeout if call.timeout is None else call.timeout)
        job.take(self._roster.rank, self._roster.size)
        try:
            self.check_open(call.collective, range(self._roster.size))
        except RankLost as error:
            # A rank has left. Others may be waiting in this call, and must not blame our own end for it.
            if membership.error is None:
                membership.give_up(error)
            raise
        try:
            with self._lock:
                self.direct.shut()
                job.number = self.direct.next()
                here = not async_op and not self._open and self.direct.at_work() is None
                self._open.append(job)
                if here:
                    self._turn.acquire()  # free, or about to be; acquired here, before a queued call can take it
                else:
                    job.bell = threading.Event()
                    self._queue.put(lambda: self._make_queued(job))
            if here:
                self._make(job)
            elif job.bell is not None and not async_op:
                job.bell.wait()
        except AllfoldError:
            raise
        except (
            BaseException
        ) as error:  # an interrupt: the caller gets its arrays back, so nothing may use them from now on
            why = f"{type(error).__name__} ({self._roster.label})"
            membership.give_up(RankLost(f"rank {self._roster.rank} gave up {call.collective}: {why}"))
            raise
        if async_op:
            if membership.error is not None:  # the group has failed meanwhile
                job.end(membership.error)
                job.release()
            return Background(job.done, partial(self.wait, job))
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

    def _failed_directly(self, call: _native.DirectCall, trouble: Any) -> None:
        """Called when a call that the extension made has failed. It still holds the turn."""
        job = Job.made_directly(call)
        with self._lock:
            self.direct.shut()
            self._open.append(job)
        self._make(job, trouble)
        self._raise(job.error)

    def _make(self, job: Job, trouble: Any = None) -> None:
        """Make a call that holds the turn. `trouble`: the failure, if the extension has made it already."""
        membership = self._membership
        self._thread_at_work, self._at_work = threading.get_ident(), job
        try:
            if trouble is None:
                self._check_group()
            noted = self._flight.begins(job)
            if trouble is None:
                self._execute(job)
                self._check_group()  # it may have failed since the last message arrived
            else:
                self._explain_failure(job, trouble)
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
                self.direct.open()
            self._turn.release()
            if job.error is not None:
                membership.cut_off.wait(_CUTTING_SECONDS)
            job.release()

    def _check_group(self) -> None:
        if (error := self._membership.error) is not None:
            raise type(error)(*error.args)

    # Time, and what ends calls ---------------------------------------------------------------------------------------

    def fail(self, error: AllfoldError) -> None:
        """Called when the group has failed: end all calls that wait for their turn. The one at work ends by itself, once its
        thread no longer uses its arrays."""
        self.direct.fail()
        with self._lock:
            jobs = list(self._open)
        for job in jobs:
            if job is not self._at_work:
                job.end(error)
                job.release()

    def somebody_left(self, who: int) -> None:
        """Called when a rank of the world has left the run or this group: calls that it has not made cannot end."""
        done = self._membership.left_after.get(who, 0)
        if self._has_open(done):
            timer = threading.Timer(GRACE_SECONDS, self._fail_open, (done, self._membership.gone([who])))
            timer.daemon = True
            timer.start()

    def _fail_open(self, done: int, error: AllfoldError) -> None:
        if self._has_open(done):
            self._membership.give_up(error)

    def _has_open(self, done: int) -> bool:
        return any(job.number > done for job in self._under_way())

    def _under_way(self) -> list[Job]:
        """The calls that are open, and the one that the extension makes."""
        work = self.direct.at_work()
        return [*self._open, *([] if work is None else [Job.made_directly(work)])]

    def interrupt(self) -> None:
        """Called at a signal: end the calls in progress."""
        if jobs := self._under_way():
            name = jobs[0].call.collective
            self._membership.give_up(
                RankLost(f"rank {self._roster.rank} was interrupted in {name} ({self._roster.label})")
            )

    def look(self, now: float) -> None:
        """End calls at their timeout. Called by the thread that watches."""
        for job in self._under_way():
            if now > job.deadline and not job.is_over and not job.is_late and job.number > self._late:
                job.is_late = True
                if job not in self._open:
                    self._late = job.number
                threading.Thread(target=self._time_out, args=(job,), daemon=True).start()

    def _time_out(self, job: Job) -> None:
        membership, name, limit = self._membership, job.call.collective, job.limit
        call = f"call {job.number} of {self._roster.label}"
        far = self.ask(job.number)
        is_over = job.is_over or self.progress(job.number) is Progress.DONE
        if is_over or membership.error is not None:  # it ended meanwhile, so some answers may be missing
            return
        by = {one: membership.where([rank for rank in far if far[rank] is one]) for one in far.values()}
        facts = [f"{by[one]} {words}" for one, words in _HOLDS_UP.items() if one in by]
        what = " and ".join(facts) or f"every rank arrived, but {by[Progress.MADE]} did not finish"
        membership.give_up(
            CollectiveTimeout(f"rank {self._roster.rank} gave up {name} after {limit:g} s: {what} ({call})"),
            CollectiveTimeout(f"{name}: {what} within {limit:g} s ({call})"),
        )

    def as_heard(self, error: AllfoldError) -> AllfoldError:
        """The error here after news from another rank: if that one ran out of time, has this one, too?"""
        if not isinstance(error, CollectiveTimeout):
            return error
        now = time.monotonic()
        late = next((job for job in self._under_way() if now > job.deadline), None)
        if late is None:
            return RankLost(str(error))
        return CollectiveTimeout(f"{late.call.collective}: not done within {late.limit:g} s; {error}")

    def ask(self, number: int) -> dict[int, Progress | None]:
        """Ask every rank how far it is with a call; None for ranks that do not answer."""
        roster, membership = self._roster, self._membership
        answers = self._answers[number] = {roster.rank: self.progress(number)}
        membership.world.frames.send_all(
            (roster.ranks[rank] for rank in roster.others), Frame(News.ASKED, roster.number, 0, (number, 0, 0))
        )
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < roster.size and time.monotonic() < deadline and not membership.failed.wait(0.01):
            pass
        del self._answers[number]
        return {rank: answers.get(rank) for rank in range(roster.size)}

    def answered(self, number: int, rank: int, progress: Progress) -> None:
        """Called when a rank has answered how far it is with a call."""
        self._answers.get(number, {})[rank] = progress

    def progress(self, number: int) -> Progress:
        """The progress of this rank with a call."""
        if number > self.direct.made():
            return Progress.NOT_MADE
        job = self._at_work
        if job is not None and job.number <= number and _is_in_operation(self._thread_at_work):
            return Progress.IN_OPERATION
        return Progress.MADE if any(job.number <= number for job in self._under_way()) else Progress.DONE

    # The record of calls ---------------------------------------------------------------------------------------------

    def explain(self, error: BaseException) -> None:
        """Attach the last calls of this rank to its first error. Every rank does so with its own."""
        if isinstance(error, FAILURES) and not self._flight_is_kept:
            self._flight_is_kept = True
            roster = self._roster
            number = (self._membership.world.identity + roster.number) % 2**64
            keep(error, roster.rank, roster.label, number, roster.size, lambda: [self.flight()])

    def flight(self) -> dict[str, Any]:
        """The last calls of this rank."""
        return self._flight.facts(self._roster.rank, self._membership.standing, self.direct)


def _is_in_operation(thread: int) -> bool:
    """True if a thread is inside a user-defined operation."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Op._call.__code__:
        frame = frame.f_back
    return frame is not None


def _work(calls: _Queue) -> None:
    """Make the calls in a queue. The queued calls alone keep their group alive, so a dropped one is freed after them."""
    while (make := calls.get()) is not None:
        make()
        del make
