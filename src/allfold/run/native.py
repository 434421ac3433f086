"""From compiled programs to the native engine: one rank's part of a program, as the arrays that the extension takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..collectives import NOTHING
from ..registry import Steps, schedule
from ..schedule import Schedule
from .lists import Ints, Lists
from .program import Memory, Programs, compile

MEMORIES: tuple[Memory, ...] = ("private", "readable", "shared")
"""In the order of the extension's numbers."""


@lru_cache(maxsize=256)
def programs_of(
    collective: str, algorithm: str | Callable[..., Steps], ranks: int, root: int | None, memory: Memory
) -> Programs:
    """The programs of a proved schedule. A user's own algorithm is proved before it is ever run."""
    from ..verify import verify

    built = schedule(collective, algorithm, ranks, root)
    if not isinstance(algorithm, str):
        verify(built)
    return compile(built, memory)


@lru_cache(maxsize=256)
def keeps_rank_order(collective: str, algorithm: str | Callable[..., Steps], ranks: int, root: int | None) -> bool:
    """Whether an operation that is not commutative may run on this schedule."""
    from ..verify import verify

    return verify(schedule(collective, algorithm, ranks, root), programs=False).rank_order is not False


def facts(programs: Programs, rank: int, name: str) -> dict[str, Any]:
    """What the extension's `Program` holds of one rank's program; `name` is how traces name the algorithm."""
    here = slice(int(programs.starts[rank]), int(programs.starts[rank + 1]))
    origin = _origins(programs.schedule)
    result: dict[str, Any] = {
        "name": f"{programs.schedule.collective}/{name}/{programs.schedule.root}/{programs.memory}",
        "instructions": here.stop - here.start,
        "stride": int(np.diff(programs.starts).max(initial=0)),
        "width": programs.width,
        "chunks": programs.schedule.chunks,
        "work_slots": int(programs.work_slots.max(initial=0)),
        "one_area": programs.one_area,
        "memory": MEMORIES.index(programs.memory),
        "length_of": _ints(programs.length_of[here]),
        "complete": _ints(programs.complete[here]),
        "announce": _ints(_awaited(programs, rank, programs.waits, programs.reuse, programs.leave)),
        "end_awaited": bool(_awaited(programs, rank, programs.waits, programs.leave)[-1:].any()),
        "input_origin": origin[0],
        "output_origin": origin[1],
        "leave_rank": _ints(_part(programs.leave, slice(rank, rank + 1))[1]),
        "leave_count": _ints(_part(programs.leave, slice(rank, rank + 1))[2]),
    }
    for name, value, lists in (
        ("source", "slot", programs.sources),
        ("destination", "slot", programs.destinations),
        ("wait", "count", programs.waits),
        ("reuse", "count", programs.reuse),
    ):
        starts, owner, values = _part(lists, here)
        result |= {f"{name}_starts": _ints(starts), f"{name}_rank": _ints(owner), f"{name}_{value}": _ints(values)}
    return result


def _part(lists: Lists, rows: slice) -> tuple[Ints, Ints, Ints]:
    starts = lists.starts[rows.start : rows.stop + 1]
    inside = slice(int(starts[0]), int(starts[-1]))
    return starts - starts[0], lists.rank[inside], lists.value[inside]


def _awaited(programs: Programs, rank: int, *waits: Lists) -> Ints:
    """Which instructions of a rank somebody waits for: only those need to be announced."""
    awaited = np.zeros(int(programs.starts[rank + 1] - programs.starts[rank]), np.int64)
    for lists in waits:
        awaited[lists.value[lists.rank == rank] - 1] = 1
    return awaited


def _origins(built: Schedule) -> tuple[Ints, Ints]:
    """By rank, the chunk that its input array and the chunk that its output array begins with."""
    layouts = (built.promise.starts_with, built.promise.ends_with)
    origins = []
    for layout in layouts:
        held = layout(built.ranks, built.root, built.chunks) != NOTHING
        origins.append(np.zeros(built.ranks, np.int64) if built.promise.in_place else _ints(held.argmax(axis=1)))
    return origins[0], origins[1]


def _ints(values: Any) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)
