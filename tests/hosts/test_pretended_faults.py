"""What goes wrong on pretended hosts: whoever dies, differs, is late or gives up is named on all of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saying import AT_ONCE, said_by

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.engines.islands import world
from allfold.engines.islands.calls import Calls
from allfold.engines.islands.frames import Frame, News, Progress
from allfold.engines.shared_memory.flight import read as read_flights


def killed(comm: Communicator, victim: int, length: int = 300_000) -> tuple[str, str, float]:
    """When the victim has left the barrier, others may still be in it."""
    if comm.rank == victim:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    return said_by(lambda: (comm.barrier(), comm.all_reduce(np.ones(length))))


@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_that_dies_is_named_on_all_hosts(victim: int) -> None:
    said = af.spawn(killed, 4, args=(victim,), hosts=2, survive=True, timeout=60)
    for rank, one in enumerate(said):
        if rank != victim:
            kind, text, seconds = one
            assert kind == "RankLost" and f"rank {victim} on host{victim // 2} is lost" in text and seconds < AT_ONCE, (
                said
            )


def wait_for_messages(comm: Communicator) -> tuple[str, str, float]:
    """The last rank, alone on its host, dies while nobody makes a call of all ranks."""
    world._BEAT_SECONDS = 0.1  # whenever the thread that watches looks
    last = comm.size - 1
    if comm.rank == last:
        for rank in range(last):
            comm.recv(np.ones(1), rank)
        os.kill(os.getpid(), signal.SIGKILL)
    return said_by(
        lambda: (comm.send(np.ones(1), last), comm.recv(np.ones(1), (comm.rank + 1) % comm.size, timeout=20))
    )


def test_the_end_of_a_host_is_noticed_though_nobody_makes_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_HOST_SECONDS", "60")
    said = af.spawn(wait_for_messages, 3, hosts=[2, 1], survive=True, timeout=60)
    for kind, text, _ in said[:2]:
        assert kind == "RankLost" and "rank 2 on host1 can no longer be reached" in text, said


USUAL, DIFFERENT = (
    "float32[4] sum",
    {
        "float32[4] sum": lambda comm: comm.all_reduce(np.ones(4, np.float32)),
        "float32[4] avg": lambda comm: comm.all_reduce(np.ones(4, np.float32), "avg"),
        "float32[4] max": lambda comm: comm.all_reduce(np.ones(4, np.float32), "max"),
        "float32[3] sum": lambda comm: comm.all_reduce(np.ones(3, np.float32)),
        "int32[4] sum": lambda comm: comm.all_reduce(np.ones(4, np.int32)),
        "float32[40000] sum": lambda comm: comm.all_reduce(np.ones(40_000, np.float32)),
        "float64[300000] sum": lambda comm: comm.all_reduce(np.ones(300_000)),
        "reduce(float32[4] sum root 0)": lambda comm: comm.reduce(np.ones(4, np.float32)),
        "barrier()": lambda comm: comm.barrier(),
    },
)


def differ(comm: Communicator) -> list[tuple[str, str, tuple[str, str, float]]]:
    """One rank, or a whole island, makes another call than the others. A group for every time: it is broken after it."""
    said = []
    for odd in ([1], [3], [2, 3]):
        for what, call in DIFFERENT.items():
            if what != USUAL and (len(odd) == 1 or what == "barrier()"):
                group = comm.group(range(comm.size))
                mine = call if comm.rank in odd else DIFFERENT[USUAL]
                # The first call is the same on all ranks: a rank that is still in it gets the error there. A rank that needs
                # nothing from the others in the call that differs gets it in the next one.
                heard = said_by(lambda group=group, mine=mine: (DIFFERENT[USUAL](group), mine(group), group.barrier()))
                said.append((what, f"rank {odd[0]} ", heard))
    return said


def test_calls_that_differ_are_named_on_all_hosts() -> None:
    for said in af.spawn(differ, 4, hosts=2, timeout=120):
        for what, who, (kind, text, seconds) in said:
            assert kind == "MismatchError" and seconds < AT_ONCE and who in text and what in text and USUAL in text, (
                said
            )


def leaves_early(comm: Communicator, collective: str) -> list[float]:
    """Rank 2 comes when ranks 3 and 4, which need nothing from it, have made all calls and may have left."""
    if comm.rank == 2:
        time.sleep(0.7)
    heard = []
    for call in range(6):
        array = np.full(8000, comm.rank + call, np.float64)
        if collective == "broadcast":
            comm.broadcast(array)
        elif collective == "gather":
            every = np.empty(8000) if comm.rank == 0 else None
            comm.gather(array[:1600], output=every)
            array = array if every is None else every
        else:
            getattr(comm, collective)(array)
        heard.append(float(array.sum()))
    return heard


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scan", "exscan"])
def test_ranks_that_have_made_their_calls_may_leave(collective: str) -> None:
    results = af.spawn(leaves_early, 5, args=(collective,), hosts=[2, 2, 1], timeout=60)
    one = {"broadcast": [0] * 5, "reduce": [10], "gather": [2], "scan": [0, 1, 3, 6, 10], "exscan": [0, 0, 1, 3, 6]}
    ranks = {"broadcast": [1] * 5, "reduce": [5], "gather": [1], "scan": [1, 2, 3, 4, 5], "exscan": [1, 1, 2, 3, 4]}
    for heard, at_first, times in zip(results, one[collective], ranks[collective], strict=False):
        assert heard == [8000 * (at_first + times * call) for call in range(6)]


def late(comm: Communicator) -> tuple[str, str, float]:
    """Rank 0 gives up, the others hear of it before their own time is up."""
    comm.barrier()
    if comm.rank == 3:
        assert comm.engine.parts.membership.failed.wait(20)  # type: ignore[attr-defined]
    return said_by(lambda: comm.all_reduce(np.ones(3), timeout=0.5 if comm.rank == 0 else 20.0))


def test_a_rank_that_does_not_come_is_named() -> None:
    said = af.spawn(late, 4, hosts=2, timeout=60)
    assert [kind for kind, _, _ in said] == ["CollectiveTimeout", "RankLost", "RankLost", "RankLost"], said
    assert all("rank 3 on host1 did not arrive" in text for _, text, _ in said), said


def late_together(comm: Communicator, meets_in: str, directly: bool) -> tuple[str, str, float]:
    """Ranks 0 and 1 run out of time. Both tell the others of it before they hear each other; or rank 1 hears that rank 0
    gave up while it still asks who has come."""
    if directly:
        comm.all_reduce(np.ones(3))  # the next one is made by the extension alone
    pair, parts = comm.group([0, 1]), comm.engine.parts  # type: ignore[attr-defined]
    if comm.rank == 2:
        assert parts.membership.failed.wait(20)
        return said_by(comm.barrier)
    assert pair is not None
    owner = parts.world if meets_in == "tell" else parts.calls
    do = getattr(owner, meets_in)

    def meet(*arguments: Any) -> Any:
        setattr(owner, meets_in, do)  # only once: the other rank may leave
        pair.barrier()
        done = do(*arguments)
        if meets_in == "tell" or comm.rank == 1:
            assert parts.membership.failed.wait(20)
        return done

    setattr(owner, meets_in, meet)
    return said_by(lambda: comm.all_reduce(np.ones(3), timeout=0.2))


@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize("meets_in", ["tell", "ask"])
def test_ranks_that_run_out_of_time_together_all_say_so(meets_in: str, directly: bool) -> None:
    said = af.spawn(late_together, 3, args=(meets_in, directly), hosts=3, timeout=60)
    assert [kind for kind, _, _ in said] == ["CollectiveTimeout", "CollectiveTimeout", "RankLost"], said
    assert all("rank 2 on host2 did not arrive" in text for _, text, _ in said), said


def stuck(comm: Communicator) -> tuple[str, str, float]:
    """The operation of rank 0, which all wait for, does not return before the group fails: when all have come."""
    parts: Any = comm.engine.parts  # type: ignore[attr-defined]

    def slow(left: Any, right: Any) -> Any:
        if comm.rank == 0 and not parts.membership.failed.is_set():
            job, deadline = parts.calls._at_work, time.monotonic() + 20
            while {None, Progress.NOT_MADE} & set(parts.calls.ask(job.number).values()) and time.monotonic() < deadline:
                time.sleep(0.01)
            job.deadline = 0.0
            parts.membership.cut_off.wait(20)
        return left + right

    comm.barrier()
    mine = af.op(slow, commutative=True)
    return said_by(lambda: comm.all_reduce(np.ones(3), mine, algorithm="tree", timeout=60))


def test_a_rank_whose_operation_does_not_return_is_named() -> None:
    said = af.spawn(stuck, 4, hosts=2, timeout=60)
    assert all("rank 0 on host0 did not return from the operation" in text for _, text, _ in said), said


def next_to_a_stopped_rank(comm: Communicator) -> tuple[str, float]:
    """The last rank of a host is stopped until nobody can send it more heartbeats. The others go on hearing each other."""
    world._BEAT_SECONDS = 0.1  # whenever the thread that watches looks
    processes = np.zeros(comm.size, np.int64)
    comm.all_gather(np.array([os.getpid()]), processes)
    run, word, said = comm.engine.parts.world, np.ones(1), ""  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif comm.rank == 0:
        while run.frames.pending() < world._MOST_WAITING and time.monotonic() < deadline:
            run.frames.send(comm.size - 1, Frame(News.BEAT))  # the system may have room for thousands
        comm.send(word, 1)
        comm.recv(word, 1)
        os.kill(int(processes[-1]), signal.SIGCONT)
    elif comm.rank == 1:
        comm.recv(word, 0)
        later = time.monotonic() + 0.5
        while run._heard[0] < later and time.monotonic() < deadline:
            time.sleep(0.01)
        said = "heard" if run._heard[0] >= later else "heard nothing"
        comm.send(word, 0)
    array = np.ones(3)
    comm.all_reduce(array, timeout=30)
    return said, float(array[0])


def test_a_stopped_rank_does_not_keep_other_hosts_from_hearing_each_other() -> None:
    said = af.spawn(next_to_a_stopped_rank, 4, hosts=[1, 3], timeout=60)
    assert said == [("", 4.0), ("heard", 4.0), ("", 4.0), ("", 4.0)]


def keeps_records(comm: Communicator) -> dict[str, Any]:
    comm.all_reduce(np.ones(4, np.float32))
    comm.broadcast(np.ones(3), algorithm="tree")
    if comm.rank != 3:
        with pytest.raises((af.CollectiveTimeout, af.RankLost)) as late:
            comm.all_reduce(np.ones(5), "max", timeout=0.5)
        assert late.value.flight["groups"][0]["members"] == [  # type: ignore[attr-defined]
            {key: value for key, value in comm.flight().items() if key not in ("size", "label")}
        ]
    while comm.flight()["standing"] != "failed":  # rank 3 comes no more
        time.sleep(0.01)
    return comm.flight()


def test_the_last_calls_of_every_rank_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_FLIGHT_DIR", str(tmp_path))
    records = af.spawn(keeps_records, 4, hosts=2, timeout=60)
    for rank, record in enumerate(records):
        made = [(call["collective"], call["elements"], call["op"], call["algorithm"]) for call in record["calls"]]
        late = [] if rank == 3 else [("all_reduce", 5, "max", "")]
        assert made == [("all_reduce", 4, "sum", ""), ("broadcast", 3, "", "tree"), *late], record
        assert (record["rank"], record["last_done"], record["standing"]) == (rank, 2, "failed")
    # Every rank that raised has written its own calls; together they show the run.
    (group,) = read_flights(sorted(tmp_path.iterdir()))
    assert [member["rank"] for member in group["members"]] == [0, 1, 2] and group["size"] == 4
    assert all("rank 3 on host1 did not arrive" in text for text in group["errors"].values())


def says_something_else_each_time(comm: Communicator) -> tuple[int, list[float]]:
    runs = 0

    def fickle(ranks: int) -> Any:
        """On rank 0 every second run of it goes the other way round."""
        nonlocal runs
        runs += 1
        first, second = (1, 0) if comm.rank == 0 and runs % 2 == 0 else (0, 1)
        yield [af.reduce(0, source=second, destination=first)]
        yield [af.copy(0, source=first, destination=second)]

    sums = []
    for _ in range(3):
        array = np.full(8, comm.rank + 1.0)
        comm.all_reduce(array, algorithm=fickle, timeout=5)
        sums.append(float(array[0]))
    return runs, sums


def test_the_schedule_that_is_compared_is_the_one_that_runs() -> None:
    assert af.spawn(says_something_else_each_time, 2, hosts=2, timeout=60) == [(1, [3.0] * 3)] * 2


def aborts(comm: Communicator) -> tuple[str, str, float]:
    comm.barrier()
    if comm.rank == 2:
        time.sleep(0.5)
        comm.abort()
    return said_by(lambda: comm.all_reduce(np.ones(300_000)))


def test_abort_frees_all_hosts() -> None:
    for kind, text, seconds in af.spawn(aborts, 4, hosts=2, timeout=60):
        assert kind == "RankLost" and "rank 2 has aborted the world" in text and seconds < AT_ONCE


def survives(comm: Communicator) -> tuple[float, str]:
    kind, _, _ = killed(comm, 1, 3)
    assert kind == "RankLost"
    left = comm.shrink(timeout=20)
    array = np.full(3, comm.rank + 1.0)
    left.all_reduce(array)
    return float(array[0]), repr(left)


def test_shrink_goes_on_with_the_survivors_of_all_hosts() -> None:
    said = af.spawn(survives, 4, hosts=2, survive=True, timeout=60)
    assert [one and one[0] for one in said] == [8.0, None, 8.0, 8.0]
    assert "rank 2 of 3" in said[3][1]


def goes_on_without_a_rank_that_left(comm: Communicator) -> tuple[str, int]:
    """Rank 1 finds out that rank 0 has left, and shrinks; rank 2 waits for rank 1 meanwhile."""
    comm.barrier()
    if comm.rank == 0:
        comm.close()
        return "", 0
    text = ""
    if comm.rank == 2:
        comm.send(np.ones(1), 1)  # it is through the barrier, which a shrink would fail
        _, text, _ = said_by(lambda: comm.recv(np.ones(1), 1, timeout=20))
    else:
        comm.recv(np.ones(1), 2)
        deadline = time.monotonic() + 20
        while not comm.engine.parts.world.lost() and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.01)
    return text, comm.shrink(timeout=20).size


def test_shrink_tells_the_others_why() -> None:
    said = af.spawn(goes_on_without_a_rank_that_left, 3, hosts=3, timeout=60)
    assert [size for _, size in said] == [0, 2, 2] and "rank 0 on host0 has left" in said[2][0], said


def shrinks_again(comm: Communicator) -> tuple[str, int, float]:
    """Rank 3 comes when all others have waited in vain once; then rank 1 dies. Nobody begins while others connect."""
    said, folder = "", Path(os.environ["ALLFOLD_HOSTS_TEST"])

    def wait_for(name: str, ranks: int) -> None:
        deadline = time.monotonic() + 40
        while len(list(folder.glob(f"{name} *"))) < ranks and time.monotonic() < deadline:
            time.sleep(0.01)

    (folder / f"connected {comm.rank}").touch()
    wait_for("connected", 4)
    if comm.rank == 3:
        wait_for("late", 3)
    else:
        said = said_by(lambda: comm.shrink(timeout=0.5))[0]
        (folder / f"late {comm.rank}").touch()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    left, array = comm.shrink(timeout=20), np.ones(3)
    left.all_reduce(array)
    with pytest.raises(af.UsageError, match="already shrunk"):
        comm.shrink()
    return said, left.size, float(array[0])


def test_shrink_can_be_tried_again_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLFOLD_HOSTS_TEST", str(tmp_path))
    said = af.spawn(shrinks_again, 4, hosts=2, survive=True, timeout=60)
    late = ("CollectiveTimeout", 3, 3.0)
    assert said == [late, None, late, ("", 3, 3.0)]


def raises(comm: Communicator) -> tuple[str, str, float]:
    def broken(left: Any, right: Any) -> Any:
        raise KeyError("not mine")

    try:
        return said_by(lambda: comm.all_reduce(np.ones(3), af.op(broken, commutative=True)))
    except KeyError as error:
        return "KeyError", str(error), 0.0


def test_an_operation_that_raises_does_not_leave_the_others_waiting() -> None:
    said = af.spawn(raises, 4, hosts=2, timeout=60)
    assert "KeyError" in {kind for kind, _, _ in said} and {kind for kind, _, _ in said} <= {"KeyError", "RankLost"}, (
        said
    )


def manners(comm: Communicator) -> list[str]:
    said = []
    # A forked child may not use the communicator, and ends like any process.
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
        except af.UsageError as error:
            sys.exit(7 if "was forked from a rank" in str(error) else 1)
        sys.exit(1)
    said.append(f"the child exits with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

    def nested(left: Any, right: Any) -> Any:
        try:
            comm.barrier()
        except af.UsageError as error:
            said.append(str(error))
        return left + right

    array = np.ones(3)
    comm.all_reduce(array, af.op(nested, commutative=True))
    assert (array == 4).all()
    # A handler of one's own decides what a signal means; the call goes on.
    before = signal.signal(signal.SIGINT, lambda *_: said.append("heard"))
    if comm.rank == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
    else:
        time.sleep(1)
    comm.barrier()
    signal.signal(signal.SIGINT, before)
    return said


def test_bad_manners_across_hosts() -> None:
    for rank, said in enumerate(af.spawn(manners, 4, hosts=2, timeout=60)):
        assert said[0] == "the child exits with 7"
        assert all(
            "inside a user-defined operation of the same communicator" in one for one in said[1:] if one != "heard"
        )
        assert ("heard" in said) == (rank == 0)


def interrupted(comm: Communicator) -> tuple[str, str, float]:
    """Rank 0 is interrupted while rank 3 has not come; rank 3 comes when the others have heard of it."""
    group = comm.group(range(comm.size))
    if comm.rank == 3:
        comm.barrier()
    if comm.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        said = said_by(lambda: group.all_reduce(np.ones(3)))
    except KeyboardInterrupt:
        said = "KeyboardInterrupt", "", 0.0
    if comm.rank != 3:
        comm.barrier()
    return said


def test_an_interrupt_ends_the_call_on_all_hosts() -> None:
    said = af.spawn(interrupted, 4, hosts=2, timeout=60)
    assert said[0][0] == "KeyboardInterrupt"
    assert all(kind == "RankLost" and "rank 0" in text and seconds < AT_ONCE for kind, text, seconds in said[1:]), said


def interrupted_as_it_begins(comm: Communicator) -> list[tuple[str, str, float]]:
    """Rank 0 is interrupted where its call has been counted, and has not sent anything yet."""

    def interrupt(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is Calls._make.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def call() -> None:
        comm.all_reduce(np.ones(3), op=lambda a, b: a + b)

    if comm.rank == 0:
        comm.barrier()  # all have joined
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            call()
        return [said_by(call) for _ in range(2)]
    # When rank 0 has left the barrier, others may still be in it.
    return [said_by(lambda: (comm.barrier(), call())), said_by(call)]


def test_an_interrupt_at_the_start_of_a_call_ends_it_on_all_hosts() -> None:
    for said in af.spawn(interrupted_as_it_begins, 4, hosts=2, timeout=60):
        for kind, text, seconds in said:
            assert kind == "RankLost" and "rank 0 gave up all_reduce" in text and seconds < AT_ONCE, said


def in_the_background(comm: Communicator) -> tuple[str, str, float]:
    """Rank 1 comes when the others have given up."""
    group = comm.group(range(comm.size))
    if comm.rank == 1:
        comm.barrier()
        return said_by(lambda: group.all_reduce(np.ones(3)))
    handle = group.all_reduce(np.ones(3), async_op=True, timeout=0.5)
    assert handle is not None
    said = said_by(handle.wait)
    comm.barrier()
    return said


def test_a_call_in_the_background_has_a_timeout_too() -> None:
    for kind, text, seconds in af.spawn(in_the_background, 4, hosts=2, timeout=60):
        assert (
            kind in ("CollectiveTimeout", "RankLost") and "rank 1 on host0 did not arrive" in text and seconds < AT_ONCE
        )


def rewrites(comm: Communicator) -> tuple[str, float]:
    """The group fails while the thread of a background call folds. Its caller then changes the array."""
    folds, goes_on, array, group = threading.Event(), threading.Event(), np.ones(3), comm.group(range(comm.size))

    def slow(left: Any, right: Any) -> Any:
        folds.set()
        goes_on.wait(20)
        return left + right

    # In a ring every rank sends what it has folded.
    handle = comm.all_reduce(array, af.op(slow, commutative=True), algorithm="ring", async_op=True)
    assert handle is not None and folds.wait(20)
    group.barrier()  # if one rank aborted before, the other might never get so far
    comm.abort()
    threading.Timer(0.3, goes_on.set).start()
    kind, _, _ = said_by(handle.wait)
    array[:] = 99
    goes_on.wait(20)
    assert comm.engine.parts.calls._turn.acquire(timeout=20)  # type: ignore[attr-defined]
    return kind, float(array[0])


def test_after_an_error_nobody_writes_into_the_array_of_a_call() -> None:
    assert af.spawn(rewrites, 2, hosts=2, timeout=60) == [("RankLost", 99.0)] * 2


@pytest.mark.parametrize(
    ("ranks", "hosts", "says"),
    [
        (4, 5, "4 ranks are too few for 5 hosts"),
        (4, [1, 4], "1+4 is 5 ranks, and the run has 4"),
        (4, 0, "expected a number of hosts"),
        (4, [4, 0], "expected a number of hosts"),
        (4, True, "expected a number of hosts"),
    ],
)
def test_hosts_that_make_no_sense(ranks: int, hosts: Any, says: str) -> None:
    with pytest.raises(af.UsageError) as caught:
        af.spawn(barrier, ranks, hosts=hosts)
    assert says in str(caught.value)


def barrier(comm: Communicator) -> None:
    comm.barrier()
