"""Groups of ranks that share a network, each with a collective of its own at the same time: schedules found together.

Found one by one, each schedule uses links as if it had them alone, and together they wait for each other. So groups are
looked at in turns: each gets a network whose links are only as fast as the others leave them. What is kept is what makes all
of them together cheaper, priced as one schedule whose steps happen at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collectives import find_collective
from ..errors import UsageError
from ..patterns import fold_together
from ..price.cost.bounds import most_useful, ratio_of, require_not_below
from ..price.cost.certificate import Certificate, LinkPrices, demand_of, facts_of_prices, rounded_down
from ..price.cost.load import Load
from ..price.cost.program import least_together
from ..price.topology.seen import Seen, check_groups, seen_from, slowed
from ..price.topology.sizes import at_best
from ..price.topology.topology import Topology
from ..schedules import Schedule
from .found import Found

Look = Callable[[Topology, int, float], Found]
"""The best schedule on a network for its first ranks, in some seconds."""

_GOOD = 1.0095
_TURNS = 3  # of all groups
_LEFT = 0.05  # of a link's bandwidth, however busy others keep it
_BY_PROGRAM = 5.0  # seconds
WHY = "however the groups share the links, nothing is faster (by a linear program)"


@dataclass(frozen=True, eq=False)
class FoundTogether:
    """A schedule for each of several groups that share a network, and what all of them together take.

    >>> both = af.find("all_gather", "ring:ranks=4", size=2**20, groups=[[0, 1], [2, 3]], seconds=2)
    >>> [found.ranks for found in both.schedules], both.time >= both.bound
    ([2, 2], True)
    """

    collective: str
    topology: str
    size: int
    """Bytes of each group's buffer."""
    groups: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]
    """By group; rank i of a schedule is the i-th of the group."""
    time: float
    """Seconds, if all groups begin at once."""
    segments: int
    alone: tuple[float, ...]
    """Seconds of the best schedule of each group that was found, if the others do nothing."""
    one_by_one: float
    """Seconds of these schedules together."""
    seconds_proved: Fraction
    certificates: tuple[Certificate, ...]
    """By group, on the network as the group sees it."""
    why: str
    seconds: float
    """Seconds that the search took, with the proofs."""
    complete: bool

    @property
    def bound(self) -> float:
        """Seconds that nothing can beat."""
        return rounded_down(self.seconds_proved)

    @property
    def ratio(self) -> float | None:
        """The time divided by the bound; None if that is 0 and the time is not."""
        return ratio_of(self.time, self.bound)

    @property
    def certificate(self) -> dict[str, Any]:
        """The proof of the bound, in exact numbers; `allfold check-bound` checks it."""
        return {
            "format": "allfold-bound-of-groups",
            "version": 1,
            "seconds": str(self.seconds_proved),
            "groups": [
                {"ranks": list(group), "certificate": one.to_json()}
                for group, one in zip(self.groups, self.certificates, strict=True)
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """The result as `allfold find --groups --json` prints it."""
        return {
            "collective": self.collective,
            "topology": self.topology,
            "size": self.size,
            "groups": [
                {
                    "ranks": list(group),
                    "algorithm": schedule.algorithm,
                    "chunks": schedule.chunks,
                    "steps": schedule.steps,
                    "alone": alone,
                }
                for group, schedule, alone in zip(self.groups, self.schedules, self.alone, strict=True)
            ],
            "time": self.time,
            "segments": self.segments,
            "one_by_one": self.one_by_one,
            "bound": self.bound,
            "ratio": self.ratio,
            "why": self.why,
            "certificate": self.certificate,
            "seconds": self.seconds,
            "complete": self.complete,
        }


def find_groups(
    collective: str,
    topology: Topology,
    given: Sequence[Sequence[int]],
    size: int,
    root: int | None,
    seconds: float,
    look: Look,
) -> FoundTogether:
    """Schedules for all groups. `look` finds one for a group, and proves it."""
    started = time.monotonic()
    check_groups(topology, given)
    groups = [[int(rank) for rank in group] for group in given]
    for group in groups:
        if len(group) < 2:
            raise UsageError(f"rank {group[0]} is a group by itself; expected at least two ranks per group")
    search = _SearchTogether(topology, groups, size, look)
    ends = started + seconds
    part = seconds / (1 + _TURNS) / len(groups)
    alone = [look(one, len(group), part) for one, group in zip(search.seen, groups, strict=True)]
    search.take([found.schedule for found in alone])
    one_by_one = search.time
    proved, certificates, why = _least(collective, topology, groups, size, root, alone, min(_BY_PROGRAM, seconds / 4))
    search.run(rounded_down(proved), ends, part)
    require_not_below(rounded_down(proved), search.time, "all groups together", topology.name)
    return FoundTogether(
        collective,
        topology.name,
        size,
        tuple(tuple(group) for group in groups),
        tuple(search.best),
        search.time,
        search.segments,
        tuple(found.time for found in alone),
        one_by_one,
        proved,
        certificates,
        why,
        time.monotonic() - started,
        time.monotonic() < ends,
    )


class _SearchTogether:
    """The cheapest schedules so far, one per group."""

    def __init__(self, topology: Topology, groups: list[list[int]], size: int, look: Look) -> None:
        self.topology, self.groups, self.size, self.look = topology, groups, size, look
        self.seen = [seen_from(topology, group) for group in groups]
        self.best: list[Schedule] = []
        self.time, self.segments = float("inf"), 1

    def take(self, schedules: list[Schedule]) -> bool:
        """Keep them if all of them together are cheaper."""
        load = self._load(schedules, self.groups)
        segments = load.best_segments(self.size)
        time = sum(load.parts(self.size, segments).values())
        if time >= self.time * (1 - 1e-9):
            return False
        self.best, self.time, self.segments = schedules, time, segments
        return True

    def run(self, bound: float, ends: float, part: float) -> None:
        """Every group in turns, on what the others leave it; and all at once, each with its share of every link."""
        for _ in range(_TURNS):
            before, shares = self.time, self._shares()
            for free in (self._left, lambda number, shares=shares: shares):
                found = list(self.best)
                for number in range(len(self.groups)):
                    left = ends - time.monotonic()
                    if left <= 0 or self.time <= bound * _GOOD:
                        return
                    try:
                        found[number] = self._on(number, free(number), min(part, left))
                    except UsageError:  # in this time nothing was found
                        continue
                    self.take([*self.best[:number], found[number], *self.best[number + 1 :]])
                self.take(found)
            if self.time == before:
                return

    def _shares(self) -> NDArray[np.float64]:
        """The part of every link that a group has if all that use it have as much."""
        busy = np.stack([self._busy([number]) for number in range(len(self.groups))])
        return np.asarray(1.0 / np.maximum(1, (busy > 0).sum(axis=0)))

    def _left(self, number: int) -> NDArray[np.float64]:
        """The part of every link's time that the other groups leave."""
        others = [other for other in range(len(self.groups)) if other != number]
        return np.maximum(_LEFT, 1 - self._busy(others) / self.time) if self.time else np.ones(len(self.topology.links))

    def _busy(self, numbers: list[int]) -> NDArray[np.float64]:
        load = self._load([self.best[one] for one in numbers], [self.groups[one] for one in numbers])
        return load.at(self.size / self.segments).link_time * self.size

    def _on(self, number: int, free: NDArray[np.float64], seconds: float) -> Schedule:
        seen = self.seen[number]
        assert isinstance(seen.router, Seen)
        own = np.empty_like(free)
        own[seen.router.number] = free
        return self.look(slowed(seen, own), len(self.groups[number]), max(0.1, seconds)).schedule

    def _load(self, schedules: list[Schedule], groups: list[list[int]]) -> Load:
        return Load.of(fold_together(schedules, groups, self.topology.ranks), self.topology, self.topology.ranks)


# What nothing can beat ------------------------------------------------------------------------------------------------


def _least(
    collective: str,
    topology: Topology,
    groups: list[list[int]],
    size: int,
    root: int | None,
    alone: list[Found],
    seconds: float,
) -> tuple[Fraction, tuple[Certificate, ...], str]:
    """The largest bound that is known, its certificates, and why: that of one group, or of all links together."""
    slowest = max(range(len(groups)), key=lambda number: alone[number].certificate.seconds)
    by_itself = alone[slowest]
    best = (
        by_itself.certificate.seconds,
        tuple(found.certificate for found in alone),
        f"group {slowest}, by its own numbers: {by_itself.why}",
    )
    if topology.by_size and len({len(group) for group in groups}) > 1:
        return best  # a link may be faster for one group than for another
    topology = at_best(topology, most_useful(collective, len(groups[0]), size))
    if find_collective(collective).one_way:
        known = _by_ways(collective, topology, groups, root, [found.certificate for found in alone])
    else:
        known = least_together(collective, topology, groups, root, seconds)
    if known is None:
        return best
    together = sum((one.per_byte for one in known), Fraction(0)) * size
    if together <= best[0] * (1 + Fraction(1, 10**6)):
        return best
    certificates = [
        replace(found.certificate, kind="links", seconds=one.per_byte * size, facts=facts_of_prices(one))
        for found, one in zip(alone, known, strict=True)
    ]
    return together, tuple(certificates), WHY


def _by_ways(
    collective: str, topology: Topology, groups: list[list[int]], root: int | None, alone: list[Certificate]
) -> list[LinkPrices] | None:
    """The best of several price vectors; every byte pays for its cheapest path. Nothing is copied or combined here."""
    seen = [seen_from(topology, group) for group in groups]
    names = {link.name: number for number, link in enumerate(topology.links)}
    own = [{names[name]: Fraction(price) for name, price in one.facts.get("prices", {}).items()} for one in alone]
    several = [prices for prices in own if prices]
    several += [_sum_of(several, topology)] if several else []
    several += [{link: Fraction(1)} for link in dict.fromkeys(link for prices in own for link in prices)]
    best: list[LinkPrices] | None = None
    for prices in several:
        found = []
        for one, group in zip(seen, groups, strict=True):
            assert isinstance(one.router, Seen)
            scale = lcm(*(price.denominator for price in prices.values()))
            charged = {int(one.router.number[link]): int(price * scale) for link, price in prices.items()}
            demand = demand_of(collective, one, len(group), root, charged)
            found.append(LinkPrices(one, charged, (), demand, WHY))
        if best is None or sum(one.per_byte for one in found) > sum(one.per_byte for one in best):
            best = found
    return best


def _sum_of(several: list[dict[int, Fraction]], topology: Topology) -> dict[int, Fraction]:
    """Prices of several groups, as if links earned as much for each of them."""
    total: dict[int, Fraction] = {}
    earned = [sum(float(price) * float(topology.bandwidth[link]) for link, price in one.items()) for one in several]
    for prices, own in zip(several, earned, strict=True):
        weight = Fraction(max(earned) / own).limit_denominator(1000)
        for link, price in prices.items():
            total[link] = total.get(link, Fraction(0)) + price * weight
    return total
