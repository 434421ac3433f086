"""What a rank did while a trace was on: its messages on the wire, and what its island did in shared memory.

Hosts have clocks of their own. So the first rank of every island asks rank 0 what time it is, several times, and takes
the answer that came back soonest: it was given about halfway. All times are then those of rank 0's clock.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...fabrics import tags
from ...fabrics.fabric import FOREVER, Bytes, Fabric, Transfer
from ..engine import Call, Event
from .job import Job

if TYPE_CHECKING:
    from .engine import Islands

WIRE = "wire"
_QUESTIONS = 10
_SHORT = 1 << 16  # bytes that are gone when a send has begun


class Recorder:
    """One rank's record, from `start_trace` to `stop_trace`."""

    def __init__(self, engine: Islands) -> None:
        self._engine = engine
        self._job: Job | None = None
        self._events: list[Event] = []
        self._first: list[int] = []  # by call: the number of its first call inside the island
        self._jobs: list[Job] = []

    def begins(self, job: Job) -> None:
        self._job = job
        self._first.append(self._engine.island.calls() + 1)
        self._jobs.append(job)

    def send(self, fabric: Fabric, peer: int, data: Bytes, tag: int) -> Transfer:
        begun = time.monotonic_ns()
        transfer = fabric.send(peer, data, tag)
        moved = _Moved(self, f"send to rank {peer}", peer, data.size, begun, self._job)
        if data.size > _SHORT:
            return _Timed(moved, transfer)
        moved.note()  # it has left; it is waited for at some time
        return transfer

    def receive(self, fabric: Fabric, peer: int, data: Bytes, tag: int) -> Transfer:
        return self.awaits(fabric.receive(peer, data, tag), peer, data.size)

    def awaits(self, transfer: Transfer, peer: int, bytes: int) -> Transfer:
        """A receive, from now on."""
        moved = _Moved(self, f"receive from rank {peer}", peer, bytes, time.monotonic_ns(), None)
        return _Timed(moved, transfer)

    def note(self, moved: _Moved) -> None:
        job = moved.job or self._job
        if job is None:
            return
        self._events.append(
            Event(
                rank=self._engine.rank,
                call=job.number,
                collective=job.call.collective,
                algorithm=job.algorithm(),
                memory=WIRE,
                step=0,
                segment=0,
                instruction=len(self._events),
                what=moved.what,
                peers=[moved.peer],
                bytes=moved.bytes,
                start=moved.begun,
                waited=0,
                worked=time.monotonic_ns() - moved.begun,
            )
        )

    def events(self, inside: Sequence[Event], shift: int) -> list[Event]:
        """Everything, in the numbers of the whole group. `inside`: what the island's engine recorded."""
        ranks = self._engine.island_ranks
        found = list(self._events)
        for event in inside:
            at = bisect_right(self._first, event.call) - 1
            if at >= 0:
                job = self._jobs[at]
                peers = sorted(ranks[peer] for peer in event.peers)
                found.append(replace(event, rank=self._engine.rank, call=job.number, peers=peers))
        return [replace(event, start=event.start + shift) for event in found]


class _Moved(NamedTuple):
    """A message. A receive belongs to the call that waits for it: it may have been posted before."""

    recorder: Recorder
    what: str
    peer: int
    bytes: int
    begun: int
    job: Job | None

    def note(self) -> None:
        self.recorder.note(self)


class _Timed(NamedTuple):
    moved: _Moved
    transfer: Transfer

    def wait(self, within: float = FOREVER) -> int:
        peer = self.transfer.wait(within)
        self.moved.note()
        return peer


def clock_shift(engine: Islands) -> int:
    """What to add to this host's clock to get rank 0's, in nanoseconds. Every rank calls it."""
    leaders = [island[0] for island in engine.islands if 0 not in island]
    shift = np.zeros(1, np.int64)
    links = engine.links
    if engine.rank == 0:
        for leader in leaders:
            for _ in range(_QUESTIONS):
                asked = np.zeros(1, np.uint8)
                links.receive(leader, asked, tags.CLOCK).wait()
                now = np.array([time.monotonic_ns()], np.int64)
                links.send(leader, now.view(np.uint8), tags.CLOCK).wait()
    elif engine.rank in leaders:
        best = None
        for _ in range(_QUESTIONS):
            there = np.zeros(1, np.int64)
            answer = links.receive(0, there.view(np.uint8), tags.CLOCK)
            begun = time.monotonic_ns()
            links.send(0, np.zeros(1, np.uint8), tags.CLOCK).wait()
            answer.wait()
            took = time.monotonic_ns() - begun
            if best is None or took < best:
                best, shift[0] = took, int(there[0]) - (begun + took // 2)
    if len(engine.island_ranks) > 1:
        engine.island.run(Call("broadcast", output=shift, timeout=engine.timeout), False)
    return int(shift[0])
