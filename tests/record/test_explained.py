"""`allfold explain` of recorded runs that hung or failed: the sentences of other records, with reduction and root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launched import command

from allfold.record.format import CALL, DONE, ENDS, FAIL, FORM, GROUP, HEAD, WORLD, Writer

SCRIPT = "/home/me/train.py"


class Written:
    """The record of one rank of three, call by call."""

    def __init__(self, folder: Path, rank: int, size: int = 3) -> None:
        self.file, self.calls, self.forms = Writer(str(folder / f"rank-{rank}.allfold")), 0, 0
        head = {
            "rank": rank,
            "keep": "digests",
            "time": 1000.0,
            "program": {},
            "variables": {},
            "facts": {},
            "random": {},
        }
        self.file.write(HEAD, head)
        self.file.write(WORLD, {"rank": rank, "size": size, "backend": "gloo", "state": {}})
        group = {"group": 0, "name": "0", "ranks": [*range(size)], "description": "default_pg", "timeout": 3.0}
        self.file.write(GROUP, group)

    def call(self, operation: str, line: int, at: float = 0.0, done: bool = True, **more: Any) -> None:
        self.calls, self.forms = self.calls + 1, self.forms + 1
        tensors = [["float32", [4]]]
        stack = [[SCRIPT, line, "main"]]
        form = {
            "form": self.forms,
            "operation": operation,
            "group": 0,
            "inputs": tensors,
            "outputs": tensors,
            "stack": stack,
        }
        self.file.write(FORM, form | more)
        self.file.write(CALL, [self.calls, self.forms, self.calls, [1], int(at * 1e6)])
        if done:
            self.file.write(DONE, [self.calls, [1], None, None])

    def fail(self, kind: str, text: str) -> None:
        self.file.write(FAIL, [self.calls, kind, text])
        self.file.write(ENDS, {"words": f"{kind}: {text}"})


def explained(folder: Path) -> tuple[int, Sequence[str]]:
    status, out, err = command(None, "explain", str(folder))
    assert not err, err
    return status, out.splitlines()


def test_a_call_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        one = Written(tmp_path, rank)
        one.call("all_reduce", 8, reduction="sum")
        if rank != 1:
            one.call("broadcast", 9, root=0, done=False)
        else:
            one.call("all_reduce", 10, reduction="sum", done=False)
    status, lines = explained(tmp_path)
    assert (status, lines[0]) == (
        1,
        "rank 1 left out broadcast(float32[4], root 0) at train.py:9 (call 2 of the default group), which ranks 0 and 2 made; "
        "it went on to all_reduce(float32[4], sum) at train.py:10; the last call that all made is call 1, "
        "all_reduce(float32[4], sum) at train.py:8",
    )


@pytest.mark.parametrize(
    ("operation", "different", "usual", "what"),
    [
        ("all_reduce", {"reduction": "max"}, {"reduction": "sum"}, "reduction"),
        ("broadcast", {"root": 1}, {"root": 0}, "root"),
    ],
)
def test_a_difference_that_flight_records_do_not_have(
    tmp_path: Path, operation: str, different: dict[str, Any], usual: dict[str, Any], what: str
) -> None:
    for rank in range(3):
        Written(tmp_path, rank).call(operation, 8, done=rank != 1, **(different if rank == 2 else usual))
    status, lines = explained(tmp_path)
    assert status == 1
    assert lines[0].startswith("rank 2 made ") and lines[0].endswith(f"different {what}")


def test_a_rank_that_was_late(tmp_path: Path) -> None:
    for rank in range(3):
        one = Written(tmp_path, rank)
        one.call("all_reduce", 8)
        one.call("all_reduce", 9, at=7.5 if rank == 2 else 0.0, done=False)
        one.fail("RuntimeError", "Timed out waiting 3000ms for recv operation to complete")
    assert explained(tmp_path)[1][0].startswith(
        "rank 2 was late: it made all_reduce(float32[4]) at train.py:9 (call 2 of the default group) 7.5 s after rank 0, which "
        "waits for 3 s"
    )


def test_a_rank_that_made_no_more_calls_and_one_without_a_record(tmp_path: Path) -> None:
    for rank in range(2):
        one = Written(tmp_path, rank)
        one.call("all_reduce", 8)
        if rank == 0:
            one.call("all_reduce", 9, done=False)
    lines = explained(tmp_path)[1]
    assert lines[0].startswith("there is no record of rank 2") and "train.py:9" in lines[0], lines
    Written(tmp_path, 2).call("all_reduce", 8)
    assert explained(tmp_path)[1][0].startswith(
        "ranks 1 and 2 have not made all_reduce(float32[4]) at train.py:9 (call 2 of the default group), in which rank 0 waits"
        "; their last call is all_reduce(float32[4]) at train.py:8"
    )


def test_nothing_is_wrong(tmp_path: Path) -> None:
    for rank in range(3):
        one = Written(tmp_path, rank)
        one.call("all_reduce", 8)
        one.file.write(ENDS, {"words": ""})
    assert explained(tmp_path) == (0, ["nothing wrong found in 3 ranks, 3 calls in 1 group"])


def test_a_damaged_record_is_a_note(tmp_path: Path) -> None:
    for rank in range(3):
        Written(tmp_path, rank).call("all_reduce", 8 + (rank == 1), done=False)
    path = tmp_path / "rank-0.allfold"
    os.truncate(path, path.stat().st_size - 5)
    (tmp_path / "rank-7.allfold").write_bytes(b"allfold record 1\n")
    lines = explained(tmp_path)[1]
    assert "note: rank-0.allfold ends within a block" in "\n".join(lines), lines
    assert "has no HEAD block" in "\n".join(lines), lines


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-0.allfold").write_bytes(b"allfold record 9\nHEAD")
    status, _, err = command(None, "explain", str(tmp_path))
    assert status == 2 and "has format 9; this allfold reads format 1" in err
