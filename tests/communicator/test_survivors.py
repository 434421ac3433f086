"""Runs with a lost, late or stuck rank: which errors others get, who goes on, and what is visible from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_ranks import live_ranks

import allfold
from allfold import CollectiveTimeout, MismatchError, RankFailed, RankLost, UsageError, _native
from allfold.cli import main
from allfold.communicator import communicator
from allfold.communicator.communicator import Communicator
from allfold.engines.shared_memory.stacks import describe_stacks
from allfold.launch.spawn import run_everywhere
from allfold.launch.threads import run_threads

PATIENCE = 60.0


def fails(kind: type[Exception], function: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(kind) as caught:
        function(*arguments, **named)
    return str(caught.value)


def members(comm: Communicator) -> list[Any]:
    """What the ranks have in shared memory."""
    return comm.engine.members  # type: ignore[attr-defined,no-any-return]


# Going on -------------------------------------------------------------------------------------------------------------


def goes_on(comm: Communicator, victims: list[int], end: str) -> tuple[str, int, int, float]:
    comm.barrier()
    if comm.rank in victims:
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif end == "exit":
            os._exit(3)
        raise ArithmeticError("this rank has had enough")
    said = fails(RankLost, comm.all_reduce, np.ones(100_000))
    left = comm.shrink(timeout=PATIENCE)
    array = np.full(1000, float(comm.rank))
    for _ in range(3):
        left.all_reduce(array, op="max")
    left.send(array, (left.rank + 1) % left.size)
    left.recv(array, (left.rank - 1) % left.size)
    return said, left.rank, left.size, float(array[-1])


@pytest.mark.parametrize(
    ("ranks", "victims", "end"),
    [(4, [1], "kill"), (4, [0], "exit"), (5, [0, 3], "kill"), (3, [2], "raise"), (2, [1], "kill")],
)
def test_those_who_are_left_go_on(ranks: int, victims: list[int], end: str) -> None:
    results = allfold.spawn(goes_on, ranks, args=(victims, end), timeout=PATIENCE * 2, survive=True)
    left = [rank for rank in range(ranks) if rank not in victims]
    assert [results[rank] is None for rank in range(ranks)] == [rank in victims for rank in range(ranks)]
    for number, rank in enumerate(left):
        said, own, size, largest = results[rank]
        assert (own, size, largest) == (number, len(left), max(left))
        assert "(call 2 of the world)" in said
    if end == "kill":
        assert any("is gone" in results[rank][0] for rank in left)


def sends_behind_an_array(comm: Communicator, left: int) -> bool:
    comm.barrier()
    if comm.rank >= left:
        comm.close()
        return True
    fails(RankLost, comm.barrier)
    fewer = comm.shrink(timeout=PATIENCE)
    assert fewer.size == left
    array = fewer.empty(1 << 18, np.uint8)  # lies behind the inbox of the new communicator
    array[:] = 7
    fewer.barrier()
    for source in range(left):
        if fewer.rank == source:
            for to in {*range(left)} - {source}:
                fewer.send(np.ones(100_000), to)
        else:
            fewer.recv(np.empty(100_000), source)
    fewer.barrier()
    return bool((array == 7).all())


@pytest.mark.parametrize(("ranks", "left"), [(5, 4), (6, 4)])
def test_messages_between_those_who_are_left_stay_in_their_inboxes(ranks: int, left: int) -> None:
    assert allfold.spawn(sends_behind_an_array, ranks, args=(left,)) == [True] * ranks


def loses_a_group(comm: Communicator) -> list[int]:
    group = comm.group([0, 1, 2])
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # it never says that it has dropped the group
    fails(RankLost, comm.barrier)
    left = comm.shrink(timeout=PATIENCE)
    arena = members(comm)[comm.rank].arena
    left.group([0])
    held = arena.in_use
    del group
    left.group([0])
    return [held, arena.in_use]


def test_the_memory_of_a_group_whose_rank_died_is_released() -> None:
    first, second, _ = allfold.spawn(loses_a_group, 3, timeout=PATIENCE * 2, survive=True)
    for held, later in (first, second):
        assert later < held


def test_a_second_rank_that_is_lost_while_they_agree() -> None:
    def work(comm: Communicator) -> int:
        comm.barrier()
        if comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        fails(RankLost, comm.barrier)
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        left = comm.shrink(timeout=PATIENCE)
        try:
            left.barrier()
        except RankLost:  # rank 3 was still counted as a survivor
            left = left.shrink(timeout=PATIENCE)
            left.barrier()
        return left.size

    assert allfold.spawn(work, 5, timeout=PATIENCE * 2, survive=True) == [3, 3, None, None, 3]


def test_after_ranks_disagreed_all_of_them_go_on() -> None:
    def work(comm: Communicator) -> tuple[int, int, float]:
        fails(MismatchError, comm.all_reduce, np.ones(3 + comm.rank))
        again = comm.shrink(timeout=PATIENCE)
        array = np.ones(5)
        again.all_reduce(array)
        assert "already shrunk" in fails(UsageError, comm.shrink)
        return again.rank, again.size, float(array[0])

    assert run_threads(work, 3) == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]


def test_what_is_closed_cannot_be_shrunk() -> None:
    def work(comm: Communicator) -> str:
        comm.close()
        return fails(UsageError, comm.shrink)

    assert set(run_threads(work, 2)) == {"shrink: this communicator is closed"}


def test_shrinking_waits_for_those_who_live_and_names_them() -> None:
    def work(comm: Communicator) -> str:
        if comm.rank == 1:
            meeting.wait(PATIENCE)  # it is alive, and never comes
            return ""
        try:
            return fails(CollectiveTimeout, comm.shrink, timeout=0.2)
        finally:
            meeting.set()

    meeting = threading.Event()
    assert run_threads(work, 2)[0] == "shrink: rank 1 did not arrive within 0.2 s, and is not gone"


@pytest.mark.parametrize("comes", [True, False])
def test_shrinking_can_be_tried_again_after_a_timeout(comes: bool) -> None:
    """The late rank comes by then, or leaves."""

    def work(comm: Communicator) -> tuple[str, int, float]:
        said = ""
        if comm.rank == 2:
            meeting.wait(PATIENCE)
            if not comes:
                comm.close()
                return said, 0, 0.0
        else:
            said = fails(CollectiveTimeout, comm.shrink, timeout=0.1)
            meeting.wait(PATIENCE)
        left, array = comm.shrink(timeout=PATIENCE), np.ones(2)
        left.all_reduce(array)
        assert "already shrunk" in fails(UsageError, comm.shrink)
        return said, left.size, float(array[0])

    meeting = threading.Barrier(3)
    late, left = "shrink: rank 2 did not arrive within 0.1 s, and is not gone", 3 if comes else 2
    assert run_threads(work, 3) == [(late, left, left), (late, left, left), ("", left * comes, left * comes)]


def test_a_run_that_survives_ends_well_and_names_the_lost(tmp_path: Any) -> None:
    script = tmp_path / "one.py"
    script.write_text("import os, sys\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n")
    words = [sys.executable, "-m", "allfold", "run", "-n", "3", "--survive", str(script)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0 and "rank 1" in ended.stderr and "SIGKILL" in ended.stderr
    script.write_text("raise SystemExit(5)\n")
    assert subprocess.run(words, capture_output=True, timeout=PATIENCE, check=False).returncode == 5


def shrinks_often(comm: Communicator) -> str:
    for _ in range(3):
        comm = comm.shrink()
    return repr(comm)


def test_the_label_does_not_grow_with_every_shrink() -> None:
    assert allfold.spawn(shrinks_often, 2)[0] == "<Communicator rank 0 of 2, what is left of the world: ranks 0 and 1>"


# Late and stuck -------------------------------------------------------------------------------------------------------


def test_a_rank_that_comes_late_to_a_group_does_not_get_one() -> None:
    has_given_up = threading.Event()

    def work(comm: Communicator) -> str:
        if comm.rank == 1:
            assert has_given_up.wait(PATIENCE)
        said = fails(CollectiveTimeout, comm.group, [0, 1], timeout=0.2)
        has_given_up.set()
        return said

    said = run_threads(work, 2)[1]
    assert said.startswith("all_gather: rank 0 gave up: it had waited too long for rank 1"), said


def lost_in_thought(comm: Communicator) -> None:
    comm.barrier()  # until the others have reported


def test_who_is_missing_what_it_did_last_and_where_it_stands() -> None:
    def work(comm: Communicator) -> str:
        other = comm.group([0, 1, 2])
        assert other is not None
        comm.broadcast(np.ones(10, np.float32))
        if comm.rank == 1:
            lost_in_thought(other)
            return ""
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(4), timeout=0.5)
        other.barrier()
        return said

    for rank, said in enumerate(allfold.spawn(work, 3, timeout=PATIENCE)):
        if rank == 1:
            continue
        assert said.startswith("all_reduce: rank 1 did not arrive within 0.5 s (call 3 of the world); rank 1 (process ")
        assert "has done call 2, broadcast(float32[10] root 0); it is at " in said
        assert "in barrier, called from test_survivors.py:" in said and "in lost_in_thought" in said


def test_a_rank_that_is_stopped_is_said_to_be() -> None:
    def work(comm: Communicator) -> str:
        processes = np.empty(2, np.int64)
        comm.all_gather(np.array([os.getpid()]), processes)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return ""
        try:
            return fails(CollectiveTimeout, comm.barrier, timeout=0.5)
        finally:
            os.kill(int(processes[1]), signal.SIGCONT)

    assert "it is stopped (SIGSTOP or a debugger)" in allfold.spawn(work, 2, timeout=PATIENCE)[0]


def test_stacks_name_every_thread() -> None:
    first, _, rest = describe_stacks().partition("\n")
    assert "in describe_stacks" in first
    assert [thread["thread"] for thread in json.loads(rest)][-1] == "MainThread"


REPLACED = """
import time
import allfold as af
comm = af.init()
comm = comm.group([0, 1]) if WAY == "group" else comm.shrink()
if comm.rank == 1:
    time.sleep(2)
