"""The Makefile: every target says what it does, and a step that fails shows why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_help_lists_every_target_with_a_line() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    listed = {line.split()[1] for line in shown.splitlines() if line.startswith("make ") and len(line.split()) > 3}
    assert set(phony[1].split()) - listed == {"chromium"}  # others use it


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
