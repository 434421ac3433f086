"""The learner's folder: one folder per lesson that was started, and the progress, all in plain files.

progress.json            what was predicted, solved, hinted at
01_four_numbers/
    four_numbers.py      the learner's file: predictions and exercises
    lesson.md            the text, with pictures; after.md when the lesson is solved
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import write_whole
from .hints import ladder
from .judge import Verdict
from .lesson import Exercise, Lesson, lessons
from .text import Block, as_markdown, blocks

PROGRESS = "progress.json"
DEFAULT = "allfold-learn"
WRITES_TEXTS = sys.platform != "emscripten"  # in a browser, the page has them (`studio/in_browser.py`)
_FORMAT = "allfold-learn"


@dataclass
class LessonProgress:
    """One lesson's."""

    predicted: dict[str, bool] = field(default_factory=dict)
    """By prediction: whether the first number that the learner committed to was right."""
    solved: list[str] = field(default_factory=list)
    """The exercises that passed at the last check."""
    wrong: dict[str, str] = field(default_factory=dict)
    """By exercise: what was wrong at the last check."""
    kinds: dict[str, str] = field(default_factory=dict)
    """By exercise: the kind of that mistake. Hints are chosen by it."""
    hints: dict[str, list[str]] = field(default_factory=dict)
    """By exercise: the hints that were shown for this kind of mistake."""
    passed: bool = False


@dataclass(frozen=True)
class Course:
    folder: Path
    progress: dict[str, LessonProgress]
    """By the lessons' names: those that were started."""

    def place(self, lesson: Lesson) -> Path:
        return self.folder / lesson.label

    def file(self, lesson: Lesson) -> Path:
        return self.place(lesson) / f"{lesson.name}.py"

    def of(self, lesson: Lesson) -> LessonProgress:
        return self.progress.get(lesson.name, LessonProgress())

    def current(self) -> Lesson | None:
        """The first lesson that was started and is not passed; else the first that was not started."""
        for one in lessons():
            if one.name in self.progress and not self.of(one).passed:
                return one
        return next((one for one in lessons() if not self.of(one).passed), None)

    def start(self, lesson: Lesson) -> bool:
        """Write the lesson's files, except one that the learner already has; whether that one is new."""
        self._write_text(lesson, "lesson.md", "picture", text_of)
        is_new = not self.file(lesson).exists()
        if is_new:
            write_whole(self.file(lesson), lesson.first_file(), folders=True)
        self._reload()
        self.progress.setdefault(lesson.name, LessonProgress())
        self.save()
        return is_new

    def _write_text(self, lesson: Lesson, file: str, picture: str, blocks_of: Callable[[Lesson], list[Block]]) -> None:
        if WRITES_TEXTS:
            markdown, pictures = as_markdown(blocks_of(lesson), picture)
            for name, content in {file: markdown, **pictures}.items():
                write_whole(self.place(lesson) / name, content, folders=True)

    def reset(self, lesson: Lesson) -> Path | None:
        """The file as it began, and no progress; where the learner's own file was put, if there was one."""
        kept = None
        if self.file(lesson).exists():
            kept = next(path for path in self._spare(lesson) if not path.exists())
            try:
                self.file(lesson).rename(kept)
            except OSError as error:
                raise UsageError(f"{self.file(lesson)} cannot be renamed: {error.strerror}") from None
        self._reload()
        self.progress.pop(lesson.name, None)
        self.save()
        self.start(lesson)
        return kept

    def _spare(self, lesson: Lesson) -> Iterator[Path]:
        number = 1
        while True:
            yield self.place(lesson) / f"{lesson.name}.before_reset_{number}.py"
            number += 1

    def record(self, lesson: Lesson, verdict: Verdict) -> bool:
        """Record the result; True if the lesson is passed for the first time."""
        self._reload()
        now = self.progress.setdefault(lesson.name, LessonProgress())
        for one in verdict.predictions:
            if one.answer is not None:
                now.predicted.setdefault(one.name, one.right)
        if verdict.error is None:
            now.solved = [one.function for one in verdict.exercises if one.passed]
            now.wrong = {one.function: one.message for one in verdict.exercises if not one.passed}
            kinds = {one.function: one.kind for one in verdict.exercises if not one.passed}
            # Hints for a mistake that is no longer there would only confuse.
            now.hints = {name: said for name, said in now.hints.items() if now.kinds.get(name) == kinds.get(name)}
            now.kinds = kinds
        first = verdict.passed and not now.passed
        now.passed |= verdict.passed
        if verdict.passed:
            self._write_text(lesson, "after.md", "after", after_of)
        self.save()
        return first

    def record_prediction(self, lesson: Lesson, name: str, right: bool) -> None:
        """Keep whether the first number was right."""
        self._reload()
        self.progress.setdefault(lesson.name, LessonProgress()).predicted.setdefault(name, right)
        self.save()

    def next_hint(self, lesson: Lesson, function: str | None = None) -> tuple[Exercise, str, int, int]:
        """The next hint for an exercise that is wrong (the first one, unless it is named), its number, and how many.

        After the last one they are shown again, from the first. There must be an exercise that is wrong.
        """
        self._reload()
        now = self.progress.setdefault(lesson.name, LessonProgress())
        exercise = next(
            one for one in lesson.exercises if one.function in now.wrong and function in (None, one.function)
        )
        name = exercise.function
        hints = ladder(lesson, exercise, now.kinds.get(name, ""), now.wrong[name])
        shown = [one for one in now.hints.get(name, []) if one in hints]
        if len(shown) == len(hints):
            shown = []
        hint = next(one for one in hints if one not in shown)
        now.hints[name] = [*shown, hint]
        self.save()
        return exercise, hint, hints.index(hint) + 1, len(hints)

    def _reload(self) -> None:
        """Before anything is changed: a studio and a terminal may share the folder, and each keeps it open for long."""
        known = open_course(self.folder).progress
        self.progress.clear()
        self.progress.update(known)

    def save(self) -> None:
        document = {
            "format": _FORMAT,
            "version": 1,
            "lessons": {name: asdict(one) for name, one in self.progress.items()},
        }
        write_whole(self.folder / PROGRESS, json.dumps(document, indent=1, ensure_ascii=False) + "\n", folders=True)


