"""The course in the studio: the lessons of `allfold learn`, judged by the same code, in the same folder.

The learner's file and progress.json are all there is, so a terminal and an editor can be used at the same time: every
answer is read from the files, and a text is only saved over the text that it was made from.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import write_whole
from ..learn.course import PROGRESS, Course, after_of, find_folder, named, open_course, text_of
from ..learn.judge import Verdict, judge
from ..learn.lesson import Lesson, Prediction, find_lesson, lessons
from ..learn.predict import judge_prediction, numbers_in, with_number
from ..learn.text import Block, Picture, Prose, read_in
from ..schedules import Schedule
from .edit import MOST_CODE
from .explore import as_entry, explored, raced


@dataclass
class Lessons:
    """Answers the lessons' part of the page."""

    folder: Path = field(default_factory=lambda: find_folder(None))
    judge: Callable[[Lesson, Path], Verdict] = field(default_factory=lambda: partial(judge, run=True))
    after: Callable[[str], list[dict[str, Any]]] = field(default_factory=lambda: after_blocks)
    """The blocks that are read after a lesson, by its name."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while files are read and changed, not while code is judged."""
    _judging: threading.Lock = field(default_factory=threading.Lock)

    def list(self) -> dict[str, Any]:
        course = open_course(self.folder)
        now = course.current()
        found = [
            {
                **_head(one),
                "started": one.name in course.progress,
                "passed": course.of(one).passed,
                "solved": len(course.of(one).solved),
                "exercises": len(one.exercises),
                "predicted": sum(course.of(one).predicted.values()),
                "predictions": len(one.predictions),
            }
            for one in lessons()
        ]
        return {"folder": named(self.folder), "current": None if now is None else now.name, "lessons": found}

    def lesson(self, name: str) -> dict[str, Any]:
        """The part of a lesson that is the same for every learner."""
        return content(find_lesson(name).name)

    def work(self, name: str, stamp: str = "") -> dict[str, Any]:
        """The learner's work on it; `{"same": True}` if the page has it already, by its stamp."""
        lesson = find_lesson(name)
        with self._lock:
            known = self._stamp(lesson)
            return {"same": True} if known == stamp else self._work_on(lesson)

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a learner asks for: `do` names it. The answer has the state afterwards under `work`."""
        name, what = request.get("lesson"), request.get("do")
        if not isinstance(name, str) or not isinstance(what, str) or what not in _ACTS:
            raise UsageError(f"expected a lesson, and something to do with it: {', '.join(_ACTS)}")
        lesson = find_lesson(name)
        act = _ACTS[what]
        if act is None:
            return self._check(lesson)  # takes long: others may read meanwhile
        with self._lock:
            found = act(open_course(self.folder), lesson, request)
            return {**found, "work": self._work_on(lesson)}

    def _check(self, lesson: Lesson) -> dict[str, Any]:
        course = open_course(self.folder)
        _read(course, lesson)
        with self._judging:
            verdict = self.judge(lesson, course.file(lesson))
        with self._lock:
            course.record(lesson, verdict)
            found = {**asdict(verdict), "file": verdict.file.name, "passed": verdict.passed}
            for one in found["exercises"]:
                own, beside = one.pop("raced"), lesson.exercise(one["function"]).beside
                del one["built"]  # a terminal's
                one["race"] = None if own is None else raced(Schedule.from_json(own), lesson.explore, beside)
            return {"verdict": found, "work": self._work_on(lesson)}

    # What the learner has --------------------------------------------------------------------------------------------

    def _work_on(self, lesson: Lesson) -> dict[str, Any]:
        course = open_course(self.folder)
        now = course.of(lesson)
        found: dict[str, Any] = {
            "started": course.file(lesson).is_file(),
            "file": named(course.file(lesson)),
            "stamp": self._stamp(lesson),
            "progress": asdict(now),
            "hints": [
                {"function": one.function, "say": said}
                for one in lesson.exercises
                for said in now.hints.get(one.function, [])
                if isinstance(said, str)
            ],
            "after": self.after(lesson.name) if now.passed else None,
        }
        if found["started"]:
            text = _read(course, lesson)
            given = numbers_in(text)
            found["text"], found["version"] = text, _version(text)
            found["predictions"] = [
                _predicted(one, given.get(one.name), one.name in now.predicted) for one in lesson.predictions
            ]
        return found

    def _stamp(self, lesson: Lesson) -> str:
        """Changes whenever the learner's file or the progress changes."""
        digest = hashlib.sha256()
        for path in (Course(self.folder, {}).file(lesson), self.folder / PROGRESS):
            try:
                digest.update(path.read_bytes() + b"\0")
            except OSError:
                digest.update(b"none\0")
        return digest.hexdigest()


# What a learner does ---------------------------------------------------------------------------------------------


