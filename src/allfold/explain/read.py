"""Reads files into a run. Files may come from anywhere: they are read, never executed, and their size is limited."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..documents import DocumentError, parse, read_plain
from ..errors import UsageError
from ..wording import counted, name_ranks
from .allfold_records import read_records
from .calls import GroupFacts, RankFacts, RunFacts
from .logs import LogReader, is_telling
from .pickles import read_pickle
from .torch_dumps import is_dump, read_dump

_MOST_BYTES = 2**28
_EMPTY = "it is empty"
_MOST_FILES = 100_000
_RANK_IN_NAME = re.compile(r"(\d{1,7})$")
_RANK_ANYWHERE = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_PICKLE_BEGINS = (b"\x80",)
_TORCH_LACKS = ("the root", "the reduction")


Readers = Mapping[bytes, Callable[[Sequence[Path]], RunFacts]]
"""Readers of other records, by the bytes that their files begin with."""


@dataclass(slots=True)
class Skipped:
    """A file that is not a record, and why."""

    path: str
    reason: str


def read_run(
    paths: Sequence[Path], said: Callable[[str], None] = lambda _: None, others: Readers = MappingProxyType({})
) -> tuple[RunFacts, list[Skipped]]:
    """The run that these files and folders describe.

    In a folder, files that are not records are skipped and returned; a file that is named itself must be one.
    """
    files, named = _files(paths)
    dumps: list[tuple[Path, Any]] = []
    ours: list[Path] = []
    found: dict[bytes, list[Path]] = {}
    logs, skipped, log_files = LogReader(), [], 0
    for place, path in enumerate(files):
        said(f"reading {path.name} ({place + 1} of {len(files)})")
        try:
            if begin := _begin_of(path, others):
                found.setdefault(begin, []).append(path)
                continue
            kind, value = _read(path)
            if kind == "dump":
                dumps.append((path, read_dump(value, _rank_of(path))))
            elif kind == "allfold":
                ours.append(path)
            else:
                log_files += 1
                logs.read(io.StringIO(value), _rank_of(path))
        except DocumentError as error:
            if path in named:
                raise UsageError(f"{path}: {error}") from None
            if str(error) == _EMPTY and path.suffix == ".log":
                continue  # of a rank that has not crashed
            skipped.append(Skipped(str(path), str(error)))
    if not dumps and not ours and not log_files and not found:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in skipped[:3])
        raise UsageError(
            f"no flight records and no logs among {counted(len(files), 'file')}" + (f": {reasons}" if reasons else "")
        )
    run = _of_dumps(dumps)
    if ours and not found:
        run = _join(run, read_records(ours))
    for begin, those in found.items():  # these have all calls; the others say where the ranks were
        run = _with_places(others[begin](those), run)
    _add_logs(run, logs)
    for group in run.groups.values():
        if group.label == "the world" and not group.key.startswith("allfold "):
            everybody = {*group.ranks, *(rank for rank in run.ranks), *range(run.size or 0), *range(group.size or 0)}
            group.ranks = tuple(sorted(everybody))
    return run, skipped


def _files(paths: Sequence[Path]) -> tuple[list[Path], set[Path]]:
    files, named = [], set()
    for path in paths:
        try:
            if path.is_dir():
                files += sorted(one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
            else:
                files.append(path)
                named.add(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if len(files) > _MOST_FILES:
            raise UsageError(f"{path} has more than {_MOST_FILES:,} files; name the folder of the records only")
    if not files:
        raise UsageError(f"there are no files in {', '.join(map(str, paths))}")
    return list(dict.fromkeys(files)), named


def _begin_of(path: Path, others: Readers) -> bytes:
    """The bytes that a file begins with, if they are those of another reader. Only these are read: it may be large."""
    if not others or not path.is_file():
        return b""
    try:
        with open(path, "rb") as file:
            content = file.read(max(map(len, others)))
    except OSError as error:
        raise DocumentError(f"it cannot be read: {error.strerror}") from None
    return next((begin for begin in others if content.startswith(begin)), b"")


def _read(path: Path) -> tuple[str, Any]:
    """`dump`, `allfold` or `log`, and the content."""
    try:
        content = read_plain(path, _MOST_BYTES)
    except OSError as error:
        raise DocumentError(f"it cannot be read: {error.strerror}") from None
    if not content:
        raise DocumentError(_EMPTY)
    if content.startswith(_PICKLE_BEGINS):
        value = read_pickle(content)
        if not is_dump(value):
            raise DocumentError("this pickle is not a flight-recorder dump: it has no entries")
        return "dump", value
    begin = content[:64].lstrip()[:1]
    if begin in (b"{", b"["):
        try:
            value = parse(content)
        except DocumentError:
            if not is_telling(content.decode("utf-8", "replace")):
                raise
        else:
            if is_dump(value):
                return "dump", value
            is_ours = isinstance(value, dict) and value.get("format") == "allfold-flight"
            if is_ours or isinstance(value, list):
                return "allfold", None
            raise DocumentError("this JSON is not a flight record")
    text = content.decode("utf-8", "replace")
    if b"\0" in content[:4096] or not is_telling(text):
        raise DocumentError("it is not a flight record, and no line in it is about a timeout or a lost connection")
    return "log", text


def _rank_of(path: Path) -> int | None:
    """The rank in a file's name: `nccl_trace_rank_3`, `rank3.json`, `fr_3`, or torchrun's folder `3/stderr.log`."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] if path.suffix else path.name
    match = _RANK_ANYWHERE.search(path.name) or _RANK_IN_NAME.search(stem)
    if match is None and path.name in ("stdout.log", "stderr.log"):
        match = _RANK_IN_NAME.fullmatch(path.parent.name)
    return int(match[1]) if match else None


