"""The reference engine: ranks are threads of this process, and NumPy does what the schedule says, step by step.

It is slow, and the oracle: what runs on it must give the same results on every other engine, bit for bit. It needs neither
the extension nor shared memory, so it is also the engine of `spawn(…, ranks_are="threads")` on every system. The last rank
to arrive at a call replays the schedule for all. It has no flight recorder, no trace and no shared arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from ...collectives import COLLECTIVES
from ...errors import CollectiveTimeout, RankLost
from ...wording import name_ranks
from ..engine import Call, Engine
from ..last_words import last_words
from ..mailbox import has_ended
from ..taken import Taken, take
from .meeting import Meeting, Visit, raise_named
from .messages import Mailbox
from .replay import replay

# After ranks have made different calls, time for the others to arrive, so that the error can name all of them.
_SECONDS_TO_ARRIVE = 0.5
# Time for another thread to finish a call at which all ranks have arrived, beyond the call's timeout.
_SECONDS_TO_PERFORM = 5.0


def in_threads(ranks: int, timeout: float) -> list[Engine]:
    meeting = Meeting(ranks, "the world")
    return [Reference(rank, meeting, timeout) for rank in range(ranks)]


class Reference(Engine):
    """One rank's end of a group."""

    def __init__(self, rank: int, meeting: Meeting, timeout: float) -> None:
        self.rank = rank
        self.size = meeting.size
        self.label = meeting.label
        self.timeout = timeout
        self.messages = Mailbox(self, meeting)
        self._meeting = meeting

    def run(self, call: Call, async_op: bool) -> Waiting | None:
        # One that folds from rank 0 up, as `algorithm=None` does everywhere.
        driver_or_direct = "driver" if COLLECTIVES[call.collective].rooted else "direct"
        taken = take(call, self.rank, self.size, call.algorithm or driver_or_direct)
        visit = self._meeting.come(call.collective, self.rank, taken.signature, taken, _perform)
        waiting = self._waiting(call.collective, visit, call.timeout)
        if async_op:
            return waiting
        waiting.wait(None)
        return None

    def group(self, ranks: Sequence[int], timeout: float | None) -> Reference | None:
        chosen = list(ranks)
        visit = self._meeting.group(self.rank, chosen)
        self._waiting("group", visit, timeout).wait(None)
        if self.rank not in chosen:
            return None
        return Reference(chosen.index(self.rank), visit.result.result()[tuple(chosen)], self.timeout)

    def part(self, ranks: Sequence[int], name: str, timeout: float) -> Reference:
        chosen = list(ranks)
        return Reference(chosen.index(self.rank), self._meeting.part(self.rank, chosen, name), timeout)

    def shrink(self, timeout: float | None) -> Reference:
        limit = self.timeout if timeout is None else timeout
        if not has_ended(self._meeting.shrink(self.rank), limit) and (late := self._meeting.undecided()):
            are = "are" if len(late) > 1 else "is"
            raise CollectiveTimeout(f"shrink: {name_ranks(late)} did not arrive within {limit:g} s, and {are} not gone")
        rank, left = self._meeting.shrunk(self.rank)
        return Reference(rank, left, self.timeout)

    def close(self, compares: bool) -> None:
        self._meeting.leave(self.rank)

    def abort(self) -> None:
        words = last_words()
        why = f": it is ending after {words}" if words else ""
        aborted = RankLost(f"rank {self.rank} aborted this communicator{why}")
        self._meeting.end(self._meeting.lost([self.rank]) or aborted)

    def thread_ended(self) -> None:
        self._meeting.lose(self.rank, last_words())

    def calls(self) -> int:
        return self._meeting.begun[self.rank]

    def _waiting(self, name: str, visit: Visit, timeout: float | None) -> Waiting:
        return Waiting(self.rank, self._meeting, name, visit, self.timeout if timeout is None else timeout)


class Waiting:
    """One rank's wait for a call, as a `Ticket`. However often it is asked, it ends at the call's timeout."""

    def __init__(self, rank: int, meeting: Meeting, name: str, visit: Visit, limit: float) -> None:
        self._rank = rank
        self._meeting = meeting
        self._name = name
        self._visit = visit
        self._limit = limit
        self._deadline = monotonic() + limit
        self._timed_out: CollectiveTimeout | None = None

    def done(self) -> bool:
        if self._timed_out is None and monotonic() >= self._deadline:
            self._give_up()
        return self._timed_out is not None or self._visit.result.done()

    def wait(self, timeout: float | None) -> bool:
        remaining = max(0.0, self._deadline - monotonic())
        limit = remaining if timeout is None else min(timeout, remaining)
        if self._visit.differs:
            limit = min(limit, _SECONDS_TO_ARRIVE)
        if self._timed_out is None and not has_ended(self._visit.result, limit):
            if self._visit.differs:
                self._meeting.fail_differing(self._visit)
            elif timeout is not None and timeout < remaining:
                return False
            elif not self._give_up() and not has_ended(self._visit.result, max(self._limit, _SECONDS_TO_PERFORM)):
                self._time_out("all ranks arrived, but the operation was not done")
                self._meeting.end(CollectiveTimeout(f"rank {self._rank} gave up: it had waited too long"))
        if self._timed_out is not None:
            raise CollectiveTimeout(*self._timed_out.args)
        if (error := self._visit.result.exception(_SECONDS_TO_PERFORM)) is not None:
            raise_named(error, self._name, self._meeting.place(self._visit))
        return True

    def _give_up(self) -> bool:
        """False if no rank is missing: another thread performs the call, or the call has ended."""
        missing = self._meeting.give_up(self._visit, self._rank)
        if missing:
            self._time_out(f"{name_ranks(missing)} did not arrive")
        return bool(missing)

    def _time_out(self, why: str) -> None:
        place = self._meeting.place(self._visit)
        self._timed_out = CollectiveTimeout(f"{self._name}: {why} within {self._limit:g} s ({place})")


def _perform(calls: list[Taken]) -> None:
    """Make one call, for all ranks."""
    first = calls[0]
    assert first.schedule is not None
    promise = first.schedule.promise
    if not promise.carries_data:
        return
    inputs = [one.output if promise.in_place else one.input for one in calls]
    op = first.call.op
    results = replay(first.schedule, inputs, "sum" if op is None else op, first.dtype.name, first.call.counts)
    for one, result in zip(calls, results, strict=True):
        if result is not None and one.output is not None:
            one.output[...] = result
