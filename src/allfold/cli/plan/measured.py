"""`allfold plan --measured`: what `allfold tune` measured on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...price.cost.plan import duration
from ...tune.file import TunedRun, default_path, read_hosts
from ...tune.hosts import CrossingTiming
from ...tune.measured import measured
from ...wording import format_size, one_rank_count
from ..choose import parse_hosts, refuse_plan_options
from ..terminal import write_json, write_lines, write_table
from .hosts_table import HOSTS_HEAD, hosts_rows


def write_measured(
    arguments: argparse.Namespace, collective: str, names: Sequence[str] | None, sizes: Sequence[int] | None
) -> int:
    """The table for one collective; `arguments.measured` is the file, or empty for the user's own."""
    refuse_plan_options(arguments, "--measured shows what was measured on one machine")
    path = Path(arguments.measured) if arguments.measured else None
    if arguments.hosts is not None:
        return _between_hosts(arguments, path, collective, sizes)
    ranks = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    found = measured(path, ranks, [collective], names, sizes)
    if arguments.json:
        write_json(_document(found))
        return 0
    machine = found.machine
    title = (
        f"{collective} between {found.ranks} ranks, measured {found.date} on {machine['processor']}, "
        f"{machine['cores']} cores"
    )
    write_lines([title], arguments.color)
    write_table(("size", "arrays", "algorithm", "time"), _rows(found), arguments.color, left=3)
    return 0


def _between_hosts(
    arguments: argparse.Namespace, path: Path | None, collective: str, sizes: Sequence[int] | None
) -> int:
    asked_hosts = _of_hosts(arguments.hosts) if arguments.hosts else None
    where = default_path() if path is None else path
    runs = read_hosts(where, of_this_machine=path is None)
    wanted = None if arguments.ranks is None else one_rank_count(arguments.ranks)
    found = [one for one in runs if wanted in (None, one.ranks) and asked_hosts in (None, one.tuned.hosts)]
    there = ", ".join(f"{'+'.join(map(str, one.tuned.hosts))} ranks" for one in runs) or "none"
    if not found or collective != "all_reduce":
        asked = f"{collective} of {'any number of' if wanted is None else wanted} ranks"
        raise UsageError(f"{where}: {asked} between hosts was not tuned; the file has all_reduces of {there}")
    kept = [replace(one, timings=_of_sizes(one.timings, sizes)) for one in found]
    if arguments.json:
        write_json([{**one.to_json(), "predicted": one.predicted()} for one in kept])
        return 0
    for number, one in enumerate(kept):
        hosts = " + ".join(map(str, one.tuned.hosts))
        title = f"all_reduce between {hosts} ranks on {len(one.tuned.hosts)} hosts over {one.tuned.fabric}, measured {one.date}"
        write_lines([*([""] if number else []), title], arguments.color)
        write_table(HOSTS_HEAD, hosts_rows(one), arguments.color, left=3)
    return 0


def _of_hosts(text: str) -> tuple[int, ...]:
    counts = parse_hosts(text)
    if isinstance(counts, int):
        raise UsageError(f"--hosts {text}: expected the number of ranks on each host (2,2)")
    return tuple(counts)


def _of_sizes(timings: Sequence[CrossingTiming], sizes: Sequence[int] | None) -> tuple[CrossingTiming, ...]:
    kept = tuple(one for one in timings if sizes is None or one.bytes in sizes)
    if not kept:
        there = ", ".join(format_size(size) for size in dict.fromkeys(one.bytes for one in timings))
        raise UsageError(f"nothing of that size was measured between hosts; the file has {there}")
    return kept


def _document(found: TunedRun) -> dict[str, Any]:
    rows = [{"ranks": found.ranks, **asdict(one)} for one in found.measured]
    for row in rows:
        row["measured"] = row.pop("seconds")
    return {"ranks": found.ranks, "machine": dict(found.machine), "date": found.date, "rows": rows}


def _rows(found: TunedRun) -> list[list[str] | None]:
    """By size and kind of arrays, the fastest first, with a gap between groups."""
    rows: list[list[str] | None] = []
    ordered = sorted(found.measured, key=lambda one: (one.size, one.shared, one.seconds))
    for (size, shared), group in groupby(ordered, key=lambda one: (one.size, one.shared)):
        rows += [None] if rows else []
        shown, arrays = format_size(size) if size else "–", "shared" if shared else "ordinary"
        rows += [[shown, arrays, one.algorithm, duration(one.seconds)] for one in group]
    return rows
