"""Timing in turns: a batch of one, a batch of the next, round after round, and the best round of each.

The speed of a machine varies: other processes, clock frequencies, memory placement. In turns, these disturbances are
the same for everyone, and the best round is the one that was disturbed least. A batch is timed as MPI benchmarks do it:
a barrier of the library itself, a loop, and the time of the slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .case import Case
from .crew import AnyCrew, CrewFailed

_MOST_ITERATIONS = 1_000_000
_CALIBRATION_GROWTH = 16


@dataclass(frozen=True)
class Subject:
    """A crew to be timed, and the options of its call (`algorithm`, `shared`, `memcpy`, `way`)."""

    label: str
    crew: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """The rules of timing, the same for all subjects."""

    seconds: float = 0.05
    """The time that a batch should take; it decides the number of iterations if that is not given."""
    rounds: int = 5
    iterations: int | None = None
    warmup: int = 2
    """Untimed calls before every batch: when a library's turn comes, the caches are full of other data."""
    check: bool = True
    fresh: bool = False
    """Every rank writes its array before every call. Without it the same data is sent again and again, and a peer may
    find it in its own cache."""


@dataclass(frozen=True)
class Timing:
    """The result of one subject in one case: the seconds per call of every round, or why there are none."""

    rounds: tuple[float, ...] = ()
    iterations: int = 0
    wrong: int | None = None
    problem: str | None = None

    @property
    def best(self) -> float | None:
        return min(self.rounds, default=None)


Progress = Callable[[str], None]


def measure(
    case: Case, subjects: Sequence[Subject], crews: dict[str, AnyCrew], rules: Rules, progress: Progress
) -> dict[str, Timing]:
    """The timings by label. A failing crew is closed and removed from `crews`; if it is ours, this raises."""
    turns = [_Turn(case, subject, rules) for subject in subjects]

    def everyone(doing: str, act: Callable[[_Turn], None]) -> None:
        for turn in turns:
            if turn.problem is None and turn.subject.crew in crews:
                progress(f"{doing} {turn.subject.label}")
                _attempt(turn, act, crews)

    try:
        everyone("preparing", lambda turn: turn.prepare(crews))
        everyone("checking", lambda turn: turn.check(crews))
        everyone("calibrating", lambda turn: turn.calibrate(crews))
        for number in range(rules.rounds):
            everyone(f"round {number + 1} of {rules.rounds}:", lambda turn: turn.time(crews))
        everyone("checking", lambda turn: turn.check(crews))  # once more, after thousands of calls
    finally:
        everyone("releasing", lambda turn: turn.release(crews))
    return {turn.subject.label: turn.timing for turn in turns}


def _attempt(turn: _Turn, act: Callable[[_Turn], None], crews: dict[str, AnyCrew]) -> None:
    try:
        act(turn)
    except CrewFailed as error:
        if turn.subject.crew == "allfold":
            raise
        turn.problem = str(error)
        crews.pop(turn.subject.crew).close()


class _Turn:
    """One subject's part of a case, while it is being measured."""

    def __init__(self, case: Case, subject: Subject, rules: Rules) -> None:
        self.case, self.subject, self.rules = case, subject, rules
        self.iterations = rules.iterations or 1
        self.seconds: list[float] = []
        self.wrong: int | None = None
        self.problem: str | None = None

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.seconds), self.iterations, self.wrong, self.problem)

    def _ask(self, crews: dict[str, AnyCrew], do: str, **command: Any) -> list[dict[str, Any]]:
        return crews[self.subject.crew].ask(do, label=self.subject.label, **command)

    def prepare(self, crews: dict[str, AnyCrew]) -> None:
        answers = self._ask(crews, "prepare", case=self.case.to_json(), options=dict(self.subject.options))
        self.problem = next((answer["unsupported"] for answer in answers if "unsupported" in answer), None)

    def check(self, crews: dict[str, AnyCrew]) -> None:
        # A barrier leaves no result to compare; reporting 0 wrong elements would claim a check that was not made.
        if self.rules.check and self.case.kind.carries_data and not self.subject.options.get("memcpy"):
            answers = self._ask(crews, "check")
            self.wrong = (self.wrong or 0) + sum(answer["wrong"] for answer in answers)

    def calibrate(self, crews: dict[str, AnyCrew]) -> None:
        """The iterations that fill the time of a batch, from trial batches that grow until they can be trusted."""
        if self.rules.iterations is not None:
            return
        while True:
            seconds = self._batch(crews)
            wanted = math.ceil(self.iterations * self.rules.seconds / max(seconds, 1e-9))
            if seconds * 4 >= self.rules.seconds or self.iterations >= _MOST_ITERATIONS:
                self.iterations = max(1, min(wanted, _MOST_ITERATIONS))
                return
            self.iterations = max(self.iterations + 1, min(wanted, self.iterations * _CALIBRATION_GROWTH))

    def time(self, crews: dict[str, AnyCrew]) -> None:
        self.seconds.append(self._batch(crews) / self.iterations)

    def _batch(self, crews: dict[str, AnyCrew]) -> float:
        rules = self.rules
        answers = self._ask(crews, "batch", iterations=self.iterations, warmup=rules.warmup, fresh=rules.fresh)
        return max(float(answer["seconds"]) for answer in answers)

    def release(self, crews: dict[str, AnyCrew]) -> None:
        self._ask(crews, "release")
