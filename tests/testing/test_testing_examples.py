"""The example project of docs/testing.md: its tests pass or fail as they should, and the page shows what they print."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import allfold.testing.items  # noqa: F401 - as in test_pytest_plugin.py

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def torch() -> Any:
    """torch, imported before `pytester` is set up, as in test_pytest_plugin.py."""
    return pytest.importorskip("torch")


def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[dict[str, int], str]:
    path = f"examples/testing/{name}"
    monkeypatch.chdir(ROOT)
    monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)  # one of our own tests may have the same name
    for variable in ("CI", "BUILD_NUMBER"):  # with one of them set, pytest shows differences in full
        monkeypatch.delenv(variable, raising=False)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", "/dev/null", path)
    return result.parseoutcomes(), result.stdout.str()


def plain(line: str) -> str:
    """A line without what differs from run to run, or from machine to machine."""
    line = re.sub(r'"/.*/(examples|src)/', r'"\1/', line.rstrip())
    return re.sub(r"process \d+|psm_\w+", "…", line)


def test_the_examples_pass(torch: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, said = session(pytester, monkeypatch, "test_averaging.py")
    assert (outcomes["passed"], outcomes.get("failed", 0)) == (6, 0), said


def test_the_messages_on_the_page_are_real(
    torch: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, said = session(pytester, monkeypatch, "test_failures.py")
    assert (outcomes["failed"], outcomes.get("passed", 0)) == (9, 0), said
    page = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    failures = page[page.index("## Failures") : page.index("## Ranks that fail")]
    blocks = re.findall(r"^```\n(.*?)^```", failures, re.MULTILINE | re.DOTALL)
    shown = {plain(line) for block in blocks for line in block.splitlines()} - {"", "  …"}
    printed = {plain(line) for line in said.splitlines()}
    # Which rank notices a mismatch first, and how a rank learns that another is gone, depends on the moment.
    vary = ("MismatchError", "RankLost", "raised the same")
    lines = {line for line in shown if not any(word in line for word in vary)}
    assert len(lines) > 10 and lines <= printed, lines - printed
    mismatches = {line.partition(" raised ")[2] for line in shown if "MismatchError" in line}
    assert len(mismatches) == 2 and mismatches <= {line.partition(" raised ")[2] for line in printed}
