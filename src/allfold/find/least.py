"""The time that nothing can beat, and what it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from ..price.cost.bounds import lower_bounds
from ..price.cost.cuts import TightestCut, tightest_cut
from .all_reduce_bound import least_all_reduce
from .found import Task
from .paths.flows import least_by_flows

_SAME = 1 + 1e-6


@dataclass(frozen=True, eq=False)
class Least:
    time: float
    why: str
    cut: TightestCut | None = None


def least_of(task: Task) -> Least:
    """The largest of all bounds that are known. Of equal ones, that which says most."""
    if task.ranks == 1:
        return Least(0.0, "there is nobody to send to")
    known = lower_bounds(task.collective, task.topology, task.ranks, task.size, task.root)
    cut = tightest_cut(task.collective, task.network, task.root)
    found = [] if cut is None else [Least(cut.time(task.size), str(cut), cut)]
    found += [
        Least(known.bandwidth, f"the bytes that must cross {known.cut}"),
        Least(known.reduction, "ranks cannot combine faster"),
        Least(known.latency, "word cannot reach all ranks sooner"),
        Least(_by_program(task), "however the ranks share the links, nothing is faster (by a linear program)"),
    ]
    best = found[0]
    for other in found[1:]:
        if other.time > best.time * _SAME:
            best = other
    return best


def _by_program(task: Task) -> float:
    if task.collective == "all_reduce":
        task.say("bounding by a linear program")
        return least_all_reduce(task)
    return 0.0 if task.flows is None else least_by_flows(task, task.flows)
