"""`allfold learn`: the course."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from ..errors import UsageError
from ..files import write_whole
from ..learn.course import Course, after_of, find_course, named, text_of
from ..learn.judge import Predicted, Verdict, judge
from ..learn.lesson import Lesson, find_lesson, lessons
from ..learn.text import Block, Picture, Prose, TextTable, read_in
from ..schedules import Schedule
from ..studio.edit import Limits
from ..view.text import draw
from ..wording import counted
from .studio import serve
from .terminal import width, write_json, write_lines, write_markdown, write_table


def run(arguments: argparse.Namespace) -> int:
    course = find_course(arguments.folder)
    if arguments.what is None:
        return _list(course, arguments)
    return _COMMANDS[arguments.what](course, arguments)


def _chosen(course: Course, arguments: argparse.Namespace) -> Lesson:
    if arguments.lesson is not None:
        return find_lesson(arguments.lesson)
    found = course.current()
    if found is None:
        raise UsageError("all lessons are passed; name one")
    return found


def _started(course: Course, arguments: argparse.Namespace) -> Lesson:
    lesson = _chosen(course, arguments)
    if not course.file(lesson).is_file():
        raise UsageError(f"there is no {named(course.file(lesson))}; allfold learn start {lesson.number} writes it")
    return lesson


# The list ------------------------------------------------------------------------------------------------------------


def _list(course: Course, arguments: argparse.Namespace) -> int:
    if arguments.json:
        write_json({"folder": str(course.folder), "lessons": [_as_json(course, one) for one in lessons()]})
        return 0
    rows = [[str(one.number), one.name, str(one.minutes), _state(course, one), one.about] for one in lessons()]
    write_table(("lesson", "name", "minutes", "progress", "what it is about"), rows, arguments.color, left=2)
    write_lines(["", _next(course)], arguments.color)
    return 0


def _next(course: Course) -> str:
    lesson = course.current()
    if lesson is None:
        return "All lessons are passed."
    verb = "check" if lesson.name in course.progress else "start"
    return f"Next: allfold learn {verb} {lesson.number}"


def _as_json(course: Course, lesson: Lesson) -> dict[str, Any]:
    return {
        "number": lesson.number,
        "name": lesson.name,
        "title": lesson.title,
        "about": lesson.about,
        "minutes": lesson.minutes,
        "started": lesson.name in course.progress,
        **asdict(course.of(lesson)),
    }


def _state(course: Course, lesson: Lesson) -> str:
    if lesson.name not in course.progress:
        return "not started"
    now = course.of(lesson)
    if now.passed:
        return f"passed, {sum(now.predicted.values())} of {len(lesson.predictions)} predicted"
    return f"{len(now.solved)} of {len(lesson.exercises)} solved"


# Reading -------------------------------------------------------------------------------------------------------------


def _start(course: Course, arguments: argparse.Namespace) -> int:
    lesson = _chosen(course, arguments)
    is_new = course.start(lesson)
    if arguments.json:
        write_json({"file": str(course.file(lesson)), "new": is_new, **_as_json(course, lesson)})
        return 0
    _write_blocks(text_of(lesson), arguments.color)
    done = "is ready" if is_new else "was there already, and is unchanged"
    write_lines(
        [
            "",
            f"{named(course.file(lesson))} {done}.",
            f"Open it in your editor, then: allfold learn check {lesson.number} --watch",
        ],
        arguments.color,
    )
    return 0


def _write_blocks(found: list[Block], color: bool | None) -> None:
    for place, block in enumerate(read_in("terminal", found)):
        if place:
            write_lines([""], color)
        if isinstance(block, Prose):
            write_markdown(block.text, color)
        elif isinstance(block, TextTable):
            write_table(block.rows[0], block.rows[1:], color)
        elif isinstance(block, Picture):
            write_lines(draw(block.schedule, width()), color)


def _words(course: Course, arguments: argparse.Namespace) -> int:
    found = [
        (lesson, word, meaning)
        for lesson in lessons()
        if lesson.name in course.progress
        for word, meaning in lesson.words.items()
    ]
    if arguments.json:
        write_json([{"lesson": one.number, "word": word, "meaning": meaning} for one, word, meaning in found])
    elif not found:
        write_lines(["No lesson was started yet, so no word was introduced."], arguments.color)
    else:
        rows = [[word, str(one.number), meaning] for one, word, meaning in found]
        write_table(("word", "lesson", "meaning"), rows, arguments.color)
    return 0


# Checking ------------------------------------------------------------------------------------------------------------


def _check(course: Course, arguments: argparse.Namespace) -> int:
    lesson = _started(course, arguments)
    if arguments.watch and arguments.json:
        raise UsageError("--watch is for people, --json for programs: choose one")
    if arguments.watch:
        return _watch(course, lesson, arguments)
    return _check_once(course, lesson, arguments)


def _watch(course: Course, lesson: Lesson, arguments: argparse.Namespace) -> int:
    seen = None
    try:
        while True:
            now = _version(course, lesson)
            if now != seen:
                seen = now
                if _check_once(course, lesson, arguments) == 0:
                    return 0
                write_lines(["", f"Watching {named(course.file(lesson))}; Ctrl-C ends."], arguments.color)
                sys.stdout.flush()
            time.sleep(0.3)
    except KeyboardInterrupt:
        write_lines(["", "Stopped watching. Your progress is saved."], arguments.color)
        return 1


def _version(course: Course, lesson: Lesson) -> tuple[int, int] | None:
    try:
        found = course.file(lesson).stat()
    except OSError:  # some editors remove a file before they write it again
        return None
    return found.st_mtime_ns, found.st_size


def _check_once(course: Course, lesson: Lesson, arguments: argparse.Namespace) -> int:
    with Console(stderr=True).status("checking") if sys.stderr.isatty() else nullcontext():
        verdict = judge(lesson, course.file(lesson), run=not arguments.no_run)
    first = course.record(lesson, verdict)
    if arguments.json:
        write_json({"lesson": lesson.number, "passed": verdict.passed, **asdict(verdict), "file": str(verdict.file)})
        return 0 if verdict.passed else 1
    write_lines(_report(lesson, verdict), arguments.color)
    if not verdict.passed:
        return 1
    _write_built(verdict, arguments.color)
    _write_runs(verdict, arguments.color)
    if first:
        write_lines([""], arguments.color)
        _write_blocks(after_of(lesson), arguments.color)
    write_lines(["", f"Lesson {lesson.number} is passed. {_next(course)}"], arguments.color)
    return 0


def _report(lesson: Lesson, verdict: Verdict) -> Iterator[Text | str]:
    yield Text(f"Lesson {lesson.number}: {lesson.title}", style="bold")
    if verdict.printed:
        yield Text("  your file printed", style="dim")
        yield from (f"    {line}" for line in verdict.printed.splitlines())
    if verdict.error is not None:
        yield Text.assemble(("  ✗ ", "red"), _where(verdict, verdict.line), verdict.error)
        return
    for one in verdict.predictions:
        yield from _prediction(one)
    for judged in verdict.exercises:
        if judged.passed:
            yield Text.assemble(("  ✓ ", "green"), f"{judged.function}: {judged.message}")
        else:
            yield Text.assemble(("  ✗ ", "red"), _where(verdict, judged.line), judged.message)
    waiting = sum(one.answer is None for one in verdict.predictions)
    if waiting:
        yield f"  {counted(waiting, 'prediction')} still to be made: replace None by a number at the top of the file."
    if any(not one.passed for one in verdict.exercises):
        yield f"  allfold learn hint {lesson.number} helps."


def _where(verdict: Verdict, line: int | None) -> str:
    return f"{verdict.file.name}: " if line is None else f"{verdict.file.name}:{line}: "


def _prediction(one: Predicted) -> Iterator[Text | str]:
    if one.given is None:
        yield Text.assemble(("  · ", "dim"), one.question)
    elif one.answer is None:
        yield Text.assemble(("  ✗ ", "red"), f"{one.question} You said {one.given}. {one.because}")
    elif one.right:
        yield Text.assemble(("  ✓ ", "green"), f"{one.question} {one.answer}, as you said. {one.because}")
    else:
        yield Text.assemble(
            ("  ≠ ", "yellow"), f"{one.question} You said {one.given}; it is {one.answer}. {one.because}"
        )


def _write_built(verdict: Verdict, color: bool | None) -> None:
    """The picture of the last algorithm that the learner wrote."""
    built = [one.built for one in verdict.exercises if one.built is not None]
    if built:
        write_lines(["", Text("What you built:", style="bold"), ""], color)
        write_lines(draw(Schedule.from_json(built[-1]), width()), color)


def _write_runs(verdict: Verdict, color: bool | None) -> None:
    for one in verdict.exercises:
        if one.run is not None:
            sentence, rows = one.run
            write_lines(["", f"{sentence}:" if rows else sentence], color)
            if rows:
                write_table(rows[0], rows[1:], color)


# Help ----------------------------------------------------------------------------------------------------------------


def _hint(course: Course, arguments: argparse.Namespace) -> int:
    lesson, function = _asked(course, arguments)
    # The file may have changed since the last check, and a hint about what is no longer there helps nobody.
    verdict = judge(lesson, course.file(lesson))
    wrong = [one for one in verdict.exercises if not one.passed and function in (None, one.function)]
    if verdict.error is not None:
        write_lines([f"{_where(verdict, verdict.line)}{verdict.error}"], arguments.color)
        return 1
    if not wrong:
        what = f"Everything in lesson {lesson.number}" if function is None else function
        write_lines([f"{what} is solved; allfold learn check {lesson.number} says what is left."], arguments.color)
        return 0
    course.record(lesson, verdict)
    exercise, hint, number, many = course.next_hint(lesson, wrong[0].function)
    if arguments.json:
        said = {"function": exercise.function, "wrong": wrong[0].message, "hint": hint, "number": number, "of": many}
        write_json(said)
        return 0
    write_lines([f"{_where(verdict, wrong[0].line)}{wrong[0].message}"], arguments.color)
    more = "allfold learn hint says more" if number < many else "the last one; then they begin again"
    write_lines(["", f"{exercise.function}, hint {number} of {many} ({more}):", ""], arguments.color)
    write_lines(hint.splitlines(), arguments.color)
    return 0


def _asked(course: Course, arguments: argparse.Namespace) -> tuple[Lesson, str | None]:
    """The lesson, and the function if one was named, after the lesson or in its place."""
    function: str | None = arguments.function
    if function is None and arguments.lesson is not None:
        for lesson in lessons():
            if arguments.lesson != lesson.name and arguments.lesson in [one.function for one in lesson.exercises]:
                arguments.lesson, function = lesson.name, arguments.lesson
    lesson = _chosen(course, arguments)
    names = [one.function for one in lesson.exercises]
    if function is not None and function not in names:
        raise UsageError(f"lesson {lesson.number} has no function {function!r}; it has {', '.join(names)}")
    return _started(course, arguments), function


def _solution(course: Course, arguments: argparse.Namespace) -> int:
    lesson = _chosen(course, arguments)
    text = lesson.read("solution.py")
    if arguments.write:
        path = course.place(lesson) / "solution.py"
        write_whole(path, text, folders=True)
        write_lines([f"{named(path)} is written."], arguments.color)
    elif arguments.json:
        write_json({"lesson": lesson.number, "solution": text})
    else:
        sys.stdout.write(text)
    return 0


def _reset(course: Course, arguments: argparse.Namespace) -> int:
    lesson = _chosen(course, arguments)
    kept = course.reset(lesson)
    if arguments.json:
        write_json({"file": str(course.file(lesson)), "kept": None if kept is None else str(kept)})
        return 0
    saved = "" if kept is None else f" Yours is {kept.name}."
    write_lines([f"{named(course.file(lesson))} is back in its first form.{saved}"], arguments.color)
    return 0


def _studio(course: Course, arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise UsageError("learn studio opens a page in the browser and has no --json")
    place = "#lessons" if arguments.lesson is None else f"#lesson={find_lesson(arguments.lesson).name}"
    return serve(arguments.port, Limits(), str(course.folder), not arguments.no_browser, place)


_COMMANDS = {
    "start": _start,
    "check": _check,
    "hint": _hint,
    "solution": _solution,
    "reset": _reset,
    "studio": _studio,
    "words": _words,
}
