"""A learner who has solved a lesson, or has made one particular mistake in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allfold.learn.figures import compute
from allfold.learn.lesson import Lesson
from allfold.learn.worker import judge_file
from allfold.registry import REGISTRY


def solved_file(lesson: Lesson) -> str:
    """Every prediction with its computed number, then the solution."""
    lines = ["PREDICTIONS = {"]
    lines += [f'    "{one.name}": {float(compute(one.answer))!r},' for one in lesson.predictions]
    return "\n".join([*lines, "}", "", lesson.read("solution.py")])


def judged(lesson: Lesson, text: str, folder: Path) -> dict[str, Any]:
    """As the process of its own would say it, but in this one: starting Python takes longer than most proofs."""
    file = folder / f"{lesson.name}.py"
    file.write_text(text, encoding="utf-8")
    with REGISTRY.scope():  # what the file registers must not show up in other tests
        return judge_file(lesson, file)
