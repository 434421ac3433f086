"""Tune this machine: time every algorithm in the engine, fit the model, and find which one wins from which size on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from ..collectives import COLLECTIVES
from ..engines.shared_memory.choice import ALWAYS, Way
from ..engines.shared_memory.tuning import machine
from ..launch.spawn import spawn
from ..price.topology.this_machine import read_machine
from . import SECONDS
from .caches import Floats, Setting
from .choose import choose
from .file import TunedRun
from .fit import fit, held_out, judge
from .model import Item
from .ordinary import Moved, choose_ways, measure_ways
from .timing import Progress, measure_all

SIZES = tuple(256 * 4**power for power in range(9))  # 256 bytes to 16 MiB

_PART_FOR_WAYS = 0.25  # of the time; the algorithms come first


def tune(
    ranks: int,
    sizes: Sequence[int] = SIZES,
    collectives: Sequence[str] = tuple(COLLECTIVES),
    seconds: float = SECONDS,
    any_order: bool = False,
    progress: Progress = lambda what, part: None,
) -> TunedRun:
    """Measure, fit and choose. Nothing is written: `file.write_runs` does that."""
    setting = find_setting(ranks)
    first = 1 - _PART_FOR_WAYS
    items, times, unrest = measure_all(
        ranks, sizes, collectives, seconds * first, lambda what, part: progress(what, part * first)
    )
    chosen = choose(ranks, items, times, any_order, unrest)
    moved = measure_ways(
        ranks,
        sizes,
        chosen,
        setting.fetches,
        seconds * _PART_FOR_WAYS,
        lambda what, part: progress(what, first + part * _PART_FOR_WAYS),
    )
    return conclude(ranks, items, times, setting, unrest, any_order, moved, progress)


def conclude(
    ranks: int,
    items: Sequence[Item],
    times: Floats,
    setting: Setting,
    unrest: float = 0.0,
    any_order: bool = False,
    moved: Sequence[Moved] = (),
    progress: Progress = lambda what, part: None,
    of: Mapping[str, Any] | None = None,
) -> TunedRun:
    """Fit and choose from measurements; they are from this machine unless another is given."""
    model = fit(items, times, setting, progress=lambda what: progress(what, 1.0))
    progress("judging", 1.0)
    return TunedRun(
        ranks=ranks,
        machine=machine() if of is None else of,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        unrest=unrest,
        any_order=any_order,
        choices=choose(ranks, items, times, any_order, unrest),
        ways=choose_ways(ranks, moved, unrest),
        items=tuple(items),
        seconds=np.asarray(times, float),
        moved=tuple(moved),
        model=model,
        judgement=judge(items, model.predict(items), times),
        held_out=held_out(items, times, setting),
    )


def find_setting(ranks: int) -> Setting:
    """What the model must know about this machine: asked of the system, or, for reading other processes, tried out."""
    here = read_machine(Path("/"), "", "")
    usable = len(os.sched_getaffinity(0))
    cores = usable if here.limit is None else max(1, min(usable, ceil(here.limit)))
    sizes = {cache.level: cache.size for cache in here.caches}
    own = sizes.get(2, 2**20)
    last = max(sizes[max(sizes)] if sizes else 0, 2 * own)
    return Setting(cores, float(own), float(last), bool(ranks > 1 and all(spawn(_fetches, ranks=2))))


def _fetches(communicator: Any) -> bool:
    os.environ.pop("ALLFOLD_FETCH", None)  # as for the ranks that are timed
    group = communicator.group([0, 1])
    group._engine.choose_ways("all_gather", [Way(ALWAYS, True)])  # whatever was tuned before
    group.barrier()  # by now, every rank has left the word that peers use to test fetching
    size = 2**21
    with group.trace() as trace:
        group.all_gather(np.zeros(size, np.uint8), np.zeros(2 * size, np.uint8), algorithm="direct")
    group.close()
    return any(event.memory == "readable" for event in trace.events)
