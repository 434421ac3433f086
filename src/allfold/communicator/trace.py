"""Traces of real runs: every instruction of every rank, with its waiting and working times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..chrome_trace import Row, Track, process_name, trace
from ..engines.engine import Event
from ..files import write_whole

if TYPE_CHECKING:
    from .communicator import Communicator


_MOST_AT_ONCE = 1000  # messages of one rank


class Trace:
    """The events of all ranks, once the `with comm.trace()` block has ended."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.events: list[Event] = []

    def collect(self, events: list[Event]) -> None:
        """Share this rank's events with all ranks."""
        own = [asdict(event) for event in events]
        for found in self._communicator._all_gather_json("trace", own):
            self.events += [Event(**event) for event in found]
        self.events.sort(key=lambda event: (event.start, event.rank))

    def to_json(self) -> dict[str, Any]:
        return {"format": "allfold-trace", "version": 1, "events": [asdict(event) for event in self.events]}

    def to_chrome(self) -> dict[str, Any]:
        """For chrome://tracing and Perfetto: a track per rank, waiting and working as slices on it.

        Messages between hosts go on while a rank does something else: they have tracks of their own below.
        """
        begin = min((event.start for event in self.events), default=0)
        rows: list[Row] = [Track(rank).name(f"rank {rank}") for rank in range(self._communicator.size)]
        on_wire = [event for event in self.events if event.memory == "wire"]
        if on_wire:
            rows += [process_name(0, "memory"), process_name(1, "wire"), *_messages(on_wire, begin)]
        for event in self.events:
            if event.memory == "wire":
                continue
            track, start, facts = Track(event.rank), (event.start - begin) / 1e3, asdict(event)
            if event.waited:
                rows.append(track.slice(f"wait ({event.collective})", "wait", start, event.waited / 1e3, facts))
            rows.append(track.slice(event.what, "work", start + event.waited / 1e3, event.worked / 1e3, facts))
        return trace(rows, "ns")

    def save(self, path: str | PathLike[str], chrome: bool = False) -> None:
        write_whole(path, json.dumps(self.to_chrome() if chrome else self.to_json()))


def _messages(events: Iterable[Event], begin: int) -> Iterator[Row]:
    """Slices of one track must not overlap: each message goes to the first track of its rank that is free."""
    ends: dict[int, list[int]] = {}
    for event in sorted(events, key=lambda event: (event.rank, event.start)):
        tracks = ends.setdefault(event.rank, [])
        at = next((number for number, end in enumerate(tracks) if end <= event.start), len(tracks))
        track = Track(_MOST_AT_ONCE * event.rank + min(at, _MOST_AT_ONCE - 1), 1)
        if at == len(tracks):
            tracks.append(0)
            yield track.name(f"rank {event.rank}, messages")
        tracks[at] = event.start + event.worked
        yield track.slice(event.what, "wire", (event.start - begin) / 1e3, event.worked / 1e3, asdict(event))
