"""The cost of a schedule on a topology, in the α-β-γ model: how long it takes, and what limits it.

For one step, with B bytes in the buffer and m segments (x = B/m):

    startup    overhead · the most messages that any rank sends, or receives
    latency    of the longest route; for equal steps in a row that pass on what has just arrived, of the longest path
    transfer   x · max over links of (share of the buffer that crosses it / its bandwidth)
    combining  x · the most that any rank has to combine / reduction

The step takes the sum of these; work within a rank's own memory overlaps with it. One segment takes the sum of all
steps. Further segments follow at the interval of the busiest resource. A port serves one step at a time and is busy
with the start and the bytes of all its messages; any other link is busy with its bytes; a rank's arithmetic is busy
with what it combines. So m segments take `steps(B/m) + (m − 1) · interval(B/m)`. docs/model.md derives this and says
where it is too high or too low.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...collectives import find_collective
from ...division import Lengths
from ...schedules import Counts, Schedule
from ..topology.topology import Topology, require
from .bounds import LowerBounds, lower_bounds, ratio_of
from .folding import patterns_on
from .load import Load, check_request


@dataclass(frozen=True)
class Limit:
    """The part that takes most of the time: `kind` is latency, reduction, or the kind of the link called `name`.

    >>> price.cost(af.schedule("all_reduce", "ring", ranks=8), price.hosts(2, ranks_per_host=4), size=2**26).limit.kind
    'port'
    """

    kind: str
    name: str
    part: float
    """Its share of the time, from 0 to 1."""
    alike: int = 1
    """The number of links that are as busy as this one."""

    def __str__(self) -> str:
        return self.name if self.alike == 1 else f"{self.name} and {self.alike - 1} like it"


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost of one collective call.

    >>> cost = price.cost(af.schedule("all_reduce", "ring", ranks=8), price.laptop(8), size=2**20)
    >>> cost.steps, cost.limit.kind, cost.time > cost.bounds.time
    (14, 'bus', True)
    """

    collective: str
    algorithm: str
    ranks: int
    size: int
    topology: str
    segments: int
    time: float
    steps: int
    limit: Limit
    parts: dict[str, float]
    """The seconds that go into startup, latency, transfer and combining."""
    busiest: str
    """The name of the link that is busy longest."""
    busiest_time: float
    """Seconds that its bytes take in total."""
    busiest_port_bytes: float
    bounds: LowerBounds
    source: str
    """`counted` (from a schedule), `closed form`, or `at least` where the closed form is only a lower bound."""
    counts: Counts | None = None
    link_bytes: NDArray[np.float64] | None = field(default=None, repr=False)
    """Bytes through every link of the topology."""
    bytes_by_kind: dict[str, float] | None = field(default=None, repr=False)
    """Bytes through all links of each kind together: `uplink` is what goes between leaves, or groups of a dragonfly."""

    @cached_property
    def ratio(self) -> float | None:
        """The time divided by the lower bound; None if that is 0 and the time is not."""
        return ratio_of(self.time, self.bounds.time)

    @cached_property
    def bus_bandwidth(self) -> float:
        """Bytes per second, as nccl-tests defines it: the least that each port must carry, divided by the time."""
        factor = float(find_collective(self.collective).bounds(self.ranks).busiest_port_bytes)
        return factor * self.size / self.time if self.time else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "ranks": self.ranks,
            "size": self.size,
            "topology": self.topology,
            "segments": self.segments,
            "time": self.time,
            "bus_bandwidth": self.bus_bandwidth,
            "limit": asdict(self.limit),
            "parts": self.parts,
            "steps": self.steps,
            "counts": None if self.counts is None else self.counts.to_json(),
            "busiest": {"link": self.busiest, "time": self.busiest_time},
            "busiest_port_bytes": self.busiest_port_bytes,
            "bytes_by_kind": self.bytes_by_kind,
            "bounds": self.bounds.to_json(),
            "ratio": self.ratio,
            "source": self.source,
        }


def cost(schedule: Schedule, topology: Topology, size: int, segments: int | None = None, counts: object = None) -> Cost:
    """The cost of a schedule for a buffer of `size` bytes, with the given number of segments or the best.

    `counts`: how these bytes are divided into slices, where they are not equally long; one number per rank, or for
    all_to_all one row per rank. Its `size` is then what a rank sends on average. There is no lower bound then.

    >>> ring, laptop = af.schedule("all_reduce", "ring", ranks=8), price.laptop(8)
    >>> price.cost(ring, laptop, size=2**10).time < price.cost(ring, laptop, size=2**26).time
    True
    """
    require(topology, schedule.ranks)
    lengths = Lengths.of(schedule.promise, schedule.ranks, counts)
    load = Load.of(patterns_on(schedule, topology, lengths), topology, schedule.ranks)
    found = price(
        load, schedule.collective, schedule.algorithm, size, segments, schedule.root, "counted", schedule.counts
    )
    return found if lengths is None else unbounded(found)


def unbounded(found: Cost) -> Cost:
    """The same without lower bounds: those are for slices that are equally long."""
    return replace(found, bounds=LowerBounds(0.0, 0.0, 0.0, "nothing"))


def price(
    load: Load,
    collective: str,
    algorithm: str,
    size: int,
    segments: int | None = None,
    root: int | None = None,
    source: str = "closed form",
    counts: Counts | None = None,
) -> Cost:
    """The cost of a load that is already known: pricing another size is nearly free."""
    check_request(size, segments)
    topology, size = load.topology, int(size)
    chosen = load.best_segments(size) if segments is None else segments
    load = load.at(size / chosen)
    parts = load.parts(size, chosen)
    time = sum(parts.values())
    kind, name, alike, per_byte = load.busiest()
    limits = (
        Limit("latency", "latency", parts["startup"] + parts["latency"]),
        Limit(kind, name, parts["transfer"], alike),
        Limit("reduction", "reduction", parts["combining"]),
    )
    limit = max(limits, key=lambda one: one.part)
    ports = np.concatenate([load.link_share[: load.ranks], load.link_share[topology.ranks :][: load.ranks]])
    link_bytes = load.link_share * size if load.cut is None else None
    return Cost(
        collective=collective,
        algorithm=algorithm,
        ranks=load.ranks,
        size=size,
        topology=topology.name,
        segments=chosen,
        time=time,
        steps=load.steps,
        limit=replace(limit, part=limit.part / time if time else 0.0),
        parts=parts,
        busiest=name,
        busiest_time=per_byte * size,
        busiest_port_bytes=float(ports.max()) * size,
        bounds=lower_bounds(collective, topology, load.ranks, size, root),
        source="at least" if load.cut is not None else source,
        counts=counts,
        link_bytes=link_bytes,
        bytes_by_kind=None if link_bytes is None else topology.links.by_kind(link_bytes),
    )
