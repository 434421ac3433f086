"""The source of a schedule: the files whose lines made its moves, and the line of its generator at each step.

A schedule stores its lines only as `file.py:24`, so that it can be sent elsewhere. The process that made it still has
the code behind those names; elsewhere there is no source to show, and the page says so.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from os.path import basename, dirname
from types import GeneratorType
from typing import Any

from ..registry import Algorithm, Steps, algorithms, find_algorithm
from ..schedules import Move, Schedule, paths_of

_MOST_MOVES = 50_000  # a generator that makes more is not run a second time
_MOST_TEXT = 200_000  # characters; longer files are not shown
_SEARCH = f"{dirname(dirname(__file__))}/search"  # its lines only write down what a search found


@dataclass(frozen=True)
class Source:
    """The algorithm's own file, then other files that made moves; `lines[t]` is the generator's line at step t."""

    files: tuple[dict[str, Any], ...]
    lines: tuple[int, ...] | None

    @property
    def own(self) -> dict[str, Any] | None:
        return self.files[0] if self.files else None


def source_of(
    schedule: Schedule,
    function: Callable[..., Steps] | Algorithm | None = None,
    parameters: dict[str, Any] | None = None,
) -> Source:
    """The source of a schedule that was made by `function`, if given, or else by the registered algorithm."""
    if function is None and schedule.algorithm in algorithms(schedule.collective):
        function = find_algorithm(schedule.collective, schedule.algorithm)
    if isinstance(function, Algorithm):
        function = function.function
    paths = [path for path in paths_of(schedule.sites) if dirname(path) != _SEARCH]
    lines = None
    if function is not None:
        lines = _lines_of(schedule, function, parameters or {})
        own = getattr(getattr(function, "__code__", None), "co_filename", None)
        if own is not None and lines is not None:  # it does produce this schedule
            paths = [own, *(path for path in paths if path != own)]
    files = tuple(file for file in map(_read, paths) if file is not None)
    return Source(files, lines if files and paths and files[0]["file"] == basename(paths[0]) else None)


def sites_of(schedule: Schedule) -> list[dict[str, Any]]:
    """`ring.py:24`, split into file and line."""
    found = []
    for site in schedule.sites:
        file, _, line = site.rpartition(":")
        found.append({"site": site, "file": file or site, "line": int(line) if line.isdecimal() else 0})
    return found


def _lines_of(schedule: Schedule, function: Callable[..., Steps], parameters: dict[str, Any]) -> tuple[int, ...] | None:
    """The generator's own line at every step, even if the moves were made in functions it calls."""
    if schedule.moves > _MOST_MOVES:
        return None
    arguments = (schedule.ranks,) if schedule.root is None else (schedule.ranks, schedule.root)
    lines: list[int] = []
    try:
        steps = function(*arguments, **parameters)
        if not isinstance(steps, GeneratorType):
            return None
        for moves in steps:
            step: list[Move] = [move for move in moves if move.moves]
            if step:
                number = len(lines)
                if number == schedule.steps:  # a wrong schedule is drawn up to its error
                    break
                start, end = schedule.starts[number], schedule.starts[number + 1]
                if sum(move.moves for move in step) != end - start or step[0].where != schedule.where(start):
                    return None  # another algorithm with the same name
                lines.append(steps.gi_frame.f_lineno if steps.gi_frame else 0)
    except Exception:
        # It raises where it raised before; the proof reports that.
        pass
    return tuple(lines) if len(lines) == schedule.steps else None


def _read(path: str) -> dict[str, Any] | None:
    """A file, under its name without the folders of this machine."""
    text = "".join(linecache.getlines(path))
    if not text or len(text) > _MOST_TEXT:
        return None
    return {"file": basename(path), "first": 1, "text": text}