def text_of(lesson: Lesson) -> list[Block]:
    return blocks(lesson.read("text.md"))


def after_of(lesson: Lesson) -> list[Block]:
    return blocks(lesson.read("after.md"))


def find_course(folder: str | None) -> Course:
    return open_course(find_folder(folder))


def find_folder(folder: str | None) -> Path:
    """The learner's folder: the one named, or the one that this folder lies in, or `allfold-learn` here."""
    if folder is not None:
        return Path(folder)
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / PROGRESS).is_file() and _is_ours(place / PROGRESS):
            return place
    return here / DEFAULT


def named(path: Path) -> str:
    """The path, relative if it is below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)


def _is_ours(path: Path) -> bool:
    try:
        return _FORMAT in path.read_text(encoding="utf-8", errors="replace")[:1000]
    except OSError:
        return False


def open_course(folder: Path) -> Course:
    path = folder / PROGRESS
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["version"] != 1:
            raise ValueError(f"its format is {document['format']!r}, version {document['version']!r}")
        return Course(folder, {name: _progress(given) for name, given in document["lessons"].items()})
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is not a folder") from None
        return Course(folder, {})
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} is not the progress of a course ({fault}); delete it to start over") from None


def _progress(given: dict[str, Any]) -> LessonProgress:
    found = LessonProgress(**given)
    fits = {
        "predicted": isinstance(found.predicted, dict)
        and all(isinstance(one, bool) for one in found.predicted.values()),
        "solved": isinstance(found.solved, list) and all(isinstance(one, str) for one in found.solved),
        "wrong": isinstance(found.wrong, dict) and all(isinstance(one, str) for one in found.wrong.values()),
        "kinds": isinstance(found.kinds, dict) and all(isinstance(one, str) for one in found.kinds.values()),
        "hints": isinstance(found.hints, dict) and all(isinstance(one, list) for one in found.hints.values()),
        "passed": isinstance(found.passed, bool),
    }
    for name, good in fits.items():
        if not good:
            raise ValueError(f"{name} is {getattr(found, name)!r:.40}")
    return found
