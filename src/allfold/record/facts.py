"""Turns the records of a run into `RunFacts`, so that `allfold explain` says why it hung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..explain.calls import CallFacts, GroupFacts, RankFacts, RunFacts, Tensor
from .format import MAGIC
from .read import CallForm, RankRecord, Recorded, RecordedGroup, read_rank

BEGINS = MAGIC
_MOST_CALLS = 20_000  # of a rank: its last ones


def facts_of_files(paths: Sequence[Path]) -> RunFacts:
    """The run that these files describe. Of a rank that was restarted, its last file counts."""
    records: dict[int, RankRecord] = {}
    unreadable = []
    for path in paths:
        try:
            record = read_rank(path)
        except UsageError as error:
            unreadable.append(str(error))
            continue
        known = records.get(record.rank)
        if known is None or known.head["time"] <= record.head["time"]:
            records[record.rank] = record
    if not records:
        raise UsageError("; ".join(unreadable[:3]))
    run = RunFacts({}, {}, max(record.size for record in records.values()), unreadable)
    for rank, record in sorted(records.items()):
        run.ranks[rank] = _rank(run, record)
        if record.note:
            run.notes.append(f"{record.path.name} {record.note}")
    return run


def _rank(run: RunFacts, record: RankRecord) -> RankFacts:
    world = len(record.worlds)  # of a script that has created its groups again, the last ones
    kept = [call for call in record.calls if call.form.group.world == world][-_MOST_CALLS:]
    facts = RankFacts(record.rank, source=record.path.name)
    for call in kept:
        key = _key(run, call.form.group)
        if not call.form.is_message and call.place > 1:
            facts.starts.setdefault(key, call.place)
        elif not call.form.is_message:
            facts.starts.setdefault(key, 1)
        facts.calls.append(_call(key, call))
    if kept and len(kept) == _MOST_CALLS:
        facts.starts[""] = 2**63
    last = record.calls[-1] if record.calls else None
    if last is not None and last.failure is not None:
        facts.said.append(": ".join(last.failure))
    if last is not None and (last.ended is None or last.failure is not None):
        facts.at, facts.in_call = last.form.stack, True
    if record.ended is not None:
        facts.ended = f"ended with {record.ended}" if record.ended else "ended"
        if facts.in_call and last is not None and last.failure is not None:
            facts.ended = f"raised {last.failure[0]}"
    return facts


def _key(run: RunFacts, group: RecordedGroup) -> str:
    """The group in the run. Groups of the same name may have different ranks."""
    key = group.name
    known = run.groups.get(key)
    if known is not None and known.ranks != group.ranks:
        key = f"{group.name} {group.ranks}"
    run.groups.setdefault(key, GroupFacts(key, group.label, group.ranks))
    return key


def _call(key: str, call: Recorded) -> CallFacts:
    form = call.form
    return CallFacts(
        key,
        call.place,
        form.operation,
        call.number,
        _agreed(form),
        form.reduction,
        None if form.is_message else form.root,
        form.peer,
        form.stack,
        call.time,
        done=call.ended is not None and call.failure is None,
        timeout=form.group.timeout,
    )


def _agreed(form: CallForm) -> tuple[Tensor, ...] | None:
    """The arrays on which all ranks must agree."""
    if form.splits or form.operation == "all_to_all":
        return None
    if form.operation == "all_gather" and len({one.elements for one in form.outputs}) > 1:
        return form.outputs  # of different lengths: all ranks have the same list
    return form.outputs if form.operation in ("broadcast", "scatter", "recv") else form.inputs
