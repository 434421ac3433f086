"""Pictures that the reader of a lesson can change: the algorithm, the ranks, the size of a buffer and the network.

The page has every schedule that can be chosen, and prices it with the same formula as Python (`web/src/model.ts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..errors import AllfoldError
from ..learn.figures import ALPHA, BANDWIDTH
from ..learn.lesson import Explore
from ..registry import schedule
from ..schedules import Schedule
from ..view.entry import entry
from ..view.wins import flat_of

MOST_RANKS = 8


def explored(explore: Explore) -> dict[str, Any]:
    """Every schedule that the reader of a lesson can choose, as JSON."""
    made = []
    for ranks in range(2, MOST_RANKS + 1):
        for name in explore.algorithms:
            try:
                made.append(schedule(explore.collective, name, ranks))
            except AllfoldError:
                continue  # an algorithm for some numbers of ranks only
    return _as_json(explore, made)


def raced(own: Schedule, explore: Explore, beside: Iterable[str]) -> dict[str, Any]:
    """A learner's algorithm beside built-in ones: those of the exercise, or of the lesson."""
    same = explore.algorithms if explore.collective == own.collective else ()
    names = [name for name in (tuple(beside) or same) if name != own.algorithm]
    made = [own]
    for name in names:
        try:
            made.append(schedule(own.collective, name, own.ranks, own.root))
        except AllfoldError:
            continue
    return _as_json(explore, made)


def _as_json(explore: Explore, made: list[Schedule]) -> dict[str, Any]:
    return {
        "collective": made[0].collective,
        "algorithms": list(dict.fromkeys(one.algorithm for one in made)),
        "ranks": sorted({one.ranks for one in made}),
        "at": explore.ranks,
        "size": explore.size,
        "latency": ALPHA,
        "bandwidth": BANDWIDTH,
        "say": explore.say,
        "entries": {_key(one): as_entry(one) for one in made},
        "flats": {_key(one): flat_of(one) for one in made},
    }


def _key(one: Schedule) -> str:
    return f"{one.algorithm}/{one.ranks}"


def as_entry(schedule: Schedule) -> dict[str, Any]:
    """A schedule as the page draws it in a film: without its code."""
    made: dict[str, Any] = json.loads(json.dumps(entry(schedule)))
    return {**made, "code": None, "also": [], "sources": []}
