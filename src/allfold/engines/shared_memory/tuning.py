"""The tuning file: what `allfold tune` found out about this machine, and what `algorithm=None` takes from it.

    $ALLFOLD_TUNING                      a file, or `off`
    $XDG_CONFIG_HOME/allfold/tuning.json the user's own, if that is not set (~/.config if XDG_CONFIG_HOME is not set)

The file is read when ranks connect, by rank 0 alone, which passes its choices to the others when they meet: so all
ranks choose alike, whatever files they would have found. A file that is damaged, or of another version, machine or
user, is ignored with a warning: then the rule of `choice` applies, and nothing fails. `tune/file.py` writes it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import _native
from ...collectives import COLLECTIVES
from ...documents import DocumentError, is_exactly, parse, read_plain
from ...errors import UsageError
from ...registry import algorithms
from ...version import __version__
from .choice import ALWAYS, Choice, Way, folds_from_left
from .processor import this_processor

FORMAT, VERSION = "allfold-tuning", 1
VARIABLE = "ALLFOLD_TUNING"

_MOST_BYTES = 8 * 2**20  # of a file that is read at every connect
_MOST_CHOICES = 64
LEAST_SEGMENT = 4096  # shorter ones would only wait

log = logging.getLogger(__name__)


class TuningError(UsageError):
    """A tuning file cannot be used; the message says why."""


@dataclass(frozen=True)
class Tuning:
    """For numbers of ranks that were tuned: the choices and the ways by collective, as `choice` gives them."""

    choices: Mapping[int, Mapping[str, tuple[Choice, ...]]] = field(default_factory=dict)
    ways: Mapping[int, Mapping[str, tuple[Way, ...]]] = field(default_factory=dict)

    def of(self, collective: str, ranks: int) -> list[Choice] | None:
        found = self.choices.get(ranks, {}).get(collective)
        return None if found is None else list(found)

    def ways_of(self, collective: str, ranks: int) -> list[Way] | None:
        found = self.ways.get(ranks, {}).get(collective)
        return None if found is None else list(found)

    def pack(self, ranks: int) -> bytes:
        """The part that a communicator of `ranks` ranks and its groups need, as bytes for the other ranks."""
        if not any(many <= ranks for many in self.choices):
            return b""
        parts = ({many: of for many, of in part.items() if many <= ranks} for part in (self.choices, self.ways))
        return json.dumps(list(parts)).encode()

    @staticmethod
    def unpack(packed: bytes) -> Tuning:
        if not packed:
            return Tuning()
        choices, ways = json.loads(packed)
        return Tuning(
            {
                int(many): {
                    name: tuple((limit, algorithm, reach) for limit, algorithm, reach in rows)
                    for name, rows in of.items()
                }
                for many, of in choices.items()
            },
            {
                int(many): {name: tuple(Way(*row) for row in rows) for name, rows in of.items()}
                for many, of in ways.items()
            },
        )


def find_tuning() -> Tuning:
    """The tuning that applies here; an empty one if there is no file, or one that cannot be used."""
    path, is_named = tuning_path()
    if path is None:
        return Tuning()
    try:
        return choices_of(read_document(path))
    except FileNotFoundError:
        if is_named:
            log.warning("%s=%r: there is no such file; the built-in rule chooses algorithms", VARIABLE, str(path))
    except (TuningError, OSError) as error:
        log.warning("the tuning file %r is ignored: %s; `allfold tune` writes a new one", str(path), _reason(error))
    return Tuning()


def tuning_path(environ: Mapping[str, str] = os.environ) -> tuple[Path | None, bool]:
    """The path of the tuning file, None if there is none; and True if the user named it."""
    named = environ.get(VARIABLE, "")
    if named == "off":
        return None, True
    if named:
        return Path(named), True
    home = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # the XDG standard says to ignore relative paths
        if not environ.get("HOME"):
            return None, False
        home = os.path.join(environ["HOME"], ".config")
    return Path(home) / "allfold" / "tuning.json", False


def read_document(path: Path, of_this_machine: bool = True) -> dict[str, Any]:
    """The file's content, if it may be trusted and was made by this version, on this machine where that matters."""
    try:
        content = read_plain(path, _MOST_BYTES, _check_owner)
    except DocumentError as error:
        raise TuningError(str(error)) from None
    return check_document(content, of_this_machine)


def _check_owner(facts: os.stat_result) -> None:
    if facts.st_uid not in (os.geteuid(), 0):
        raise TuningError(f"it belongs to another user (number {facts.st_uid})")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TuningError("users other than its owner can write to it (chmod go-w)")


