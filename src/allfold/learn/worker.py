"""The process that runs the learner's file: it reads a question, limits itself, and writes one answer.

Whatever the file does (loop, raise, print, end the process), the answer is a sentence, with the line where it is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import FrameType, ModuleType
from typing import Any

from ..errors import AllfoldError
from ..registry import schedule
from .checks import examine, run_between_processes
from .findings import LEARNERS, Wrong
from .lesson import Exercise, Lesson, find_lesson
from .predict import NAME, judge_prediction

_PR_SET_PDEATHSIG = 1
PICTURED = 4  # ranks


def main() -> None:
    question = json.loads(sys.stdin.buffer.read())
    answers = question["answers"]
    file = Path(question["file"])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != question["parent"]:
        os._exit(1)
    lesson = find_lesson(question["lesson"])
    _limit(file, question["seconds"], question["wall"], question["memory"], answers)
    try:
        answer = judge_file(lesson, file, question["run"])
    except MemoryError as error:
        answer = _refusal(f"it needs more than {question['memory'] / 2**30:.0f} GiB of memory", _line_of(error, file))
    except BaseException as error:  # an object of the file may raise wherever it is looked at
        answer = _refusal(f"checking it raised {type(error).__name__}", _line_of(error, file))
    _send(answers, answer)


def _send(answers: int, answer: dict[str, Any]) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the file may have closed it
            continue
    text = json.dumps(answer).encode() + b"\n"
    while text:
        text = text[os.write(answers, text) :]
    os._exit(0)  # does not wait for threads and exit handlers of the file


def _limit(file: Path, seconds: float, wall: float, memory: int, answers: int) -> None:
    """The signals find out where the code is; it cannot catch them, because the process ends here."""
    import resource  # only here: there is none on Windows

    def out_of_time(number: int, frame: FrameType | None) -> None:
        # This thread first; where ranks are threads, it is one of the others.
        lines = (_line_below(one, file) for one in (frame, *sys._current_frames().values()))
        line = next(filter(None, lines), None)
        used = f"{seconds:g} s of processor time" if number == signal.SIGPROF else f"{wall:g} s"
        _send(answers, _refusal(f"it was stopped after {used}; does every loop end?", line))

    signal.signal(signal.SIGPROF, out_of_time)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, wall)
    # Not the address space: the ranks' shared memory reserves much of it and uses little.
    with contextlib.suppress(ValueError):  # macOS may refuse it
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _line_below(frame: FrameType | None, file: Path) -> int | None:
    while frame is not None and frame.f_code.co_filename != str(file):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def _refusal(message: str, line: int | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "line": line}, "predictions": [], "exercises": []}


def judge_file(lesson: Lesson, file: Path, run: bool = False) -> dict[str, Any]:
    """What is right in the file and what is wrong, for `judge.py`."""
    try:
        module = load(file)
        predictions = _predictions(module, lesson)
    except Wrong as error:
        return _refusal(str(error), error.line)
    exercises = [_exercise(lesson, one, module, file) for one in lesson.exercises]
    if run and all("answer" in one for one in predictions) and all(one["passed"] for one in exercises):
        for found, one in zip(exercises, lesson.exercises, strict=True):
            found["run"] = _run(lesson, one, getattr(module, one.function))
    return {"error": None, "predictions": predictions, "exercises": exercises}


def load(file: Path) -> ModuleType:
    try:
        code = file.read_bytes()
    except OSError as error:
        raise Wrong(f"it cannot be read: {error.strerror}") from None
    module = ModuleType(LEARNERS + file.stem)  # not the name of any other module, whatever the file is called
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    sys.path.append(str(file.parent))  # it may import files next to it
    try:
        exec(compile(code, str(file), "exec"), module.__dict__)
    except MemoryError:
        raise
    except SyntaxError as error:
        raise Wrong(f"this is not Python: {error.msg}", error.lineno) from None
    except BaseException as error:
        raise Wrong(f"the file raised {_sentence(error)}", _line_of(error, file)) from None
    return module


def _sentence(error: BaseException) -> str:
    said = str(error).strip().splitlines() or [
        ""
    ]  # the traceback of another process may follow, and end with its reason
    text = said[0] if len(said) == 1 else f"{said[0]}: {said[-1]}"
    if isinstance(error, AllfoldError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line_of(error: BaseException, file: Path) -> int | None:
    seen: BaseException | None = error
    while seen is not None:  # what the prover says is caused by what the file raised
        lines = [frame.lineno for frame in extract_tb(seen.__traceback__) if frame.filename == str(file)]
        if lines:
            return lines[-1]
        seen = seen.__cause__
    return None


def _predictions(module: ModuleType, lesson: Lesson) -> list[dict[str, Any]]:
    given = getattr(module, NAME, {})
    if not isinstance(given, dict):
        raise Wrong(f"{NAME} is {given!r:.40}; expected the dictionary that the file began with")
    return [judge_prediction(one, given.get(one.name)) for one in lesson.predictions]


def _exercise(lesson: Lesson, exercise: Exercise, module: ModuleType, file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"function": exercise.function, "passed": False, "line": None}
    function: Callable[..., Any] | None = getattr(module, exercise.function, None)
    code = getattr(function, "__code__", None)
    begins = code.co_firstlineno if code is not None and code.co_filename == str(file) else None
    if not callable(function):
        there = "is not a function any more" if hasattr(module, exercise.function) else "is not there any more"
        back = f"allfold learn reset {lesson.number} brings the file back as it was"
        return {**found, "message": f"the function {exercise.function} {there}; {back}"}
    try:
        facts = examine(lesson, exercise, function, file)
    except MemoryError:
        raise
    except Wrong as error:
        line = error.line or _line_of(error, file) or begins
        place = {"line": line, "ranks": error.ranks, "root": error.root}
        return {**found, "message": _sentence(error), "kind": error.kind, **place}
    except BaseException as error:
        line = _line_of(error, file) or begins
        return {**found, "message": f"{exercise.function}: {_sentence(error)}", "line": line, "kind": "raised"}
    built = None if exercise.collective is None else schedule(exercise.collective, function, PICTURED).to_json()
    return {**found, "passed": True, "message": facts, "built": built}


def _run(lesson: Lesson, exercise: Exercise, function: Callable[..., Any]) -> tuple[str, list[list[str]]] | None:
    """What is right stays right, even if this machine cannot show it."""
    try:
        return run_between_processes(lesson, exercise, function)
    except Exception as error:
        return f"{exercise.function} could not be run between processes: {_sentence(error)}", []
