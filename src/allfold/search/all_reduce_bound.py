"""The bound of an all_reduce by the linear program alone, to compare with others (`price/cost/program.py`)."""

from __future__ import annotations

from ..price.cost.certificate import rounded_down
from ..price.cost.program import least_by_program
from .found import Task

_SECONDS = 2.0


def least_all_reduce(task: Task) -> float:
    """Seconds; 0 if the network is too large."""
    found = least_by_program("all_reduce", task.topology, task.ranks, None, min(_SECONDS, task.left / 4))
    return 0.0 if found is None else rounded_down(found.per_byte * task.size)
