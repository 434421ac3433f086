"""The fabric over gloo: real processes that meet in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import fabric_checks
import pytest
from fabric_checks import CHECKS, RANKS, VICTIM, Check, end, passed, start, those_who_are_left_go_on

pytest.importorskip("torch")


def printed_by(folder: Path, *names: str) -> str:
    file = folder / "store"
    words = [sys.executable, fabric_checks.__file__, "gloo", *names]
    return end([start([*words, f"@{rank}", str(RANKS), str(file)]) for rank in range(RANKS)])


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed_by(tmp_path_factory.mktemp("gloo"), *(check.__name__ for check in CHECKS))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_over_gloo(check: Check, printed: str) -> None:
    assert [passed(check.__name__, rank) in printed for rank in range(RANKS)] == [True] * RANKS, printed


def test_a_rank_that_is_killed_is_noticed(tmp_path: Path) -> None:
    printed = printed_by(tmp_path, those_who_are_left_go_on.__name__)
    for rank in range(VICTIM):
        assert passed(those_who_are_left_go_on.__name__, rank) in printed, printed
