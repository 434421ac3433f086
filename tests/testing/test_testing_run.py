"""`allfold.testing.run`: results, and what it says when a rank fails, hangs, crashes or leaves something behind."""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from allfold.errors import AllfoldError, CollectiveTimeout, RankFailed, UsageError
from allfold.launch import kept
from allfold.testing import run


def failure(work: Any, *args: Any, kind: type[AllfoldError] = RankFailed, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        run(work, **{"ranks": 2, **options}, args=args)
    return str(caught.value)


def added(comm: Any, number: int) -> tuple[int, float]:
    x = np.full(3, float(number))
    comm.all_reduce(x)
    return comm.rank, float(x[0])


def test_every_rank_runs_the_function() -> None:
    assert run(added, args=(2,)) == [(rank, 8.0) for rank in range(4)]
    assert run(added, ranks=4, hosts=2, args=(2,)) == [(rank, 8.0) for rank in range(4)]


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_a_group_of_torch(backend: str) -> None:
    torch = pytest.importorskip("torch")

    def work(group: Any, factor: int) -> tuple[str, float, int]:
        dist = torch.distributed
        x = torch.full((2,), float(dist.get_rank() * factor))
        dist.all_reduce(x)
        assert group is dist.group.WORLD
        return dist.get_backend(), float(x[0]), torch.get_num_threads()

    assert run(work, ranks=2, backend=backend, args=(3,)) == [(backend, 3.0, 1)] * 2


def test_a_run_has_the_variables_and_the_folder_of_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    found = run(lambda comm: (os.environ["OF_THE_TEST"], os.getcwd(), os.environ["RANK"]), ranks=2)
    assert found == [("yes", str(tmp_path), str(rank)) for rank in range(2)]


def test_random_numbers_differ_between_ranks_and_not_between_runs() -> None:
    first, second = (run(lambda comm: (random.random(), np.random.random()), ranks=2) for _ in range(2))
    assert first == second and len({number for rank in first for number in rank}) == 4


def test_lines_that_ranks_print_have_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    run(lambda comm: print("hello"), ranks=2)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] hello", "[1] hello"]


def test_the_first_failure_has_its_traceback_and_the_others_a_line() -> None:
    def work(comm: Any) -> None:
        if comm.rank == 1:
            raise ValueError("the cause")
        comm.barrier()

    first, *said = failure(work, ranks=3).splitlines()
    assert first == "rank 1 of 3 raised ValueError: the cause"
    assert said[1] == "Traceback (most recent call last):"
    assert said[2].endswith("in work"), "frames of allfold are not shown"
    # On a busy machine, a rank may be ended before it notices that another is gone.
    assert all("RankLost: barrier" in line or ": comm.barrier()" in line for line in said[-2:])
    assert sorted(line[: len("  rank 0 ")] for line in said[-2:]) == ["  rank 0 ", "  rank 2 "]


def waits(comm: Any, way: str) -> None:
    if comm.rank == 1:
        time.sleep(60)
    if way == "in C":
        ctypes.PyDLL(None).pause()  # holds the interpreter's lock
    comm.barrier()


def ignores(comm: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


def test_at_the_timeout_the_line_of_every_rank_is_named() -> None:
    said = failure(waits, "in a call", ranks=2, timeout=3, kind=CollectiveTimeout).splitlines()
    assert said[0] == "ranks 0 and 1 of 2 had not finished after 3 s"
    assert [line.partition(" in waits: ")[2] for line in said[1:]] == ["comm.barrier()", "time.sleep(60)"]
    assert all(f"rank {rank} was at " in line for rank, line in enumerate(said[1:]))
    ignoring = failure(ignores, timeout=3, kind=CollectiveTimeout)
    assert ignoring.splitlines()[1] == "  rank 0 was at an unknown place: it did not react to SIGTERM"
    assert "in waits: ctypes.PyDLL(None).pause()" in failure(waits, "in C", timeout=3, kind=CollectiveTimeout)


def test_ranks_that_had_finished_are_named() -> None:
    said = failure(lambda comm: comm.rank and time.sleep(60), timeout=3, kind=CollectiveTimeout)
    assert said.splitlines()[::2] == ["rank 1 of 2 had not finished after 3 s", "  rank 0 had finished"]


def ends(comm: Any, how: str) -> None:
    if comm.rank == 1:
        if how == "crash":
            ctypes.string_at(0)
        os._exit(3)
    comm.barrier()


def differ(group: Any) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    if group.rank() != 1:
        dist.broadcast(x, 1)
    dist.all_reduce(x)


@pytest.mark.exhaustive  # the hang takes 20 s; the examples have one of allfold's own calls
def test_differing_calls_with_gloo_are_named_at_the_timeout() -> None:
    pytest.importorskip("torch")
    said = failure(differ, ranks=3, backend="gloo", timeout=20, kind=CollectiveTimeout)
    line = differ.__code__.co_firstlineno + 6
    expected = (
        rf": rank 1 is in all_reduce at \S+test_testing_run\.py:{line}, ranks 0 and 2 in broadcast at line {line - 1}$"
    )
    assert re.search(expected, said.splitlines()[0]), said


def test_breakpoint_says_where_it_works() -> None:
    assert "breakpoint() in rank 1: ranks that are processes have no terminal" in failure(stop_at_rank_1)


def stop_at_rank_1(comm: Any) -> None:
    if comm.rank == 1:
        breakpoint()
    comm.barrier()


def test_a_rank_that_dies_is_named() -> None:
    crash, *others = failure(ends, "crash").splitlines()
    assert crash.startswith("rank 1 of 2 was killed by SIGSEGV, at ")
    assert crash.endswith(" in ends: ctypes.string_at(0)")
    assert len(others) == 1 and others[0].startswith("  rank 0 ")
    assert failure(ends, "exit").splitlines()[0] == "rank 1 of 2 exited with status 3"


def test_a_crash_goes_before_the_errors_that_follow_from_it() -> None:
    torch = pytest.importorskip("torch")

    def work(group: Any) -> None:
        if torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()

    first, follower = failure(work, backend="gloo").splitlines()
    assert first == "rank 1 of 2 was killed by SIGKILL"
    assert follower.startswith("  rank 0 ")


def leaves(comm: Any, what: str) -> None:
    if comm.rank == 0:
        return
    if what == "child":
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    elif what == "orphan":
        subprocess.run(["sh", "-c", "setsid sleep 60 &"], check=True)
    elif what == "thread":
        threading.Thread(target=time.sleep, args=(60,), name="pump").start()
    elif what == "memory":
        SharedMemory(create=True, size=8)
    elif what == "gpu":  # of a torch that says it has a tensor there; tests/gpu has a real one
        cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2, memory_allocated=lambda _: 4096)
        engine = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None)
        sys.modules["torch"] = cast(types.ModuleType, SimpleNamespace(cuda=cuda, _C=engine))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("child", "child process"),
        ("orphan", "child process"),
        ("thread", "thread 'pump', which is not a daemon"),
        ("memory", "shared memory /dev/shm/psm_"),
        ("gpu", "8,192 bytes of GPU memory"),
    ],
)
def test_what_a_rank_leaves_behind_fails_the_test(what: str, said: str) -> None:
    message = failure(leaves, what)
    assert message.startswith(f"rank 1 of 2 left behind: {said}") and "Traceback" not in message
    if said == "child process":
        process = int(message.split()[8])
        assert message.endswith(f"child process {process} (sleep 60)")
        deadline = time.monotonic() + 30
        while Path(f"/proc/{process}").exists() and "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text():
            assert time.monotonic() < deadline, "it is still there"
    elif what == "memory":
        assert not Path(message.split()[-1]).exists()


