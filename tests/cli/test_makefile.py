"""The Makefile: every target says what it does, and a step that fails shows why."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_help_lists_every_target_with_a_line() -> None:
    shown = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    listed = {line.split()[1] for line in shown.splitlines() if line.startswith("make ") and len(line.split()) > 3}
    assert phony() - listed == {"chromium", "firefox"}  # others use them


# They make, install or measure something, are part of another target, or need a GPU.
NOT_CHECKS = {
    "bench-peers",
    "build-times",
    "chromium",
    "clean",
    "demo",
    "firefox",
    "format",
    "gallery",
    "help",
    "reference",
    "setup",
    "site",
    "web",
}
PARTS = {"check-all", "lint", "test-notebook", "faults-gpu"}


def test_check_all_runs_every_target_that_checks_something() -> None:
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        check_all = importlib.import_module("check_all")
    finally:
        sys.path.pop(0)
    listed = {target.split()[0] for target in check_all.TARGETS}
    assert listed == phony() - NOT_CHECKS - PARTS


def test_check_all_ends_with_a_table_and_fails_if_one_target_did() -> None:
    command = [sys.executable, "packaging/check_all.py", "help", "no-such-target", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    *_, first, second, third, total = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split()[:2] for line in (first, second, third)] == [
        ["help", "passed"],
        ["no-such-target", "FAILED"],
        ["help", "passed"],
    ]
    assert total.startswith("2 passed, 1 failed, ")
    assert "No rule to make target" in done.stderr


def phony() -> set[str]:
    found = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return set(found[1].split())


def stage(command: str) -> subprocess.CompletedProcess[str]:
    """A step as the Makefile runs it."""
    words = [sys.executable, "packaging/stage.py", "Step of a test", "--takes", "seconds", "--help-with", "install g++"]
    return subprocess.run([*words, "--", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_step_is_announced_and_keeps_its_output_in_a_log() -> None:
    came = stage("echo noise >&2")
    assert came.returncode == 0
    assert came.stdout == "Step of a test (seconds) …\n"
    assert came.stderr == ""


def test_failed_step_shows_the_last_lines_its_log_and_help() -> None:
    came = stage("seq 100; echo error: no such header >&2; exit 3")
    assert came.returncode == 3
    lines = came.stderr.splitlines()
    assert lines[0].startswith("Step of a test: failed after 0:0")
    assert lines[1] == "  | 72"
    assert lines[30] == "  | error: no such header"
    assert lines[31:] == ["the whole output (101 lines) is in build/log/step-of-a-test.log", "install g++"]
    assert (ROOT / "build/log/step-of-a-test.log").read_text().splitlines()[0] == "1"


def test_failed_step_shows_the_compiler_and_not_the_advice_of_pip() -> None:
    advice = "  error: subprocess-exited-with-error\n\n  exit code: 1\n  See above for output.\n\nhint: See above\n" * 9
    came = stage(f"echo error: no such header; printf '\n{advice}'; exit 1".replace("\n", "\\n"))
    assert came.stderr.splitlines()[1] == "  | error: no such header"
    assert came.stderr.splitlines()[2].startswith("the whole output")
