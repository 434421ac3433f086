"""Plausible mistakes (`mistakes.toml`): each fails, the sentence says what is wrong, and the first hint fits it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from solved import judged

from allfold.learn import checks
from allfold.learn.course import hints_for
from allfold.learn.lesson import find_lesson, lessons

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about what a wrong file does
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
    name: str, function: str, mistake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 1.0)  # those that wait in vain need not wait long
    whole = find_lesson(name)
    (exercise,) = (one for one in whole.exercises if one.function == function)
    lesson = replace(whole, predictions=(), exercises=(exercise,))  # the others are right: no need to prove them again
    text = whole.read("solution.py")
    assert mistake["right"] in text
    found = judged(lesson, text.replace(mistake["right"], mistake["wrong"]), tmp_path)
    assert found["error"] is None
    (judgement,) = found["exercises"]
    assert not judgement["passed"] and mistake["says"] in judgement["message"], judgement["message"]
    first = exercise.hints[hints_for(exercise, judgement["message"])[0]]
    assert mistake["hint"] in first.say, (judgement["message"], first.say)


def test_every_exercise_has_plausible_mistakes() -> None:
    tried = {(one.values[0], one.values[1]) for one in MISTAKES}
    assert tried == {(lesson.name, exercise.function) for lesson in lessons() for exercise in lesson.exercises}
