"""Coverage of lines that run in ranks only. `make test-frameworks` runs this with coverage and pytest-cov installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("coverage")

LIBRARY = """\
def of(rank):
    if rank == 0:
        return "first"
    return "other"


def of_nobody():
    return None
"""
TESTS = """\
import library
import pytest


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", [1, 2])
def test_forked(rank, number):
    assert library.of(rank) == ("other" if rank else "first")


@pytest.mark.ranks(2, keep=True)
def test_kept(rank):
    if rank == 1:
        assert library.of(rank) == "other"


@pytest.mark.ranks(2)
def test_killed(rank, ranks):
    ranks.kill(1)
"""


@pytest.mark.parametrize("way", ["coverage", "pytest-cov", "xdist"])
def test_lines_of_ranks_are_measured(way: str, tmp_path: Path) -> None:
    if way != "coverage":
        pytest.importorskip("pytest_cov")
    if way == "xdist":
        pytest.importorskip("xdist")
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "test_library.py").write_text(TESTS)
    python = [sys.executable, "-m"]
    measured = {
        "coverage": [*python, "coverage", "run", "--branch", "--source=.", "-m", "pytest", "-p", "no:cacheprovider"],
        "pytest-cov": [*python, "pytest", "-p", "no:cacheprovider", "--cov=.", "--cov-branch"],
        "xdist": [*python, "pytest", "-p", "no:cacheprovider", "--cov=.", "--cov-branch", "-n", "2"],
    }[way]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    for words in (measured, [*python, "coverage", "json", "-o", "report.json"]):
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    files = json.loads((tmp_path / "report.json").read_text())["files"]
    assert files["library.py"]["missing_lines"] == [8]
    assert files["library.py"]["missing_branches"] == []
    assert files["test_library.py"]["missing_lines"] == []
