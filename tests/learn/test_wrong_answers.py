"""Plausible mistakes (`mistakes.toml`): each fails, the sentence says what is wrong, and the first hint fits it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from solved import judged, solved_file

from allfold.learn.course import hints_for
from allfold.learn.lesson import find_lesson, lessons

MISTAKES = [
    pytest.param(lesson, function, one, id=f"{function}-{number}")
    for lesson, functions in tomllib.loads(
        Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8")
    ).items()
    for function, found in functions.items()
    for number, one in enumerate(found)
]


@pytest.mark.parametrize(("name", "function", "mistake"), MISTAKES)
def test_a_mistake_is_found_and_its_hint_fits(
    name: str, function: str, mistake: dict[str, str], tmp_path: Path
) -> None:
    lesson = find_lesson(name)
    text = solved_file(lesson)
    assert mistake["right"] in text
    found = judged(lesson, text.replace(mistake["right"], mistake["wrong"]), tmp_path)
    assert found["error"] is None
    judgement = {one["function"]: one for one in found["exercises"]}[function]
    assert not judgement["passed"] and mistake["says"] in judgement["message"], judgement["message"]
    exercise = next(one for one in lesson.exercises if one.function == function)
    first = exercise.hints[hints_for(exercise, judgement["message"])[0]]
    assert mistake["hint"] in first.say, (judgement["message"], first.say)


def test_every_exercise_has_plausible_mistakes() -> None:
    tried = {(one.values[0], one.values[1]) for one in MISTAKES}
    assert tried == {(lesson.name, exercise.function) for lesson in lessons() for exercise in lesson.exercises}
