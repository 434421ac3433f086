"""The lessons, as data: every folder of `lessons/` is one, and nothing about a lesson is anywhere else.

lesson.toml   its title, the words it introduces, its predictions, its exercises with their goals and hints
text.md       what is read first; after.md: what is read when all is solved (`text.py` says what is computed in them)
start.py      what the learner's file begins as; solution.py: one that passes
checks.py     where the prover is not the judge: a function per exercise (`checks.py` of this room)
"""

from __future__ import annotations

import textwrap
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..wording import suggest

FOLDER = Path(__file__).parent / "lessons"


@dataclass(frozen=True)
class Prediction:
    """A number to commit to before it is computed."""

    name: str
    question: str
    answer: str
    """How it is computed, in the words of `figures.py`. No number is stored anywhere."""
    because: str
    """Why it is so. Figures in it are computed."""
    within: float
    """How far from the answer is still right, as a part of it."""


@dataclass(frozen=True)
class Hint:
    say: str
    when: str | None
    """A regular expression: only if what was wrong matches it. Such hints come first."""


@dataclass(frozen=True)
class Goal:
    """What a right algorithm must also keep: at most so much of something, or a property that was proved."""

    measure: str
    most: str | None
    """An expression of `ranks`; None: the measure must be true."""


@dataclass(frozen=True)
class Exercise:
    """A function of the learner's file: proved, if it is an algorithm of a collective; otherwise judged by checks.py."""

    function: str
    task: str
    collective: str | None
    goals: tuple[Goal, ...]
    hints: tuple[Hint, ...]
    beside: tuple[str, ...]
    """Built-in algorithms to be timed beside it, between real processes."""


@dataclass(frozen=True)
class Lesson:
    number: int
    name: str
    title: str
    minutes: int
    about: str
    words: dict[str, str]
    predictions: tuple[Prediction, ...]
    exercises: tuple[Exercise, ...]
    folder: Path

    @property
    def label(self) -> str:
        """Its folder, here and at the learner's: `02_ring`."""
        return self.folder.name

    def read(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")

    def first_file(self) -> str:
        """What the learner's file begins as: the predictions to fill in, then the code to write."""
        lines = [
            f"# Lesson {self.number}: {self.title}. The text is in lesson.md beside this file.",
            f"# allfold learn check {self.number} says what is right and what is not.",
            "",
            "# First predict: replace each None by a number. Wrong ones do no harm, and the answers are explained.",
            "PREDICTIONS = {",
        ]
        for one in self.predictions:
            lines += textwrap.wrap(one.question, 100, initial_indent="    # ", subsequent_indent="    # ")
            lines.append(f'    "{one.name}": None,')
        return "\n".join([*lines, "}", "", self.read("start.py")])


@cache
def lessons() -> tuple[Lesson, ...]:
    folders = sorted(path for path in FOLDER.iterdir() if (path / "lesson.toml").is_file())
    return tuple(_load(folder) for folder in folders)


def find_lesson(name: str) -> Lesson:
    """By its number, its name or its folder's name."""
    for one in lessons():
        if name in (one.name, one.label) or (name.isdecimal() and int(name[:9]) == one.number):
            return one
    if name.isdecimal():
        raise UsageError(f"there is no lesson {name[:9]}; they are numbered from 1 to {len(lessons())}")
    raise UsageError(f"there is no lesson {name!r}; {suggest(name, [one.name for one in lessons()])}")


def _load(folder: Path) -> Lesson:
    number, _, name = folder.name.partition("_")
    given: dict[str, Any] = tomllib.loads((folder / "lesson.toml").read_text(encoding="utf-8"))
    return Lesson(
        number=int(number),
        name=name,
        title=given["title"],
        minutes=given["minutes"],
        about=given["about"],
        words=given.get("words", {}),
        predictions=tuple(
            Prediction(one["name"], one["question"], one["answer"], one["because"], one.get("within", 0.0))
            for one in given["prediction"]
        ),
        exercises=tuple(
            Exercise(
                function=one["function"],
                task=one["task"],
                collective=one.get("collective"),
                goals=tuple(Goal(goal["measure"], goal.get("most")) for goal in one.get("goals", [])),
                hints=tuple(Hint(hint["say"], hint.get("when")) for hint in one["hints"]),
                beside=tuple(one.get("beside", [])),
            )
            for one in given["exercise"]
        ),
        folder=folder,
    )