def check_document(content: bytes, of_this_machine: bool = True) -> dict[str, Any]:
    try:
        document = parse(content)
    except DocumentError:
        raise TuningError("it is damaged: not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TuningError(f"it is not a tuning file: its format is not {FORMAT!r}")
    wanted: dict[str, tuple[str, Any]] = {"version": ("version", VERSION), "allfold": ("allfold", __version__)}
    if of_this_machine:
        wanted["machine"] = ("the machine", machine())
    for key, (what, here) in wanted.items():
        if not is_exactly(document.get(key), here):
            raise TuningError(f"it is stale: made for {what} {_short(document.get(key))}, this is {_short(here)}")
    return document


def choices_of(document: Mapping[str, Any]) -> Tuning:
    """The choices of a document, all checked: a wrong one would show only when ranks already wait for each other."""
    runs = document.get("runs")
    if not isinstance(runs, dict):
        raise TuningError("it is damaged: it has no runs")
    found: dict[int, dict[str, tuple[Choice, ...]]] = {}
    ways: dict[int, dict[str, tuple[Way, ...]]] = {}
    for word, run in runs.items():
        if not (isinstance(word, str) and word.isascii() and word.isdecimal() and len(word) < 6):
            raise TuningError(f"it is damaged: {_short(word)} is not a number of ranks")
        ranks = int(word)
        if (
            not 1 <= ranks <= _native.MOST_RANKS
            or not isinstance(run, dict)
            or not isinstance(run.get("choices"), dict)
        ):
            raise TuningError(f"it is damaged: no choices for {_short(word)} ranks")
        any_order = run.get("any_order") is True
        found[ranks] = {name: _checked(name, ranks, rows, any_order) for name, rows in run["choices"].items()}
        ordinary = run.get("ordinary", {})  # files written before there were ways have none
        if not isinstance(ordinary, dict):
            raise TuningError(f"it is damaged: the entry for ordinary arrays with {ranks} ranks is not an object")
        if tuned := {name: checked_ways(name, ranks, rows) for name, rows in ordinary.items()}:
            ways[ranks] = tuned
    return Tuning(found, ways)


def _checked(collective: str, ranks: int, rows: Any, any_order: bool) -> tuple[Choice, ...]:
    where = f"{_short(collective)} with {ranks} ranks"
    choices = []
    for limit, algorithm, reach in _by_size(collective, where, rows, ("algorithm", "reach")):
        if type(reach) is not bool:
            raise TuningError(f"it is damaged: {where}: reach is {_short(reach)}, not true or false")
        if not isinstance(algorithm, str) or algorithm not in algorithms(collective):
            raise TuningError(f"it is damaged: {where}: there is no algorithm {_short(algorithm)}")
        if not any_order and not folds_from_left(collective, algorithm, ranks):
            raise TuningError(
                f"{where}: {algorithm} does not fold in rank order, so results would change with the size; "
                "`allfold tune --any-order` allows it"
            )
        choices.append((limit, algorithm, reach))
    return tuple(choices)


def checked_ways(collective: str, ranks: int, rows: Any) -> tuple[Way, ...]:
    where = f"ordinary arrays of {_short(collective)} with {ranks} ranks"
    found = []
    for limit, fetches, handed, segment, in_rows in _by_size(collective, where, rows, Way._fields[1:]):
        for name, value in (("fetches", fetches), ("in_rows", in_rows)):
            if type(value) is not bool:
                raise TuningError(f"it is damaged: {where}: {name} is {_short(value)}, not true or false")
        if type(handed) is not int or not 0 <= handed <= _native.MOST_RANKS:
            raise TuningError(
                f"it is damaged: {where}: handed is {_short(handed)}, not a number of ranks up to {_native.MOST_RANKS}"
            )
        if segment is not None and (type(segment) is not int or not LEAST_SEGMENT <= segment <= _native.WINDOW_BYTES):
            raise TuningError(
                f"it is damaged: {where}: a segment of {_short(segment)} bytes; expected {LEAST_SEGMENT} to "
                f"{_native.WINDOW_BYTES}, or null for the built-in length"
            )
        found.append(Way(limit, fetches, handed, segment or 0, in_rows))
    return tuple(found)


def _by_size(collective: str, where: str, rows: Any, names: Sequence[str]) -> Iterator[list[Any]]:
    """The rows of a list, each with its limit in bytes and as many values as there are names; the limits are checked."""
    if collective not in COLLECTIVES:
        raise TuningError(f"it is damaged: there is no collective {_short(collective)}")
    if not isinstance(rows, list) or not 1 <= len(rows) <= _MOST_CHOICES:
        raise TuningError(f"it is damaged: {where} has no list of choices")
    least = -1
    for row in rows:
        if not isinstance(row, list) or len(row) != 1 + len(names):
            raise TuningError(f"it is damaged: {where}: {_short(row)} is not (up to, {', '.join(names)})")
        limit = ALWAYS if row[0] is None else row[0]
        if type(limit) is not int or not least < limit <= ALWAYS:
            raise TuningError(f"it is damaged: {where}: {_short(row)} is impossible after a limit of {least} bytes")
        yield [limit, *row[1:]]
        least = limit
    if least != ALWAYS:
        raise TuningError(f"it is damaged: {where}: it has no entry for more than {least} bytes")


def machine() -> dict[str, Any]:
    """The facts that distinguish machines for tuning, without identifying one."""
    return {"processor": this_processor(), "cores": os.cpu_count() or 1}


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(one)}" for key, one in list(value.items())[:4])
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _reason(error: Exception) -> str:
    return f"it cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
