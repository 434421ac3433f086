"""Files and attributes that keep the flight records after a call has failed.

Every rank always keeps its last 256 calls with their times in its post. The posts are shared, so a rank that sees a
call fail can read the calls of all others too, even those of a lost rank. They are kept with the error, as its
attribute `flight`, and written to the folder that ALLFOLD_FLIGHT_DIR names. `allfold doctor --read` shows such files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ... import _native
from ...documents import DocumentError, finite_at, head_of, list_at, object_at, parse, read_plain, text_at, whole_at
from ...errors import CollectiveTimeout, MismatchError, RankLost, UsageError, raised_by_handler

FAILURES = (MismatchError, RankLost, CollectiveTimeout)
FORMAT, VERSION = "allfold-flight", 1
FOLDER = "ALLFOLD_FLIGHT_DIR"
_MOST_PEERS = 64  # with more, writing would delay the error for too long
_MOST_BYTES = 2**28
_MOST_TEXT = 200
_MOST_FRAMES = 100


def keep(
    error: BaseException,
    rank: int,
    label: str,
    number: int,
    size: int,
    members: Callable[[], Sequence[Mapping[str, Any]]],
) -> None:
    """Keep the calls of ranks with an error. Whatever goes wrong here is a note on it, and does not replace it.

    `members`: the records of the ranks that can be read from here.
    """
    try:
        document = _document(error, rank, label, number, size, members())
        error.flight = document  # type: ignore[attr-defined]
        folder = os.environ.get(FOLDER)
        if folder:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            path = Path(folder) / f"allfold-flight-{number:016x}-rank{rank}-{os.getpid()}.json"
            _write(path, json.dumps(document, ensure_ascii=False))
            error.add_note(f"the last calls are in {path}; `allfold doctor --read {path}` shows them")
    except Exception as trouble:
        if raised_by_handler(trouble):
            raise
        error.add_note(f"the flight recorder could not be written down: {trouble}")


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The groups in these files, each once, with what is known of every rank: from itself, or else from others.

    Files of `keep` and of `allfold doctor --dump`. They may come from anywhere, so everything in them is checked.
    """
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    from_itself: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        writer, found = _read_file(path)
        for group in found:
            key = group["label"], group["group"]
            known = groups.setdefault(key, {**group, "members": {}})
            own = from_itself.setdefault(key, set())
            if group["size"] != known["size"]:
                raise UsageError(
                    f"{path}: {group['label']} has {group['size']} ranks here, {known['size']} in another file"
                )
            for member in group["members"]:
                if member["rank"] in own and writer != member["rank"]:
                    continue
                before = known["members"].get(member["rank"])
                if writer == member["rank"]:
                    own.add(member["rank"])
                elif before is not None and before["last_call"] > member["last_call"]:
                    continue
                known["members"][member["rank"]] = member
            if group["error"]:
                known.setdefault("errors", {})[writer] = group["error"]
                known.setdefault("stacks", {})[writer] = group["stack"]
    for group in groups.values():
        group["members"] = [group["members"][rank] for rank in sorted(group["members"])]
        group.pop("error")
        group.pop("stack")
        group.setdefault("errors", {})
        group.setdefault("stacks", {})
    return sorted(groups.values(), key=lambda group: (-group["size"], group["label"]))


# Writing --------------------------------------------------------------------------------------------------------------


def in_memory(rank: int, members: Sequence[tuple[Any, int, int, int]]) -> list[dict[str, Any]]:
    """The records of all ranks that share memory; if there are too many, only this rank's."""
    shown = range(len(members)) if len(members) <= _MOST_PEERS else [rank]
    return [{"rank": peer, **_native.flight(*members[peer][:2])} for peer in shown]


