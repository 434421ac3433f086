"""The lessons, as data: every folder of `lessons/` is one, and nothing about a lesson is anywhere else.

lesson.toml   its title, the words it introduces, its predictions, its exercises with their goals and hints, and what the
              reader may change in its picture
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
from ..wording import parse_size, suggest

FOLDER = Path(__file__).parent / "lessons"


@dataclass(frozen=True)
class Prediction:
    """A number to commit to before it is computed."""

    name: str
    question: str
    answer: str
    """An expression for it, in the words of `figures.py`. No number is stored anywhere."""
    because: str
    """The reason. Figures in it are computed."""
    within: float
    """The distance from the answer that still counts as right, as a part of it."""


@dataclass(frozen=True)
class Hint:
    """A hint for some kinds of mistakes, or for what a regular expression matches; with neither, it always helps."""

    say: str
    kinds: tuple[str, ...]
    when: str | None


@dataclass(frozen=True)
class Goal:
    """A goal that a right algorithm must also reach: at most an amount of something, or a property that was proved."""

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
    between_ranks: bool
    """The check runs it between ranks, which needs threads."""


@dataclass(frozen=True)
class Explore:
    """The picture that the reader of a lesson can change: the algorithms to choose from, and what it shows first."""

    collective: str
    algorithms: tuple[str, ...]
    ranks: int
    size: int
    """Bytes of a whole buffer."""
    say: str
    """A suggestion of what to try."""


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
    explore: Explore
    folder: Path

    @property
    def label(self) -> str:
        """Its folder, here and at the learner's: `02_ring`."""
        return self.folder.name

    def exercise(self, function: str) -> Exercise:
        return next(one for one in self.exercises if one.function == function)

    def read(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")

    def first_file(self) -> str:
        """The learner's file at the start: the predictions to fill in, then the code to write."""
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


def _hint(given: dict[str, Any]) -> Hint:
    return Hint(given["say"], tuple(given.get("for", ())), given.get("when"))


def _explore(given: dict[str, Any]) -> Explore:
    return Explore(
        given["collective"],
        tuple(given["algorithms"]),
        given["ranks"],
        parse_size(given["size"]),
        " ".join(given["say"].split()),
    )


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
                hints=tuple(_hint(given) for given in one["hints"]),
                beside=tuple(one.get("beside", [])),
                between_ranks=one.get("between_ranks", False),
            )
            for one in given["exercise"]
        ),
        explore=_explore(given["explore"]),
        folder=folder,
    )
