"""The judge's finding about an exercise that is not solved."""

from __future__ import annotations

import sys
from traceback import walk_tb

from ..launch.sandbox import CodeError

LEARNERS = "learner_"
"""The prefix of the names of the learner's modules; no other module has it."""


class Wrong(CodeError):
    """An exercise is not solved. The message says what is wrong, `line` is the line of the learner's file if it is known.

    `kind` names the mistake in one word, by which hints are chosen. `ranks` and `root` are the case in which it failed,
    if it is a schedule.
    """

    def __init__(self, message: str, line: int | None = None, kind: str = "") -> None:
        super().__init__(message, line)
        self.kind = kind
        self.ranks: int | None = None
        self.root: int | None = None


def learners_line(error: BaseException | None = None) -> int | None:
    """The innermost line of the learner's file: where this thread is, or where `error` was raised."""
    if error is not None:
        lines = [line for frame, line in walk_tb(error.__traceback__) if _is_learners(frame.f_globals)]
        return lines[-1] if lines else None
    frame = sys._getframe(1)
    while frame is not None:
        if _is_learners(frame.f_globals):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_learners(names: dict[str, object]) -> bool:
    return str(names.get("__name__", "")).startswith(LEARNERS)
