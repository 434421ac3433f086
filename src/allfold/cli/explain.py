"""`allfold explain`: explains why a run hangs, from its records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..explain.calls import RunFacts
from ..explain.findings import Finding, findings, summary
from ..explain.read import Skipped, read_run
from ..explain.report import as_json
from ..files import write_whole
from ..record.facts import BEGINS, facts_of_files
from ..wording import counted, name_ranks
from .terminal import progress, write_json, write_lines


def run(arguments: argparse.Namespace) -> int:
    with progress("reading the records") as said:
        found_run, skipped = read_run([Path(path) for path in arguments.paths], said, {BEGINS: facts_of_files})
        found = findings(found_run)
    if not found_run.ranks and not found_run.notes:
        raise UsageError("these files name no ranks")
    if arguments.html is not None:
        from ..explain.page import page_of

        write_whole(arguments.html, page_of(found_run, found))
    if arguments.json:
        write_json(as_json(found_run, found, skipped))
    else:
        write_lines(_lines(found_run, found, skipped, arguments.html), arguments.color)
    return int(bool(found))


def _lines(run: RunFacts, found: list[Finding], skipped: list[Skipped], page: str | None) -> Iterator[str]:
    if found:
        yield found[0].sentence
        yield from (f"  {detail}" for detail in found[0].details)
        yield from (f"also: {other.sentence}" for other in found[1:])
    else:
        yield f"nothing wrong found in {summary(run)}"
    missing = run.missing() if any(rank.has_record for rank in run.ranks.values()) else []
    if missing and not any(rank in one.ranks for one in found for rank in missing):
        yield f"note: there is no record of {name_ranks(missing)}"
    yield from (f"note: {note}" for note in run.notes)
    if not found and run.lacks and run.ranks:
        yield f"note: these records do not contain {' or '.join(run.lacks)} of a call, so a difference there cannot be seen"
    for one in skipped[:3]:
        yield f"note: not read: {one.path}: {one.reason}"
    if len(skipped) > 3:
        yield f"note: {counted(len(skipped) - 3, 'more file')} not read"
    if page is not None:
        yield f"{page}: open it in a browser"
