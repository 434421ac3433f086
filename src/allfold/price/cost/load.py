"""The load that patterns put on the links, ports and ranks of a topology, for a buffer of one byte.

Everything here is a share of the buffer or seconds per byte of it, so that one load prices all sizes. Where the figures of
links depend on the size of a message, a load holds for the sizes between two rows of their tables (`Load.at`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...patterns import Everybody, Pattern, Patterns
from ..topology.routing import all_alike
from ..topology.topology import SAME_SIZE, Routes, Topology

Floats = NDArray[np.float64]

SMALLEST_SEGMENT = 4096  # bytes of the largest message; cutting it smaller never pays for another start
MOST_SEGMENTS = 65_536
_MOST_PIECES = 64  # of the sizes of a segment, between which the figures of links change
_MOST_BYTES = 2**63
_EXPANDED = 1024  # ranks; up to here an all-to-all exchange is expanded into its messages, about a million


class RoutesDiffer(UsageError):
    """These patterns do not say enough for a topology whose routes are not all alike."""


@dataclass(frozen=True, eq=False)
class Load:
    """Steps as columns, equal steps stored once; then how long each resource is busy over all steps."""

    topology: Topology
    ranks: int
    times: NDArray[np.int64]
    startup: Floats
    """Seconds per step, like `latency`; the three after that are seconds per byte."""
    latency: Floats
    transfer: Floats
    combining: Floats
    local: Floats
    link_share: Floats
    """The bytes through each link over all steps, as a share of the buffer."""
    link_time: Floats
    """Seconds per byte that each link is busy in total."""
    port_starts: NDArray[np.int64]
    """Messages of each port over all steps: the outgoing ports by rank, then the incoming ones."""
    port_time: Floats
    """Seconds per byte that each port is busy over all steps. It serves one step at a time, and is busy for as long as
    its slowest message would take alone on its route."""
    combined: Floats
    """The bytes that each rank combines over all steps, as a share of the buffer."""
    largest: float
    """The largest message, as a share of the buffer."""
    cut: tuple[str, float] | None = None
    """If an all-to-all exchange was not expanded: the busiest cut, and its seconds per byte."""
    patterns: list[Pattern | Everybody] | None = None
    """The patterns, kept where the figures of links depend on the size of a message."""
    others: dict[int, Load] = field(default_factory=dict, repr=False)
    """Loads for other sizes of the buffer, by their place between `breaks`."""

    @staticmethod
    def of(patterns: Patterns, topology: Topology, ranks: int) -> Load:
        """The load of patterns; for the smallest messages, if the figures of links depend on their size."""
        if not topology.by_size:
            return _Count(topology, ranks).add_all(patterns)
        kept = list(patterns)
        return replace(_Count(topology, ranks).add_all(kept), patterns=kept)

    def at(self, x: float) -> Load:
        """The load for a segment of x bytes."""
        if self.patterns is None:
            return self
        place = int(np.searchsorted(self.breaks, x * (1 + SAME_SIZE), side="right"))
        if place and place not in self.others:
            count = _Count(self.topology, self.ranks, float(self.breaks[place - 1]))
            self.others[place] = count.add_all(self.patterns)
        return self.others[place] if place else self

    @cached_property
    def breaks(self) -> Floats:
        """The sizes of a segment, in bytes, from which on some message is in another row of a table."""
        if self.patterns is None:
            return np.zeros(0)
        sizes = np.unique(np.concatenate([rows[:, 0] for _, _, rows in self.topology.links.tables]))
        shares = np.unique(np.concatenate([np.atleast_1d(pattern.share) for pattern in self.patterns]))
        return np.unique(sizes[sizes > 0] / shares[shares > 0, None])

    @property
    def steps(self) -> int:
        return int(self.times.sum())

    def busiest(self) -> tuple[str, str, int, float]:
        """The link that carries bytes longest: its kind and name, how many are equally busy, and seconds per byte."""
        busy = self.link_time
        if self.cut is not None and self.cut[1] > busy.max():
            return "cut", self.cut[0], 1, self.cut[1]
        link = self.topology.links[int(busy.argmax())]
        return link.kind, link.name, int(np.count_nonzero(busy >= busy.max() * (1 - 1e-9))), float(busy.max())

    def parts(self, size: int, segments: int) -> dict[str, float]:
        """Seconds that go into startup, latency, transfer and combining, for a buffer cut into this many segments."""
        x = size / segments
        if (load := self.at(x)) is not self:
            return load.parts(size, segments)
        path = self.startup + self.latency + (self.transfer + self.combining) * x
        startup, latency, transfer = self.of_all_steps
        found = {
            "startup": startup,
            "latency": latency,
            "transfer": transfer * x,
            "combining": float(self.times @ (self.combining * x + np.maximum(0.0, self.local * x - path))),
        }
        starts, bytes_of_port, bytes_of_link, arithmetic = self.resources
        # The port that takes longest for one segment depends on the segment's size.
        port = int(np.argmax(starts + bytes_of_port * x))
        follow = segments - 1
        if bytes_of_link * x >= max(starts[port] + bytes_of_port[port] * x, arithmetic * x):
            found["transfer"] += follow * bytes_of_link * x
        elif starts[port] + bytes_of_port[port] * x >= arithmetic * x:
            found["startup"] += follow * float(starts[port])
            found["transfer"] += follow * float(bytes_of_port[port]) * x
        else:
            found["combining"] += follow * arithmetic * x
        return found

    def best_segments(self, size: int) -> int:
        """The fewest segments whose time is within 1 % of the minimum; the curve is often flat around its minimum."""
        ends = size / self.breaks
        if len(ends) > _MOST_PIECES:
            ends = ends[:: len(ends) // _MOST_PIECES]
        return fewest_segments(lambda many: sum(self.parts(size, many).values()), self.largest * size, ends)

    @cached_property
    def of_all_steps(self) -> tuple[float, float, float]:
        """Seconds of startup, seconds of latency, and seconds per byte of transfer, one step after the other."""
        return float(self.times @ self.startup), float(self.times @ self.latency), float(self.times @ self.transfer)

    @cached_property
    def resources(self) -> tuple[Floats, Floats, float, float]:
        """Seconds to start, and seconds per byte, of all ports; seconds per byte of the busiest link and arithmetic."""
        busy = self.link_time
        # Among ports with the same number of messages, only the one with the most bytes can matter.
        many, which = np.unique(self.port_starts, return_inverse=True)
        starts: Floats = many.astype(np.float64) * self.topology.overhead
        most: Floats = np.zeros(len(many))
        np.maximum.at(most, which, self.port_time)
        link = max(float(busy.max(initial=0.0)), self.cut[1] if self.cut else 0.0)
        return starts, most, link, float(self.combined.max(initial=0.0)) / self.topology.reduction


def fewest_segments(time: Callable[[int], float], largest: float, ends: Floats | None = None) -> int:
    """The fewest segments with which `time` is within 1 % of its minimum.

    `time` is convex up to each of `ends`: bisection finds both.
    """
    time = cache(time)  # both searches ask for some numbers twice
    most = int(min(MOST_SEGMENTS, max(1.0, largest / SMALLEST_SEGMENT)))
    inner = [] if ends is None else sorted({int(end) for end in ends if 1 <= end < most})
    pieces = []
    for low, high in pairwise([0, *inner, most]):
        first, low = low + 1, low + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if time(middle) <= time(middle + 1) else (middle + 1, high)
        pieces.append((first, low))
    enough = 1.01 * min(time(low) for _, low in pieces)
    least, most = next((first, low) for first, low in pieces if time(low) <= enough)
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if time(middle) <= enough else (middle + 1, most)
    return least


def check_request(size: int, segments: int | None) -> None:
    """Raise for an invalid number of bytes or segments."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 0 <= size <= _MOST_BYTES:
        raise UsageError(f"a buffer of {size!r:.40} bytes: size must be a number of bytes, from 0 to 2**63")
    if segments is None:
        return
    if isinstance(segments, bool) or not isinstance(segments, int) or not 1 <= segments <= _MOST_BYTES:
        raise UsageError(f"{segments!r:.40} segments: expected a whole number from 1 to 2**63")


