"""The arguments of a program in its record, and the seeds that NumPy drew from the operating system."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from test_explained import Written

from allfold.record.diverge import compare_runs
from allfold.record.format import SEED
from allfold.record.read import read_run
from allfold.record.seeds import DrawnSeeds, Seed, replay_seeds


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random.bit_generator, "randbits", np.random.bit_generator.randbits)


def _numbers() -> list[float]:
    return [np.random.default_rng().random(), np.random.RandomState().rand(), np.random.default_rng().random()]


def test_seeds_that_were_drawn_are_drawn_again(unchanged: None) -> None:
    noted: list[Seed] = []
    drawn = DrawnSeeds()
    first = [np.random.default_rng().random()]  # before there is a file
    drawn.note_with(noted.append)
    first += _numbers()
    assert len(set(first)) == 4
    replay_seeds(noted)
    assert [np.random.default_rng().random(), *_numbers()] == first
    assert not {*_numbers()} & {*first}  # there are no more of them


def test_a_note_says_that_seeds_differ(tmp_path: Path) -> None:
    for name, seed in (("first", 7), ("second", 8)):
        (tmp_path / name).mkdir()
        for rank in range(2):
            one = Written(tmp_path / name, rank, size=2)
            one.file.write(SEED, [128, seed if rank else 7])
            one.call("all_reduce", 8)
    runs = [read_run(tmp_path / name) for name in ("first", "second")]
    assert [run[1].seeds for run in runs] == [[(128, 7)], [(128, 8)]]
    assert next(note for note in compare_runs(*runs).notes if "NumPy" in note).startswith(
        "rank 1 seeded generators of NumPy"
    )


@pytest.mark.parametrize("seed", [[128, -1], [8, 256], [0, 0], [5000, 1], [128], ["128", 1], [128, True]])
def test_a_seed_that_is_none_ends_the_record(tmp_path: Path, seed: list[object]) -> None:
    one = Written(tmp_path, 0, size=1)
    one.file.write(SEED, seed)
    one.call("all_reduce", 8)
    record = read_run(tmp_path)[0]
    assert "is damaged" in record.note and not record.calls


def test_arguments_are_those_that_the_program_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from allfold.record.program import early_state, head

    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "4"])
    early = early_state()
    sys.argv = ["other", "--changed"]  # as programs do that hand on a part of their arguments
    assert head(0, "all", early)["program"]["arguments"] == ["--steps", "4"]
