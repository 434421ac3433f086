"""What is solved is also run between real processes; the table says what was found there."""

from __future__ import annotations

from pathlib import Path

import pytest
from solved import solved_file

from allfold.learn.checks import Wrong, on_ranks
from allfold.learn.judge import judge
from allfold.learn.lesson import find_lesson


@pytest.mark.parametrize(
    ("name", "says", "first"),
    [
        ("ring", "ring between 4 processes", ["ring (yours)", "naive", "driver", "ring"]),
        ("messages", "ring_all_reduce between 4 processes", ["yours, by hand", 'algorithm="ring"']),
        ("training", "30 steps on 4 processes", ["one process", "rank 0", "rank 1", "rank 2", "rank 3"]),
    ],
)
def test_a_solved_lesson_is_run(name: str, says: str, first: list[str], tmp_path: Path) -> None:
    lesson = find_lesson(name)
    file = tmp_path / f"{name}.py"
    file.write_text(solved_file(lesson), encoding="utf-8")
    found = judge(lesson, file, run=True)
    assert found.passed, found
    (seen,) = (one.run for one in found.exercises if one.run is not None)
    assert seen[0].startswith(says) and [row[0] for row in seen[1][1:]] == first


def test_ranks_that_wait_in_vain_are_named() -> None:
    def work(comm: object) -> None:
        if comm.rank == 1:  # type: ignore[attr-defined]
            comm.barrier()  # type: ignore[attr-defined]

    with pytest.raises(Wrong, match="with 2 ranks, rank 1 raised"):
        on_ranks(work, 2)
