"""Ranks that fail: all are named, the cause first, and none outlives a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import PATIENCE, allfold_run, everywhere, wait_for, wait_for_end_of

from allfold.errors import CollectiveTimeout, RankFailed, RankLost
from allfold.launch.environment import Place


def fail_on_rank_one(place: Place, how: str) -> object:
    if place.rank != 1:
        return place.rank
    if how == "raise":
        raise LookupError("no such luck")
    if how == "sys.exit":
        sys.exit(4)
    if how == "sys.exit 0":
        sys.exit()
    if how == "sys.exit text":
        sys.exit("a last word")
    if how == "os._exit":
        os._exit(3)
    if how == "os._exit 0":
        os._exit(0)
    if how == "generator":
        return (number for number in range(3))
    if how == "unpicklable":
        return threading.Lock()
    os.kill(os.getpid(), signal.Signals[how])
    return None


@pytest.mark.parametrize(
    ("how", "sentence", "in_traceback", "exit_code"),
    [
        ("raise", "raised LookupError", "LookupError: no such luck", 1),
        ("sys.exit", "exited with status 4", "SystemExit: 4", 4),
        ("sys.exit 0", "exited with status 0", "SystemExit", 0),
        ("sys.exit text", "exited with status 1", "SystemExit: a last word", 1),
        ("os._exit", "exited with status 3", "", 3),
        ("os._exit 0", "exited with status 0 before it returned a result", "", 0),
        ("generator", "raised UsageError", "rank 1 returned a generator, whose body never ran", 1),
        ("unpicklable", "raised UsageError", "rank 1 returned a lock that cannot be pickled", 1),
        ("SIGKILL", "was killed by SIGKILL", "", -9),
        ("SIGTERM", "was killed by SIGTERM", "", -15),
    ],
)
def test_a_rank_that_fails_is_named(how: str, sentence: str, in_traceback: str, exit_code: int) -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 \(process \d+\) ") as caught:
        everywhere(fail_on_rank_one, 3, how)
    message, failure = str(caught.value), caught.value
    assert message.splitlines()[0].partition(") ")[2] == sentence
    assert (failure.rank, failure.exit_code) == (1, exit_code)
    assert in_traceback in failure.traceback
    assert bool(failure.traceback) == bool(in_traceback)
    assert message.count(failure.traceback.rstrip() or sentence) == 1
    if how == "raise":
        assert "in fail_on_rank_one" in failure.traceback
        assert "worker.py" not in failure.traceback


def fail_one_after_the_other(place: Place, folder: str) -> None:
    """Rank 2 fails first, then rank 1, then rank 3; rank 0 only because it has lost one."""
    before = {1: 2, 3: 1, 0: 3}.get(place.rank)
    if before is not None:
        mark = Path(folder) / str(before)
        wait_for(mark.exists)
        wait_for_end_of([int(mark.read_text())])
    (Path(folder) / "new").write_text(str(os.getpid()))
    (Path(folder) / "new").rename(Path(folder) / str(place.rank))
    if place.rank == 3:
        os._exit(7)
    raise RankLost("rank 2 was lost") if place.rank == 0 else ValueError(place.rank)


def test_of_several_ranks_that_fail_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(RankFailed) as caught:
        everywhere(fail_one_after_the_other, 4, str(tmp_path), survive=True)
    assert (caught.value.rank, caught.value.ranks) == (2, [2, 1, 3, 0])
    said = str(caught.value).splitlines()[0].partition(") ")[2]
    assert said == (
        "raised ValueError; then rank 1 raised ValueError, rank 3 exited with status 7, rank 0 raised RankLost"
    )
    _, _, errors = allfold_run("-n", 2, "--survive", "--", "sh", "-c", 'test "$RANK" = 1 && exit 7; exit 8')
    assert errors.count(b"exited with status") == 2 and b"; then rank " in errors


def test_the_cause_goes_before_what_follows_from_it(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        mark = tmp_path / "lost"
        if place.rank == 0:
            wait_for(mark.exists)
            raise ValueError("the cause")
        mark.touch()
        try:
            raise RankLost("rank 0 was lost")
        except RankLost as error:
            raise RuntimeError("it follows") from error

    with pytest.raises(RankFailed, match="the cause") as caught:
        everywhere(work, 2)
    assert caught.value.rank == 0


def test_of_several_causes_the_first_in_time_wins_and_others_may_finish(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        mark = tmp_path / "process of rank 1"
        if place.rank == 1:
            (tmp_path / "new").write_text(str(os.getpid()))
            (tmp_path / "new").rename(mark)
            raise ValueError("the first")
        wait_for(mark.exists)
        wait_for_end_of([int(mark.read_text())])
        (tmp_path / "rank 0 had its time").touch()
        raise ValueError("the second")

    with pytest.raises(RankFailed, match="the first"):
        everywhere(work, 2)
    assert (tmp_path / "rank 0 had its time").exists()


def test_ranks_that_will_not_end_are_ended(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stubborn = subprocess.Popen(["sleep", "1000"])  # processes that a rank starts end with it
        (tmp_path / f"{place.rank}.new").write_text(f"{os.getpid()} {stubborn.pid}")
        (tmp_path / f"{place.rank}.new").rename(tmp_path / f"{place.rank}.ready")
        if place.rank == 0:
            wait_for(lambda: len(list(tmp_path.glob("*.ready"))) == 3)
            raise ValueError("enough")
        signal.pause()

    start = time.monotonic()
    with pytest.raises(RankFailed, match="enough"):
        everywhere(work, 3)
    assert time.monotonic() - start < PATIENCE
    wait_for_end_of([int(word) for file in tmp_path.glob("*.ready") for word in file.read_text().split()], 5)


def test_the_timeout_names_who_had_not_finished() -> None:
    def work(place: Place) -> None:
        if place.rank > 0:
            signal.pause()

    # Long enough for rank 0 to finish beside ten other busy processes, where its interpreter takes seconds to start.
    with pytest.raises(CollectiveTimeout, match=r"^spawn: ranks 1 and 2 of 3 had not finished after 10 s"):
        everywhere(work, 3, timeout=10)
