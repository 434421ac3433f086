"""Plans: every algorithm of a collective priced for a size on a topology, the fastest first.

Where an algorithm declares its patterns (see `closed_form`) no schedule is built, so a hundred thousand ranks can be
planned; where it does not, its schedule is built and counted, up to `MOST_COUNTED` ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np

from ...collectives import find_collective
from ...division import Lengths
from ...errors import ScheduleError, UsageError
from ...programs.places import check_places
from ...programs.versions import Versions
from ...registry import algorithms, find_algorithm, schedule
from ...schedules import Counts, Schedule
from ..topology.topology import Topology, require
from .bounds import require_not_below
from .closed_form import patterns_of
from .cost import Cost, price, unbounded
from .folding import patterns_on
from .load import Load, RoutesDiffer

MOST_COUNTED = 1024  # ranks; a schedule has about 2P² moves, and building two million takes seconds
CLOSE = 1.01

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """All algorithms of a collective on one topology for one size, the fastest first.

    >>> plan = price.plan("all_reduce", price.laptop(8), ranks=8, size=2**20, names=["naive", "ring"])
    >>> [cost.algorithm for cost in plan.costs]
    ['ring', 'naive']
    """

    collective: str
    topology: Topology
    ranks: int
    size: int
    costs: tuple[Cost, ...]
    left_out: dict[str, str]
    """Algorithms that could not be priced, and why."""
    groups: tuple[int, ...]
    """The sizes of the consecutive groups of ranks that two-level algorithms were given."""
    counts: Lengths | None = None
    """The lengths of the slices, where they differ."""

    @property
    def winner(self) -> Cost:
        return self.costs[0]

    @property
    def reason(self) -> str:
        """One sentence: why the winner beats the next one, and what limits it."""
        first = self.winner
        fastest = min(cost.time for cost in self.costs)
        rest = [cost for cost in self.costs[1:] if cost.time > CLOSE * fastest]
        alike = [cost.algorithm for cost in self.costs[1:] if cost.time <= CLOSE * fastest]
        others = ", ".join(alike[:2]) + (f" and {len(alike) - 2} others" if len(alike) > 2 else "")
        head = f"{first.algorithm} wins{f' (as good as {others})' if alike else ''}"
        least = "" if self.counts is not None else f"; nothing can be faster than {duration(first.bounds.time)}"
        ends = f"{_limit(first)}{least}."
        if not first.time:
            return f"{head}: there is nothing to send."
        if not rest:
            return f"{head}: {ends}"
        next_best = rest[0]
        gains = {
            "it waits {} for messages to start and arrive": ("startup", "latency"),
            "its bytes are on the way for {}": ("transfer",),
            "it combines for {}": ("combining",),
        }
        sentence, parts = max(gains.items(), key=lambda gain: _sum(next_best, gain[1]) - _sum(first, gain[1]))
        ours, theirs = duration(_sum(first, parts)), duration(_sum(next_best, parts))
        return f"{head}: {sentence.format(ours)}, {next_best.algorithm}, the next, {theirs}; {ends}"

    def to_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "ranks": self.ranks,
            "size": self.size,
            "topology": self.topology.to_json(),
            "winner": self.winner.algorithm,
            "reason": self.reason,
            "algorithms": [cost.to_json() for cost in self.costs],
            "left_out": self.left_out,
            "groups": list(self.groups),
            **({} if self.counts is None else {"counts": self.counts.table.tolist()}),
        }


@dataclass
class Planner:
    """Prices many sizes on one topology; what does not depend on the size is computed once."""

    collective: str
    topology: Topology
    ranks: int
    names: Sequence[str] | None = None
    progress: Progress | None = None
    root: int | None = None
    """Of a rooted collective (0 unless given)."""
    made: Sequence[Schedule] = ()
    """Schedules to price besides, as they were found or read from a file."""
    counts: Lengths | None = None
    """Of the slices, where they are not equally long."""
    _loads: dict[str, tuple[Load, str, Counts | None]] = field(default_factory=dict)
    _left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.topology, self.ranks)
        known = algorithms(self.collective, self.ranks, self.root)
        chosen = known if self.names is None else self.names
        self.names = [find_algorithm(self.collective, name).name for name in dict.fromkeys(chosen)]
        if find_collective(self.collective).rooted and self.root is None:
            self.root = 0
        for one in self.made:
            if (one.collective, one.ranks, one.root) != (self.collective, self.ranks, self.root):
                raise UsageError(
                    f"{one.title} is a schedule for {one.collective}, not for {self.collective} between {self.ranks} ranks"
                )
            self._count(one.algorithm, one)
            self.names = [*(name for name in self.names if name != one.algorithm), one.algorithm]

    def schedule(self, name: str) -> Schedule:
        """The schedule of an algorithm, as it is priced."""
        return schedule(self.collective, name, self.ranks, self.root, **self.parameters(name))

    def plan(self, size: int, segments: int | None = None) -> Plan:
        costs = [cost for name in self.names or () if (cost := self._cost(name, size, segments)) is not None]
        if not costs:
            why = "; ".join(f"{name}: {reason}" for name, reason in self._left_out.items())
            raise UsageError(f"no algorithm of {self.collective} can be priced for {self.ranks} ranks: {why}")
        costs.sort(key=lambda cost: cost.time)
        # The number of segments is only good to 1 %. So among costs this close, the one with the fewest starts wins.
        close = [cost for cost in costs if cost.time <= CLOSE * costs[0].time]
        close.sort(key=lambda cost: cost.steps * cost.segments)
        costs[: len(close)] = close
        left_out = dict(self._left_out)
        return Plan(self.collective, self.topology, self.ranks, size, tuple(costs), left_out, self.groups, self.counts)

    def load(self, name: str) -> Load | None:
        """The load of an algorithm on the topology; None if it can be neither counted nor derived."""
        if name not in self._loads and name not in self._left_out:
            if self.progress is not None:
                self.progress(name)
            self._find_load(name)
        return None if name in self._left_out else self._loads[name][0]

    def _cost(self, name: str, size: int, segments: int | None) -> Cost | None:
        if self.load(name) is None:
            return None
        load, source, counts = self._loads[name]
        found = price(load, self.collective, name, size, segments, self.root, source, counts)
        if self.counts is not None:
            return unbounded(found)
        # Schedules from files are not proved here, and may do less than they should.
        if found.source != "at least" and name not in {one.algorithm for one in self.made}:
            require_not_below(found.bounds.time, found.time, name, self.topology.name)
        return found

    def parameters(self, name: str) -> dict[str, Any]:
        """The parameters of an algorithm besides the ranks: two-level ones get `groups`."""
        if not find_algorithm(self.collective, name).takes_groups:
            return {}
        ends = np.cumsum(self.groups).tolist()
        return {"groups": [list(range(end - many, end)) for many, end in zip(self.groups, ends, strict=True)]}

    def _find_load(self, name: str) -> None:
        patterns = None
        if self.counts is None:
            known = find_algorithm(self.collective, name)
            patterns = patterns_of(known, self.ranks, self.root, **self.parameters(name))
        if patterns is not None and not self.topology.folding:
            with suppress(RoutesDiffer):
                self._loads[name] = (Load.of(patterns, self.topology, self.ranks), "closed form", None)
                return
        if self.ranks > MOST_COUNTED:
            self._left_out[name] = (
                f"it has no closed form for {self.ranks:,} ranks, and more than {MOST_COUNTED:,} are not counted"
            )
            return
        self._count(name, self.schedule(name))

    def _count(self, name: str, built: Schedule) -> None:
        if self.counts is not None:
            try:
                check_places(Versions(built))
            except ScheduleError as error:
                self._left_out[name] = str(error)
                return
        load = Load.of(patterns_on(built, self.topology, self.counts), self.topology, self.ranks)
        self._loads[name] = (load, "counted", built.counts)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """For two-level algorithms: the hosts, if they have several ranks each; else equal groups of about √P."""
        host = self.topology.host[: self.ranks]
        sizes = np.unique(host, return_counts=True)[1]
        if 1 < len(sizes) < self.ranks and (np.diff(host) >= 0).all():
            return tuple(sizes.tolist())
        most = next(many for many in range(isqrt(self.ranks), 0, -1) if self.ranks % many == 0)
        return (self.ranks // most,) * most


def plan(
    collective: str,
    topology: Topology,
    ranks: int,
    size: int,
    names: Sequence[str] | None = None,
    segments: int | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Every algorithm of the collective (or only those named), priced for one size.

    >>> plan = price.plan("all_reduce", price.dgx_h100(nodes=128), ranks=1024, size=2**30, names=["ring", "tree"])
    >>> plan.costs[0].algorithm
    'ring'
    """
    return Planner(collective, topology, ranks, names, progress).plan(size, segments)


def duration(seconds: float) -> str:
    """`4.18 ms`: three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 0.9995 or (unit == "µs" and seconds >= 1e-8):
            value = seconds * factor
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:,.{digits}f} {unit}"
    return f"{seconds * 1e9:.2f} ns" if seconds else "0 s"


def _sum(cost: Cost, parts: tuple[str, ...]) -> float:
    return sum(cost.parts[part] for part in parts)


def _limit(cost: Cost) -> str:
    what = {"latency": "waiting", "reduction": "combining"}.get(cost.limit.kind, f"the bytes through {cost.limit}")
    return f"{cost.limit.part:.0%} of its time goes into {what}"
