"""What really happened: every instruction of every rank, when it waited and when it worked."""

from __future__ import annotations

import json
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..chrome_trace import Row, Track, trace
from ..engines.engine import Event
from ..files import write_whole

if TYPE_CHECKING:
    from .communicator import Communicator


class Trace:
    """The events of all ranks, once the `with comm.trace()` block has ended."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.events: list[Event] = []

    def collect(self, events: list[Event]) -> None:
        """Share this rank's events with all ranks."""
        communicator = self._communicator
        own = json.dumps([asdict(event) for event in events]).encode()
        lengths = np.zeros(communicator.size, np.int64)
        communicator.all_gather(np.array([len(own)], np.int64), lengths)
        longest = int(lengths.max())
        padded = np.zeros(longest, np.uint8)
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        everyone = np.zeros((communicator.size, longest), np.uint8)
        communicator.all_gather(padded, everyone)
        for rank, length in enumerate(lengths):
            self.events += [Event(**event) for event in json.loads(everyone[rank, :length].tobytes())]
        self.events.sort(key=lambda event: (event.start, event.rank))

    def to_json(self) -> dict[str, Any]:
        return {"format": "allfold-trace", "version": 1, "events": [asdict(event) for event in self.events]}

    def to_chrome(self) -> dict[str, Any]:
        """For chrome://tracing and Perfetto: a track per rank, waiting and working as slices on it."""
        begin = min((event.start for event in self.events), default=0)
        rows: list[Row] = [Track(rank).name(f"rank {rank}") for rank in range(self._communicator.size)]
        for event in self.events:
            track, start, facts = Track(event.rank), (event.start - begin) / 1e3, asdict(event)
            if event.waited:
                rows.append(track.slice(f"wait ({event.collective})", "wait", start, event.waited / 1e3, facts))
            rows.append(track.slice(event.what, "work", start + event.waited / 1e3, event.worked / 1e3, facts))
        return trace(rows, "ns")

    def save(self, path: str | PathLike[str], chrome: bool = False) -> None:
        write_whole(path, json.dumps(self.to_chrome() if chrome else self.to_json()))
