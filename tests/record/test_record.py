"""Records of runs, what they say of differences, and replays of single ranks, judged by what the programs themselves saw."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import programs
from worlds import record, replay

from allfold import _native
from allfold.record.diverge import compare_ranks, compare_runs
from allfold.record.read import bytes_of, read_run

RANKS, SEED = 3, 5
BACKENDS = ("gloo", "allfold")


def _run(rank: int, steps: list[programs.Step], own: bool, flip: tuple[int, int] = (-1, 0)) -> programs.Log:
    return programs.run_program(steps, rank, flip[1] if flip[0] == rank else None, own)


def _digest(data: bytes) -> int:
    array = np.frombuffer(data, np.uint8)
    return _native.digest(array.ctypes.data, array.nbytes, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_has_what_the_calls_saw_and_a_replay_gives_it_again(backend: str, tmp_path: Path) -> None:
    steps = programs.program(SEED, RANKS)
    logs = record(tmp_path, RANKS, backend, "all", _run, steps, True)
    for rank, one in read_run(tmp_path).items():
        assert (one.ended, one.note, one.size) == ("", "", RANKS)
        assert all(call.ended is not None and call.failure is None for call in one.calls)
        assert all("programs.py" in call.form.stack[0].file for call in one.calls)
        for call in one.calls:
            if call.form.outputs:
                data = one.outputs_of(call)
                assert [_digest(part) for part in data] == call.outputs
                assert [len(part) for part in data] == [bytes_of(part) for part in call.form.outputs]
        received = {digest for call in one.calls for digest in call.outputs}
        put_in = {digest for call in one.calls for digest in call.inputs}
        for kind, before, after in logs[rank]:
            if kind not in ("store", "objects", "from_any"):  # what these make of what they receive
                assert {_digest(part) for part in after} <= received, (rank, kind)
            if kind in ("all_reduce", "all_gather", "gather", "ring", "reduce", "batch", "functional"):
                assert _digest(before[0]) in put_in, (rank, kind)
    for rank, (log, outcome) in enumerate(replay(tmp_path, RANKS, backend, _run, steps, True)):
        assert log == logs[rank]
        assert outcome.startswith("all "), outcome


def test_the_first_difference_is_that_of_the_rank_that_made_it(tmp_path: Path) -> None:
    steps = [step for step in programs.program(SEED, RANKS) if step.kind not in programs.CHANGES_FROM_RUN_TO_RUN]
    flipped = next(n for n, step in enumerate(steps) if step.kind in ("all_gather", "all_reduce") and n > 3)
    rank = steps[flipped].members[1]
    for name, flip in (("first", (-1, 0)), ("again", (-1, 0)), ("other", (rank, flipped))):
        record(tmp_path / name, RANKS, "gloo", "all" if name == "first" else "window=2", _run, steps, False, flip)
    first, again, other = (read_run(tmp_path / name) for name in ("first", "again", "other"))
    assert not compare_runs(first, again).found
    assert not compare_ranks(first).found
    found = compare_runs(first, other)
    assert [(one.kind, one.ranks) for one in found.origins] == [("input", (rank,))], found
    call = first[rank].calls[found.origins[0].number - 1]
    assert call.form.operation == steps[flipped].kind
    assert f"rank {rank} differs first" in found.origins[0].sentence
    assert f"_{call.form.operation}" == call.form.stack[0].function or call.form.stack[1].function
    assert {one for follower in found.followers for one in follower.ranks} == set(range(RANKS)) - {rank}
    # A replay of the changed program stops there, in the same words.
    for number, (log, outcome) in enumerate(
        replay(tmp_path / "first", RANKS, "gloo", _run, steps, False, (rank, flipped))
    ):
        assert (log is None) == (number == rank)
        assert outcome.startswith(f"the input of {call.told} is the first that differs" if number == rank else "all ")
