"""Tuning between hosts: time the ways in which an all_reduce can cross, and choose the fastest for each range of sizes.

Every rank of a run on several hosts calls `tune_hosts`. The ways take turns, size by size and round by round; a turn
takes as long as it takes the slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..communicator.communicator import Communicator
from ..documents import DocumentError, finite_at, list_at, object_at, text_at, whole_at
from ..engines.engine import MeasuredNetwork, Wire
from ..engines.islands.crossing import BUILT_IN, IN_ORDER, Crossing, Tuned
from ..engines.islands.engine import Islands
from ..engines.shared_memory.tuning import TuningError
from ..errors import UsageError
from ..price.simulate.simulate import simulate
from ..price.simulate.timeline import Timeline
from ..price.topology.measured_hosts import hosts_as_measured
from ..price.topology.topology import Topology
from ..registry import schedule

SIZES = tuple(4**power for power in range(5, 14))  # 1 KiB to 64 MiB
SEGMENTS = (4 << 20, 16 << 20, 32 << 20)
_ROUNDS, _MOST_CALLS = 5, 100
_FIT_ROUNDS, _MOST_FACTOR = 12, 64.0
_LONG = 8 << 20
_MOST_SIZE, _MOST_MEASUREMENTS = 1 << 50, 10_000

Progress = Callable[[str, float], None]
_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CrossingTiming:
    """The time of one size by one way."""

    bytes: int
    crossing: Crossing
    seconds: float

    @property
    def way(self) -> str:
        """The way in words, without what does not matter at this size."""
        if self.bytes <= self.crossing.leaders_up_to:
            return "leaders"
        parts = self.crossing.segments(self.bytes)
        cut = f" in {parts} segments" if parts > 1 else ""
        return f"every rank{cut}" + (f" by {self.crossing.across}" if self.crossing.across else "")


@dataclass(frozen=True)
class HostsRun:
    """The measurements and choices for some hosts."""

    tuned: Tuned
    date: str
    network: MeasuredNetwork
    timings: tuple[CrossingTiming, ...]

    @property
    def ranks(self) -> int:
        return sum(self.tuned.hosts)

    @property
    def islands(self) -> list[list[int]]:
        ends = np.cumsum(self.tuned.hosts).tolist()
        return [list(range(end - count, end)) for end, count in zip(ends, self.tuned.hosts, strict=True)]

    def topology(self) -> Topology | None:
        """The hosts with the figures that were measured; None where they have different numbers of ranks."""
        return hosts_as_measured(self.islands, self.network)

    def predicted(self) -> list[float | None]:
        """The simulated time of every timing."""
        topology = self.topology()
        return [None if topology is None else self._timeline(one, topology).duration for one in self.timings]

    def message(self, timing: CrossingTiming) -> int:
        """The length of the longest messages between hosts."""
        topology = self.topology()
        assert topology is not None
        timeline, host = self._timeline(timing, topology), topology.host
        crosses = host[timeline.source] != host[timeline.destination]
        return max(1, int(timeline.bytes[crosses].max()))

    def _timeline(self, timing: CrossingTiming, topology: Topology) -> Timeline:
        name, parameters = timing.crossing.schedule("all_reduce", self.islands, timing.bytes)
        made = schedule("all_reduce", name, self.ranks, **parameters)
        return simulate(made, topology, timing.bytes, segments=timing.crossing.segments(timing.bytes))

    def to_json(self) -> dict[str, Any]:
        return {
            **self.tuned.to_json(),
            "date": self.date,
            "network": self.network.to_json(),
            "timings": [[one.bytes, asdict(one.crossing), float(f"{one.seconds:.4g}")] for one in self.timings],
        }

    @staticmethod
    def from_json(value: object) -> HostsRun:
        one, tuned = object_at(value, "a run between hosts"), Tuned.from_json(value)
        timings = []
        for row in list_at(one.get("timings"), "timings", 1, _MOST_MEASUREMENTS):
            size, crossing, seconds = list_at(row, "a timing", 3, 3)
            by = Tuned.from_json({**tuned.to_json(), "crossing": crossing}).crossing
            timings.append(
                CrossingTiming(whole_at(size, "a size", 1, _MOST_SIZE), by, finite_at(seconds, "a time", 1e-12))
            )
        return HostsRun(tuned, text_at(one.get("date"), "date", 40), _network(one.get("network")), tuple(timings))


def _network(value: object) -> MeasuredNetwork:
    one = object_at(value, "network")
    wires = []
    for wire in list_at(one.get("wires"), "wires", 1):
        facts = object_at(wire, "a wire")
        here, there = (
            [whole_at(rank, "a rank", 0, 1 << 20) for rank in list_at(ranks, "ranks", 1)]
            for ranks in list_at(facts.get("hosts"), "hosts", 2, 2)
        )
        latency, overhead, bandwidth, all_ranks = (
            finite_at(facts.get(name), name) for name in ("latency", "overhead", "bandwidth", "all_ranks")
        )
        wires.append(Wire((here, there), latency, overhead, bandwidth, all_ranks, _times(facts.get("sizes", []))))
    speeds = [inf if one.get(name) is None else finite_at(one[name], name, 1.0) for name in ("bus", "reduction")]
    return MeasuredNetwork(wires, *speeds)


def _times(value: object) -> list[tuple[int, float]]:
    """The times of messages, by their length."""
    rows = [list_at(row, "a message", 2, 2) for row in list_at(value, "messages", 0, _MOST_MEASUREMENTS)]
    found = [(whole_at(size, "a length", 1, _MOST_SIZE), finite_at(seconds, "a time", 1e-12)) for size, seconds in rows]
    if any(here >= there for (here, _), (there, _) in pairwise(found)):
        raise DocumentError("the lengths of messages do not rise")
    return found


def runs_between_hosts(document: Mapping[str, Any]) -> list[HostsRun]:
    """All runs between hosts in a tuning file."""
    try:
        return [HostsRun.from_json(one) for one in list_at(document.get("hosts", []), "hosts")]
    except DocumentError as error:
        raise TuningError(f"it is damaged: {error}") from None


# ---


def tune_hosts(
    comm: Communicator, sizes: Sequence[int], seconds: float, progress: Progress = lambda what, part: None
) -> HostsRun:
    """Measure and choose. Every rank calls it with the same arguments, and all get the same figures."""
    engine = comm.engine
    if not isinstance(engine, Islands):
        raise UsageError(
            f"all {comm.size} ranks share the memory of one host: `allfold tune -n {comm.size}` tunes for that, alone"
        )
    before = engine.crossing
    try:
        network = engine.network(by_size=True)
        timings = list(_timings(comm, engine, sizes, seconds, progress))
    finally:
        engine.cross_by(before)
    shape = tuple(map(len, engine.hosts()))
    tuned = Tuned(shape, engine.fabric_name, choose(timings))
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return HostsRun(tuned, date, network, tuple(timings))


def fitted(run: HostsRun) -> HostsRun:
    """The same, with the network of which the simulation is closest to what was measured.

    The times of messages, by their length, then include what a call costs besides them: threads that wake up, and what
    else goes on while the wire is busy. Only the fastest way of each size counts, since that is what calls use.
    """
    if run.topology() is None:
        return run
    sizes = sorted({one.bytes for one in run.timings})
    best = tuple(min((one for one in run.timings if one.bytes == size), key=lambda one: one.seconds) for size in sizes)
    best_run = replace(run, timings=best)
    messages = np.array([best_run.message(one) for one in best])
    seconds = np.array([one.seconds for one in best])
    at, factors = _corners(messages), np.ones(len(set(messages.tolist())))
    closest, least = run, inf
    for _ in range(_FIT_ROUNDS):
        tried = _with_times(best_run, messages[at], factors)
        said = np.array(tried.predicted(), np.float64)
        if (error := float(np.abs(np.log(said / seconds)).max())) < least:
            closest, least = tried, error
        # Two sizes may have messages of the same length: one way crosses with all ranks, the other with leaders alone.
        wanted = np.log(seconds / said)
        steps = [wanted[messages == length].mean() for length in messages[at]]
        factors = np.clip(factors * np.exp(steps), 1 / _MOST_FACTOR, _MOST_FACTOR)
    return replace(closest, timings=run.timings)


def _corners(messages: _Ints) -> _Ints:
    """The places of the different lengths, rising."""
    _, first = np.unique(messages, return_index=True)
    return first


def _with_times(run: HostsRun, lengths: _Ints, factors: _Floats) -> HostsRun:
    """The same, with the times of messages multiplied: by these factors at these lengths, and by those between elsewhere."""

    def changed(wire: Wire) -> Wire:
        known = wire.sizes or [(8, wire.latency), (_LONG, wire.latency + _LONG / wire.all_ranks * _pairs(wire))]
        times = dict(known) | {int(one): float(_between(known, one)) for one in lengths}
        by = {size: float(np.exp(np.interp(np.log(size), np.log(lengths), np.log(factors)))) for size in times}
        return replace(wire, sizes=[(size, seconds * by[size]) for size, seconds in sorted(times.items())])

    return replace(run, network=replace(run.network, wires=[changed(wire) for wire in run.network.wires]))


def _between(known: Sequence[tuple[int, float]], length: int) -> float:
    """The time of a message of a length that was not measured."""
    sizes, seconds = zip(*known, strict=True)
    if length > sizes[-1]:
        return float(seconds[-1] * length / sizes[-1])
    return float(np.interp(length, sizes, seconds))


def _pairs(wire: Wire) -> int:
    """The number of pairs of ranks that exchanged at the same time."""
    return min(map(len, wire.hosts))


def ways_of(size: int, islands: int) -> Iterator[Crossing]:
    """The ways that differ at this size."""
    if size <= replace(BUILT_IN, leaders_up_to=size).leaders(islands):
        yield replace(BUILT_IN, leaders_up_to=size)
    for across in (None,) if islands == 2 else IN_ORDER:
        cut = [segment for segment in SEGMENTS if segment < size]
        for segment in [*cut, SEGMENTS[-1]] if len(cut) < len(SEGMENTS) else cut:
            yield Crossing(0, segment, across)


def _timings(
    comm: Communicator, engine: Islands, sizes: Sequence[int], seconds: float, progress: Progress
) -> Iterator[CrossingTiming]:
    each = seconds / max(1, len(sizes))
    for number, size in enumerate(sizes):
        progress(f"{size} bytes", number / len(sizes))
        array = np.zeros(max(1, size // 4), np.float32)
        ways = list(ways_of(array.nbytes, len(engine.hosts())))
        calls = [_calls(comm, engine, way, array, each / len(ways) / _ROUNDS) for way in ways]
        times = np.zeros((len(ways), _ROUNDS))
        for turn in range(_ROUNDS):
            for at, way in enumerate(ways):
                times[at, turn] = _seconds_per_call(comm, engine, way, array, calls[at])
        slowest = times.copy()
        comm.all_reduce(slowest, "max")
        for way, one in zip(ways, np.median(slowest, axis=1).tolist(), strict=True):
            yield CrossingTiming(array.nbytes, way, one)


def _seconds_per_call(comm: Communicator, engine: Islands, way: Crossing, array: Any, calls: int) -> float:
    comm.barrier()
    engine.cross_by(way)
    begun = time.perf_counter()
    for _ in range(calls):
        comm.all_reduce(array)
    return (time.perf_counter() - begun) / calls


def _calls(comm: Communicator, engine: Islands, way: Crossing, array: Any, seconds: float) -> int:
    """The number of calls that fill a turn; the same on all ranks."""
    _seconds_per_call(comm, engine, way, array, 1)
    found = np.array([_seconds_per_call(comm, engine, way, array, 2)])
    comm.all_reduce(found, "max")
    return max(1, min(_MOST_CALLS, int(seconds / max(float(found[0]), 1e-6))))


def choose(timings: Sequence[CrossingTiming]) -> Crossing:
    """The border between leaders and all ranks, and the way of all ranks that is the fastest beyond it."""
    by_size: dict[int, list[CrossingTiming]] = {}
    for one in timings:
        by_size.setdefault(one.bytes, []).append(one)
    border, lost = 0, inf
    for size, found in sorted(by_size.items()):
        best = min(found, key=lambda one: one.seconds)
        if best.crossing.leaders_up_to >= size:
            border = size
        else:
            lost = size
            break
    # Between the last size that leaders won and the first that they lost, if they were tried there.
    if border and lost < inf and any(one.crossing.leaders_up_to >= lost for one in by_size[int(lost)]):
        border = int(sqrt(border * lost))
    large = [found for size, found in sorted(by_size.items()) if size > border]
    ways = {(one.crossing.segment, one.crossing.across) for found in large for one in found if one.bytes > border}
    if not ways:
        return replace(BUILT_IN, leaders_up_to=border)

    def lag(way: tuple[int, str | None]) -> float:
        """The logarithm of its slowdown against the fastest, summed over the sizes; an unmeasured segment is a whole array."""
        total = 0.0
        for found in large:
            rails = [one for one in found if one.crossing.leaders_up_to < one.bytes]
            alike = [one for one in rails if one.crossing.across == way[1]]
            exact = [one for one in alike if one.crossing.segment == way[0]]
            uncut = [one for one in alike if one.crossing.segment >= one.bytes]
            mine = min((one.seconds for one in exact or uncut or alike), default=inf)
            total += float(np.log(mine / min(one.seconds for one in rails)))
        return total

    segment, across = min(sorted(ways, key=lambda way: (-way[0], way[1] or "")), key=lag)
    return Crossing(border, segment, across)