class _Count:
    """The running sums while patterns are counted one by one."""

    def __init__(self, topology: Topology, ranks: int, x: float = 0.0) -> None:
        self.topology, self.ranks, self.x = topology, ranks, x
        self.rows: list[tuple[NDArray[np.int64], tuple[Floats, ...]]] = []
        self.link_share, self.link_busy = np.zeros(len(topology.links)), np.zeros(len(topology.links))
        self.port_starts = np.zeros(2 * ranks, np.int64)
        self.port_time = np.zeros(2 * ranks)
        self.combined = np.zeros(ranks)
        self.largest = 0.0
        self.cut: tuple[str, float] | None = None

    def add_all(self, patterns: Patterns) -> Load:
        for pattern in patterns:
            if isinstance(pattern, Everybody):
                self._add_everybody(pattern)
            elif pattern.apart:
                self._add_apart(pattern)
            else:
                self._add(pattern)
        times = np.concatenate([np.zeros(0, np.int64), *(row[0] for row in self.rows)])
        figures = [np.concatenate([np.zeros(0), *(row[1][i] for row in self.rows)]) for i in range(5)]
        startup, latency, transfer, combining, local = figures
        return Load(
            self.topology,
            self.ranks,
            times,
            startup,
            latency,
            transfer,
            combining,
            local,
            link_share=self.link_share,
            link_time=self.link_busy / self.topology.bandwidth,
            port_starts=self.port_starts,
            port_time=self.port_time,
            combined=self.combined,
            largest=self.largest,
            cut=self.cut,
        )

    def _row(self, times: int, *figures: float) -> None:
        self.rows.append((np.asarray([times], np.int64), tuple(np.asarray([figure], np.float64) for figure in figures)))

    def _count_ports(self, pattern: Pattern) -> tuple[int, Floats]:
        """Add the pattern to ports and ranks; return the busiest port's messages, and what arrives to be combined."""
        out, into = (np.bincount(side, minlength=self.ranks) for side in (pattern.source, pattern.destination))
        self.port_starts += pattern.times * np.concatenate([out, into])
        arriving: Floats = np.bincount(pattern.destination, pattern.reduced, self.ranks).astype(np.float64)
        self.combined += pattern.times * arriving
        self.largest = max(self.largest, float(pattern.share.max(initial=0.0)))
        return int(max(out.max(initial=0), into.max(initial=0))), arriving

    def _add(self, pattern: Pattern) -> None:
        topology = self.topology
        messages, arriving = self._count_ports(pattern)
        own = np.bincount(pattern.local_rank, weights=pattern.local_share, minlength=self.ranks)
        self.combined += pattern.times * own
        if len(pattern.source):
            routes = topology.routes(pattern.source, pattern.destination, pattern.share * self.x)
            loads = routes.loads(pattern.share) * (1.0 if pattern.crossing is None else pattern.crossing)
            share, busy = self._on_links(routes, loads)
            each = routes.latency(topology.latency)
            hands_on = messages == 1 and pattern.consecutive and pattern.times > 1
            latency = _longest_way(pattern, each, self.ranks) / pattern.times if hands_on else float(each.max())
            self.link_share += pattern.times * share
            self.link_busy += pattern.times * busy
            self.port_time += pattern.times * self._taken(pattern, busy, routes)
            transfer = float((busy / topology.bandwidth).max())
        else:
            latency = transfer = 0.0
        self._row(
            pattern.times,
            messages * topology.overhead,
            latency,
            transfer,
            float(arriving.max()) / topology.reduction,
            float((arriving + own).max()) / topology.reduction if len(pattern.local_rank) else 0.0,
        )

    def _on_links(self, routes: Routes, loads: Floats) -> tuple[Floats, Floats]:
        """The load of every link, and the load that would keep it busy as long at its best speed."""
        many = len(self.topology.links)
        share: Floats = np.bincount(routes.links, loads, many).astype(np.float64)
        if routes.stretch is None:
            return share, share
        return share, np.bincount(routes.links, routes.stretched(loads), many).astype(np.float64)

    def _taken(self, pattern: Pattern, busy: Floats, routes: Routes) -> Floats:
        """Seconds per byte that each port is busy in one step."""
        alone = pattern.share / routes.slowest(self.topology.bandwidth)
        longest = np.zeros(2 * self.ranks)
        np.maximum.at(longest, pattern.source, alone)
        np.maximum.at(longest, self.ranks + pattern.destination, alone)
        return np.maximum(longest, (busy / self.topology.bandwidth)[self._ports])

    @cached_property
    def _ports(self) -> NDArray[np.int64]:
        """The links that are ports of our ranks, outgoing ones first."""
        return np.concatenate([np.arange(self.ranks), self.topology.ranks + np.arange(self.ranks)])

    def _add_apart(self, pattern: Pattern) -> None:
        topology = self.topology
        self._count_ports(pattern)
        routes = topology.routes(pattern.source, pattern.destination, pattern.share * self.x)
        loads = pattern.times * routes.loads(pattern.share)
        np.add.at(self.link_share, routes.links, loads)
        np.add.at(self.link_busy, routes.links, routes.stretched(loads))
        slowest = routes.slowest(topology.bandwidth)
        for port in (pattern.source, self.ranks + pattern.destination):
            np.add.at(self.port_time, port, pattern.times * pattern.share / slowest)
        latency = routes.latency(topology.latency)
        hops = np.stack([latency, pattern.share / slowest, pattern.reduced / topology.reduction])
        kinds, many = np.unique(hops, axis=1, return_counts=True)  # equal hops are one row, like equal steps
        startup, local = np.full(len(many), topology.overhead), np.zeros(len(many))
        self.rows.append((pattern.times * many, (startup, *kinds, local)))

    def _add_everybody(self, pattern: Everybody) -> None:
        alike = all_alike(self.topology)
        if pattern.steps > 1 and not alike:
            raise RoutesDiffer(
                f"an all-to-all exchange in {pattern.steps:,} steps does not say which ranks exchange in which step, "
                f"which matters on {self.topology.name}"
            )
        if alike or self.ranks <= _EXPANDED:
            self._add_all_pairs(pattern)
        else:
            self._add_cut(pattern)

    def _add_all_pairs(self, pattern: Everybody) -> None:
        topology = self.topology
        crossed, stretch, latency, slowest = _all_pairs(
            topology, self.ranks, pattern.share * self.x if topology.by_size else 0.0
        )
        self.link_share += crossed * pattern.share
        self.link_busy += crossed * stretch * pattern.share
        # In one of several steps a link carries whole messages. In one step, halves of split ones may be among them.
        at_once = crossed if pattern.steps == 1 else np.ceil(crossed / pattern.steps)
        transfer = float((at_once * stretch / topology.bandwidth).max()) * pattern.share
        self._row_of_everybody(pattern, latency, transfer, slowest)

    def _row_of_everybody(self, pattern: Everybody, latency: float, transfer: float, slowest: float) -> None:
        others = self.ranks - 1
        at_once = -(-others // pattern.steps)
        stretch = self.topology.links.figures(self._ports, np.full(2 * self.ranks, pattern.share * self.x))[1]
        through = at_once * pattern.share * stretch / self.topology.bandwidth[self._ports]
        self.port_time += others / at_once * np.maximum(through, pattern.share / slowest)
        self.port_starts += others
        self.combined += others * pattern.reduced
        self.largest = max(self.largest, pattern.share)
        combining = at_once * pattern.reduced / self.topology.reduction
        self._row(pattern.steps, at_once * self.topology.overhead, latency, transfer, combining, 0.0)

    def _add_cut(self, pattern: Everybody) -> None:
        topology, ranks, others = self.topology, self.ranks, self.ranks - 1
        bytes = np.full(others, pattern.share * self.x)
        first = topology.routes(np.zeros(others, np.int32), np.arange(1, ranks, dtype=np.int32), bytes)
        latency = float(first.latency(topology.latency).max())
        slowest, ports = float(first.slowest(topology.bandwidth).min()), self._ports
        self.link_share[ports] += others * pattern.share
        self.link_busy[ports] += others * pattern.share
        crossing = [(name, bytes_out * pattern.share / bandwidth) for name, bytes_out, bandwidth in self._cuts()]
        crossing.append(("rank 0 out", others * pattern.share / float(topology.bandwidth[ports].min())))
        name, transfer = max(crossing, key=lambda found: found[1])
        self.cut = (name, transfer + (self.cut[1] if self.cut else 0.0))
        self._row_of_everybody(pattern, latency, transfer, slowest)

    def _cuts(self) -> Iterator[tuple[str, float, float]]:
        """Messages that cross each cut of the topology in an all-to-all exchange."""
        for cut in self.topology.cuts:
            sizes = np.unique(cut.group[: self.ranks], return_counts=True)[1].astype(np.int64)
            yield cut.name, float((sizes * (self.ranks - sizes)).max()), cut.bandwidth
        yield "the memory bus", float(self.ranks * (self.ranks - 1)), self.topology.throughput


def _longest_way(pattern: Pattern, latency: Floats, ranks: int) -> float:
    """The largest latency of any chain of messages, one per step, each sent from where the last one arrived.

    In a ring over hosts, no such chain crosses a network card in every step: only between hosts.
    """
    nowhere = ranks
    after, waits = np.full(ranks + 1, nowhere), np.zeros(ranks + 1)
    after[pattern.source], waits[pattern.source] = pattern.destination, latency
    at, waited, left = np.arange(ranks + 1), np.zeros(ranks + 1), pattern.times
    while left:  # by doubling: `after` and `waits` cover 1, 2, 4, … steps
        if left & 1:
            waited, at = waited + waits[at], after[at]
        waits, after, left = waits + waits[after], after[after], left >> 1
    return float(waited.max())


@lru_cache(maxsize=4)
def _all_pairs(topology: Topology, ranks: int, bytes: float) -> tuple[Floats, Floats, float, float]:
    """By link, the number of routes of an all-to-all exchange, and how much longer than at best its messages take.

    Also, the longest latency of the routes and their least bandwidth, for messages of this many bytes.
    """
    many = len(topology.links)
    crossed = np.zeros(many)
    stretch = topology.links.figures(np.arange(many), np.full(many, bytes))[1] if topology.by_size else np.ones(many)
    latency, slowest = 0.0, inf
    everyone = np.arange(ranks)
    if all_alike(topology):  # then P−1 times as many as when every rank sends to its neighbour
        routes = topology.routes(everyone, np.roll(everyone, -1), np.full(ranks, bytes))
        crossed += (ranks - 1) * np.bincount(routes.links, minlength=many)
        return (
            crossed,
            stretch,
            float(routes.latency(topology.latency).max()),
            float(routes.slowest(topology.bandwidth).min()),
        )
    for source in np.array_split(everyone, -(-ranks // 64)):  # in batches, to limit memory
        pairs = [side.ravel() for side in np.meshgrid(source, everyone, indexing="ij")]
        other = pairs[0] != pairs[1]
        routes = topology.routes(pairs[0][other], pairs[1][other], np.full(np.count_nonzero(other), bytes))
        crossed += np.bincount(routes.links, routes.loads(np.ones(len(routes))), many)
        latency = max(latency, float(routes.latency(topology.latency).max()))
        slowest = min(slowest, float(routes.slowest(topology.bandwidth).min()))
    return crossed, stretch, latency, slowest