def test_what_a_rank_cleans_up_is_no_failure() -> None:
    def work(comm: Any) -> None:
        subprocess.run(["true"], check=True)
        threading.Thread(target=lambda: None).start()
        memory = SharedMemory(create=True, size=8)
        memory.close()
        memory.unlink()

    assert run(work, ranks=2) == [None, None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": 0}, "expected a whole number of ranks, at least 1; got 0"),
        ({"backend": "mpi"}, "backend must be 'allfold', 'gloo', 'nccl' or None, not 'mpi'"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        ({"hosts": 5}, "hosts: 4 ranks are too few for 5 hosts"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(added, **options, args=(1,))
    assert str(caught.value) == said


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(UsageError, match=r"^run: the work or its arguments cannot be pickled: "):
        run(added, args=(threading.Lock(),))


def test_a_method_whose_object_cannot_be_pickled() -> None:
    class Case:
        def __init__(self) -> None:
            self.own = threading.Lock()

        def work(self, communicator: object) -> None: ...

    with pytest.raises(UsageError, match=r"Case\.work is a method, which brings its object along; use a function$"):
        run(Case().work)


def test_the_process_that_is_kept_is_started_again_if_it_has_ended() -> None:
    assert run(added, ranks=1, args=(1,)) == [(0, 1.0)]
    server = kept._servers["torch" in sys.modules]
    server.process.kill()
    server.process.wait()
    assert run(added, ranks=1, args=(1,)) == [(0, 1.0)]


def test_ranks_as_threads() -> None:
    lock = threading.Lock()
    found = run(lambda comm, given: (comm.all_reduce(comm.rank), given), ranks=3, args=(lock,), threads=True)
    assert found == [(3, lock)] * 3  # nothing is pickled


def test_a_failure_in_a_thread_has_its_traceback_and_the_others_a_line() -> None:
    def work(comm: Any) -> None:
        if comm.rank == 1:
            raise ValueError("the cause")
        comm.barrier()

    with pytest.raises(RankFailed) as caught:
        run(work, ranks=3, threads=True)
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.rank == 1
    first, *_, zero, two = str(caught.value).splitlines()
    assert first == "rank 1 of 3 raised ValueError: the cause"
    lost = "raised RankLost: barrier: rank 1 has left: it is ending after ValueError: the cause"
    assert zero.startswith(f"  rank 0 {lost}") and two.startswith(f"  rank 2 {lost}")


def test_a_hang_of_threads_ends_at_the_timeout_with_every_line() -> None:
    over = threading.Event()

    def work(comm: Any) -> None:
        if comm.rank == 1:
            over.wait(60)
        elif comm.rank == 0:
            comm.recv(np.ones(1), source=1)

    try:
        said = failure(work, ranks=3, timeout=0.3, threads=True, kind=CollectiveTimeout)
    finally:
        over.set()
    headline, zero, one, two, still = said.splitlines()
    assert headline == "ranks 0 and 1 of 3 had not finished after 0.3 s", said
    assert "test_testing_run.py" in zero and zero.endswith("in work: comm.recv(np.ones(1), source=1)")
    assert one.startswith("  rank 1 was at ") and one.endswith("in work: over.wait(60)")
    assert two == "  rank 2 had finished"
    assert still == "  rank 1 still runs, since threads cannot be ended"


def test_options_that_threads_cannot_have() -> None:
    for options, sentence in (
        ({"hosts": 2}, "cannot simulate hosts"),
        (
            {"backend": "gloo"},
            "have the backend 'allfold' only, not 'gloo': at the timeout nothing could end a thread",
        ),
        ({"ranks": 0}, "at least 1"),
    ):
        assert sentence in failure(print, **{"threads": True, **options}, kind=UsageError)  # type: ignore[arg-type]
    assert "threads must be True or False, not 2" in failure(print, threads=2, kind=UsageError)
