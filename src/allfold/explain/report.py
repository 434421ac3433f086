"""An explanation as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .calls import CallFacts, RunFacts
from .findings import Finding
from .read import Skipped

FORMAT, VERSION = "allfold-explanation", 1


def as_json(run: RunFacts, found: Iterable[Finding], skipped: Iterable[Skipped] = ()) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "findings": [_finding(one) for one in found],
        "ranks": {
            str(number): {
                "record": rank.has_record,
                "calls": len(rank.calls),
                "at": [[frame.file, frame.line, frame.function] for frame in rank.at],
                "ended": rank.ended,
                "reported": rank.said,
            }
            for number, rank in sorted(run.ranks.items())
        },
        "groups": {key: {"label": group.label, "ranks": list(group.ranks)} for key, group in run.groups.items()},
        "missing": run.missing(),
        "not recorded": list(run.lacks),
        "notes": run.notes,
        "not read": [{"file": one.path, "reason": one.reason} for one in skipped],
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "sentence": found.sentence,
        "ranks": list(found.ranks),
        "waiting": list(found.waiting),
        "group": found.group,
        "call": found.number,
        "place": found.place,
        "calls": {str(rank): call_as_json(call) for rank, call in sorted(found.calls.items())},
        "last common call": None if found.last_common is None else call_as_json(found.last_common),
        "details": found.details,
    }


def call_as_json(call: CallFacts) -> dict[str, Any]:
    return {
        "call": call.number,
        "what": call.what,
        "place": call.place,
        "stack": [[frame.file, frame.line, frame.function] for frame in call.stack],
        "begun": call.begun,
        "ended": call.ended,
    }
