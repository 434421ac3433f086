"""From compiled programs to the native engine: one rank's part of a program, as the arrays that the extension takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _native
from ...collectives import NOTHING
from ...programs.compile import Memory, Programs
from ...programs.rows import Ints, Lists
from ...registry import REGISTRY
from ...schedules import Schedule

MEMORIES: tuple[Memory, ...] = ("private", "readable", "shared")
"""In the order of the extension's numbers."""


REGISTRY.on_replacement.append(lambda: _native.forget_programs())  # looked up when needed: there may be no engine


def facts(
    programs: Programs, rank: int, name: str, segment: int = 0, in_rows: bool = _native.COPIES_IN_ROWS
) -> dict[str, Any]:
    """One rank's program as the fields of the extension's `Program`; `name` is the algorithm's name in traces.

    `segment` and `in_rows`: see `choice.Way`.
    """
    here = slice(int(programs.starts[rank]), int(programs.starts[rank + 1]))
    built = programs.schedule
    leave = _part(programs.leave, slice(rank, rank + 1))
    result: dict[str, Any] = {
        "name": f"{built.collective}/{name}/{built.root}/{programs.memory}",
        "schedule": int.from_bytes(built.digest[:8], "little"),
        "rank": rank,
        "ranks": built.ranks,
        "lengths": _ints(np.diff(programs.starts)),
        "width": programs.width,
        "chunks": built.chunks,
        # Signals have no length: each is a slice of its own.
        "slices": built.promise.slices(built.ranks) if built.promise.carries_data else built.chunks,
        "exchanges": built.promise.exchanges,
        "work_slots": int(programs.work_slots.max(initial=0)),
        "one_area": programs.one_area,
        "segment_bytes": segment,
        "copies_in_rows": in_rows,
        "memory": MEMORIES.index(programs.memory),
        "length_of": _ints(programs.length_of[here]),
        "complete": _ints(programs.complete[here]),
        "announce": _ints(programs.announce[here]),
        "silent": bool(programs.silent[rank]),
        "leave_rank": _ints(leave[1]),
        "leave_count": _ints(leave[2]),
    }
    for name in ("input", "output"):
        origin, end = _extent(built, name)
        result |= {f"{name}_origin": origin, f"{name}_end": end}
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


def _extent(built: Schedule, array: str) -> tuple[Ints, Ints]:
    """By rank, the first chunk of its array and the one after the last: the chunks of an array are consecutive."""
    if built.promise.in_place:  # one array, which every rank has
        return np.zeros(built.ranks, np.int64), np.full(built.ranks, built.chunks if array == "output" else 0, np.int64)
    layout = built.promise.starts_with if array == "input" else built.promise.ends_with
    held = layout(built.ranks, built.root, built.chunks) != NOTHING
    origin = held.argmax(axis=1)
    return _ints(origin), _ints(origin + held.sum(axis=1))


def _ints(values: Any) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)
