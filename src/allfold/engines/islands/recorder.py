"""The trace of a rank: its messages on the wire, and what its island did in shared memory.

Every host has its own clock; all times are converted to rank 0's.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ... import _native
from ...fabrics.fabric import FOREVER, Bytes, Fabric, Transfer
from ..engine import Event
from ..shared_memory.engine import SharedMemory
from .job import Job
from .roster import Roster

WIRE = "wire"
_SHORT = 1 << 16  # bytes: up to here, a send counts as done once it has begun


class Recorder:
    """One rank's record, from `start_trace` to `stop_trace`."""

    def __init__(self, roster: Roster, island: SharedMemory, algorithm: Callable[[Job], str]) -> None:
        """`island`: the engine of the island's collectives. `algorithm`: returns the name of a call's algorithm."""
        self._roster, self._island, self._algorithm = roster, island, algorithm
        self._job: Job | None = None
        self._events: list[Event] = []
        self._first: list[int] = []  # by call: the number of its first call inside the island
        self._jobs: list[Job] = []

    def begins(self, job: Job) -> None:
        self._job = job
        self._first.append(self._island.calls() + 1)
        self._jobs.append(job)

    def send(self, fabric: Fabric, peer: int, data: Bytes, tag: int) -> Transfer:
        begun = time.monotonic_ns()
        transfer = fabric.send(peer, data, tag)
        moved = _Moved(self, f"send to rank {peer}", peer, data.size, begun, self._job)
        if data.size > _SHORT:
            return _Timed(moved, transfer)
        moved.note()  # it counts as done, whenever it is waited for
        return transfer

    def receive(self, fabric: Fabric, peer: int, data: Bytes, tag: int) -> Transfer:
        moved = _Moved(self, f"receive from rank {peer}", peer, data.size, time.monotonic_ns(), None)
        return _Timed(moved, fabric.receive(peer, data, tag))

    def take(self, links: _native.PeerLinks) -> None:
        """Record the messages of this call that the extension has sent and received."""
        for sends, peer, bytes, begun, ended in links.moved():
            what = f"send to rank {peer}" if sends else f"receive from rank {peer}"
            self.note(_Moved(self, what, peer, bytes, begun, None), ended)

    def note(self, moved: _Moved, ended: int | None = None) -> None:
        """Record a message that ended now, or at the given time."""
        job = moved.job or self._job
        if job is None:
            return
        self._events.append(
            Event(
                rank=self._roster.rank,
                call=job.number,
                collective=job.call.collective,
                algorithm=self._algorithm(job),
                memory=WIRE,
                step=0,
                segment=0,
                instruction=len(self._events),
                what=moved.what,
                peers=[moved.peer],
                bytes=moved.bytes,
                start=moved.begun,
                waited=0,
                worked=(time.monotonic_ns() if ended is None else ended) - moved.begun,
            )
        )

    def events(self, inside: Sequence[Event], shift: int) -> list[Event]:
        """All events, with the group's rank numbers. `inside`: those that the island's engine recorded."""
        ranks = self._roster.mine
        found = list(self._events)
        for event in inside:
            at = bisect_right(self._first, event.call) - 1
            if at >= 0:
                job = self._jobs[at]
                peers = sorted(ranks[peer] for peer in event.peers)
                found.append(replace(event, rank=self._roster.rank, call=job.number, peers=peers))
        return [replace(event, start=event.start + shift) for event in found]


class _Moved(NamedTuple):
    """A recorded message. A receive belongs to the call that waits for it, since it may have been posted earlier."""

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
