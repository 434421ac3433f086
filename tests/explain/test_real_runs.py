"""Real runs of three processes over gloo and over allfold, with one fault each: the right rank, and over gloo the line.

`make explain-trials` runs many more of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trial_programs import KINDS, make_trial
from trials import explained, judge, run_trial

PATIENCE = 30.0  # on a busy machine, the ranks need some of it to find each other


def all_but(*quick: str) -> list[Any]:
    return [
        pytest.param(kind, marks=() if kind in quick else pytest.mark.exhaustive)
        for kind in ("left out", "order", *quick)
    ]


@pytest.mark.parametrize("kind", all_but("shape"))
def test_gloo(tmp_path: Path, kind: str) -> None:
    trial = make_trial(10 + KINDS.index(kind))
    found = explained(run_trial(trial, "gloo", tmp_path, PATIENCE), "gloo")
    assert judge(trial, found) == (True, True, True), f"{found}\n{trial.text}"


@pytest.mark.parametrize("kind", all_but("root"))
def test_allfold(tmp_path: Path, kind: str) -> None:
    trial = make_trial(10 + KINDS.index(kind))
    found = explained(run_trial(trial, "allfold", tmp_path, PATIENCE), "allfold")
    right_rank, _, right_kind = judge(trial, found)  # the line is recorded only if the ranks notice it in that call
    assert right_rank and right_kind, f"{found}\n{trial.text}"


@pytest.mark.parametrize("kind", ["left out", pytest.param("reduction", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("backend", ["allfold", pytest.param("gloo", marks=pytest.mark.exhaustive)])
def test_what_allfold_record_writes(tmp_path: Path, backend: str, kind: str) -> None:
    trial = make_trial(10 + KINDS.index(kind))
    found = explained(run_trial(trial, backend, tmp_path, PATIENCE, "record"), backend)
    assert judge(trial, found) == (True, True, True), f"{found}\n{trial.text}"
