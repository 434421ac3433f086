"""The best of the built-in algorithms: a search result should never be slower than these."""

from __future__ import annotations

from collections.abc import Iterator

from ..price.cost.plan import Planner
from ..registry import algorithms, find_algorithm
from ..schedules import Schedule
from .found import Task

MOST_RANKS = 1024
MOST_COUNTED = 64  # ranks; beyond, only algorithms are considered whose price follows without building their schedules


def built_in(task: Task) -> Iterator[Schedule]:
    known = [find_algorithm(task.collective, name) for name in algorithms(task.collective)]
    names = [one.name for one in known if one.made is None and (task.ranks <= MOST_COUNTED or one.patterns is not None)]
    if not names:
        return
    task.say("pricing the built-in algorithms")
    planner = Planner(task.collective, task.topology, task.ranks, names, root=task.root)
    best = min(planner.plan(task.size).costs, key=lambda cost: cost.time)
    if best.time < min(task.prices, default=best.time + 1):
        yield planner.schedule(best.algorithm)
