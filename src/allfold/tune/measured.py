"""Select measurements of a tuning file: those of some collectives, algorithms and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from pathlib import Path

from ..errors import UsageError
from .file import TunedRun, default_path, read_runs


def measured(
    path: Path | None = None,
    ranks: int | None = None,
    collectives: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> TunedRun:
    """The run for this number of ranks, with the measurements of these collectives, algorithms and sizes (default: all).

    Without a path, the user's own file is read, which must be from this machine.
    """
    where = default_path() if path is None else path
    runs = read_runs(where, of_this_machine=path is None)
    if ranks is None and len(runs) == 1:
        ranks = next(iter(runs))
    if ranks not in runs:
        there = ", ".join(map(str, runs)) or "none on one machine (--hosts shows what was tuned between hosts)"
        asked = "choose the number of ranks with --ranks" if ranks is None else f"{ranks} ranks were not tuned"
        raise UsageError(f"{where}: {asked}; the file has {there}")
    run = runs[ranks]
    kept = tuple(
        one
        for one in run.measured
        if (collectives is None or one.collective in collectives)
        and (algorithms is None or one.algorithm in algorithms)
        and (sizes is None or any(_close(one.size, size) for size in sizes))
    )
    if not kept:
        there = ", ".join(dict.fromkeys(one.collective for one in run.measured))
        raise UsageError(f"{where}: nothing like that was measured; it has sizes of {there} with {ranks} ranks")
    return replace(run, measured=kept)


def _close(size: int, wanted: int) -> bool:
    """Compare with tolerance: sizes were rounded to whole elements per rank before they were measured."""
    return size == wanted or (size > 0 and wanted > 0 and abs(log2(size / wanted)) < 0.5)
