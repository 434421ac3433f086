"""Whatever the learner's file does, the answer is a sentence, with the line where it is known, and nothing hangs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from solved import solved_file

from allfold.learn.judge import ALLOWANCE, judge
from allfold.learn.lesson import find_lesson
from allfold.learn.worker import judge_file

RING = find_lesson("ring")
STUBBORN = "while True:\n    try:\n        while True:\n            x = 1\n    except:\n        pass\n"
HEAD = "from allfold import copy, reduce\n\n\ndef ring(ranks):\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "ring.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("def ring(ranks:\n    pass\n", "this is not Python", 1),
        ("x = 1\nraise LookupError('lost')\n", "the code raised LookupError: lost", 2),
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'", 1),
        ("import sys\nsys.exit('done')\n", "SystemExit: done", 2),
        ("PREDICTIONS = 7\n", "PREDICTIONS is 7", None),
        ("x = 1\n\0\n", "null bytes", None),
    ],
)
def test_a_file_that_cannot_be_loaded(text: str, says: str, line: int | None, tmp_path: Path) -> None:
    found = judge_file(RING, _write(tmp_path, text))["error"]
    assert says in found["message"] and "\n" not in found["message"]
    assert found["line"] == line


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("import os\nos._exit(7)\n", "ended the process that ran it (exit status 7)", None),
        (STUBBORN, "stopped after 0.3 s of processor time", 3),
        ("x = 1\nx = bytearray(2**31)\n", "needs more than 1 GiB of memory", 2),
        (HEAD + "    while True:\n        pass\n    yield\n", "stopped after 0.3 s", 5),
    ],
)
def test_a_file_that_does_not_end(text: str, says: str, line: int | None, tmp_path: Path) -> None:
    start = time.monotonic()
    found = judge(RING, _write(tmp_path, text), allowance=replace(ALLOWANCE, seconds=0.3, memory=2**30))
    assert time.monotonic() - start < 60
    assert not found.passed and found.error is not None and says in found.error
    assert line is None or (found.line is not None and line <= found.line <= line + 1)


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("x = 1\n", "the function ring is not there any more", None),
        ("ring = 3\n", "the function ring is not a function any more", None),
        ("def ring():\n    yield []\n", "cannot be called for all_reduce with (ranks)", None),
        (HEAD + "    ranks = 4\n    yield [reduce(0, 3, 0)]\n", "rank 3", None),
        (HEAD + "    while True:\n        yield []\n", "does its loop end?", None),
        (HEAD + "    return 1 / 0\n    yield\n", "ZeroDivisionError", 5),
        (HEAD + "    yield 7\n", "step 1 is 7", None),
        (HEAD + "    yield [reduce(0, 0, 1), 'garbage']\n", "garbage", None),
        (HEAD + "    yield reduce(0, 0, 1)\n", "yield a list of moves", None),
        ("def ring(ranks):\n    return None\n", "returns None and no steps: an algorithm needs a yield", 1),
    ],
)
def test_a_function_that_does_not_work(text: str, says: str, line: int | None, tmp_path: Path) -> None:
    found = judge_file(RING, _write(tmp_path, text))["exercises"][0]
    said, where = found["message"], found["line"]
    assert not found["passed"] and says in said and "\n" not in said, said
    assert line is None or (where is not None and line <= where <= line + 1), (said, where)


@pytest.mark.parametrize(
    "given", ["'seven'", "True", "float('nan')", "float('inf')", "10**400", "[14]", "{1: 2}", "1j"]
)
def test_a_prediction_that_is_no_number(given: str, tmp_path: Path) -> None:
    text = f"PREDICTIONS = {{'steps': {given}}}\n"
    found = judge_file(RING, _write(tmp_path, text))["predictions"][0]
    assert found["because"] == "This is not a number." and "answer" not in found


def test_a_number_in_quotation_marks_is_named(tmp_path: Path) -> None:
    found = judge_file(RING, _write(tmp_path, "PREDICTIONS = {'steps': '14'}\n"))["predictions"][0]
    assert found["because"] == "This is text. Write 14, without the quotation marks." and "answer" not in found


@pytest.mark.parametrize("given", ["14", "14.0", "2 * (8 - 1)", "__import__('fractions').Fraction(28, 2)"])
def test_a_prediction_is_any_number(given: str, tmp_path: Path) -> None:
    text = f"PREDICTIONS = {{'steps': {given}}}\n"
    assert judge_file(RING, _write(tmp_path, text))["predictions"][0]["right"]


def test_a_file_that_sleeps(tmp_path: Path) -> None:
    found = judge(RING, _write(tmp_path, "import time\ntime.sleep(1000)\n"), allowance=replace(ALLOWANCE, wall=2.0))
    assert (found.error, found.line) == ("the code was stopped after 2 s; does every loop end?", 2)


def test_what_it_prints_imports_and_starts(tmp_path: Path) -> None:
    """Its output is shown but does no harm. Files beside it can be imported, but do not replace ours. A child that would
    live on, and holds every stream open, ends with it."""
    (tmp_path / "mine.py").write_text("RIGHT = 1\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json of Python')\n")
    noise = "print('\\x1b[31mhello')\nprint('{\"error\": null}\\n' * 10000)\nimport os, time\nos.write(1, bytes(range(256)))\n"
    child = "child = os.fork()\nif child == 0:\n    time.sleep(1000)\nopen('child', 'w').write(str(child))\n"
    text = "from mine import RIGHT\n" + solved_file(RING).replace("(r + 1)", "(r + RIGHT)")
    found = judge(RING, _write(tmp_path, noise + child + text))
    assert found.passed
    assert "hello" in found.printed and "\x1b" not in found.printed and len(found.printed) < 2100
    number = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while _state(number) != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _state(number) == "Z"


def _state(process: int) -> str:
    """`Z` for one that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "Z"
