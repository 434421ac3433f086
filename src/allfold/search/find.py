"""The search: methods propose schedules, `cost` prices them, and the cheapest is proved and kept.

A method is a function of a `Task` that yields schedules, as a rule better and better ones, until it has no more or the
task's deadline has passed. It need not price them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import overload

from ..collectives import Collective, find_collective
from ..errors import UsageError
from ..price.cost.bounds import require_not_below
from ..price.cost.cost import Cost, cost
from ..price.cost.load import check_request
from ..price.cost.program import solver
from ..price.topology.network import network_of
from ..price.topology.parse import find_topology
from ..price.topology.topology import Topology, require
from ..proof import ACROSS_HOSTS, verify
from ..schedules import Schedule
from ..wording import suggest
from .built_in import MOST_COUNTED, MOST_RANKS, built_in
from .channels import channels
from .channels import fits as fits_channels
from .forest.throughput import fits as fits_throughput
from .forest.throughput import throughput
from .found import Found, Progress, Task
from .greedy import fits as fits_greedy
from .greedy import greedy
from .least import least_of
from .levels import fits as fits_levels
from .levels import levels
from .paths.flows import flows_of
from .steps import fits as fits_steps
from .steps import steps
from .together import FoundTogether, find_groups

Method = Callable[[Task], Iterator[Schedule]]

METHODS: dict[str, Method] = {
    "throughput": throughput,
    "steps": steps,
    "greedy": greedy,
    "channels": channels,
    "levels": levels,
    "built_in": built_in,
}
_ALWAYS = "built_in"
PROVING = "proving it"
"""The progress message after the search."""
_PROVED = {True: 20_000, False: 150_000}
"""Moves that are proved per second: with the programs across hosts, and without."""
_STEP = 1e-3  # seconds that every step adds
_MANY = 256  # ranks of an all_to_all: beyond, a built-in algorithm that is near the bound will do
_FEW, _UNASKED = 16, 10.0  # ranks and seconds up to which the exact search for steps is tried unasked


@overload
def find(
    collective: str,
    topology: Topology | str,
    size: int = 2**30,
    ranks: int | None = None,
    method: str = "auto",
    root: int | None = None,
    chunks: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
    groups: None = None,
) -> Found: ...
@overload
def find(
    collective: str,
    topology: Topology | str,
    size: int = 2**30,
    ranks: int | None = None,
    method: str = "auto",
    root: int | None = None,
    chunks: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    groups: Sequence[Sequence[int]],
) -> FoundTogether: ...
def find(
    collective: str,
    topology: Topology | str,
    size: int = 2**30,
    ranks: int | None = None,
    method: str = "auto",
    root: int | None = None,
    chunks: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> Found | FoundTogether:
    """The cheapest schedule for a buffer of `size` bytes on a topology that is found within `seconds`, and its proof.

    With `groups` of ranks, each has such a buffer and a schedule of its own, and they run at the same time; a root is then a
    place in its group. Ctrl-C ends the search early, with the best so far.

    >>> found = af.find("all_gather", "hypercube:dimensions=2", size=2**10)
    >>> found.schedule.steps, found.time >= found.bound
    (2, True)
    """
    promise = find_collective(collective)
    if isinstance(topology, str):
        topology = find_topology(topology, ranks if groups is None else _needed(groups))
    require(topology, 1)
    check_request(size, None)
    seconds = _seconds(seconds)
    if method == "auto" or groups is not None:
        solver("find")  # methods that fail are left out, so without it the search would find something else
    if groups is None:
        return _find_schedule(promise, topology, size, ranks, method, root, chunks, seconds, seed, progress)
    if ranks is not None:
        raise UsageError("ranks and groups are both given; pass only groups")
    root = _root(promise, root, min((len(group) for group in groups), default=1))

    def look(network: Topology, many: int, part: float) -> Found:
        return _find_schedule(promise, network, size, many, method, root, chunks, part, seed, progress)

    return find_groups(promise.name, topology, groups, int(size), root, seconds, look)


def _needed(groups: Sequence[Sequence[int]]) -> int | None:
    """The number of ranks that a topology needs for these groups, whose ranks are checked later."""
    known = [rank for group in groups for rank in group if type(rank) is int and 0 <= rank < 2**24]
    return max(known) + 1 if known else None


def _find_schedule(
    promise: Collective,
    topology: Topology,
    size: int,
    ranks: int | None,
    method: str,
    root: int | None,
    chunks: int | None,
    seconds: float,
    seed: int,
    progress: Progress | None,
) -> Found:
    started = time.monotonic()
    ranks = topology.ranks if ranks is None else ranks
    topology.require(ranks)
    root = _root(promise, root, ranks)
    most_moves = most_proved(ranks, seconds)
    _check_chunks(promise, ranks, chunks, most_moves, seconds)
    task = Task(
        promise.name,
        topology,
        network_of(topology, ranks),
        ranks,
        root,
        int(size),
        chunks,
        seed,
        started + seconds,
        progress,
        most_moves,
    )
    if promise.one_way and ranks > 1:
        task = replace(task, flows=flows_of(task))
    least = least_of(task)
    task = replace(task, bound=least.time)
    search = _Search(task, method)
    complete = True
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        complete = False
    if search.best is None:
        why = "".join(f"; {name}: {reason}" for name, reason in task.notes.get("left_out", {}).items())
        raise UsageError(
            f"{method} found no schedule for {promise.name} between {ranks} ranks of {topology.name} in {seconds:g} s{why}"
        )
    schedule, priced, name = search.best
    schedule = replace(schedule, algorithm=re.sub(r"\W+", "_", schedule.algorithm))
    searched = time.monotonic()
    complete = complete and task.left > 0
    task.say(PROVING)
    verify(schedule)
    return Found(
        schedule,
        priced,
        least.certificate,
        least.cut,
        least.why,
        name,
        searched - started,
        time.monotonic() - searched,
        complete,
        dict(task.notes),
    )


class _Search:
    """The methods one after the other, and the cheapest schedule so far."""

    def __init__(self, task: Task, method: str) -> None:
        if method not in ("auto", *METHODS):
            raise UsageError(f"unknown method {method!r}; {suggest(method, ['auto', *METHODS])}")
        self.task, self.method = task, method
        self.best: tuple[Schedule, Cost, str] | None = None

    def run(self) -> None:
        if self.method != "auto":
            self._try(self.method, self.task)
            return
        chosen = self._fitting()
        for place, name in enumerate(chosen):
            # If there is nothing yet, something quick may still do; and the result is never slower than a built-in algorithm.
            if not self.task.left and self.best is not None and name != _ALWAYS:
                continue
            # Fewer steps may be better even where the least is nearly met: greedy has few, and is quick.
            if self.task.ranks > _MANY and self.task.promise.exchanges and self.task.near:
                continue
            worth = {"steps": 0.1, "greedy": 0.002 if self.task.good else 0.0}.get(name, 1.0 if self.task.good else 0.0)
            if self.best is not None and _waits(self.best[1]) < worth and not self._priced_quickly(name):
                continue
            # Of the time that is left, a method leaves half to those after it.
            part = self.task.left / 2 if place < len(chosen) - 1 else self.task.left
            part = min(part, _UNASKED) if name == "steps" else part
            try:
                self._try(name, replace(self.task, deadline=time.monotonic() + part))
            except UsageError as error:  # another may do
                self.task.notes.setdefault("left_out", {})[name] = str(error)

    def _priced_quickly(self, name: str) -> bool:
        return name == _ALWAYS and self.task.ranks <= MOST_COUNTED

    def _rank(self, schedule: Schedule, priced: Cost) -> tuple[int, float]:
        """The lower, the better: the cheapest of those that can be proved in time; failing that, the shortest."""
        return max(0, proving_effort(schedule) - self.task.most_moves), priced.time

    def _fitting(self) -> list[str]:
        """The methods that suit the task: for many bytes first, then for few."""
        task = self.task
        fitting = {
            "throughput": fits_throughput(task),
            "greedy": fits_greedy(task),
            "channels": fits_channels(task),
            "levels": fits_levels(task),
            "built_in": task.ranks <= MOST_RANKS,
            "steps": task.ranks <= _FEW and fits_steps(task),
        }
        chosen = [name for name, fits in fitting.items() if fits]
        if task.promise.exchanges and task.ranks > _MANY:  # a search takes minutes, and may not be worth it
            chosen.sort(key=lambda name: name != _ALWAYS)
        return chosen

    def _try(self, name: str, task: Task) -> None:
        for schedule in METHODS[name](task):
            priced = cost(schedule, task.topology, task.size)
            require_not_below(task.bound, priced.time, schedule.title, task.topology.name)
            task.prices.append(priced.time)
            if self.best is None or self._rank(schedule, priced) < self._rank(*self.best[:2]):
                self.best = schedule, priced, name
                task.say(f"{name}: {priced.time / task.bound if task.bound else 1:.3f} × the bound")
            if not task.left or (self.method == "auto" and task.good):
                return


def _waits(best: Cost) -> float:
    """The part of the time that is waiting, so that fewer steps may be faster."""
    return (best.parts["startup"] + best.parts["latency"]) / best.time if best.time else 0.0


def _root(promise: Collective, root: int | None, ranks: int) -> int | None:
    if not promise.rooted:
        if root is not None:
            raise UsageError(f"{promise.name} has no root, but root={root} was given")
        return None
    chosen = 0 if root is None else root
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < ranks:
        raise UsageError(f"root is {root!r}; expected a rank from 0 to {ranks - 1}")
    return chosen


def most_proved(ranks: int, seconds: float) -> int:
    """The most moves that a schedule may have, so that its proof takes about a tenth of the time of the search."""
    return int(min(2**40, _PROVED[ranks <= ACROSS_HOSTS] * (1 + seconds / 10)))


def proving_effort(schedule: Schedule) -> int:
    """The effort of proving a schedule, in moves: its own, and more for every step."""
    return schedule.moves + int(_PROVED[schedule.ranks <= ACROSS_HOSTS] * _STEP) * schedule.steps


def _check_chunks(promise: Collective, ranks: int, chunks: int | None, most_moves: int, seconds: float) -> None:
    if chunks is None:
        return
    if isinstance(chunks, bool) or not isinstance(chunks, int) or not 1 <= chunks <= 2**20:
        raise UsageError(f"chunks is {chunks!r}; expected a whole number from 1 to {2**20}")
    slices = promise.slices(ranks) if promise.rooted else ranks
    moves = int(promise.bounds(ranks).bytes * slices) * chunks
    if chunks > 1 and moves > most_moves:
        per_what = "per rank" if slices > 1 else "in all"
        raise UsageError(
            f"{chunks} chunks {per_what} make at least {moves:,} moves, and no more than {most_moves:,} can be proved in "
            f"time if the search takes {seconds:g} s; give fewer chunks, or more seconds"
        )


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= inf:
        raise UsageError(f"seconds is {value!r}; expected a number above 0")
    return float(value)
