"""`spawn` with ranks that are threads: the same results and errors as with processes, and sentences about what differs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator


def test_results_and_arguments_are_not_pickled() -> None:
    lock, seen = threading.Lock(), list[Any]()

    def work(comm: Communicator, given: Any, factor: int) -> Any:
        assert given is lock
        array = np.full(3, comm.rank * factor)
        comm.all_reduce(array)
        seen.append(threading.current_thread().name)
        return array.tolist(), given

    assert af.spawn(work, 4, args=(lock, 10), ranks_are="threads") == [([60] * 3, lock)] * 4
    assert sorted(seen) == [f"rank {rank}" for rank in range(4)]


@pytest.mark.parametrize(("engine", "name"), [(None, "Reference"), ("shared_memory", "SharedMemory")])
def test_an_engine_may_be_named(engine: str | None, name: str) -> None:
    found = af.spawn(lambda comm: type(comm.engine).__name__, 2, ranks_are="threads", engine=engine)
    assert found == [name] * 2


def test_init_and_start_in_a_rank_give_its_communicator() -> None:
    def work(comm: Communicator) -> Any:
        assert af.init(timeout=7) is comm and comm.timeout == 7
        with pytest.raises(af.UsageError, match=r"^init: the engine 'islands' was named too late"):
            af.init(engine="islands")
        with pytest.raises(af.CollectiveTimeout, match=r"got no message within 0\.05 s"):
            af.init(timeout=0.05).recv(np.ones(1))
        comm.barrier(timeout=60)
        return af.start(lambda one, number: (one is comm, number), 9, args=(comm.rank,))

    assert af.spawn(work, 2, ranks_are="threads") == [(True, 0), (True, 1)]
    with af.init() as alone:  # the main thread is no rank
        assert alone.size == 1
    assert af.start(lambda comm: comm.size, 3, ranks_are="threads") == 3


def test_the_rank_that_failed_first_is_named_with_its_traceback() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise LookupError("nothing here")
        comm.barrier()

    with pytest.raises(af.RankFailed) as caught:
        af.spawn(work, 3, ranks_are="threads")
    error = caught.value
    first, *_, last = str(error).splitlines()
    assert first == "rank 1 raised LookupError; then ranks 0 and 2 raised RankLost"
    assert last == "LookupError: nothing here" and f'File "{__file__}"' in error.traceback
    assert "launch/threads.py" not in error.traceback
    assert error.rank == 1 and error.ranks[0] == 1 and isinstance(error.__cause__, LookupError)


def test_mismatches_and_exits_are_failures_as_well() -> None:
    def differs(comm: Communicator) -> None:
        comm.all_reduce(np.ones(4 + (comm.rank == 1)))

    sentence = r"all_reduce: ranks 0 and 2 called it with float64\[4\] sum, rank 1 with float64\[5\] sum"
    with pytest.raises(af.RankFailed, match=sentence):
        af.spawn(differs, 3, ranks_are="threads")
    with pytest.raises(af.RankFailed, match="rank 0 exited with status 3") as caught:
        af.spawn(lambda comm: sys.exit(3), 1, ranks_are="threads")
    assert caught.value.exit_code == 3
    with pytest.raises(af.RankFailed, match="rank 0 returned a generator, whose body never ran"):
        af.spawn(lambda comm: (one for one in "ab"), 1, ranks_are="threads")


def test_survivors_go_on() -> None:
    def work(comm: Communicator) -> int:
        if comm.rank == 2:
            raise LookupError
        try:
            comm.barrier()
        except af.RankLost:
            return comm.shrink().all_reduce(comm.rank)  # type: ignore[no-any-return]
        return -1

    assert af.spawn(work, 4, ranks_are="threads", survive=True) == [4, 4, None, 4]


def test_the_timeout_names_ranks_that_cannot_be_ended() -> None:
    """One waits in a call, which ends; the other does not know allfold at all."""
    over = threading.Event()

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.barrier()
        over.wait(60)

    try:
        with pytest.raises(af.CollectiveTimeout) as caught:
            af.spawn(work, 2, ranks_are="threads", timeout=0.2)
    finally:
        over.set()
    place = r"rank 1 at \S*test_spawn_threads\.py:\d+ in work: over\.wait\(60\)"
    begin = "spawn: ranks 0 and 1 of 2 had not finished after 0.2 s; rank 1 still runs, since threads cannot be ended: "
    assert re.fullmatch(re.escape(begin) + place, str(caught.value)), caught.value


def test_ranks_in_calls_end_at_the_timeout() -> None:
    def work(comm: Communicator) -> None:
        comm.recv(np.ones(1))

    sentence = r"^spawn: ranks 0 and 1 of 2 had not finished after 0.1 s; all ranks were ended$"
    with pytest.raises(af.CollectiveTimeout, match=sentence):
        af.spawn(work, 2, ranks_are="threads", timeout=0.1)


def test_what_threads_cannot_do_is_said() -> None:
    for options, sentence in (
        ({"ranks_are": "thread"}, "ranks_are must be 'processes' or 'threads', not 'thread'"),
        ({"ranks_are": "threads", "hosts": 2}, "ranks that are threads cannot simulate hosts"),
        ({"ranks_are": "threads", "prefix_output": True}, "ranks that are threads share this process's output"),
        ({"ranks_are": "threads", "engine": "sharedmemory"}, "there is no engine 'sharedmemory'"),
        ({"ranks_are": "threads", "timeout": -1}, "spawn: timeout must be a non-negative number of seconds"),
    ):
        with pytest.raises(af.UsageError, match=f"^{sentence}"):
            af.spawn(print, 2, **options)  # type: ignore[arg-type]
    with pytest.raises(af.UsageError, match="at least 1"):
        af.spawn(print, 0, ranks_are="threads")


def test_ctrl_c_ends_a_run_whose_ranks_do_not() -> None:
    code = (
        "import sys, time, allfold as af\n"
        "def work(comm):\n"
        "    sys.stdout.write('here\\n')\n"  # in one piece: print writes the end of the line by itself
        "    sys.stdout.flush()\n"
        "    comm.barrier() if comm.rank else time.sleep(600)\n"
        "af.spawn(work, 2, ranks_are='threads')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt") and process.returncode == -signal.SIGINT
