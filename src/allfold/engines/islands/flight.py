"""The record of a rank's last calls between hosts. Other ranks keep their own, on their hosts."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from ... import _native
from .job import Job

_KEPT = 256


class Noted:
    """A call in the record. It keeps no array alive."""

    __slots__ = ("algorithm", "begun", "collective", "dtype", "elements", "ended", "number", "op", "root")

    def __init__(self, job: Job) -> None:
        call = job.call
        self.number, self.collective, self.root = job.number, call.collective, call.root
        self.op, self.algorithm = call.op, "" if job.named is None else job.named.algorithm
        self.dtype, self.elements = job.dtype.name, job.elements
        self.begun, self.ended = time.time(), 0.0

    @classmethod
    def made_directly(cls, facts: _native.DirectCall) -> Noted:
        noted = cls(Job.made_directly(facts))
        noted.begun, noted.ended = facts[4], facts[5]
        return noted

    def facts(self) -> dict[str, Any]:
        return {
            "call": self.number,
            "collective": self.collective,
            "dtype": self.dtype,
            "op": "" if self.op is None else self.op.name,
            "elements": self.elements,
            "root": self.root,
            "algorithm": self.algorithm,
            "begun": self.begun,
            "ended": self.ended or None,
        }


class Flight:
    """One rank's record."""

    def __init__(self) -> None:
        self._calls: deque[Noted] = deque(maxlen=_KEPT)

    def begins(self, job: Job) -> Noted:
        noted = Noted(job)
        self._calls.append(noted)
        return noted

    def facts(self, rank: int, standing: str, direct: _native.DirectCalls) -> dict[str, Any]:
        """The record as JSON. `direct` has noted the calls that the extension made."""
        at_work = direct.at_work()
        others = [Noted.made_directly(one) for one in (*direct.notes(), *([] if at_work is None else [at_work]))]
        noted = sorted((*self._calls, *others), key=lambda one: one.number)[-_KEPT:]
        calls = [one.facts() for one in noted]
        done = max((call["call"] for call in calls if call["ended"]), default=0)
        return {
            "rank": rank,
            "process": os.getpid(),
            "standing": standing,
            "last_call": direct.made(),
            "last_done": done,
            "calls": calls,
        }
