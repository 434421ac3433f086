"""The search: methods propose schedules, `cost` prices them, and the cheapest is proved and kept.

A method is a function of a `Task` that yields schedules, as a rule better and better ones, until it has no more or the
task's deadline has passed. It need not price them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from ..collectives import Collective, find_collective, suggest
from ..errors import UsageError
from ..price.cost.bounds import lower_bounds
from ..price.cost.cost import Cost, cost
from ..price.cost.cuts import tightest_cut
from ..price.cost.load import check_request
from ..price.topology.network import network_of
from ..price.topology.parse import find_topology
from ..price.topology.topology import Topology
from ..schedule import Schedule
from ..verify import verify
from .built_in import MOST_RANKS, built_in
from .found import Found, Progress, Task
from .greedy import fits as fits_greedy
from .greedy import greedy
from .throughput import SENSES, throughput

Method = Callable[[Task], Iterator[Schedule]]

METHODS: dict[str, Method] = {"throughput": throughput, "greedy": greedy, "built_in": built_in}


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
) -> Found:
    """The cheapest schedule for a buffer of `size` bytes on a topology that is found within `seconds`, and its proof.

    Ctrl-C ends the search early, with the best so far.
    """
    started = time.monotonic()
    promise = find_collective(collective)
    if isinstance(topology, str):
        topology = find_topology(topology, ranks)
    ranks = topology.ranks if ranks is None else ranks
    topology.require(ranks)
    check_request(size, None)
    root = _root(promise, root, ranks)
    task = Task(
        promise.name,
        topology,
        network_of(topology, ranks),
        ranks,
        root,
        int(size),
        _at_least_one("chunks", chunks),
        seed,
        started + _seconds(seconds),
        progress,
        lower_bounds(promise.name, topology, ranks, size, root).time,
    )
    best: tuple[Schedule, Cost, str] | None = None
    complete = True
    try:
        chosen = _chosen(task, method)
        for place, name in enumerate(chosen):
            # Of the time that is left, a method leaves half to those after it.
            part = task.left / 2 if place < len(chosen) - 1 else task.left
            for schedule in METHODS[name](replace(task, deadline=time.monotonic() + part)):
                priced = cost(schedule, topology, task.size)
                task.prices.append(priced.time)
                if best is None or priced.time < best[1].time:
                    best = schedule, priced, name
                    task.say(f"{name}: {priced.time / priced.bounds.time if priced.bounds.time else 1:.3f} × the bound")
                if not task.left or task.good:
                    break
            if task.good:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        complete = False
    if best is None:
        raise UsageError(
            f"{method} found no schedule for {promise.name} between {ranks} ranks of {topology.name} in {seconds:g} s"
        )
    schedule, priced, name = best
    searched = time.monotonic()
    complete = complete and task.left > 0
    task.say("proving it")
    verify(schedule)
    cut = tightest_cut(promise.name, task.network, task.root)
    return Found(
        schedule,
        priced,
        priced.bounds.time,
        cut,
        name,
        searched - started,
        time.monotonic() - searched,
        complete,
        dict(task.notes),
    )


def _chosen(task: Task, method: str) -> list[str]:
    """The methods to try, in this order."""
    if method == "auto":
        fitting = {
            "throughput": task.collective in SENSES,
            "greedy": fits_greedy(task),
            "built_in": task.ranks <= MOST_RANKS,
        }
        chosen = [name for name, fits in fitting.items() if fits]
        if not chosen:
            raise UsageError(f"no method finds {task.collective} between {task.ranks} ranks")
        return chosen
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}; {suggest(method, ['auto', *METHODS])}")
    return [method]


def _root(promise: Collective, root: int | None, ranks: int) -> int | None:
    if not promise.rooted:
        if root is not None:
            raise UsageError(f"{promise.name} has no root, but root={root} was given")
        return None
    chosen = 0 if root is None else root
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < ranks:
        raise UsageError(f"root is {root!r}; expected a rank from 0 to {ranks - 1}")
    return chosen


def _at_least_one(what: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20):
        raise UsageError(f"{what} is {value!r}; expected a whole number from 1 to {2**20}")
    return value


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= inf:
        raise UsageError(f"seconds is {value!r}; expected a number above 0")
    return float(value)
