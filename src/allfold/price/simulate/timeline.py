"""Timelines: the result of a simulation, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...chrome_trace import Row, Track, trace
from ...schedules import Schedule, describe
from ..cost.folding import shares_of
from ..topology.topology import Topology, spans
from .fairness import Floats, Ints

COLUMNS = ("move", "moves", "segment", "bytes", "ready", "start", "sent", "arrived", "landed", "end")

_SLICE = 1 << 18  # messages whose routes are looked at together


@dataclass(frozen=True, eq=False)
class Timeline:
    """The times of all messages (what one rank sends another in one step and segment), one entry per message.

    `ready`: its data exists · `start`: its first byte leaves · `sent`: its last byte has left · `arrived`: that
    byte is at the destination · `landed`: it begins to be written or combined there · `end`: that is done. Seconds
    since the beginning.

    >>> timeline = price.simulate(af.schedule("all_reduce", "ring", ranks=4), price.laptop(4), size=2**20)
    >>> len(timeline.start), bool(timeline.duration == timeline.end.max())
    (24, True)
    """

    schedule: Schedule
    topology: Topology
    size: int
    segments: int
    move: Ints
    """The first of the schedule's moves that it carries; `moves` says how many, all with the same step and ranks."""
    moves: NDArray[np.int32]
    segment: NDArray[np.int32]
    bytes: Floats
    ready: Floats
    start: Floats
    sent: Floats
    arrived: Floats
    landed: Floats
    end: Floats
    duration: float
    critical: Ints
    """The messages of the critical path, in order of time."""
    spans: Floats
    """From when to when each of them delays the end: rows without gaps between them, up to `duration`."""

    @property
    def messages(self) -> int:
        return len(self.move)

    @cached_property
    def source(self) -> NDArray[np.int32]:
        return self.schedule.columns["source"][self.move]

    @cached_property
    def destination(self) -> NDArray[np.int32]:
        return self.schedule.columns["destination"][self.move]

    @cached_property
    def step(self) -> Ints:
        return np.searchsorted(self.schedule.starts, self.move, side="right") - 1

    @cached_property
    def travels(self) -> NDArray[np.bool_]:
        """False for moves from one chunk of a rank to another chunk of the same rank."""
        return np.not_equal(self.source, self.destination)

    def word(self, message: int) -> str:
        """A message in one word, as in the schedule: `+3:0→1`, and how many more moves it carries."""
        columns, move = self.schedule.columns, self.move[message]
        names = ("reduces", "chunk", "source", "destination", "into")
        reduces, *numbers = (int(columns[name][move]) for name in names)
        more = int(self.moves[message]) - 1
        return describe(bool(reduces), *numbers) + (f" and {more} more" if more else "")

    def activities(self) -> tuple[Ints, Floats, Floats]:
        """The activities of ranks, three rows per message that travels: rank, begin, end; sorted by rank and time."""
        far = self.travels
        rank = np.concatenate([self.source[far], self.destination[far], self.destination]).astype(np.int64)
        begin = np.concatenate([self.start[far], self.first_arrived[far], self.landed])
        end = np.concatenate([self.sent[far], self.arrived[far], self.end])
        order = np.lexsort((begin, rank))
        return rank[order], begin[order], end[order]

    @cached_property
    def first_arrived(self) -> Floats:
        """The time at which the first byte of every message reached its destination."""
        return self.arrived - (self.sent - self.start)

    def idle_spans(self) -> tuple[Ints, Floats]:
        """The pauses of ranks: their numbers, and rows of (begin, end); sorted by rank and time."""
        rank, begin, end = self.activities()
        everyone = np.arange(self.schedule.ranks)
        # Add empty busy spans at the very beginning and the very end, so that every pause lies between two spans.
        rank = np.concatenate([everyone, rank, everyone])
        begin = np.concatenate([np.zeros(len(everyone)), begin, np.full(len(everyone), self.duration)])
        end = np.concatenate([np.zeros(len(everyone)), end, np.full(len(everyone), self.duration)])
        order = np.argsort(rank, kind="stable")
        rank, begin, end = rank[order], begin[order], end[order]
        reached = np.empty_like(end)
        bounds = np.searchsorted(rank, np.arange(self.schedule.ranks + 1))
        for first, last in pairwise(bounds.tolist()):
            np.maximum.accumulate(end[first:last], out=reached[first:last])
        pause = np.flatnonzero((rank[1:] == rank[:-1]) & (begin[1:] > reached[:-1]))
        return rank[pause], np.stack([reached[pause], begin[pause + 1]], axis=1)

    def idle(self) -> Floats:
        """Every rank's seconds without sending, receiving or combining."""
        rank, spans = self.idle_spans()
        seconds: Floats = np.zeros(self.schedule.ranks)
        np.add.at(seconds, rank, spans[:, 1] - spans[:, 0])
        return seconds

    def critical_parts(self) -> dict[str, float]:
        """The parts of the time along the critical path; they add up to the duration."""
        path, (begin, end) = self.critical, self.spans.T
        marks = (self.start[path], self.sent[path], self.arrived[path], self.landed[path], self.end[path])
        parts = {}
        for name, mark in zip(("startup", "transfer", "latency", "waiting", "combining"), marks, strict=True):
            upto = np.clip(mark, begin, end)
            parts[name] = float((upto - begin).sum())
            begin = upto
        return parts

    def link_bytes(self) -> Floats:
        """The bytes that have crossed each link."""
        total = np.zeros(len(self.topology.bandwidth))
        for messages, links, share in self._crossings():
            total += np.bincount(links, weights=self.bytes[messages] * share, minlength=len(total))
        return total

    def link_use(self, buckets: int = 200) -> Floats:
        """The share of each link's bandwidth in use: links × time buckets of equal length.

        A message counts with its mean rate from its first byte to its last. If its rate changed on the way, a single
        bucket may be slightly off; the sum over all buckets is exact.
        """
        many = len(self.topology.bandwidth)
        width = self.duration / buckets if self.duration > 0 else 1.0
        # The bytes carried by time e are Σ rate·(e − start) over those begun, minus Σ rate·(e − sent) over those sent.
        slope, base = np.zeros(many * (buckets + 1)), np.zeros(many * (buckets + 1))
        for messages, links, share in self._crossings():
            took = np.maximum(self.sent[messages] - self.start[messages], 1e-9 * width)
            longer = self.topology.links.figures(links, self.bytes[messages])[1]  # than at the best bandwidth
            rate = self.bytes[messages] * share * longer / took
            for sign, when in ((1.0, self.sent[messages] - took), (-1.0, self.sent[messages])):
                place = links * (buckets + 1) + np.clip(np.ceil(when / width), 0, buckets).astype(np.int64)
                slope += np.bincount(place, weights=sign * rate, minlength=len(slope))
                base += np.bincount(place, weights=sign * rate * when, minlength=len(base))
        edges = np.arange(buckets + 1) * width
        carried = slope.reshape(many, -1).cumsum(axis=1) * edges - base.reshape(many, -1).cumsum(axis=1)
        return np.asarray(np.maximum(0.0, np.diff(carried, axis=1)) / (self.topology.bandwidth[:, None] * width))

    def _crossings(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """A message, a link it crosses, and how much of it does; for a batch of messages at a time."""
        for first in range(0, self.messages, _SLICE):
            here = slice(first, first + _SLICE)
            pair = self.source[here].astype(np.int64) * self.topology.ranks + self.destination[here]
            pairs, which = np.unique(pair, return_inverse=True)
            routes = self.topology.routes(pairs // self.topology.ranks, pairs % self.topology.ranks)
            lengths = np.diff(routes.offsets)[which]
            message = np.repeat(np.arange(len(which)), lengths)
            at = spans(routes.offsets[which], lengths)
            share = np.ones(len(at)) if routes.share is None else routes.share[at]
            if self.topology.folding:
                steps = shares_of(self.schedule, self.topology)
                ends = zip(
                    self.step[here].tolist(), self.source[here].tolist(), self.destination[here].tolist(), strict=True
                )
                share = np.concatenate([np.zeros(0), *(steps[step][a, b] for step, a, b in ends if a != b)])
            yield first + message, routes.links[at].astype(np.int64), share

    def to_json(self) -> dict[str, Any]:
        """Everything, with the messages as columns; the schedule and the topology by name."""
        return {
            "format": "allfold-timeline",
            "version": 1,
            "collective": self.schedule.collective,
            "algorithm": self.schedule.algorithm,
            "ranks": self.schedule.ranks,
            "root": self.schedule.root,
            "topology": self.topology.to_json(),
            "size": self.size,
            "segments": self.segments,
            "duration": self.duration,
            "messages": {name: getattr(self, name).tolist() for name in (*COLUMNS, "step", "source", "destination")},
            "critical": self.critical.tolist(),
            "critical_spans": self.spans.tolist(),
            "idle": self.idle().tolist(),
        }

    def to_chrome(self) -> dict[str, Any]:
        """For chrome://tracing and Perfetto: per rank, one track per direction and one for what it combines."""
        rows: list[Row] = []
        critical = np.zeros(self.messages, bool)
        critical[self.critical] = True
        tracks = (
            ("sends", self.source, self.start, self.sent, self.travels),
            ("receives", self.destination, self.first_arrived, self.arrived, self.travels),
            ("combines", self.destination, self.landed, self.end, self.end > self.landed),
        )
        words = [self.word(message) for message in range(self.messages)]
        number = count()
        for rank in range(self.schedule.ranks):
            for what, owner, begin, finish, counts in tracks:
                chosen = np.flatnonzero((owner == rank) & counts)
                for lane, messages in enumerate(_lanes(chosen, begin, finish)):
                    track = Track(next(number))
                    rows.append(track.name(f"rank {rank} {what}" + (f" ({lane + 1})" if lane else "")))
                    for message in messages:
                        arguments = {
                            "message": message,
                            "step": int(self.step[message]),
                            "segment": int(self.segment[message]),
                            "bytes": float(self.bytes[message]),
                            "critical": bool(critical[message]),
                        }
                        start = float(begin[message] * 1e6)
                        length = float((finish[message] - begin[message]) * 1e6)
                        rows.append(track.slice(words[message], what, start, length, arguments))
                        if what != "combines":
                            leaves = what == "sends"
                            rows.append(track.arrow(message, start if leaves else start + length, leaves))
        return trace(rows, "ns")


def _lanes(messages: Ints, begin: Floats, finish: Floats) -> list[list[int]]:
    """Messages divided into lanes without overlap: a track of a trace cannot hold slices that overlap."""
    lanes: list[list[int]] = []
    free: list[float] = []
    for message in messages[np.argsort(begin[messages], kind="stable")].tolist():
        start = float(begin[message])
        lane = next((one for one, until in enumerate(free) if until <= start * (1 + 1e-12)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            free.append(0.0)
        lanes[lane].append(message)
        free[lane] = float(finish[message])
    return lanes
