"""Steps: the fewest, and the gain of further steps. Exact for small networks, breadth first for larger ones.

A schedule is a point (chunks, steps, rounds): chunks per rank, steps, each as long as some whole number of rounds, and
rounds in all. It costs steps · latency and rounds/chunks · transfer, so for every number of steps the least rounds
per chunk matter. Breadth-first broadcast gives a first ratio for the fewest steps. Then the solver is asked for better
ones, and every point that it refutes is listed as one that does not exist (with as many chunks and steps, fewer rounds do
not exist either). The frontier ends where the ratio reaches the bound of the tightest cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf

import numpy as np

from ..errors import UsageError
from ..price.cost.cuts import Demand, worst_set
from ..price.cost.program import solver
from ..schedules import Schedule
from .breadth_first import breadth_first, spread
from .exact import MOST_VARIABLES, Answer, exists, hops
from .found import Task
from .neighbours import UNLIMITED, Neighbours, neighbours_of
from .spreading import KNOWN, Direction, Rounds, phases, schedule_of

_MOST_CHUNKS = 6
"""Chunks per rank that are tried, unless the bound needs more."""
_FINEST = 12
"""Chunks per rank that are tried if the bound can be met exactly with that many."""
_MORE_STEPS = 3
"""Steps beyond the fewest that are tried."""
_PER_POINT, _MOST_PER_POINT = 1.0, 20.0
"""Seconds that the solver has for one point, at least and at most; in between, a sixth of what is left."""


@dataclass(frozen=True)
class Point:
    """A (chunks, steps, rounds) triple; chunks per rank, or in total if rooted."""

    chunks: int
    steps: int
    rounds: int

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


def fits(task: Task) -> bool:
    """True if the exact search has a chance: one chunk per rank in the fewest steps is small enough."""
    if task.collective not in KNOWN or task.ranks > 64:
        return False
    among = neighbours_of(task.topology, task.ranks)
    origins = task.ranks if task.root is None else 1
    fewest = int(hops(among).max(initial=1))
    return 2 * origins * len(among.source) * (fewest + 1) <= MOST_VARIABLES // 2


def steps(task: Task) -> Iterator[Schedule]:
    """Schedules on the frontier, exactly where the network is small; breadth-first broadcast otherwise."""
    if task.collective not in KNOWN:
        raise UsageError(f"the method of steps finds {', '.join(KNOWN)}, not {task.collective}")
    solver("find")
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


def _points(task: Task, phase: Direction, among: Neighbours) -> Iterator[tuple[Point, Answer]]:
    """For every number of steps, from the fewest on, the point with the least rounds per chunk, if that is new."""
    origins = phase.holders(task, 1)
    least = least_rounds_per_chunk(among, origins)
    fewest = int(hops(among)[origins].max(initial=0))
    tried: list[dict[str, int | bool | None]] = task.notes.setdefault("frontier", [])

    def try_it(point: Point) -> Answer:
        task.say(f"steps: {point.chunks} chunks per rank, {point.steps} steps, {point.rounds} rounds")
        seconds = min(task.left, max(_PER_POINT, min(_MOST_PER_POINT, task.left / 6))) if task.left < inf else inf
        answer = exists(among, phase.holders(task, point.chunks), point.steps, point.rounds, seconds)
        note(point, answer.exists)
        return answer

    def note(point: Point, there: bool | None) -> None:
        row = {"chunks": point.chunks, "steps": point.steps, "rounds": point.rounds}
        tried.append({**row, "exists": there})

    chunks = _chunks(task, least)
    best = _first_point(task, phase, among, fewest, chunks)
    if best is not None:
        note(best[0], True)
    for many in range(fewest, fewest + _MORE_STEPS + 1):
        for each in chunks:
            low = max(many, _up(least * each))
            high = 2 * low + 2 * many * each if best is None else _up(best[0].ratio * each) - 1
            # If even the easiest does not exist, no better one does. Only the bound itself is worth a try before that.
            guesses = [low if low == least * each and many > fewest else high]
            while low <= high and task.left:
                rounds = guesses.pop() if guesses else (low + high) // 2
                point = Point(each, many, rounds)
                answer = try_it(point)
                if answer.exists:
                    best, high = (point, answer), rounds - 1
                else:
                    low = rounds + 1
        if best is not None and best[0].steps == many:
            yield best
        if not task.left or (best is not None and best[0].ratio <= least):
            return


def _first_point(
    task: Task, phase: Direction, among: Neighbours, fewest: int, chunks: list[int]
) -> tuple[Point, Answer] | None:
    """The best point of the fewest steps that breadth-first broadcast finds; there may be better ones."""
    best: tuple[Point, Answer] | None = None
    for many in sorted(chunks):
        found = spread(task, phase, neighbours_of(task.topology, task.ranks), many)
        if found is None:
            break
        point = Point(many, fewest, rounds_of(among, found))
        if best is None or point.ratio < best[0].ratio:
            best = point, Answer(True, found)
    return best


def _chunks(task: Task, least: Fraction) -> list[int]:
    """Chunks per rank to try; first those with which the bound may be met exactly."""
    if task.chunks is not None:
        return [task.chunks]
    exact = [least.denominator] if least.denominator <= _FINEST else []
    return [*exact, *(many for many in range(1, _MOST_CHUNKS + 1) if many not in exact)]


def _up(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)


def rounds_of(among: Neighbours, rounds: Rounds) -> int:
    """The number of rounds that the steps take: in each, as many as its busiest link needs."""
    number = np.full((among.ranks, among.ranks), -1, np.intp)
    number[among.source, among.destination] = np.arange(len(among.source))
    pair = number[rounds.source, rounds.destination]
    total = 0
    for start, end in pairwise(rounds.starts.tolist()):
        crossed = np.bincount(pair[start:end], minlength=len(among.source))
        load = np.bincount(among.links, np.repeat(crossed, np.diff(among.offsets)), len(among.capacity))
        total += int(np.ceil(load / among.capacity - 1e-9).max(initial=0))
    return total


def least_rounds_per_chunk(among: Neighbours, origins: np.typing.NDArray[np.int32]) -> Fraction:
    """The least rounds with one chunk per origin: by the tightest cut, or by what enters one rank."""
    if among.direct:
        weight = np.bincount(origins, minlength=among.ranks).astype(np.int64)
        capacity = among.narrowest(among.capacity, UNLIMITED).astype(np.int64)
        everyone = np.arange(among.ranks, dtype=np.int32)
        inside = worst_set(Demand(among.ranks, among.source, among.destination, capacity, weight, everyone))
        leaves = inside[among.source] & ~inside[among.destination]
        return Fraction(int(weight[inside].sum()), int(capacity[leaves].sum()))
    # A link that all pairs cross, as a bus: everything that anybody gets crosses it.
    crossed = np.bincount(among.links, minlength=len(among.capacity))
    arrivals = len(origins) * (among.ranks - 1)
    worst = max(
        [Fraction(arrivals, int(among.capacity[link])) for link in np.flatnonzero(crossed == len(among.source))],
        default=Fraction(0),
    )
    entered = among.destination[among.pair]
    for rank in range(among.ranks):
        # The links that only routes to this rank cross: everything that it gets crosses one of those of its own.
        own = [link for link in np.unique(among.links[entered == rank]) if (entered[among.links == link] == rank).all()]
        alone = np.asarray(own, np.int64)
        crosses = np.zeros(len(among.source), bool)
        crosses[among.pair[np.isin(among.links, alone)]] = True
        if not crosses[among.destination == rank].all():
            continue
        others = int((origins != rank).sum())
        worst = max(worst, Fraction(others, int(among.capacity[alone].sum())))
    return worst


def _is_symmetric(among: Neighbours) -> bool:
    """True if every pair has an equal one the other way."""
    if not among.direct:
        return False
    capacity = among.narrowest(among.capacity, UNLIMITED).tolist()
    pairs = dict(zip(zip(among.source.tolist(), among.destination.tolist(), strict=True), capacity, strict=True))
    return all(pairs.get((end, start)) == many for (start, end), many in pairs.items())
