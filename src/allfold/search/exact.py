"""Decide exactly whether a schedule of given steps and rounds exists, as a mixed-integer program (HiGHS in scipy).

Chunks spread from their ranks to all. In step t, which takes r(t) ≥ 1 rounds, a link carries at most r(t) times the
chunks that it carries in one round; the rounds of all steps add up to R. A variable says that a chunk goes from one rank to
a neighbour in a step. Every rank gets every chunk exactly once, and hands on only what it got in an earlier step. (The
model of SCCL: Cai et al., PPoPP 2021, who give it to an SMT solver.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..price.cost.program import solver
from ..price.topology.topology import spans
from .neighbours import Neighbours
from .spreading import Rounds
from .symmetry import renumberings

MOST_VARIABLES = 60_000
_INFEASIBLE = 2  # a status of scipy.optimize.milp


@dataclass(frozen=True, eq=False)
class Answer:
    """`exists` is None if there was no time to decide it."""

    exists: bool | None
    rounds: Rounds | None = None


def hops(among: Neighbours, starts: NDArray[np.integer] | None = None) -> NDArray[np.int64]:
    """From every rank (or each of `starts`) to every rank, the fewest moves; -1 where there is no way."""
    begin = np.arange(among.ranks) if starts is None else starts
    far = np.full((len(begin), among.ranks), -1, np.int64)
    far[np.arange(len(begin)), begin] = 0
    reached = far == 0
    for steps in range(1, among.ranks):
        new = np.zeros_like(reached)
        np.logical_or.at(new.T, among.destination, reached.T[among.source])
        new &= ~reached
        if not new.any():
            break
        far[new] = steps
        reached |= new
    return far


def exists(among: Neighbours, holder: NDArray[np.int32], steps: int, rounds: int, seconds: float) -> Answer:
    """Decide whether all chunks can get from their holders to all ranks in these steps, which take these rounds in all.

    It looks for symmetric schedules first: if there is one, it is found much faster.
    """
    everyones = np.repeat(np.arange(among.ranks), len(holder) // among.ranks)
    alike = renumberings(among) if np.array_equal(holder, everyones) else []
    started = time.monotonic()
    if len(alike) > 1:
        found = _decide(among, holder, steps, rounds, seconds / 2, alike)
        if found.exists:
            return found
    return _decide(among, holder, steps, rounds, seconds - (time.monotonic() - started), [])


def _decide(
    among: Neighbours,
    holder: NDArray[np.int32],
    steps: int,
    rounds: int,
    seconds: float,
    alike: list[NDArray[np.int64]],
) -> Answer:
    optimize = solver("find")
    if rounds < steps:
        return Answer(False)
    far = hops(among)[holder]  # by chunk and rank
    if (far < 0).any() or far.max(initial=0) > steps:
        return Answer(False)
    # A chunk crosses a pair in a step if it can be at its source by then; what it started with, a rank never gets.
    chunk, pair, step = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(len(holder)), np.arange(len(among.source)), np.arange(steps), indexing="ij")
    )
    source, destination = among.source[pair], among.destination[pair]
    can = (far[chunk, source] <= step) & (destination != holder[chunk])
    chunk, pair, step, source, destination = (one[can] for one in (chunk, pair, step, source, destination))
    many = len(chunk)
    if many > MOST_VARIABLES:
        return Answer(None)
    column = _same(among, holder, steps, alike, chunk, pair, step)  # the variable that stands for each of these
    program = _Rows(many + steps, column)
    _arrive_once(program, among, holder, chunk, destination)
    _hand_on_what_is_there(program, among, holder, steps, chunk, pair, step)
    _within_capacity(program, among, steps, pair, step)
    program.add(np.zeros(steps, np.int64), many + np.arange(steps), np.ones(steps), [-np.inf], [float(rounds)])
    lower, upper = np.zeros(many + steps), np.ones(many + steps)
    lower[many:], upper[many:] = 1, rounds - steps + 1
    found = beside(
        lambda: optimize.milp(
            np.zeros(many + steps),
            constraints=program.constraint(optimize),
            integrality=np.ones(many + steps),
            bounds=optimize.Bounds(lower, upper),
            options={"time_limit": max(0.01, seconds)},
        )
    )
    if found.x is None:
        return Answer(False if found.status == _INFEASIBLE else None)
    moved = np.flatnonzero(found.x[column] > 0.5)
    moved = moved[np.argsort(step[moved], kind="stable")]
    starts = np.searchsorted(step[moved], np.arange(steps + 1)).astype(np.int64)
    return Answer(True, Rounds(starts, chunk[moved].astype(np.int32), source[moved], destination[moved]))


class _Rows:
    """Constraints, row after row, in coordinates."""

    def __init__(self, columns: int, same: NDArray[np.int64]) -> None:
        self.columns, self.count = columns, 0
        self.same = np.concatenate([same, np.arange(len(same), columns)])
        self.row: list[NDArray[np.int64]] = []
        self.column: list[NDArray[np.int64]] = []
        self.value: list[NDArray[np.float64]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(
        self, row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64], low: Any, high: Any
    ) -> None:
        self.row.append(row + self.count)
        self.column.append(self.same[column])
        self.value.append(value)
        self.low += list(low)
        self.high += list(high)
        self.count = len(self.low)

    def constraint(self, optimize: Any) -> Any:
        from scipy.sparse import csr_array

        at = np.concatenate(self.row), np.concatenate(self.column)
        matrix = csr_array((np.concatenate(self.value), at), shape=(self.count, self.columns))
        return optimize.LinearConstraint(matrix, self.low, self.high)


Ints = NDArray[np.int64]


def _same(
    among: Neighbours,
    holder: NDArray[np.int32],
    steps: int,
    alike: list[Ints],
    chunk: Ints,
    pair: Ints,
    step: Ints,
) -> Ints:
    """For every variable, the first of those that are equal by symmetry of the ranks; itself, if there is no symmetry."""
    first = np.arange(len(chunk))
    per_rank = max(1, len(holder) // among.ranks)
    pairs = len(among.source)
    number = np.full((among.ranks, among.ranks), -1, np.int64)
    number[among.source, among.destination] = np.arange(pairs)
    place = np.full(len(holder) * pairs * steps, -1, np.int64)
    place[(chunk * pairs + pair) * steps + step] = first
    for renumbered in alike:
        there = renumbered[chunk // per_rank] * per_rank + chunk % per_rank
        crossed = number[renumbered[among.source[pair]], renumbered[among.destination[pair]]]
        first = np.minimum(first, place[(there * pairs + crossed) * steps + step])
    return first


def _arrive_once(rows: _Rows, among: Neighbours, holder: NDArray[np.int32], chunk: Ints, destination: Ints) -> None:
    cell = chunk * among.ranks + destination
    wanted = [
        c * among.ranks + rank for c, own in enumerate(holder.tolist()) for rank in range(among.ranks) if rank != own
    ]
    number = np.full(len(holder) * among.ranks, -1, np.int64)
    number[wanted] = np.arange(len(wanted))
    ones = [1.0] * len(wanted)
    rows.add(number[cell], np.arange(len(cell)), np.ones(len(cell)), ones, ones)


def _hand_on_what_is_there(
    rows: _Rows, among: Neighbours, holder: NDArray[np.int32], steps: int, chunk: Ints, pair: Ints, step: Ints
) -> None:
    """Require that data crossing a pair up to step t has reached its source before step t."""
    pairs = len(among.source)
    column = np.arange(len(chunk))
    came: dict[tuple[int, int], list[int]] = {}
    for index, (c, p) in enumerate(zip(chunk.tolist(), pair.tolist(), strict=True)):
        came.setdefault((c, int(among.destination[p])), []).append(index)
    row, where, value, many = [], [], [], 0
    order = np.lexsort((step, pair, chunk))
    groups = np.split(order, np.flatnonzero(np.diff((chunk * pairs + pair)[order])) + 1) if len(order) else []
    for group in groups:
        c, p = int(chunk[group[0]]), int(pair[group[0]])
        source = int(among.source[p])
        if source == holder[c]:
            continue
        arrivals = np.asarray(came.get((c, source), []), np.int64)
        for t in range(int(step[group[0]]), steps):
            sent, had = group[step[group] <= t], arrivals[step[arrivals] < t]
            if step[sent[-1]] < t:
                continue  # nothing new: the row of an earlier step says more
            row.append(np.full(len(sent) + len(had), many))
            where.append(np.concatenate([column[sent], had]))
            value.append(np.concatenate([np.ones(len(sent)), -np.ones(len(had))]))
            many += 1
    if many:
        rows.add(np.concatenate(row), np.concatenate(where), np.concatenate(value), [-np.inf] * many, [0.0] * many)


def _within_capacity(rows: _Rows, among: Neighbours, steps: int, pair: Ints, step: Ints) -> None:
    """In step t a link carries at most r(t) times its chunks per round."""
    lengths = np.diff(among.offsets)[pair]
    variable = np.repeat(np.arange(len(pair)), lengths)
    link = among.links[spans(among.offsets[pair], lengths)]
    links = len(among.capacity)
    every = np.arange(links * steps)
    rows.add(
        np.concatenate([link.astype(np.int64) * steps + step[variable], every]),
        np.concatenate([variable, len(pair) + every % steps]),
        np.concatenate([np.ones(len(variable)), -np.repeat(among.capacity, steps).astype(np.float64)]),
        [-np.inf] * len(every),
        [0.0] * len(every),
    )


def beside(work: Callable[[], Any]) -> Any:
    """The result of work that cannot be interrupted: another thread does it, while this one waits for Ctrl-C.

    After Ctrl-C that thread goes on to its time limit, because nothing can stop it; only the end of the process waits
    for it.
    """
    result: list[Any] = []
    done = threading.Event()

    def run() -> None:
        try:
            result.append(work())
        finally:
            done.set()

    threading.Thread(target=run).start()
    # Not by `join`: interrupted, it takes the thread for stopped (Python 3.11), and the process would end under it.
    while not done.wait(0.1):
        pass
    if not result:
        raise RuntimeError("the solver ended without an answer")
    return result[0]
