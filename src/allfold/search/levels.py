"""Two levels: inside groups of ranks, then across them, each by an algorithm of its own.

Where switches fold, `direct` is the best within reach of a switch: what all ranks send one of them is combined on the way, and
what one sends all others is copied there. So where switches inside hosts fold it is tried inside, where those between hosts
do, across; and rings elsewhere. Groups are hosts, or the ranks that are connected to the same switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..price.topology.routing import Graph
from ..registry import schedule
from ..schedules import Schedule
from .found import Task

_INSIDE = ("scatter", "gather")


def fits(task: Task) -> bool:
    return bool(task.topology.folding) and bool(_parts(task)) and groups_of(task) is not None


def levels(task: Task) -> Iterator[Schedule]:
    groups, parts = groups_of(task), _parts(task)
    if groups is None or not parts:
        return
    for inside, across in product(("direct", "ring"), repeat=2):
        if not task.left:
            return
        task.say(f"levels: {inside} inside groups, {across} across them")
        how: dict[str, Any] = {part: inside if part in _INSIDE else across for part in parts}
        found = schedule(task.collective, "two_level", task.ranks, groups=groups, **how)
        yield replace(found, algorithm=f"{inside}_{across}_{task.topology.name}")


def _parts(task: Task) -> list[str]:
    """The phases for which `two_level` takes an algorithm: inside groups before, across, and inside groups after."""
    if task.promise.rooted or not task.promise.trees:
        return []
    before, after = (
        (["scatter"] if True in task.promise.trees else []),
        (["gather"] if False in task.promise.trees else []),
    )
    return [*before, "across", *after]


def groups_of(task: Task) -> list[list[int]] | None:
    """Groups of equal size: hosts, or the ranks connected to switches that fold; None if there are none."""
    host = task.topology.host[: task.ranks]
    known = [np.flatnonzero(host == one).tolist() for one in np.unique(host)]
    if len(known) == 1:
        known = _by_switch(task)
    alike = len({len(group) for group in known}) == 1
    return known if alike and 1 < len(known) < task.ranks else None


def _by_switch(task: Task) -> list[list[int]]:
    router = task.topology.router
    if not isinstance(router, Graph):
        return []
    groups: list[list[int]] = []
    for switch in sorted(task.topology.folding):
        at = router.edge_start[router.edge_end == switch]
        groups.append(sorted({int(rank) for rank in at if rank < task.ranks}))
    kept: list[list[int]] = []
    for group in sorted(groups, key=len):
        if group and not set(group) & {rank for one in kept for rank in one}:
            kept.append(group)
    return sorted(kept) if sum(map(len, kept)) == task.ranks else []
