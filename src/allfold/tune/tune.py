"""Tune this machine: time every algorithm in the engine, and choose the fastest for each range of sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..collectives import COLLECTIVES
from ..engines.shared_memory.choice import ALWAYS, Way
from ..engines.shared_memory.tuning import machine
from ..launch.spawn import spawn
from . import SECONDS
from .choose import choose
from .file import TunedRun
from .ordinary import choose_ways, measure_ways
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
    """Measure and choose. Nothing is written: `file.write_runs` does that."""
    first = 1 - _PART_FOR_WAYS
    measured, unrest = measure_all(
        ranks, sizes, collectives, seconds * first, lambda what, part: progress(what, part * first)
    )
    chosen = choose(ranks, measured, any_order, unrest)
    moved = measure_ways(
        ranks,
        sizes,
        chosen,
        ranks > 1 and all(spawn(_fetches, ranks=2)),
        seconds * _PART_FOR_WAYS,
        lambda what, part: progress(what, first + part * _PART_FOR_WAYS),
    )
    return TunedRun(
        ranks=ranks,
        machine=machine(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        unrest=unrest,
        any_order=any_order,
        choices=chosen,
        ways=choose_ways(ranks, moved, unrest),
        measured=tuple(measured),
        moved=tuple(moved),
    )


def choose_again(run: TunedRun, any_order: bool = False) -> TunedRun:
    """The same measurements with choices made from them today."""
    return replace(
        run,
        any_order=any_order,
        choices=choose(run.ranks, run.measured, any_order, run.unrest),
        ways=choose_ways(run.ranks, run.moved, run.unrest),
    )


def _fetches(communicator: Any) -> bool:
    """Try whether the kernel lets ranks read each other's memory."""
    os.environ.pop("ALLFOLD_FETCH", None)  # as for the ranks that are timed
    group = communicator.group([0, 1])
    group.engine.choose_ways("all_gather", [Way(ALWAYS, True)])  # whatever was tuned before
    group.barrier()  # by now, every rank has left the word that peers use to test fetching
    size = 2**21
    with group.trace() as trace:
        group.all_gather(np.zeros(size, np.uint8), np.zeros(2 * size, np.uint8), algorithm="direct")
    group.close()
    return any(event.memory == "readable" for event in trace.events)
