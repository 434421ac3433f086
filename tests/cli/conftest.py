"""Fixtures for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import MINE, Call

from allfold.cli import choose, main
from allfold.registry import REGISTRY


@pytest.fixture
def forget_what_files_registered() -> Iterator[None]:
    """A command ends with its process; here, what its file registers must not show up in later tests."""
    with REGISTRY.scope():
        yield
    choose._load_module.cache_clear()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], forget_what_files_registered: None) -> Call:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)
