"""An event-driven simulation of a schedule on a topology, message by message.

What a message goes through:

1. It is *ready* when everything it carries has been made at its source (`dependencies`). No step waits for another:
   a rank that has what it needs goes on.
2. A port, outgoing or incoming, serves one step and segment at a time: the messages of a step happen at once, as the
   language says, and those of other steps wait until these are sent. Among a rank's ready messages, the lowest
   segment goes first, then the lowest step. It waits for both its ports, and the rank's other messages wait behind it.
   Starting a message takes both ranks `overhead`; a rank posts one at a time, and accepts one at a time.
3. From *start* to *sent* its bytes flow, at a rate that is max-min fair on all links of its route, the ports at both
   ends included (`fairness`).
4. It has *arrived* after the latencies of its links. Meanwhile the port can serve other messages.
5. It *lands* when the chunk is free for it: no earlier content is still needed or still to come. Combining takes
   bytes / `reduction`, one message after the other; copying takes no extra time, since the bytes were transferred
   already.

Alone on its route, a message takes overhead + Σ latency + bytes / bandwidth, then its reduced bytes / reduction.

Everything is exact up to rounding. It is fast because most schedules look the same from many ranks (`symmetry`): of a
ring of 1,024 ranks on a fat tree with 128 ranks per leaf, one eighth is simulated and the rest is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np

from ...division import Lengths
from ...errors import ScheduleError, UsageError
from ...schedules import Schedule
from ..cost.load import check_request
from ..topology.topology import Topology, require
from .critical import AT_ACCEPTED, AT_END, AT_POSTED, AT_SENT, AT_TAKEN, NOBODY, walk
from .dependencies import Moves, find_dependencies, group_messages
from .fairness import ROUNDING, FairFlows
from .messages import facts_of
from .noise import Noise
from .symmetry import Shift, find_shift, reduce_moves, shifted, stand_in
from .timeline import Timeline

__all__ = ["Noise", "Timeline", "simulate"]

Progress = Callable[[int, int], None]
"""Called now and then with the number of messages that are done, and the total."""

MOST_MESSAGES = 2**25
"""Each segment counts as a message of its own: the state of this many takes several gigabytes."""

_START, _ARRIVE, _END = range(3)


def simulate(
    schedule: Schedule,
    topology: Topology,
    size: int,
    segments: int = 1,
    noise: Noise | None = None,
    progress: Progress | None = None,
    symmetric: bool = True,
    counts: object = None,
) -> Timeline:
    """Simulate `schedule` for a buffer of `size` bytes, each chunk in `segments` segments; returns the timeline.

    `symmetric=False` simulates every rank even where the times of some ranks give the times of all. `counts`: how the bytes
    are divided into slices, as in `cost`.

    >>> timeline = price.simulate(af.schedule("all_gather", "ring", ranks=4), price.laptop(4), size=2**20)
    >>> len(timeline.start)
    12
    """
    require(topology, schedule.ranks)
    check_request(size, segments)
    noise = noise or Noise()
    quiet = not (noise.latency or noise.bandwidth or noise.slow)
    lengths = Lengths.of(schedule.promise, schedule.ranks, counts)
    if lengths is not None and topology.folding:
        raise UsageError(f"{topology.name}: slices with lengths of their own are not priced where switches fold")
    symmetric = symmetric and quiet and not topology.folding and lengths is None
    shift = find_shift(schedule, topology) if symmetric else Shift(schedule.ranks, 0)
    return _Simulation(schedule, topology, size, segments, noise, shift, lengths).run(progress)


class _Simulation:
    """All mutable state of a simulation. Segment s of message m has number m · segments + s; versions likewise.

    State is held in lists: events come one by one, and reading one element of a list is ten times faster than of an
    array.
    """

    def __init__(
        self,
        schedule: Schedule,
        topology: Topology,
        size: int,
        segments: int,
        noise: Noise,
        shift: Shift,
        lengths: Lengths | None,
    ) -> None:
        self.schedule, self.topology, self.size, self.segments, self.shift = schedule, topology, size, segments, shift
        moves, self.standing = reduce_moves(schedule, shift)
        self.needs = needs = find_dependencies(moves)
        in_all = len(needs.move) * segments * (schedule.ranks // shift.ranks)
        if in_all > MOST_MESSAGES:
            raise UsageError(
                f"{schedule.title} has {in_all:,} messages in {segments:,} segments; at most {MOST_MESSAGES:,} are simulated"
            )
        self.facts = facts_of(schedule, topology, size, segments, noise, shift, moves, needs, lengths)
        many = self.many = len(needs.move) * segments
        self.ready, self.start, self.sent, self.arrived, self.landed, self.end = ([np.nan] * many for _ in range(6))
        # What is still missing: for a message to leave and to land, for a version to be made and to be read.
        unread = np.diff(needs.readers.starts)
        free = needs.given & (unread == 0)  # initial content that nobody reads may be replaced at once
        message = np.repeat(np.arange(len(needs.move)), np.diff(needs.reads.starts))
        kept = (needs.reads.values, ~needs.given), (needs.writes.values - 1, ~free)
        missing, blocked = (np.bincount(message[table[at]], minlength=len(needs.move)) for at, table in kept)
        counts = (missing, blocked, unread, np.diff(needs.writers.starts))
        self.missing, self.blocked, self.unread, self.unmade = (np.repeat(one, segments).tolist() for one in counts)
        self.reads, self.writes, self.readers, self.writers = (
            (rows.starts.tolist(), rows.values.tolist())
            for rows in (needs.reads, needs.writes, needs.readers, needs.writers)
        )
        self.followed = needs.followed.tolist()
        # Ports and combining units of the ranks.
        ranks = shift.ranks
        self.serves, self.accepts = [NOBODY] * ranks, [NOBODY] * ranks  # the step and segment being sent, received
        self.sending, self.taking = [0] * ranks, [0] * ranks
        self.shut_out: list[list[int]] = [[] for _ in range(ranks)]  # ports that wait for this one to receive
        self.queues: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self.combines_until, self.last_combined = [0.0] * ranks, [NOBODY] * ranks
        self.starts_until, self.accepts_until = [0.0] * ranks, [0.0] * ranks
        self.sent_at, self.taken_at = [-1.0] * ranks, [-1.0] * ranks
        self.last_started, self.last_accepted, self.last_sent, self.last_taken = ([NOBODY] * ranks for _ in range(4))
        # What was waited for last: for the data or the port, and at the destination.
        self.before, self.behind = [NOBODY] * many, [NOBODY] * many
        self.posted = [np.nan] * many
        self.events: list[tuple[float, int, int]] = []
        self.flows = FairFlows(self.facts.bandwidth)
        self.asked: list[int] = []  # ports at which something has changed
        self.landing: list[int] = []
        self.now = 0.0

    def run(self, progress: Progress | None = None) -> Timeline:
        events, flows = self.events, self.flows
        for message, missing in enumerate(self.missing):
            if not missing:
                self._make_ready(message)
        self._settle()
        done, told, handlers = 0, 0, (self._note_start, self._note_arrived, self._note_end)
        while True:
            following = flows.next()
            self.now = now = min(following, events[0][0]) if events else following
            if now == np.inf:
                break
            until = now * (1 + ROUNDING)
            if following <= until:
                for message in flows.take_finished(until):
                    self._note_sent(message)
            while events and events[0][0] <= until:
                _, kind, message = heappop(events)
                handlers[kind](message)
                done += kind == _END
            self._settle()
            if progress and (done - told) * 200 >= self.many:
                told = done
                progress(done, self.many)
        if done < self.many:
            self._report_stuck(self.many - done)
        return self._timeline()

    def _settle(self) -> None:
        """After all events of this moment: which messages land, which may use a port, and at which rates."""
        events, until = self.events, self.now * (1 + ROUNDING)
        if self.landing:
            self._land()
        if self.asked and not (events and events[0][0] <= until):
            self._serve_ports()
        if not (events and events[0][0] <= until):
            self.flows.settle(self.now)

    # The life of a message, in order ---------------------------------------------------------------------------------

    def _make_ready(self, message: int) -> None:
        self.ready[message] = self.now
        of, segment = divmod(message, self.segments)
        if self.facts.stays[of]:  # nothing travels, so no port is asked
            self.start[message] = self.now
            self._note_sent(message)
            return
        port = self.facts.source[of]
        heappush(self.queues[port], (segment * self.facts.orders + self.facts.order[of], message))
        self.asked.append(port)

    def _serve_ports(self) -> None:
        """Start messages that are first in their queue if both ports are free or serve the same step and segment."""
        heads = [(*self.queues[port][0], port) for port in set(self.asked) if self.queues[port]]
        self.asked.clear()
        heapify(heads)
        while heads:
            _, message, port = heappop(heads)
            of, segment = divmod(message, self.segments)
            group, destination = self.facts.step[of] * self.segments + segment, self.facts.destination[of]
            if self.serves[port] not in (NOBODY, group):
                continue  # it is asked again when that one is sent
            if self.accepts[destination] not in (NOBODY, group):
                self.shut_out[destination].append(port)
                continue
            heappop(self.queues[port])
            self.serves[port] = self.accepts[destination] = group
            self.sending[port] += 1
            self.taking[destination] += 1
            self._begin(message, port, destination)
            if self.queues[port]:
                heappush(heads, (*self.queues[port][0], port))

    def _begin(self, message: int, source: int, destination: int) -> None:
        """The sender posts one message after the other; the receiver accepts one after the other."""
        begin, lately = self.now, self.now * (1 - ROUNDING)
        if self.ready[message] < lately:
            if self.taken_at[destination] >= lately:
                self.before[message] = self.last_taken[destination] * 5 + AT_TAKEN
            elif self.sent_at[source] >= lately:
                self.before[message] = self.last_sent[source] * 5 + AT_SENT
            else:  # one before it in the queue had to wait for its receiver
                self.before[message] = self.last_started[source] * 5 + AT_POSTED
        if self.starts_until[source] > begin:
            begin = self.starts_until[source]
            self.before[message] = self.last_started[source] * 5 + AT_POSTED
        overhead = max(self.facts.overhead[source], self.facts.overhead[destination])
        self.starts_until[source] = self.posted[message] = start = begin + overhead
        if self.accepts_until[destination] > begin:
            start = self.accepts_until[destination] + overhead
            self.before[message] = self.last_accepted[destination] * 5 + AT_ACCEPTED
        self.accepts_until[destination] = start
        self.last_started[source] = self.last_accepted[destination] = message
        heappush(self.events, (start, _START, message))

    def _note_start(self, message: int) -> None:
        self.start[message] = self.now
        of = message // self.segments
        size, limit = self.facts.bytes[of], self.facts.limit[message]
        if size > 0 and limit < np.inf:
            pair, shares = self.facts.pair[of], self.facts.shares
            share = None if shares is None else shares[pair]
            share = share if self.facts.own is None else self.facts.own[of]
            self.flows.start(message, self.facts.routes[pair], size, limit, self.now, share)
        else:
            self._note_sent(message)

    def _note_sent(self, message: int) -> None:
        self.sent[message] = now = self.now
        of, segment = divmod(message, self.segments)
        heappush(self.events, (now + self.facts.latency[message], _ARRIVE, message))
        if not self.facts.stays[of]:
            port = self.facts.source[of]
            self.sending[port] -= 1
            if not self.sending[port]:
                self.serves[port] = NOBODY
                self.last_sent[port], self.sent_at[port] = message, now
                self.asked.append(port)
            destination = self.facts.destination[of]
            self.taking[destination] -= 1
            if not self.taking[destination]:
                self.accepts[destination] = NOBODY
                self.last_taken[destination], self.taken_at[destination] = message, now
                self.asked += self.shut_out[destination]
                self.shut_out[destination].clear()
        # Messages that replace what was sent may land.
        starts, versions = self.reads
        for version in versions[starts[of] : starts[of + 1]]:
            number = version * self.segments + segment
            self.unread[number] -= 1
            if not self.unread[number] and self.followed[version]:
                self._open(version + 1, segment, message * 5 + AT_SENT)

    def _note_arrived(self, message: int) -> None:
        self.arrived[message] = self.now
        if not self.blocked[message]:
            self.behind[message] = NOBODY
            self.landing.append(message)

    def _land(self) -> None:
        """Write what has arrived, or combine it; each rank combines one message after the other."""
        now, segments = self.now, self.segments
        if len(self.landing) > 1:
            self.landing.sort(
                key=lambda message: (message % segments) * self.facts.orders + self.facts.order[message // segments]
            )
        for message in self.landing:
            of = message // segments
            begin, seconds = now, self.facts.combining[of]
            if seconds:
                rank = self.facts.destination[of]
                if self.combines_until[rank] > now:
                    begin = self.combines_until[rank]
                    self.behind[message] = self.last_combined[rank] * 5 + AT_END
                self.combines_until[rank] = begin + seconds
                self.last_combined[rank] = message
            self.landed[message] = begin
            heappush(self.events, (begin + seconds, _END, message))
        self.landing.clear()

    def _note_end(self, message: int) -> None:
        """Note that what it made exists: messages that read it may leave, and messages that replace it may land."""
        self.end[message] = self.now
        segments = self.segments
        of, segment = divmod(message, segments)
        starts, versions = self.writes
        for version in versions[starts[of] : starts[of + 1]]:
            made = version * segments + segment
            self.unmade[made] -= 1
            if self.unmade[made]:
                continue
            if not self.unread[made] and self.followed[version]:
                self._open(version + 1, segment, message * 5 + AT_END)
            first, readers = self.readers
            for reader in readers[first[version] : first[version + 1]]:
                number = reader * segments + segment
                self.missing[number] -= 1
                if not self.missing[number]:
                    self.before[number] = message * 5 + AT_END
                    self._make_ready(number)

    def _open(self, version: int, segment: int, by: int) -> None:
        """The version before exists, and all messages that read it have been sent."""
        starts, writers = self.writers
        for writer in writers[starts[version] : starts[version + 1]]:
            number = writer * self.segments + segment
            self.blocked[number] -= 1
            self.behind[number] = by
            if not self.blocked[number] and self.arrived[number] == self.arrived[number]:  # it has arrived: not NaN
                self.landing.append(number)

    # The end ---------------------------------------------------------------------------------------------------------

    def _report_stuck(self, many: int) -> None:
        of = int(np.flatnonzero(np.isnan(self.end))[0]) // self.segments
        move = int(self.standing[self.needs.move[of]])
        message = (
            f"{self.schedule.title}: the simulation ended with {many} messages that wait for each other, the first in "
            f"step {self.facts.step[of] + 1} ({self.schedule.where(move)})"
        )
        raise ScheduleError(message, step=self.facts.step[of], site=self.schedule.where(move))

    def _timeline(self) -> Timeline:
        """The times of all messages; those that were not simulated are taken from the ones that stand for them."""
        segments, schedule, ranks = self.segments, self.schedule, self.schedule.ranks
        every = Moves.of(schedule)
        _, move, moves = group_messages(every)
        name, simulated = every.message[move], every.message[self.standing[self.needs.move]]
        order = np.argsort(simulated)
        which = order[np.searchsorted(simulated[order], stand_in(name, ranks, self.shift))]
        index = (which[:, None] * segments + np.arange(segments)).ravel()
        moments = [np.asarray(one) for one in (self.ready, self.start, self.sent, self.arrived, self.landed, self.end)]
        posted = np.asarray(self.posted)
        far = every.destination[self.standing[self.needs.move]]
        ends = np.repeat(self.facts.source, segments).tolist(), np.repeat(far, segments).tolist()
        path, shifts, spans = walk((posted, moments[1], moments[2], moments[5]), ends, self.before, self.behind)
        order = np.argsort(name)
        of, segment = np.divmod(path, segments)
        critical = order[np.searchsorted(name[order], shifted(simulated[of], ranks, shifts))] * segments + segment
        ready, start, sent, arrived, landed, end = (one[index] for one in moments)
        return Timeline(
            schedule=schedule,
            topology=self.topology,
            size=self.size,
            segments=segments,
            move=np.repeat(move, segments),
            moves=np.repeat(moves, segments).astype(np.int32),
            segment=np.tile(np.arange(segments, dtype=np.int32), len(move)),
            bytes=np.repeat(np.asarray(self.facts.bytes)[which], segments),
            ready=ready,
            start=start,
            sent=sent,
            arrived=arrived,
            landed=landed,
            end=end,
            duration=float(end.max(initial=0.0)),
            critical=critical,
            spans=spans,
        )
