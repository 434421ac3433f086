"""`allfold diverge`: where two recorded runs, or the ranks of one, begin to differ."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ...record.diverge import Comparison, compare_ranks, compare_runs
from ...record.read import read_run
from ..terminal import progress, write_json, write_lines


def run(arguments: argparse.Namespace) -> int:
    with progress("reading the records"):
        first = read_run(arguments.first)
        found = compare_ranks(first) if arguments.second is None else compare_runs(first, read_run(arguments.second))
    if arguments.json:
        write_json(found.as_json())
    else:
        write_lines(_lines(found, arguments.second is None), arguments.color)
    return int(bool(found.found))


def _lines(found: Comparison, is_one: bool) -> Iterator[str]:
    yield from (one.sentence for one in found.origins)
    if found.followers and not found.origins:
        yield "no rank is the origin: the cause is not in the records"
    yield from (f"  {one.sentence}" for one in found.followers)
    if not found.found:
        yield f"no difference in {found.calls:,} calls" + (" between the ranks" if is_one else "")
    yield from (f"note: {note}" for note in found.notes)
