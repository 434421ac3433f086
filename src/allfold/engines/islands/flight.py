"""The last calls of a rank between hosts: what and when. Other ranks' calls are in their own records, on their hosts."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from ...dtypes import find_dtype
from .job import Job

_KEPT = 256


class Noted:
    """A call. It keeps no array alive."""

    __slots__ = ("algorithm", "begun", "bytes", "collective", "dtype", "ended", "number", "op", "root")

    def __init__(self, job: Job) -> None:
        call = job.call
        self.number, self.collective, self.root = job.number, call.collective, call.root
        self.op, self.algorithm = call.op, "" if job.named is None else job.named.algorithm
        if job.prepared is None:  # its arrays were taken
            self.dtype, self.bytes = job.dtype, job.elements * job.dtype.itemsize
        else:
            assert call.output is not None
            self.dtype, self.bytes = call.output.dtype, call.output.nbytes
        self.begun, self.ended = time.time(), 0.0

    def facts(self) -> dict[str, Any]:
        dtype = find_dtype(self.dtype)
        return {
            "call": self.number,
            "collective": self.collective,
            "dtype": dtype.name,
            "op": "" if self.op is None else self.op.name,
            "elements": self.bytes // dtype.itemsize,
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

    def facts(self, rank: int, standing: str, made: int) -> dict[str, Any]:
        calls = [noted.facts() for noted in list(self._calls)]
        done = max((call["call"] for call in calls if call["ended"]), default=0)
        return {
            "rank": rank,
            "process": os.getpid(),
            "standing": standing,
            "last_call": made,
            "last_done": done,
            "calls": calls,
        }