else:
    try:
        comm.barrier(timeout=0.5)
    except af.CollectiveTimeout as error:
        print(error)
"""


@pytest.mark.parametrize("way", ["group", "shrink"])
def test_who_is_late_says_where_it_is_also_after_the_first_communicator_was_dropped(way: str, tmp_path: Any) -> None:
    script = tmp_path / "late.py"
    script.write_text(f"WAY = {way!r}" + REPLACED)
    words = [sys.executable, "-m", "allfold", "run", "-n", "2", str(script)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "it is at late.py:7 in <module>" in ended.stdout, ended


def gives_up_and_ends(comm: Communicator, ended: str) -> str:
    """Rank 0 waits for rank 2 until its timeout, and ends; rank 1 comes after that."""
    if comm.rank == 0:
        fails(CollectiveTimeout, comm.all_reduce, np.ones(3), timeout=0.2)
        os._exit(0)
    said = ""
    if comm.rank == 1:
        while _native.is_alive(members(comm)[0].arena):
            time.sleep(0.01)
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(3))
        Path(ended).touch()
    while not Path(ended).exists():
        time.sleep(0.01)
    return said


def test_why_a_rank_gave_up_is_said_also_when_its_process_has_ended(tmp_path: Any) -> None:
    said = allfold.spawn(gives_up_and_ends, 3, args=(str(tmp_path / "ended"),), survive=True, timeout=PATIENCE)[1]
    assert "rank 0 gave up: it had waited too long for rank" in said and "is gone" not in said


def gives_up_early(comm: Communicator) -> str:
    group = comm.group(range(2))
    if comm.rank == 0:
        comm.barrier()
    with pytest.raises(CollectiveTimeout) as caught:
        group.all_reduce(np.ones(100_000), timeout=0.05 if comm.rank == 1 else 20)
    if comm.rank == 1:
        comm.barrier()
    comm.barrier()  # alive, but finished with the group
    return str(caught.value)


def test_who_comes_after_another_gave_up_hears_just_that() -> None:
    message = allfold.spawn(gives_up_early, 2)[0]
    assert message.startswith("all_reduce: rank 1 gave up: it had waited too long")


def test_who_comes_after_another_gave_up_hears_who_never_came() -> None:
    def work(comm: Communicator) -> str:
        if comm.rank == 2:
            over.wait(PATIENCE)
            return ""
        if comm.rank == 1:
            gave_up.wait(PATIENCE)
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(40), timeout=PATIENCE if comm.rank == 1 else 0.1)
        (over if comm.rank == 1 else gave_up).set()
        assert comm.flight()["standing"] == "late"
        return said

    gave_up, over = threading.Event(), threading.Event()
    said = run_threads(work, 3)[1]
    assert said == (
        "all_reduce: rank 2 did not arrive; rank 0 gave up: it had waited too long for rank 1 (call 1 of the world)"
    )


def test_who_comes_after_another_gave_up_hears_who_is_stuck() -> None:
    """Rank 0 is stuck in the first step of a ring, with a chunk of rank 2; rank 2 gives up; then rank 1 comes."""

    def work(comm: Communicator) -> str:
        def fold(one: Any, other: Any) -> Any:
            if comm.rank == 0:
                stuck.set()
                over.wait(PATIENCE)
            return one + other

        if comm.rank == 1:
            assert stuck.wait(PATIENCE) and gave_up.wait(PATIENCE)
        op = allfold.op(fold, commutative=True)
        patience = 1 if comm.rank == 2 else PATIENCE
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(40), op, algorithm="ring", timeout=patience)
        if comm.rank:
            (over if comm.rank == 1 else gave_up).set()
        return said

    stuck, gave_up, over = threading.Event(), threading.Event(), threading.Event()
    said = run_threads(work, 3)[1]
    assert said.startswith("all_reduce: rank 0 arrived but did not do its part; rank 2 gave up: it had waited too long")


@pytest.mark.parametrize("last", [0, 2])
def test_who_comes_after_another_gave_up_hears_who_kept_everybody_waiting(last: int) -> None:
    """Rank 2 is late for the first call, in which rank 0 waits for it and rank 1 for nobody. Rank 1 gives up in the second
    call. Then rank 2 comes, and the two are told about rank 2, in either order."""

    def work(comm: Communicator) -> str:
        if comm.rank == 2:
            assert gave_up.wait(PATIENCE)
        comm.reduce(np.ones(4), root=0, algorithm="driver", timeout=PATIENCE)
        if comm.rank == 1:
            rank0 = members(comm)[0]
            deadline = time.monotonic() + PATIENCE
            while _native.flight(rank0.arena, rank0.post)["waiting_for"] != 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        if comm.rank == last:
            assert other_came.wait(PATIENCE)
        patience = 0.1 if comm.rank == 1 else PATIENCE
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(40), algorithm="ring", timeout=patience)
        (gave_up if comm.rank == 1 else other_came).set()
        return said

    gave_up, other_came = threading.Event(), threading.Event()
    said = run_threads(work, 3)
    assert said[1].startswith("all_reduce: ranks 0 and 2 did not arrive within 0.1 s")
    blamed = r"rank \d gave up: it had waited too long for rank 2 \(call 2 of the world\)"
    for rank in (0, 2):
        assert re.search(blamed, said[rank]), said


def test_a_rank_that_others_gave_up_waiting_for_came_too_late() -> None:
    """Rank 1 gives up because of rank 0, which comes then and gives up, too; rank 2 comes last."""

    def work(comm: Communicator) -> str:
        if comm.rank != 1:
            assert (gave_up if comm.rank == 0 else came).wait(PATIENCE)
        patience = 0.1 if comm.rank == 1 else PATIENCE
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(40), algorithm="ring", timeout=patience)
        (gave_up if comm.rank == 1 else came).set()
        return said

    gave_up, came = threading.Event(), threading.Event()
    said = run_threads(work, 3)
    assert said[2] == "all_reduce: rank 0 arrived too late: others had given up waiting for it (call 1 of the world)"


# From outside ---------------------------------------------------------------------------------------------------------

PATIENT = """
import sys, numpy as np, allfold
comm = allfold.init()
pair = comm.group([0, 1])
comm.all_reduce(np.ones(8))
print("ready", flush=True)
if comm.rank == 2:
    sys.stdin.readline()
