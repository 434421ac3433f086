"""Judging the learner's file, in a process of its own with limits (`launch/sandbox.py`)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..launch.sandbox import HAS_LIMITS, Allowance, Sandbox
from .lesson import Lesson

ALLOWANCE = Allowance(seconds=20.0, wall=80.0, memory=4 * 2**30)
_MOST_PRINTED = 2_000  # characters of what the file prints that are shown


@dataclass(frozen=True)
class Predicted:
    name: str
    question: str
    given: str | None
    right: bool
    answer: str | None = None
    because: str = ""


@dataclass(frozen=True)
class Judged:
    function: str
    passed: bool
    message: str
    line: int | None
    kind: str = ""
    """The mistake in one word, by which hints are chosen."""
    ranks: int | None = None
    """With `root`, the case in which an algorithm failed."""
    root: int | None = None
    built: dict[str, Any] | None = None
    """The schedule that a right algorithm makes for a few ranks, as JSON: the picture of what the learner built."""
    raced: dict[str, Any] | None = None
    """The same for as many ranks as it is raced with."""
    run: tuple[str, list[list[str]]] | None = None
    """The result of a run between real processes: a sentence and a table."""


@dataclass(frozen=True)
class Verdict:
    """The judgement of one file."""

    file: Path
    error: str | None
    line: int | None
    predictions: tuple[Predicted, ...]
    exercises: tuple[Judged, ...]
    printed: str

    @property
    def passed(self) -> bool:
        committed = all(one.answer is not None for one in self.predictions)
        return self.error is None and committed and all(one.passed for one in self.exercises)


def judge(lesson: Lesson, file: Path, run: bool = False, allowance: Allowance = ALLOWANCE) -> Verdict:
    """With `run`, a lesson that is solved is also run between real processes, where it has something to show by it."""
    if not HAS_LIMITS:
        raise UsageError(
            "your file is checked in a process with limits of time and memory, and this system (Windows) has none; "
            "prove an algorithm with `allfold verify FILE.py:FUNCTION`"
        )
    file = file.absolute()
    with tempfile.TemporaryFile() as printed:
        sandbox = Sandbox("allfold.learn.worker", file.parent, os.environ, printed)
        found = sandbox.ask({"lesson": lesson.name, "file": str(file), "run": run}, allowance)
        printed.seek(0)
        text = printed.read(4 * _MOST_PRINTED).decode("utf-8", errors="replace")
    return verdict_of(file, found, text)


def verdict_of(file: Path, found: dict[str, Any], printed: str) -> Verdict:
    """Make a verdict from the worker's findings; `printed` is the output of the file."""
    error = found["error"] or {"message": None, "line": None}
    return Verdict(
        file,
        None if error["message"] is None else _readable(error["message"]),
        error["line"],
        tuple(Predicted(**one) for one in found.get("predictions", ())),
        tuple(Judged(**{**one, "message": _readable(one["message"])}) for one in found.get("exercises", ())),
        _readable(printed),
    )


def _readable(text: str) -> str:
    """The file's output without control characters, cut where it gets too long."""
    clean = "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text.expandtabs()).strip("\n")
    return clean if len(clean) <= _MOST_PRINTED else clean[:_MOST_PRINTED] + " …"
