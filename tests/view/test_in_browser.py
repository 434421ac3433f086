"""The studio's answers without a server or processes, as they are given inside a browser. `make test-site-python` asks them
of Python in WebAssembly."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import allfold
from allfold.learn import worker
from allfold.learn.checks import checks_of
from allfold.learn.lesson import find_lesson, lessons
from allfold.registry import REGISTRY
from allfold.studio.answers import Answers
from allfold.studio.in_browser import Page
from allfold.view import TOPOLOGY

ROTATE = """\
from allfold import reduce

def rotate(ranks):
    for step in range(1, ranks):
        yield [reduce(chunk=0, source=(rank + step) % ranks, destination=rank) for rank in range(ranks)]
"""
CASE = {"collective": "all_reduce", "algorithm": None, "ranks": 4, "root": None, "topology": TOPOLOGY, "size": 2**20}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def asked(page: Page, path: str, body: dict[str, Any] | None = None, files: dict[str, str] | None = None) -> Any:
    return json.loads(page.answer(json.dumps({"path": path, "body": body, "files": files})))


def test_an_edit_is_answered_as_by_the_studio(page: Page) -> None:
    code = ROTATE.replace("step) % ranks", "1) % ranks")
    body = {**CASE, "code": code, "file": "rotate.py"}
    found = asked(page, "/api/edit", body)["answer"]
    studio = Answers()
    try:
        assert found == json.loads(studio.edit(body))
    finally:
        studio.workers.close()
    proof = found["proof"]
    assert (proof["ok"], proof["rank"], proof["chunk"], proof["site"]) == (False, 0, 0, "rotate.py:5")


def test_an_entry_and_the_table_are_those_of_the_studio(page: Page) -> None:
    found = asked(page, f"/api/entry?collective=broadcast&algorithm=tree&ranks=5&root=2&topology={TOPOLOGY}&size=1024")
    assert found["answer"] == json.loads(Answers().entry("broadcast", "tree", 5, 2, TOPOLOGY, 1024))
    found = asked(page, "/api/table?collective=scan&topology=laptop&ranks=2,3")
    assert found["answer"] == json.loads(Answers().table("scan", "laptop", [2, 3]))


def test_an_export_is_that_of_the_studio(page: Page) -> None:
    body = {"schedule": allfold.schedule("all_reduce", "two_level", 8).to_json()}
    assert asked(page, "/api/msccl", body)["answer"] == json.loads(Answers().msccl(body))


def test_verdicts_name_the_first_wrong_root_and_where(page: Page) -> None:
    code = (
        "from allfold import copy\n\ndef flat(ranks, root):\n"
        "    yield [copy(chunk=0, source=0, destination=one) for one in range(1, ranks)]\n"
    )
    case = {**CASE, "collective": "broadcast", "root": 0, "code": code, "file": "flat.py", "many": [1, 2, 3]}
    one, two, three = asked(page, "/api/prove", case)["answer"]["verdicts"]
    assert one["ok"] and not two["ok"] and not three["ok"]
    assert (three["root"], three["site"]) == (1, "flat.py:4")
    with pytest.raises(allfold.ScheduleError) as error:
        REGISTRY.all()
        exec(compile(code, "flat.py", "exec"), names := {"__name__": "flat"})
        allfold.verify(allfold.schedule("broadcast", names["flat"], 3, 1))
    assert three["message"] == f"broadcast {error.value}"


@pytest.mark.parametrize("many", [[], [0], [18], [True], "1", list(range(1, 18)) * 2, None])
def test_numbers_of_ranks_that_are_not_proved(page: Page, many: object) -> None:
    found = asked(page, "/api/prove", {**CASE, "code": ROTATE, "many": many})
    assert "numbers of ranks" in found["error"]["message"] or "1 to 17" in found["error"]["message"]


def test_what_code_changes_is_gone_for_the_next_question(page: Page) -> None:
    """Here one interpreter answers all questions; the studio starts a process for each."""
    before = asked(page, "/api/edit", {**CASE, "code": ROTATE})
    known = [(one.collective, one.name) for one in REGISTRY.all()]
    rude = (
        "import builtins, sys\nfrom allfold import algorithm\n"
        "builtins.input = None\nbuiltins.extra = 1\nsys.modules['json'] = None\n"
        "@algorithm('all_reduce', 'ring')\ndef ring(ranks):\n    yield []\n"
    )
    found = asked(page, "/api/edit", {**CASE, "code": f"{rude}raise ValueError('no')\n"})
    assert found["error"] == {"message": "the code raised ValueError: no", "line": 9}
    asked(page, "/api/edit", {**CASE, "code": rude})
    assert not hasattr(builtins, "extra") and builtins.input is not None and sys.modules["json"] is json
    assert [(one.collective, one.name) for one in REGISTRY.all()] == known
    assert asked(page, "/api/edit", {**CASE, "code": ROTATE}) == before


def test_what_is_asked_amiss_is_refused_with_a_sentence(page: Page) -> None:
    assert "nothing at /api/none" in asked(page, "/api/none")["error"]["message"]
    assert "nothing at /api/entry" in asked(page, "/api/entry", {})["error"]["message"]
    assert (
        "no topology"
        in asked(page, "/api/edit", {**CASE, "code": ROTATE, "topology": "/etc/passwd"})["error"]["message"]
    )


def test_the_page_says_when_the_readers_code_has_run(page: Page) -> None:
    told: list[bool] = []
    page.answer(json.dumps({"path": "/api/edit", "body": {**CASE, "code": ROTATE}}), lambda: told.append(True))
    assert told == [True]
    page.answer(json.dumps({"path": "/api/edit", "body": {**CASE, "code": "1 +"}}), lambda: told.append(True))
    assert told == [True]


def test_a_lesson_is_judged_and_its_files_come_back(page: Page) -> None:
    lesson = find_lesson("four_numbers")
    started = asked(page, "/api/learn", {"lesson": lesson.name, "do": "start"}, {})
    file = f"{lesson.label}/{lesson.name}.py"
    assert started["files"][file] == lesson.first_file()
    files = {**started["files"], file: f"print('hello')\n{lesson.read('solution.py')}"}
    checked = asked(page, "/api/learn", {"lesson": lesson.name, "do": "check"}, files)
    verdict = checked["answer"]["verdict"]
    assert [one["passed"] for one in verdict["exercises"]] == [True, True] and verdict["printed"] == "hello"
    assert json.loads(checked["files"]["progress.json"])["lessons"][lesson.name]["solved"] == [
        "tell_everyone",
        "ask_one",
    ]


def test_exercises_between_ranks_say_what_to_install(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HAS_THREADS", False)
    lesson = find_lesson("hosts")
    files = {f"{lesson.label}/{lesson.name}.py": lesson.read("solution.py")}
    found = asked(page, "/api/learn", {"lesson": lesson.name, "do": "check"}, files)["answer"]["verdict"]["exercises"]
    assert [one["passed"] for one in found] == [True, False]
    assert "pip install allfold" in found[1]["message"] and found[1]["kind"] == worker.NEEDS_RANKS


def test_exercises_that_run_between_ranks_are_marked() -> None:
    for lesson in lessons():
        text = lesson.read("checks.py") if checks_of(lesson) else ""
        for one in lesson.exercises:
            body = text.partition(f"def check_{one.function}(")[2].partition("\ndef ")[0]
            assert one.between_ranks == ("on_ranks(" in body or "on_processes(" in body), one.function
