"""The reference engine: ranks are threads of this process, and NumPy does what the schedule says, step by step.

It is slow, and the oracle: what runs on it must give the same results on every other engine, bit for bit. The last rank
to arrive at a call replays the schedule for all. It has no flight recorder, no trace, no shrink and no shared arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ...collectives import COLLECTIVES
from ...errors import CollectiveTimeout, MismatchError, RankLost
from ...wording import name_ranks
from ..engine import Background, Call, Engine, name_group
from ..mailbox import wait
from ..signature import check_groups, difference
from ..taken import Taken, take
from .meeting import Mailbox, Meeting
from .replay import replay


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
        self.messages = Mailbox(rank, meeting, timeout)
        self._meeting = meeting

    def run(self, call: Call, async_op: bool) -> Background | None:
        # One that folds from rank 0 up, as `algorithm=None` does everywhere.
        driver_or_direct = "driver" if COLLECTIVES[call.collective].rooted else "direct"
        taken = take(call, self.rank, self.size, call.algorithm or driver_or_direct)
        number, ticket = self._meeting.come(self.rank, taken, self._perform)
        if async_op:
            return Background(ticket.done, partial(wait, ticket))  # the last rank to come makes the call, for all
        self._finish(call.collective, number, ticket, call.timeout)
        return None

    def group(self, ranks: Sequence[int], timeout: float | None) -> Reference | None:
        chosen = list(ranks)

        def divide(named: list[list[int]], _: int) -> dict[tuple[int, ...], Meeting]:
            check_groups(named)
            self._meeting.groups += 1
            groups = {tuple(one) for rank, one in enumerate(named) if rank in one}
            return {group: Meeting(len(group), name_group(self._meeting.groups, group, self.label)) for group in groups}

        number, ticket = self._meeting.come(self.rank, chosen, divide)
        self._finish("group", number, ticket, timeout)
        if self.rank not in chosen:
            return None
        return Reference(chosen.index(self.rank), ticket.result()[tuple(chosen)], self.timeout)

    def close(self, compares: bool) -> None:
        self._meeting.leave(self.rank)

    def abort(self) -> None:
        self._meeting.end(RankLost(f"rank {self.rank} has aborted {self.label}"))

    def calls(self) -> int:
        return self._meeting.begun[self.rank]

    def _perform(self, calls: list[Taken], number: int) -> None:
        """Make one call, for all ranks."""
        first = calls[0]
        if len({one.signature for one in calls}) > 1:
            what = difference({rank: one.signature for rank, one in enumerate(calls)})
            raise MismatchError(f"{what} (call {number} of {self.label})")
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

    def _finish(self, name: str, number: int, ticket: Future[Any], timeout: float | None) -> None:
        limit = self.timeout if timeout is None else timeout
        if wait(ticket, limit):
            return
        absent = self._meeting.missing(number)
        if not absent:  # the last rank came at this very moment
            wait(ticket, None)
            return
        missing = name_ranks(absent)
        call = f"call {number} of {self.label}"
        self._meeting.end(
            RankLost(f"rank {self.rank} gave up {name} after {limit:g} s: {missing} did not come ({call})")
        )
        raise CollectiveTimeout(f"{name}: {missing} did not come within {limit:g} s ({call})")