def _document(
    error: BaseException, rank: int, label: str, number: int, size: int, members: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    group = {"label": label, "group": number, "size": size, "members": list(members)}
    what = {"type": type(error).__name__, "message": str(error)}
    head = {"format": FORMAT, "version": VERSION, "rank": rank, "time": time.time(), "error": what}
    return {**head, "stack": _callers(), "groups": [group]}


def _callers() -> list[tuple[str, int, str]]:
    """The lines of the program that are at work in this thread, the innermost first: where the failed call was made."""
    return [(code.co_filename, line, code.co_name) for code, line in islice(_frames(sys._getframe(2)), _MOST_FRAMES)]


def _frames(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _write(path: Path, text: str) -> None:
    # Never write to something that somebody else has put under this name, such as a link.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


# Reading --------------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> tuple[int | None, list[dict[str, Any]]]:
    """The rank that wrote a file, if it was a rank, and the groups in the file."""
    try:
        written = read_plain(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: it cannot be read: {error.strerror}") from None
    except DocumentError:
        raise UsageError(f"{path}: expected a regular file of at most {_MOST_BYTES >> 20} MiB") from None
    try:
        content = parse(written)
        if isinstance(content, list):  # of `allfold doctor --dump`
            return None, _all_of(content, "groups", partial(_group, error=None, stack=[]))
        document = head_of(content, FORMAT, VERSION)
        raised = document.get("error")
        what = ""
        if isinstance(raised, dict):
            what = f"{_text(raised, 'error.type')}: {_text(raised, 'error.message', 10_000)}"
        rank = _count(document, "rank")
        stack = [_frame(one) for one in list_at(document.get("stack", []), "stack", most=_MOST_FRAMES)]
        return rank, _all_of(document.get("groups"), "groups", partial(_group, error=what, stack=stack))
    except DocumentError as error:
        said = f"{error.where} is not {error.expected}" if error.where else str(error)
        raise UsageError(f"{path}: it is not a flight record: {said}") from None


def _frame(value: Any) -> tuple[str, int, str]:
    file, line, function = list_at(value, "stack", 3, 3)
    return text_at(file, "stack", 4096), whole_at(line, "stack", 0, 2**31), text_at(function, "stack", 4096)


def _group(value: Any, where: str, error: str | None, stack: list[tuple[str, int, str]]) -> dict[str, Any]:
    group = object_at(value, where)
    size = _count(group, f"{where}.size", 1, _native.MOST_RANKS)
    members = _all_of(group.get("members"), f"{where}.members", partial(_member, size=size))
    if len({member["rank"] for member in members}) < len(members):
        raise DocumentError(f"a rank is in {where} twice")
    return {
        "label": _text(group, f"{where}.label"),
        "group": _count({"group": 0, **group}, f"{where}.group"),
        "size": size,
        "members": members,
        "error": error,
        "stack": stack,
    }


def _member(value: Any, where: str, size: int) -> dict[str, Any]:
    member = object_at(value, where)
    facts: dict[str, Any] = {"rank": _count(member, f"{where}.rank", 0, size - 1)}
    facts |= {name: _count(member, f"{where}.{name}") for name in ("process", "last_call", "last_done")}
    calls = _all_of(member.get("calls"), f"{where}.calls", _call)
    if any(later["call"] <= earlier["call"] for earlier, later in pairwise(calls)):
        raise DocumentError(f"the calls of rank {facts['rank']} are not in order")
    return {**facts, "standing": _text(member, f"{where}.standing"), "calls": calls}


def _call(value: Any, where: str) -> dict[str, Any]:
    call = object_at(value, where)
    facts: dict[str, Any] = {
        name: _text(call, f"{where}.{name}") for name in ("collective", "dtype", "op", "algorithm")
    }
    facts |= {name: _count(call, f"{where}.{name}") for name in ("call", "elements", "root")}
    for name in ("begun", "ended"):
        moment = call.get(name)
        facts[name] = None if moment is None else finite_at(moment, f"{where}.{name}", most=1e11)
    return facts


def _all_of(value: Any, where: str, read_one: Callable[[Any, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [read_one(one, f"{where}[{place}]") for place, one in enumerate(list_at(value, where))]


def _count(record: dict[str, Any], where: str, least: int = 0, most: int = 2**64 - 1) -> int:
    """The field named at the end of the path `where`, as a number within limits."""
    return whole_at(record.get(where.rpartition(".")[2]), where, least, most)


def _text(record: dict[str, Any], where: str, most: int = _MOST_TEXT) -> str:
    return text_at(record.get(where.rpartition(".")[2]), where, most)
