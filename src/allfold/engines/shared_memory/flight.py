"""What the flight recorders held when a call failed, kept where it can be found.

Every rank leaves its last 256 calls with their times in its post, always. The posts are shared, so whoever sees a call
fail has the calls of all others at hand too, those of a lost rank included. They are kept with the error, as its
attribute `flight`, and written to the folder that ALLFOLD_FLIGHT_DIR names. `allfold doctor --read` shows such files.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ... import _native
from ...documents import is_exactly
from ...errors import CollectiveTimeout, MismatchError, RankLost, UsageError

FAILURES = (MismatchError, RankLost, CollectiveTimeout)
FORMAT, VERSION = "allfold-flight", 1
FOLDER = "ALLFOLD_FLIGHT_DIR"
_MOST_PEERS = 64  # more would take longer to write down than an error may take to leave
_MOST_BYTES = 2**28
_MOST_TEXT = 200


def keep(
    error: BaseException, rank: int, label: str, number: int, members: Sequence[tuple[Any, int, int, int]]
) -> None:
    """Keep the calls of all ranks with an error. Whatever goes wrong here is a note on it, and never in its way."""
    try:
        document = _document(error, rank, label, number, members)
        error.flight = document  # type: ignore[attr-defined]
        folder = os.environ.get(FOLDER)
        if folder:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            path = Path(folder) / f"allfold-flight-{number:016x}-rank{rank}-{os.getpid()}.json"
            _write(path, json.dumps(document, ensure_ascii=False))
            error.add_note(f"the last calls are in {path}; `allfold doctor --read {path}` shows them")
    except Exception as trouble:
        error.add_note(f"the flight recorder could not be written down: {trouble}")


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The groups that these files tell of, each once, with what is known of every rank: from itself, or else from others.

    Files of `keep` and of `allfold doctor --dump`. They may come from anywhere, so nothing in them is believed unseen.
    """
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    from_itself: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        writer, found = _read(path)
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
    for group in groups.values():
        group["members"] = [group["members"][rank] for rank in sorted(group["members"])]
        group.pop("error")
        group.setdefault("errors", {})
    return sorted(groups.values(), key=lambda group: (-group["size"], group["label"]))


# Writing --------------------------------------------------------------------------------------------------------------


def _document(
    error: BaseException, rank: int, label: str, number: int, members: Sequence[tuple[Any, int, int, int]]
) -> dict[str, Any]:
    shown = range(len(members)) if len(members) <= _MOST_PEERS else [rank]
    group = {
        "label": label,
        "group": number,
        "size": len(members),
        "members": [{"rank": peer, **_native.flight(*members[peer][:2])} for peer in shown],
    }
    what = {"type": type(error).__name__, "message": str(error)}
    return {"format": FORMAT, "version": VERSION, "rank": rank, "time": time.time(), "error": what, "groups": [group]}


def _write(path: Path, text: str) -> None:
    # A name that somebody else has put there already, a link for instance, is not written through.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


# Reading --------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[int | None, list[dict[str, Any]]]:
    """Who wrote a file, where it was a rank, and the groups in it."""
    try:
        # Without waiting: somebody may have put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            is_plain = stat.S_ISREG(facts.st_mode) and facts.st_size <= _MOST_BYTES
            content: Any = json.loads(file.read(_MOST_BYTES)) if is_plain else None
    except OSError as error:
        raise UsageError(f"{path}: it cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: it is not JSON") from None
    if not is_plain:
        raise UsageError(f"{path}: expected a plain file of at most {_MOST_BYTES >> 20} MiB")
    try:
        if isinstance(content, list):  # of `allfold doctor --dump`
            return None, [_group(one, None) for one in content]
        document = _object(content, "file")
        if document.get("format") != FORMAT or not is_exactly(document.get("version"), VERSION):
            raise ValueError(f"its format is not {FORMAT!r}, version {VERSION}")
        raised = document.get("error")
        what = f"{_text(raised, 'type')}: {_text(raised, 'message', 10_000)}" if isinstance(raised, dict) else ""
        return _number(document, "rank"), [_group(one, what) for one in _list(document, "groups")]
    except ValueError as error:
        raise UsageError(f"{path}: it is not a flight record: {error}") from None


def _group(value: Any, error: str | None) -> dict[str, Any]:
    group = _object(value, "group")
    size = _number(group, "size", 1, _native.MOST_RANKS)
    members = [_member(one, size) for one in _list(group, "members")]
    if len({member["rank"] for member in members}) < len(members):
        raise ValueError("a rank is in it twice")
    label = _text(group, "label")
    return {
        "label": label,
        "group": _number({"group": 0, **group}, "group"),
        "size": size,
        "members": members,
        "error": error,
    }


def _member(value: Any, size: int) -> dict[str, Any]:
    member = _object(value, "member")
    facts: dict[str, Any] = {name: _number(member, name) for name in ("rank", "process", "last_call", "last_done")}
    if facts["rank"] >= size:
        raise ValueError(f"there is no rank {facts['rank']} of {size}")
    calls = [_call(one) for one in _list(member, "calls")]
    if any(later["call"] <= earlier["call"] for earlier, later in pairwise(calls)):
        raise ValueError(f"the calls of rank {facts['rank']} are not in order")
    return {**facts, "standing": _text(member, "standing"), "calls": calls}


def _call(value: Any) -> dict[str, Any]:
    call = _object(value, "call")
    facts: dict[str, Any] = {name: _text(call, name) for name in ("collective", "dtype", "op", "algorithm")}
    facts |= {name: _number(call, name) for name in ("call", "elements", "root")}
    for name in ("begun", "ended"):
        moment = call.get(name)
        if moment is not None and (type(moment) not in (int, float) or not 0 <= moment < 1e11):
            raise ValueError(f"{name} is not a moment")
        facts[name] = None if moment is None else float(moment)
    return facts


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"the {what} is not an object")
    return value


def _list(value: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(value.get(name), list):
        raise ValueError(f"{name} is not a list")
    return value[name]  # type: ignore[no-any-return]


def _number(value: dict[str, Any], name: str, least: int = 0, most: int = 2**64 - 1) -> int:
    number = value.get(name)
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{name} is not a number from {least} to {most}")
    return number


def _text(value: dict[str, Any], name: str, most: int = _MOST_TEXT) -> str:
    text = value.get(name)
    if not isinstance(text, str) or len(text) > most:
        raise ValueError(f"{name} is not a text of at most {most} characters")
    # What comes from a file goes to a terminal: nothing in it may steer that.
    return "".join(character if character.isprintable() else "?" for character in text)
