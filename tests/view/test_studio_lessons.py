"""The lessons in the studio: one folder and one judge, shared with the terminal."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

import allfold as af
from allfold.cli import main
from allfold.errors import UsageError
from allfold.learn.course import open_course
from allfold.learn.lesson import find_lesson, lessons
from allfold.learn.predict import numbers_in, with_number
from allfold.price.cost.cost import cost
from allfold.studio.lessons import Lessons, content
from allfold.view.wins import flat_network

FIRST = find_lesson("four_numbers")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lessons:
    monkeypatch.chdir(tmp_path)
    return Lessons()


def act(course: Lessons, what: str, **given: object) -> dict[str, Any]:
    return course.act({"lesson": FIRST.name, "do": what, **given})


def said(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """What a check says of the exercises, without pictures."""
    return [{key: one[key] for key in one.keys() - {"built", "raced", "race"}} for one in verdict["exercises"]]


@pytest.mark.parametrize("name", [one.name for one in lessons()])
def test_every_lesson_can_be_shown(course: Lessons, name: str) -> None:
    found = course.lesson(name)
    kinds = {block["kind"] for block in found["blocks"]}
    assert "prose" in kinds <= {"prose", "code", "table", "figure"}
    html = "".join(block["html"] for block in found["blocks"] if block["kind"] == "prose")
    assert "<h2>" in html and "<h1>" not in html and "{{" not in html and "```" not in html
    assert "answer" not in json.dumps(found["predictions"])  # nothing is given away
    assert all(block["entry"]["proof"]["ok"] for block in found["blocks"] if block["kind"] == "figure")
    assert [one["function"] for one in found["exercises"]] == [one.function for one in find_lesson(name).exercises]


def test_reading_writes_nothing(course: Lessons, tmp_path: Path) -> None:
    assert [one["started"] for one in course.list()["lessons"]] == [False] * len(lessons())
    work = course.work(FIRST.name)
    assert not work["started"] and work["after"] is None and "text" not in work
    assert course.work(FIRST.name, work["stamp"]) == {"same": True}
    assert not list(tmp_path.iterdir())


def test_a_prediction_is_written_into_the_file_and_judged(course: Lessons) -> None:
    act(course, "start")
    work = act(course, "predict", name="one_does_the_work", number=30)["work"]
    assert '"one_does_the_work": 30,' in work["text"] and '"arriving_at_rank_0": None,' in work["text"]
    judged = {one["name"]: one for one in work["predictions"]}
    assert judged["one_does_the_work"]["right"] and judged["one_does_the_work"]["answer"] == "30"
    assert "answer" not in judged["arriving_at_rank_0"]
    act(course, "predict", name="arriving_at_rank_0", number=1.5)
    work = act(course, "predict", name="arriving_at_rank_0", number=15)["work"]
    assert work["progress"]["predicted"] == {"one_does_the_work": True, "arriving_at_rank_0": False}  # the first counts


def test_a_text_is_only_saved_over_the_one_it_was_made_from(course: Lessons) -> None:
    work = act(course, "start")["work"]
    file = open_course(course.folder).file(FIRST)
    saved = act(course, "save", text="mine = 1\n", version=work["version"])["work"]
    assert file.read_text() == "mine = 1\n"
    file.write_text("theirs = 1\n")
    answer = act(course, "save", text="mine = 2\n", version=saved["version"])
    assert answer["conflict"] and answer["work"]["text"] == file.read_text() == "theirs = 1\n"
    assert "conflict" not in act(course, "save", text="mine = 2\n", version=answer["work"]["version"])


def test_a_check_is_that_of_the_terminal(course: Lessons, capsys: pytest.CaptureFixture[str]) -> None:
    act(course, "start")
    assert "Check first" in act(course, "hint")["says"]
    answer = act(course, "check")
    assert main(("learn", "check", "1", "--json")) == 1
    told = json.loads(capsys.readouterr().out)
    assert said(answer["verdict"]) == said(told) and not answer["verdict"]["passed"]
    assert answer["verdict"]["exercises"][0]["ranks"] == 3
    assert main(("learn", "hint", "1", "--json")) == 0
    hint = json.loads(capsys.readouterr().out)
    assert course.work(FIRST.name)["hints"] == [{"function": hint["function"], "say": hint["hint"]}]
    assert act(course, "hint")["says"] is None
    assert len(course.work(FIRST.name)["hints"]) == 2


def test_two_programs_keep_each_others_progress(course: Lessons) -> None:
    """Both hold the course open; neither writes back what it read long ago."""
    one, other = open_course(course.folder), open_course(course.folder)
    one.start(FIRST)
    other.start(find_lesson("ring"))
    one.record_prediction(FIRST, "arriving_at_rank_0", True)
    other.record_prediction(FIRST, "arriving_at_rank_0", False)
    known = open_course(course.folder).progress
    assert set(known) == {"four_numbers", "ring"} and known["four_numbers"].predicted == {"arriving_at_rank_0": True}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"lesson": "four_numbers", "do": "dance"}, "something to do with it: start, save"),
        ({"lesson": "four_numbers", "do": ["start"]}, "something to do with it"),
        ({"lesson": 1, "do": "start"}, "expected a lesson"),
        ({"lesson": "../../etc", "do": "start"}, "there is no lesson"),
        ({"lesson": "four_numbers", "do": "save", "text": 1}, "text must be text"),
        ({"lesson": "four_numbers", "do": "save", "text": "x" * 200_001}, "at most 200,000 characters"),
        ({"lesson": "four_numbers", "do": "predict", "name": "no", "number": 1}, "expected a prediction"),
        ({"lesson": "four_numbers", "do": "predict", "name": "arriving_at_rank_0", "number": True}, "and a number"),
        ({"lesson": "four_numbers", "do": "check"}, "four_numbers.py no longer exists; start the lesson again"),
    ],
)
def test_what_cannot_be_is_a_sentence(course: Lessons, request_: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        course.act(request_)


# Where a prediction stands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number", "expected"),
    [
        ('PREDICTIONS = {"a": None}\n', 14, 'PREDICTIONS = {"a": 14}\n'),
        ('x = "ä→"\nPREDICTIONS = {"ä": 1, "a": 2 *\n 3}  # ö\n', 1.75, 'x = "ä→"\nPREDICTIONS = {"ä": 1, "a": 1.75}  # ö\n'),
        ('PREDICTIONS = {\n    "a": 7,\n}\n', -3.0, 'PREDICTIONS = {\n    "a": -3,\n}\n'),
    ],
)  # fmt: skip
def test_a_number_is_put_in_its_place(text: str, number: float, expected: str) -> None:
    assert with_number(text, "a", number) == expected
    assert numbers_in(expected)["a"] == number


@pytest.mark.parametrize("text", ["PREDICTIONS = 1\n", "PREDICTIONS = {\n", "", 'PREDICTIONS = {"b": None}\n', "\0"])
def test_a_file_without_the_prediction_is_refused(text: str) -> None:
    assert "a" not in numbers_in(text)
    with pytest.raises(UsageError, match="no longer has 'a' in PREDICTIONS"):
        with_number(text, "a", 1)


def test_what_is_no_number_is_not_run() -> None:
    assert numbers_in('PREDICTIONS = {"a": print("run"), "b": 2}') == {"a": None, "b": 2}


def test_the_picture_that_a_reader_changes_has_the_schedules_and_prices_of_allfold() -> None:
    for lesson in lessons():
        found = content(lesson.name)["explore"]
        assert found["at"] in found["ranks"] and found["say"]
        for name in found["algorithms"]:
            made = af.schedule(found["collective"], name, found["at"])
            key = f"{name}/{found['at']}"
            entry, flat = found["entries"][key], found["flats"][key]
            assert entry["schedule"] == made.to_json() and entry["proof"]["ok"]
            starts = sum(times * many for times, many, *_ in flat["steps"])
            bytes_sent = sum(times * sent for times, _, sent, *_ in flat["steps"])
            latency, bandwidth, size = found["latency"], found["bandwidth"], found["size"]
            # The network of the lessons: a message of B bytes takes α + B/bandwidth, and adding takes no time.
            network = flat_network(found["at"], latency, bandwidth, reduction=inf)
            priced = cost(made, network, size, segments=1).time
            assert starts * latency + bytes_sent * size / bandwidth == pytest.approx(priced, rel=1e-6), key
