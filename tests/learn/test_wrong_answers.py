"""Mistakes that people make (`collected.toml`, `mistakes.toml`): each is found, named, told by its line, and hinted at."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from solved import judged

from allfold.learn import checks
from allfold.learn.hints import ladder
from allfold.learn.lesson import find_lesson, lessons

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about what a wrong file does


def _read(file: str) -> list[tuple[str, str, dict[str, str]]]:
    given = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return [
        (name, function, one)
        for name, functions in given.items()
        for function in functions
        for one in functions[function]
    ]


COLLECTED, MUTATIONS = _read("collected.toml"), _read("mistakes.toml")
MISTAKES = [
    pytest.param(name, function, one, id=f"{function}-{number}")
    for number, (name, function, one) in enumerate(COLLECTED + MUTATIONS)
]


@pytest.mark.parametrize(("name", "function", "mistake"), MISTAKES)
def test_a_mistake_is_found_and_its_hint_fits(
    name: str, function: str, mistake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 1.0)  # those that wait in vain need not wait long
    monkeypatch.setattr(checks, "_TELLING", (3, 4, 2, 5, 6, 8, 1))  # no mistake here shows with more ranks only
    whole = find_lesson(name)
    (exercise,) = (one for one in whole.exercises if one.function == function)
    lesson = replace(whole, predictions=(), exercises=(exercise,))  # the others are right: no need to prove them again
    text = whole.read("solution.py")
    if "code" in mistake:
        text += f"\n\n{mistake['code']}"
    else:
        assert mistake["right"] in text
        text = text.replace(mistake["right"], mistake["wrong"])
    found = judged(lesson, text, tmp_path)
    assert found["error"] is None
    (judgement,) = found["exercises"]
    assert not judgement["passed"]
    assert judgement["kind"] == mistake["kind"], judgement
    assert mistake["says"] in judgement["message"], judgement["message"]
    hints = ladder(lesson, exercise, judgement["kind"], judgement["message"])
    assert mistake["hint"] in hints[0], (judgement["message"], hints[0])
    assert hints[-1].startswith("One way to write it:") and f"def {function}(" in hints[-1]


def test_fifty_are_collected() -> None:
    assert len(COLLECTED) >= 50


def test_every_hint_is_for_a_mistake_that_can_be_made() -> None:
    """A kind that is spelled differently in the judge would never be hinted at."""
    room = Path(checks.__file__).parent
    judges = "".join(
        path.read_text(encoding="utf-8") for path in [*room.glob("*.py"), *room.glob("lessons/*/checks.py")]
    )
    for lesson in lessons():
        for exercise in lesson.exercises:
            own = {goal.measure for goal in exercise.goals}
            for hint in exercise.hints:
                for kind in hint.kinds:
                    assert kind in own or f'"{kind}"' in judges, f"{exercise.function}: {kind}"


def test_every_exercise_has_plausible_mistakes() -> None:
    tried = {(name, function) for name, function, _ in COLLECTED + MUTATIONS}
    assert tried == {(lesson.name, exercise.function) for lesson in lessons() for exercise in lesson.exercises}


def _ring(body: str, folder: Path) -> dict[str, str]:
    text = f"from allfold import copy, reduce\n\n\ndef ring(ranks):\n{body}"
    (found,) = judged(replace(find_lesson("ring"), predictions=()), text, folder)["exercises"]
    return found


def test_what_is_wrong_for_some_number_of_ranks_is_not_called_right(tmp_path: Path) -> None:
    """The driver misses the goals with 3 ranks, but only where it is right may it be told so."""
    driver = "    yield [reduce(0, r, 0) for r in range(1, min(ranks, 6))]\n"
    driver += "    yield [copy(0, 0, r) for r in range(1, ranks)]\n"
    found = _ring(driver, tmp_path)
    assert "right" not in found["message"] and "with 7 ranks, rank 6 loses its own part" in found["message"]
    found = _ring(driver.replace("min(ranks, 6)", "ranks"), tmp_path)
    assert found["message"].startswith("the result is right, but with 3 ranks, there are 2 S through its busiest port")


@pytest.mark.parametrize(
    ("wrong_from", "shown"),
    [("1", 3), ("4", 4), ("9", 9)],
)
def test_a_mistake_is_shown_with_the_number_of_ranks_that_shows_it_best(
    wrong_from: str, shown: int, tmp_path: Path
) -> None:
    found = _ring(
        f"    yield [reduce(0, r, 0) for r in range(1, ranks)]\n    if ranks < {wrong_from}:\n"
        "        yield [copy(0, 0, r) for r in range(1, ranks)]\n",
        tmp_path,
    )
    assert found["ranks"] == shown and f"with {shown} ranks, rank 1 never gets" in found["message"]
    assert ("If the ranks begin with 1, 10 and 100, rank 1 ends with 10; the sum is 111" in found["message"]) == (
        shown == 3
    )