def _start(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    course.start(lesson)
    return {}


def _save(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    text = request.get("text")
    if not isinstance(text, str) or len(text) > MOST_CODE:
        raise UsageError(f"text must be text of at most {MOST_CODE:,} characters")
    if _version(_read(course, lesson)) != request.get("version"):
        return {"conflict": True}
    write_whole(course.file(lesson), text)
    return {}


def _predict(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    number, wanted = request.get("number"), request.get("name")
    one = next((one for one in lesson.predictions if one.name == wanted), None)
    if one is None or isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        raise UsageError(f"expected a prediction of lesson {lesson.number} and a number")
    write_whole(course.file(lesson), with_number(_read(course, lesson), one.name, number))
    course.record_prediction(lesson, one.name, judge_prediction(one, number)["right"])
    return {}


def _hint(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    now = course.of(lesson)
    if not (now.wrong or now.solved):
        return {"says": "Check first: the hint depends on what is wrong."}
    if not now.wrong:
        return {"says": "Everything in this lesson is solved."}
    course.next_hint(lesson)
    return {"says": None}


def _solution(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    return {"solution": lesson.read("solution.py")}


def _reset(course: Course, lesson: Lesson, request: dict[str, Any]) -> dict[str, Any]:
    kept = course.reset(lesson)
    saved = "" if kept is None else f" Yours is kept as {kept.name}."
    return {"says": f"{course.file(lesson).name} is back in its first form.{saved}"}


_ACTS: dict[str, Callable[[Course, Lesson, dict[str, Any]], dict[str, Any]] | None] = {
    "start": _start,
    "save": _save,
    "predict": _predict,
    "check": None,
    "hint": _hint,
    "solution": _solution,
    "reset": _reset,
}


def _predicted(one: Prediction, given: object, committed: bool) -> dict[str, Any]:
    """A number that was only typed into the file is not judged yet: that would give the answer away."""
    if committed or given is None:
        return judge_prediction(one, given)
    return {**judge_prediction(one, None), "given": f"{given}"[:40]}


def _read(course: Course, lesson: Lesson) -> str:
    path = course.file(lesson)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{named(path)} no longer exists; start the lesson again, or reset it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{named(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# What is the same for every learner ----------------------------------------------------------------------------------


def _head(lesson: Lesson) -> dict[str, Any]:
    return {name: getattr(lesson, name) for name in ("number", "name", "title", "minutes", "about")}


@cache
def content(name: str) -> dict[str, Any]:
    lesson = find_lesson(name)
    following = next((one for one in lessons() if one.number == lesson.number + 1), None)
    return {
        **_head(lesson),
        "words": [
            {"word": word, "meaning": meaning, "lesson": one.number}
            for one in lessons()[: lesson.number]
            for word, meaning in one.words.items()
        ],
        "blocks": _shown(text_of(lesson)),
        "explore": explored(lesson.explore),
        "predictions": [{"name": one.name, "question": one.question} for one in lesson.predictions],
        "exercises": [
            {
                "function": one.function,
                "task": one.task,
                "collective": one.collective,
                "between_ranks": one.between_ranks,
            }
            for one in lesson.exercises
        ],
        "next": None if following is None else _head(following),
    }


def after_blocks(name: str) -> list[dict[str, Any]]:
    """What is read after a lesson."""
    return _after(name)


@cache
def _after(name: str) -> list[dict[str, Any]]:
    return _shown(after_of(find_lesson(name)))


def _shown(blocks: list[Block]) -> list[dict[str, Any]]:
    """Prose as HTML, code as text, tables as rows, schedules as what the page draws."""
    found: list[dict[str, Any]] = []
    for block in read_in("studio", blocks):
        if isinstance(block, Prose):
            found += _prose(block.text)
        elif isinstance(block, Picture):
            found.append({"kind": "figure", "entry": {**as_entry(block.schedule), "values": block.values}})
        else:
            found.append({"kind": "table", "rows": block.rows})
    return found


@cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt  # only here: in a browser, the page has the texts already

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _prose(text: str) -> list[dict[str, Any]]:
    """Blocks of code are coloured by the page, so they stand for themselves. The title is in the page's head already."""
    found: list[dict[str, Any]] = []
    part: list[Any] = []
    skips = False
    markdown = _markdown()

    def finish() -> None:
        if part:
            found.append({"kind": "prose", "html": markdown.renderer.render(part, markdown.options, {})})
            part.clear()

    for token in markdown.parse(text):
        if token.type == "heading_open" and token.tag == "h1":
            skips = True
        if token.type == "fence" and token.level == 0:
            finish()
            found.append({"kind": "code", "language": token.info.strip(), "text": token.content})
        elif not skips:
            part.append(token)
        if token.type == "heading_close":
            skips = False
    finish()
    return found
