"""Steps: the fewest, and what more of them buy. Exact for small networks, breadth first for larger ones.

A schedule is a point (chunks, steps, rounds): with so many chunks per rank, so many steps, each as long as some whole
number of rounds. It costs steps · latency and rounds/chunks · transfer, so for every number of steps the least rounds
per chunk matter. They are looked for from the best conceivable ratio upwards, and every point that the solver refutes
is listed as one that does not exist. The frontier ends where the ratio reaches the bound of the tightest cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import UsageError
from ..price.cost.cuts import worst_set
from ..schedule import Schedule
from .breadth_first import breadth_first
from .exact import MOST_VARIABLES, Answer, exists, hops, require_scipy
from .found import Task
from .neighbours import Neighbours, neighbours_of
from .spreading import COLLECTIVES, Phase, phases, schedule_of

_MOST_CHUNKS = 6
"""Chunks per rank that are tried, unless the bound needs more."""
_FINEST = 12
"""Chunks per rank that are tried if the bound can be met exactly with that many."""
_MORE_STEPS = 3
"""Steps beyond the fewest that are tried."""
_PER_POINT = 2.0
"""Seconds that the solver has at least for one point; at most it has a fifth of what is left."""


@dataclass(frozen=True)
class Point:
    """So many chunks per rank (in all, with a root), in so many steps, which take so many rounds in all."""

    chunks: int
    steps: int
    rounds: int

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


def fits(task: Task) -> bool:
    """Whether the exact search has a chance: one chunk per rank in the fewest steps is small enough."""
    if task.collective not in COLLECTIVES or task.ranks > 64:
        return False
    among = neighbours_of(task.topology, task.ranks)
    origins = task.ranks if task.root is None else 1
    fewest = int(hops(among).max(initial=1))
    return 2 * origins * len(among.source) * (fewest + 1) <= MOST_VARIABLES // 2


def steps(task: Task) -> Iterator[Schedule]:
    """Schedules on the frontier, exactly where the network is small; breadth-first broadcast otherwise."""
    if task.collective not in COLLECTIVES:
        raise UsageError(f"the method of steps finds {', '.join(COLLECTIVES)}, not {task.collective}")
    require_scipy()
    if task.ranks == 1:
        yield schedule_of(task, "steps", 1, [])
        return
    yield from breadth_first(task)
    if fits(task):
        yield from frontier(task)


def frontier(task: Task) -> Iterator[Schedule]:
    """The schedules of the frontier, fewest steps first. What was tried is listed in `task.notes["frontier"]`.

    An all_reduce is a reduce_scatter and an all_gather with the same chunks, steps and rounds each; the list is that of
    the all_gather, because an all_reduce need not consist of these two.
    """
    among = neighbours_of(task.topology, task.ranks)
    last = phases(task)[-1]
    alike = _is_symmetric(among)
    for point, answer in _points(task, last, last.among(among)):
        if answer.rounds is None:
            continue
        found = [answer.rounds]
        if len(phases(task)) == 2:
            first = phases(task)[0]
            holders = first.holders(task, point.chunks)
            other = answer if alike else exists(first.among(among), holders, point.steps, point.rounds, task.left)
            if other.rounds is None:
                continue
            found.insert(0, other.rounds)
        yield schedule_of(task, "steps", point.chunks, found)


def _points(task: Task, phase: Phase, among: Neighbours) -> Iterator[tuple[Point, Answer]]:
    origins = phase.holders(task, 1)
    least = least_rounds_per_chunk(among, origins)
    fewest = int(hops(among)[origins].max(initial=0))
    tried: list[dict[str, int | bool | None]] = task.notes.setdefault("frontier", [])
    best: Fraction | None = None
    for many in range(fewest, fewest + _MORE_STEPS + 1):
        for point in _candidates(task, least, many):
            if best is not None and point.ratio >= best:
                break  # with more steps, and no better
            if not task.left:
                return
            task.say(f"steps: {point.chunks} chunks per rank, {point.steps} steps, {point.rounds} rounds")
            holder = phase.holders(task, point.chunks)
            answer = exists(among, holder, point.steps, point.rounds, min(task.left, max(_PER_POINT, task.left / 5)))
            row = {"chunks": point.chunks, "steps": point.steps, "rounds": point.rounds, "exists": answer.exists}
            tried.append(row)
            yield point, answer
            if answer.exists:
                best = point.ratio
                break
        if best is not None and best <= least:
            return


def _candidates(task: Task, least: Fraction, steps: int) -> list[Point]:
    """Points that are not out of the question, the best rounds per chunk first."""
    if task.chunks is not None:
        chunks = [task.chunks]
    else:
        exact = least.denominator
        chunks = sorted({*range(1, _MOST_CHUNKS + 1), *([exact] if exact <= _FINEST else [])})
    points = [
        Point(many, steps, rounds)
        for many in chunks
        for first in (max(steps, -(-least.numerator * many // least.denominator)),)
        for rounds in range(first, 2 * first + 2 * steps * many)
    ]
    # Of points with equal ratio the smallest: from it the others follow, by dividing chunks further.
    smallest: dict[Fraction, Point] = {}
    for point in points:
        if point.ratio not in smallest or task.chunks is not None:
            smallest[point.ratio] = point
    return sorted(smallest.values(), key=lambda point: (point.ratio, point.chunks))


def least_rounds_per_chunk(among: Neighbours, origins: np.typing.NDArray[np.int32]) -> Fraction:
    """What no schedule can beat with one chunk per origin: by the tightest cut, or by what enters one rank."""
    if among.direct:
        weight = np.bincount(origins, minlength=among.ranks).astype(np.int64)
        capacity = _of_pairs(among).astype(np.int64)
        everyone = np.arange(among.ranks, dtype=np.int32)
        inside = worst_set(among.ranks, among.source, among.destination, capacity, weight, everyone)
        leaves = inside[among.source] & ~inside[among.destination]
        return Fraction(int(weight[inside].sum()), int(capacity[leaves].sum()))
    worst = Fraction(0)
    pair = np.repeat(np.arange(len(among.source)), np.diff(among.offsets))
    entered = among.destination[pair]
    for rank in range(among.ranks):
        # The links that only routes to this rank cross: everything that it gets crosses one of those of its own.
        own = [link for link in np.unique(among.links[entered == rank]) if (entered[among.links == link] == rank).all()]
        alone = np.asarray(own, np.int64)
        crosses = np.zeros(len(among.source), bool)
        crosses[pair[np.isin(among.links, alone)]] = True
        if not crosses[among.destination == rank].all():
            continue
        others = int((origins != rank).sum())
        worst = max(worst, Fraction(others, int(among.capacity[alone].sum())))
    return worst


def _of_pairs(among: Neighbours) -> np.typing.NDArray[np.int32]:
    """The capacity of every pair that has links of its own: that of the narrowest."""
    return np.minimum.reduceat(among.capacity[among.links], among.offsets[:-1])


def _is_symmetric(among: Neighbours) -> bool:
    """Whether every pair has an equal one the other way."""
    if not among.direct:
        return False
    capacity = _of_pairs(among).tolist()
    pairs = dict(zip(zip(among.source.tolist(), among.destination.tolist(), strict=True), capacity, strict=True))
    return all(pairs.get((end, start)) == many for (start, end), many in pairs.items())
