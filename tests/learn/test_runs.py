"""What is solved is also run between real processes; the table says what was found there."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from solved import solved_file

from allfold.learn.checks import Wrong, on_ranks, run_between_processes
from allfold.learn.judge import judge
from allfold.learn.lesson import find_lesson
from allfold.learn.worker import load


def _first_column(seen: tuple[str, list[list[str]]] | None) -> list[str]:
    assert seen is not None
    return [row[0] for row in seen[1][1:]]


def test_a_solved_lesson_is_run_on_two_hosts(tmp_path: Path) -> None:
    """In the process of its own: its limits leave room for torch, which the file may import, and for the ranks' memory."""
    lesson = find_lesson("training")
    file = tmp_path / "training.py"
    head = "import torch\n" if find_spec("torch") else ""
    file.write_text(head + solved_file(lesson), encoding="utf-8")
    found = judge(lesson, file, run=True)
    assert found.passed, found
    (seen,) = (one.run for one in found.exercises if one.run is not None)
    assert seen[0].startswith("30 steps on 4 processes")
    assert _first_column(seen) == ["one process", "rank 0", "rank 1", "rank 2", "rank 3"]


@pytest.mark.parametrize(
    ("name", "function", "first"),
    [
        ("ring", "ring", ["ring (yours)", "ring"]),
        ("messages", "ring_all_reduce", ["yours, by hand", 'algorithm="ring"']),
    ],
)
def test_it_is_timed_beside_others(name: str, function: str, first: list[str], tmp_path: Path) -> None:
    lesson = find_lesson(name)
    file = tmp_path / f"{name}.py"
    file.write_text(solved_file(lesson), encoding="utf-8")
    (whole,) = (one for one in lesson.exercises if one.function == function)
    exercise = replace(whole, beside=whole.beside[-1:])  # one is enough to see that it works
    assert _first_column(run_between_processes(lesson, exercise, getattr(load(file), function))) == first


def test_ranks_that_wait_in_vain_are_named() -> None:
    def work(comm: object) -> None:
        if comm.rank == 1:  # type: ignore[attr-defined]
            comm.barrier()  # type: ignore[attr-defined]

    with pytest.raises(Wrong, match="with 2 ranks, rank 1 raised"):
        on_ranks(work, 2)