def _of_dumps(dumps: Sequence[tuple[Path, tuple[RankFacts, dict[str, GroupFacts], int | None]]]) -> RunFacts:
    run = RunFacts({}, {}, lacks=_TORCH_LACKS if dumps else ())
    newest = max((rank for _, (rank, _, _) in dumps), key=lambda rank: rank.written or 0.0, default=None)
    if newest is not None and newest.run:
        of_now = [one for one in dumps if one[1][0].run in ("", newest.run)]
        if len(of_now) < len(dumps):
            run.notes.append(f"{counted(len(dumps) - len(of_now), 'file')} of earlier runs not used")
        dumps = of_now
    incomplete: dict[str, GroupFacts] = {}
    for path, (rank, groups, size) in dumps:
        before = run.ranks.get(rank.number)
        if before is not None and len(before.calls) >= len(rank.calls):
            run.notes.append(f"{path.name} is a second record of rank {rank.number}, with fewer calls; it is not used")
            continue
        if before is not None:
            run.notes.append(
                f"{before.source} is a second record of rank {rank.number}, with fewer calls; it is not used"
            )
        rank.source = path.name
        run.ranks[rank.number] = rank
        run.size = max(filter(None, (run.size, size)), default=None)
        for key, group in groups.items():
            known = run.groups.get(key)
            if not group.complete:
                before_group = incomplete.setdefault(key, GroupFacts(key, group.label, (), False, group.size))
                before_group.ranks = tuple(sorted({*before_group.ranks, *group.ranks}))
                before_group.size = max(filter(None, (before_group.size, group.size)), default=None)
            elif known is None or known.ranks == group.ranks:
                run.groups[key] = group
            else:  # two groups of the same name, of different ranks
                other = f"{key} of {name_ranks(group.ranks)}"
                run.groups[other] = GroupFacts(other, f"{group.label} of {name_ranks(group.ranks)}", group.ranks)
                _rename(rank, key, other)
    for key, group in incomplete.items():
        if key in run.groups:  # a dump that does know its members
            run.groups[key].ranks = tuple(sorted({*run.groups[key].ranks, *group.ranks}))
        else:
            run.groups[key] = group
    return run


def _rename(rank: RankFacts, old: str, new: str) -> None:
    rank.calls = [replace(call, group=new) if call.group == old else call for call in rank.calls]
    if old in rank.starts:
        rank.starts[new] = rank.starts.pop(old)


def _join(run: RunFacts, other: RunFacts) -> RunFacts:
    """Merge the records of torch and of allfold of the same run."""
    run.groups |= other.groups
    run.size = max(filter(None, (run.size, other.size)), default=None)
    for number, rank in other.ranks.items():
        known = run.ranks.get(number)
        if known is None:
            run.ranks[number] = rank
            continue
        known.calls = sorted([*known.calls, *rank.calls], key=lambda call: (call.begun or 0.0, call.order))
        known.starts |= rank.starts
        known.said += rank.said
        known.ended = known.ended or rank.ended
    if not any(rank.source for rank in run.ranks.values()):
        run.lacks = ()
    return run


def _with_places(run: RunFacts, other: RunFacts) -> RunFacts:
    for number, rank in other.ranks.items():
        if (known := run.ranks.get(number)) is not None and known.in_call is None:
            known.at, known.in_call, known.stalled = rank.at, rank.in_call, rank.stalled
            known.ended = known.ended or rank.ended
    run.notes += other.notes
    return run


def _add_logs(run: RunFacts, logs: LogReader) -> None:
    """Add what logs say; the calls in them count only if there are no records."""
    has_records = bool(run.ranks)
    for number, rank in logs.run.ranks.items():
        known = run.ranks.get(number)
        if known is None:
            run.ranks[number] = rank if not has_records else replace(rank, calls=[], has_record=False)
            continue
        known.said += [said for said in rank.said if said not in known.said]
        known.ended = known.ended or rank.ended
        if not known.at:
            known.at, known.in_call = rank.at, rank.in_call
    if not has_records:
        run.groups |= logs.run.groups
    run.notes += [f"a log says: {said}" for said in logs.reports]
