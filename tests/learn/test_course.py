"""`allfold learn`, as a learner uses it: the folder, the progress, hints, watching."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from solved import solved_file

from allfold.cli import main
from allfold.learn.course import Course
from allfold.learn.judge import Judged, Verdict
from allfold.learn.lesson import find_lesson, lessons

Call = Callable[..., tuple[int, str, str]]
FIRST = find_lesson("four_numbers")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(("learn", *words))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_learner_takes_a_lesson(call: Call, tmp_path: Path) -> None:
    status, out, _ = call()
    assert status == 0 and out.count("not started") == len(lessons()) and "Next: allfold learn start 1" in out
    assert not list(tmp_path.iterdir())  # listing writes nothing

    status, out, _ = call("start")
    assert status == 0 and "allfold-learn/01_four_numbers/four_numbers.py is ready." in out and "{{" not in out
    file = tmp_path / "allfold-learn/01_four_numbers/four_numbers.py"
    text = (file.parent / "lesson.md").read_text()
    assert "![all_reduce by naive, 3 ranks, step by step](picture_1.svg)" in text
    assert (file.parent / "picture_1.svg").read_text().startswith("<svg")

    status, out, _ = call("check")
    assert status == 1 and "with 3 ranks, rank 0 never gets the part of rank 2" in out
    assert "3 predictions still to be made" in out
    status, out, _ = call("hint")
    assert status == 0 and "tell_everyone, hint 1 of 4 (" in out and "one move for every pair" in out
    assert "ask_one, hint 1 of 4" in (asked := call("hint", "ask_one")[1]) and "nothing is ever sent" in asked
    assert "hint 2 of 4" in call("hint", "1", "tell_everyone")[1]
    file.write_text(file.read_text().replace("source=1, destination=0", "source=0, destination=0"))
    out = call("hint")[1]  # of what the file says now, although it was not checked
    assert "rank 0 sends to itself" in out and "A rank's own number is already there" in out
    assert call("solution")[:2] == (0, FIRST.read("solution.py"))

    file.write_text(solved_file(FIRST).replace('"everyone_tells_everyone": 240.0', '"everyone_tells_everyone": 256'))
    status, out, _ = call("check", "1", "--no-run")
    assert status == 0 and "You said 256; it is 240." in out and "30, as you said." in out
    assert "proved for 1 to 17 ranks" in out and "What you have seen" in out
    assert "What you built:\n\nall_reduce by ask_one: 4 ranks, 1 chunk, 2 steps, 6 messages\n" in out
    assert "Lesson 1 is passed. Next: allfold learn start 2" in out
    assert (file.parent / "after.md").is_file()

    file.write_text(solved_file(FIRST))  # too late: the first number counts
    document = json.loads(call("check", "1", "--json", "--no-run")[1])
    assert document["passed"] and [one["right"] for one in document["predictions"]] == [True] * 3
    assert "passed, 2 of 3 predicted" in call()[1]
    found = json.loads(call("--json")[1])["lessons"][0]
    assert found["passed"] and found["predicted"]["everyone_tells_everyone"] is False
    assert call("words")[1].count("\n") == 1 + len(FIRST.words)


def test_hints_go_from_a_nudge_to_the_code_and_begin_again(tmp_path: Path) -> None:
    wrong = Judged("tell_everyone", False, "rank 0 never gets the part of rank 2", 7, "missing")
    course = Course(tmp_path, {})
    verdict = Verdict(tmp_path / "four_numbers.py", None, None, (), (wrong,), "")
    course.record(FIRST, verdict)
    said = [course.next_hint(FIRST, "tell_everyone") for _ in range(5)]
    assert [number for *_, number, _ in said] == [1, 2, 3, 4, 1] and said[0] == said[4]
    assert "one move for every pair" in said[0][1] and "def tell_everyone(ranks):" in said[3][1]
    course.record(FIRST, replace(verdict, exercises=(replace(wrong, kind="self_send"),)))  # another mistake
    assert "own number is already there" in course.next_hint(FIRST)[1]


def test_the_example_of_the_help_is_real(call: Call) -> None:
    example = call("--help")[1].split("  $ allfold learn\n")[1].split("  …\n")[0]
    real = call()[1].splitlines()
    for line in example.splitlines():
        assert any(one.startswith(line[2:].rstrip("… ")) for one in real), line


def test_the_folder_is_found_from_inside(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("--folder", "course", "start", "1")
    call("start", "2", "--folder", "course")
    assert sorted(path.name for path in (tmp_path / "course").iterdir()) == [
        "01_four_numbers",
        "02_ring",
        "progress.json",
    ]
    monkeypatch.chdir(tmp_path / "course/01_four_numbers")
    assert "four_numbers.py was there already, and is unchanged." in call("start")[1]
    assert json.loads(call("--json")[1])["folder"] == str(tmp_path / "course")


def test_reset_keeps_what_the_learner_wrote(call: Call, tmp_path: Path) -> None:
    call("start")
    file = tmp_path / "allfold-learn/01_four_numbers/four_numbers.py"
    for number in (1, 2):
        file.write_text(f"mine = {number}\n")
        assert call("reset")[1].endswith(f"Yours is four_numbers.before_reset_{number}.py.\n")
        assert (file.parent / f"four_numbers.before_reset_{number}.py").read_text() == f"mine = {number}\n"
        assert file.read_text() == FIRST.first_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check"], "there is no allfold-learn/01_four_numbers/four_numbers.py; allfold learn start 1 writes it"),
        (["start", "99"], "there is no lesson 99; they are numbered from 1 to"),
        (["start", "rinng"], "did you mean 'ring'?"),
        (["hint", "1", "ring"], "lesson 1 has no function 'ring'; it has tell_everyone, ask_one"),
        (["strat"], "invalid choice"),
        (["start", "--folder", "file"], "file is not a folder"),
        (["start", "--folder", "broken"], "broken/progress.json is not the progress of a course"),
        (["start", "--folder", "other"], "is not the progress of a course (ValueError: its format is 'x'"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], says: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, text in {"broken": '{"format": "allfold-learn", "ver', "other": '{"format": "x", "version": 1}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.json").write_text(text)
    status, out, err = call(*words)
    assert (status, out) == (2, "") and err.count("\n") == 1 and says in err


def test_watching_checks_again_and_ends_cleanly(tmp_path: Path) -> None:
    """A process of its own: it sees that the file was saved, and Ctrl-C ends it with a sentence."""
    command = [sys.executable, "-m", "allfold", "learn"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    options = {"cwd": tmp_path, "env": environment, "text": True, "encoding": "utf-8"}
    assert main(("learn", "--folder", str(tmp_path / "allfold-learn"), "start", "1")) == 0
    file = tmp_path / "allfold-learn/01_four_numbers/four_numbers.py"
    watch = subprocess.Popen(
        [*command, "check", "--watch"],
        **options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert watch.stdout is not None and watch.stderr is not None
    try:
        assert any("Watching" in line for line in watch.stdout)
        file.write_text("def tell_everyone(ranks:\n")
        assert any("four_numbers.py:1: this is not Python" in line for line in watch.stdout)
        assert any("Watching" in line for line in watch.stdout)
        time.sleep(0.1)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 1
        assert "Stopped watching. Your progress is saved." in watch.stdout.read()
        assert watch.stderr.read() == ""
    finally:
        watch.kill()
        watch.wait()
