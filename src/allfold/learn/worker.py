"""The process that runs the learner's file and judges it.

Whatever the file does (loop, raise, print, end the process), the answer is a sentence, with the line where it is known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..launch.sandbox import CodeError, line_of, run_code, sentence, serve
from ..registry import schedule
from .checks import examine, run_between_processes
from .findings import LEARNERS, Wrong
from .lesson import Exercise, Lesson, find_lesson
from .predict import NAME, judge_prediction

PICTURED = 4  # ranks
RACED = 8
HAS_THREADS = sys.platform != "emscripten"  # Python in a browser (`studio/in_browser.py`)
NEEDS_RANKS = "needs_ranks"
"""The kind of "mistake" of an exercise that cannot be judged here."""


def main(answers: int) -> None:
    serve(answers, lambda asked: judge_file(find_lesson(asked["lesson"]), Path(asked["file"]), asked["run"]))


def judge_file(lesson: Lesson, file: Path, run: bool = False) -> dict[str, Any]:
    """Judge a file; the answer that `judge.py` reads."""
    try:
        module = load(file)
        predictions = _predictions(module, lesson)
    except CodeError as error:
        return {"error": {"message": str(error), "line": error.line}}
    exercises = [_exercise(lesson, one, module, file) for one in lesson.exercises]
    if run and all("answer" in one for one in predictions) and all(one["passed"] for one in exercises):
        for found, one in zip(exercises, lesson.exercises, strict=True):
            found["run"] = _run(lesson, one, getattr(module, one.function))
    return {"error": None, "predictions": predictions, "exercises": exercises}


def load(file: Path) -> ModuleType:
    try:
        code = file.read_bytes()
    except OSError as error:
        raise CodeError(f"the file cannot be read: {error.strerror}") from None
    module = ModuleType(LEARNERS + file.stem)  # not the name of any other module, whatever the file is called
    sys.path.append(str(file.parent))  # it may import files next to it
    run_code(code, str(file), module)
    return module


def _predictions(module: ModuleType, lesson: Lesson) -> list[dict[str, Any]]:
    given = getattr(module, NAME, {})
    if not isinstance(given, dict):
        raise CodeError(f"{NAME} is {given!r:.40}; expected the dictionary that the file began with")
    return [judge_prediction(one, given.get(one.name)) for one in lesson.predictions]


def _exercise(lesson: Lesson, exercise: Exercise, module: ModuleType, file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"function": exercise.function, "passed": False, "line": None}
    function: Callable[..., Any] | None = getattr(module, exercise.function, None)
    code = getattr(function, "__code__", None)
    begins = code.co_firstlineno if code is not None and code.co_filename == str(file) else None
    if exercise.between_ranks and not HAS_THREADS:
        says = f"{exercise.function} is run between ranks, which are threads, and a browser has none for Python"
        how = f"install allfold (pip install allfold), and `allfold learn check {lesson.number}` judges it there"
        return {**found, "message": f"{says}: {how}", "kind": NEEDS_RANKS}
    if not callable(function):
        there = "is not a function any more" if hasattr(module, exercise.function) else "is not there any more"
        back = f"allfold learn reset {lesson.number} brings the file back as it was"
        return {**found, "message": f"the function {exercise.function} {there}; {back}"}
    try:
        facts = examine(lesson, exercise, function, file)
    except MemoryError:
        raise
    except Wrong as error:
        line = error.line or line_of(error, str(file)) or begins
        place = {"line": line, "ranks": error.ranks, "root": error.root}
        return {**found, "message": sentence(error), "kind": error.kind, **place}
    except BaseException as error:
        line = line_of(error, str(file)) or begins
        return {**found, "message": f"{exercise.function}: {sentence(error)}", "line": line, "kind": "raised"}
    found |= {"passed": True, "message": facts}
    if exercise.collective is None:
        return found
    built, raced = (schedule(exercise.collective, function, ranks).to_json() for ranks in (PICTURED, RACED))
    return {**found, "built": built, "raced": raced}


def _run(lesson: Lesson, exercise: Exercise, function: Callable[..., Any]) -> tuple[str, list[list[str]]] | None:
    """The result of a real run. A right exercise stays right, even if this machine cannot run it."""
    try:
        return run_between_processes(lesson, exercise, function)
    except Exception as error:
        return f"{exercise.function} could not be run between processes: {sentence(error)}", []