comm.all_reduce(np.ones(8), op="max")
"""


def test_the_doctor_sees_groups_calls_and_who_waits_for_whom(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with live_ranks(PATIENT, 3, ready="ready") as processes:
        deadline = time.monotonic() + PATIENCE
        while True:  # until both others are seen to wait
            main(["doctor", str(processes[0].pid), "--json"])
            groups = {group["label"]: group for group in json.loads(capsys.readouterr().out)}
            world = groups["the world"]["members"]
            if [member["waiting_for"] for member in world] == [2, 2, None]:
                break
            assert time.monotonic() < deadline, world
        assert [member["process"] for member in world] == [process.pid for process in processes]
        assert [member["last_done"] for member in world] == [2, 2, 2]
        last = world[0]["calls"][-1]
        assert (last["collective"], last["dtype"], last["elements"], last["op"]) == ("all_reduce", "float64", 8, "max")
        assert last["ended"] is None and abs(last["begun"] - time.time()) < PATIENCE
        assert world[2]["calls"][-1]["ended"] >= world[2]["calls"][-1]["begun"]
        assert "<string>:8 in <module>" in world[2]["stacks"]["at"]
        assert groups["group 1 of the world: ranks 0 and 1"]["size"] == 2
        main(["doctor", str(processes[1].pid), "--no-color", "--stacks"])
        said = capsys.readouterr().out
        assert "the world: 3 ranks" in said and "all_reduce(float64[8] max)" in said and "rank 2" in said
        main(["doctor", "--all", "--dump", str(tmp_path / "flight.json")])
        assert any(group["label"] == "the world" for group in json.loads((tmp_path / "flight.json").read_text()))
        processes[2].communicate("\n", timeout=PATIENCE)
        assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    assert len(os.listdir("/proc/self/fd")) <= descriptors, "the doctor keeps the memory of the runs that it looks at"


def test_the_doctor_refuses_what_it_cannot_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    assert "expected the number of a process, or --all" in capsys.readouterr().err
    assert main(["doctor", "999999999"]) == 2
    assert "there is no process 999999999" in capsys.readouterr().err
    alone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert main(["doctor", str(alone.pid)]) == 2
        assert "is not a rank and has no ranks below it" in capsys.readouterr().err
    finally:
        alone.kill()
        alone.communicate()


def test_the_flight_recorder_keeps_the_last_calls() -> None:
    def work(comm: Communicator) -> dict[str, Any]:
        for number in range(300):
            comm.all_reduce(np.ones(number % 7 + 1, np.float32))
        return comm.flight()

    for flight in run_threads(work, 2):
        assert [call["call"] for call in flight["calls"]] == list(range(45, 301))
        assert [call["elements"] for call in flight["calls"]] == [number % 7 + 1 for number in range(44, 300)]
        times = [moment for call in flight["calls"] for moment in (call["begun"], call["ended"])]
        assert times == sorted(times) and flight["standing"] == "open" and flight["last_done"] == 300


# Who is named ---------------------------------------------------------------------------------------------------------


def test_after_a_call_in_the_background_failed_the_next_one_says_why() -> None:
    def work(comm: Communicator) -> list[str]:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        handle = comm.all_reduce(np.ones(10), async_op=True)
        assert handle is not None
        while not handle.done():
            time.sleep(0.001)
        return [fails(RankLost, comm.barrier), fails(RankLost, comm.recv, np.ones(1), 0), fails(RankLost, handle.wait)]

    for said in filter(None, allfold.spawn(work, 3, timeout=PATIENCE, survive=True)):
        assert "broken by an earlier error: all_reduce: rank 1 (process " in said[0]
        assert all("rank 1 (process " in one and "is gone" in one for one in said)


def test_the_one_that_was_lost_is_named_and_not_those_who_gave_up_for_it() -> None:
    def work(comm: Communicator) -> str:
        comm.barrier()
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 1:
            fails(RankLost, comm.barrier)
            os._exit(1)  # without telling the others
        if comm.rank == 0:
            deadline = time.monotonic() + PATIENCE
            while _native.flight(*members(comm)[1][:2])["standing"] == "open":
                assert time.monotonic() < deadline
        return fails(RankLost, comm.barrier)

    results = allfold.spawn(work, 4, timeout=PATIENCE, survive=True)
    for rank in (0, 2):
        said = results[rank]
        assert said is not None and "rank 3 (process " in said and "is gone" in said, results


def test_a_rank_that_dies_before_it_is_ready_is_named_at_once() -> None:
    def work(place: Any) -> str:
        if place.rank == 1:
            communicator.Communicator = lambda *_: os._exit(1)  # type: ignore[assignment,misc]
        comm = communicator.connect(place.rank, place.size, place.key)
        return fails(RankLost, comm.barrier)

    @contextlib.contextmanager
    def enter(place: Any) -> Any:
        yield place

    for said in filter(None, run_everywhere(enter, work, 3, timeout=PATIENCE, survive=True)):
        assert re.search(r"barrier: rank 1 \(process [1-9]\d*\) is gone", said)


def test_whoever_hears_in_a_message_or_another_group_and_ends_is_not_named_for_the_first() -> None:
    def work(comm: Communicator) -> list[str]:
        pair = comm.group([1, 3])
        other = comm.group([2, 3])
        comm.barrier()
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if pair is not None:
            fails(RankLost, pair.recv, np.ones(1), 1)
            os._exit(1)  # without telling the others
        if other is not None:
            fails(RankLost, other.barrier)
            comm.close()
            return []
        deadline = time.monotonic() + PATIENCE
        while _native.is_alive(members(comm)[1][0]) or _native.flight(*members(comm)[2][:2])["standing"] == "open":
            assert time.monotonic() < deadline
        return [fails(RankLost, comm.recv, np.ones(1), 1), fails(RankLost, comm.barrier)]

    in_message, in_call = allfold.spawn(work, 4, timeout=PATIENCE, survive=True)[0]
    assert re.search(r"recv: rank 3 \(process \d+\) is gone.*; rank 1 gave up because of it \(the world\)", in_message)
    assert re.search(r"barrier: rank 3 \(process \d+\) is gone.*; ranks 1 and 2 gave up because of it \(call", in_call)


def test_all_who_are_gone_are_named_where_nobody_was_first() -> None:
    def work(comm: Communicator) -> str:
        comm.barrier()
        if comm.rank != 1:
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(_native.is_alive(members(comm)[rank][0]) for rank in (0, 2)):
            assert time.monotonic() < deadline
        return fails(RankLost, comm.barrier)

    said = allfold.spawn(work, 3, timeout=PATIENCE, survive=True)[1]
    assert re.search(r"barrier: rank 0 \(process \d+\) is gone.*; rank 2 \(process \d+\) is gone", said)


def test_who_left_another_communicator_is_not_blamed_in_this_one() -> None:
    def work(comm: Communicator) -> str | None:
        pair = comm.group([0, 1])
        comm.barrier()
        if comm.rank == 0:
            assert pair is not None
            pair.close()
        if comm.rank == 1:
            assert pair is not None and "rank 0 has left" in fails(RankLost, pair.barrier)
            comm.close()
            return None
        said = fails(RankLost, comm.barrier)
        comm.abort()
        return said

    for said in filter(None, allfold.spawn(work, 3, timeout=PATIENCE)):
        assert said.startswith("barrier: rank 1 has left: it closed its communicator after call")
        assert "rank 0" not in said


def test_the_one_that_holds_up_all_is_named_and_not_those_who_wait_for_it() -> None:
    def work(comm: Communicator) -> str:
        def fold(one: Any, other: Any) -> Any:
            if comm.rank == 1:
                over.wait(PATIENCE)
            return one + other

        op = allfold.op(fold, commutative=True)
        comm.all_reduce(np.ones(40), algorithm="ring")  # its programs are made now, and not while the others wait
        said = fails(CollectiveTimeout, comm.all_reduce, np.ones(40), op, algorithm="ring", timeout=0.5)
        if comm.rank != 1 and all_know.wait(PATIENCE) == 0:
            over.set()
        return said

    over, all_know = threading.Event(), threading.Barrier(3)
    for rank, said in enumerate(run_threads(work, 4)):
        if rank != 1:
            assert "rank 1 arrived but did not do its part" in said


# The last call --------------------------------------------------------------------------------------------------------


def test_ranks_that_needed_nobody_in_their_last_call_hear_of_a_mismatch_when_they_leave() -> None:
    def work(comm: Communicator) -> str:
        comm.barrier()
        comm.broadcast(np.ones(3), root=comm.rank)  # each its own
        return fails(MismatchError, comm.close)

    for run in (run_threads, allfold.spawn):
        for said in run(work, 2):
            assert said.startswith(
                "broadcast: rank 0 called it with float64[3] root 0, rank 1 with float64[3] root 1 (call 2"
            )


def test_leaving_waits_for_nobody_who_does_not_come() -> None:
    def work(comm: Communicator) -> float:
        if comm.rank == 1:
            over.wait(PATIENCE)
            return 0.0
        comm.broadcast(np.ones(3))
        began = time.monotonic()
        comm.close()
        over.set()
        return time.monotonic() - began

    over = threading.Event()
    assert 0.9 < run_threads(work, 2)[0] < 10


def test_an_error_inside_with_is_not_hidden_by_one_of_leaving() -> None:
    def work(comm: Communicator) -> None:
        with comm:
            comm.broadcast(np.ones(3), root=comm.rank)
            raise LookupError("mine")

    with pytest.raises(RankFailed, match="raised LookupError: mine"):
        run_threads(work, 2)


# Without /dev/shm -----------------------------------------------------------------------------------------------------

FULL = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4k /dev/zero > /dev/shm/full"
ABSENT = """mount -t tmpfs none /mnt
for node in null urandom zero; do touch /mnt/$node; mount --bind /dev/$node /mnt/$node; done
mount --rbind /mnt /dev && ! ls /dev/shm 2> /dev/null"""
SUMS = """
import allfold, numpy as np
def work(comm):
    one, other = comm.empty(1 << 20), np.ones(1 << 20, np.float32)
    one[:] = 1
    comm.all_reduce(one)
    comm.all_reduce(other)
    return float(one.sum() + other.sum())
print(allfold.spawn(work, 2))
"""


def has_namespaces() -> bool:
    command = ["unshare", "-rm", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not has_namespaces(), reason="only where the system gives a mount namespace can /dev/shm be hidden")
@pytest.mark.parametrize("state", [FULL, ABSENT], ids=["full", "absent"])
def test_dev_shm_is_not_needed(state: str) -> None:
    words = ["unshare", "-rm", "sh", "-ec", state + '\nexec "$0" -c "$1"', sys.executable, SUMS]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{[4.0 * 2**20] * 2}\n"), ended.stderr
