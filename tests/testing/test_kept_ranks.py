"""Ranks that are kept between tests: what is new in every test, what stays, and when they are ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allfold as af
import allfold.testing.items
from allfold.errors import CollectiveTimeout, RankFailed
from allfold.launch import kept_ranks
from allfold.testing import run

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def none_are_left() -> Iterator[None]:
    yield
    kept_ranks.end_kept_ranks()


def processes(ranks: int = 2, **options: Any) -> list[int]:
    """The process ids of kept ranks, which have also made a call."""

    def work(comm: Any) -> int:
        x = np.ones(3)
        comm.all_reduce(x)
        assert x[0] == comm.size
        return os.getpid()

    return run(work, ranks, keep=True, **options)


def wait_for_the_end(process: int) -> None:
    end = select.poll()
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    end.register(descriptor, select.POLLIN)
    assert end.poll(60_000), f"process {process} is still there"
    os.close(descriptor)


def test_ranks_are_used_again_by_tests_of_their_kind() -> None:
    first = processes()
    assert processes() == first
    assert set(first).isdisjoint(processes(3))
    assert set(first).isdisjoint(processes(2, hosts=2))
    assert processes() == first
    assert run(lambda comm: os.getpid(), 2) != first, "without keep, ranks are forked"


def test_each_run_has_the_variables_the_folder_and_the_output_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(comm: Any, text: str) -> tuple[str | None, str, int]:
        print(text, end="")
        found = os.environ.get("OF_THE_TEST"), os.getcwd(), int(np.random.randint(1 << 30))
        os.environ["OF_THE_TEST"] = "changed"
        os.chdir("/")
        return found

    here = os.getcwd()
    first = run(work, 1, args=("one",), keep=True)[0]
    assert first[:2] == (None, here)
    monkeypatch.setenv("OF_THE_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    assert run(work, 1, args=("two",), keep=True)[0] == ("yes", str(tmp_path), first[2])
    assert capsys.readouterr().out == "[0] one\n[0] two\n"


def test_modules_and_globals_stay() -> None:
    def remembers(comm: Any) -> bool:
        seen = hasattr(np, "of_an_earlier_test")
        np.of_an_earlier_test = True  # type: ignore[attr-defined]
        return seen

    assert [run(remembers, 1, keep=True) for _ in range(2)] == [[False], [True]]


def test_registered_schedules_are_those_of_the_caller() -> None:
    def names(comm: Any) -> bool:
        return "ring_of_2" in af.algorithms("all_gather")

    assert run(names, 2, keep=True) == [False, False]
    with af.registry.REGISTRY.scope():
        af.register(af.schedule("all_gather", "ring", ranks=2), "ring_of_2")
        assert run(names, 2, keep=True) == [True, True]
    assert run(names, 2, keep=True) == [False, False]


def fails(comm: Any, way: str) -> None:
    if comm.rank == 1:
        if way == "leaves a thread":
            threading.Thread(target=time.sleep, args=(60,)).start()
        if way == "raises":
            raise ValueError("the cause")
        if way == "hangs":
            time.sleep(60)
        if way == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "exits":
            sys.exit(0)
    comm.barrier()


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("raises", "rank 1 of 2 raised ValueError: the cause"),
        ("crashes", "rank 1 of 2 was killed by SIGKILL"),
        ("exits", "rank 1 of 2 exited with status 0"),
        ("leaves a thread", "rank 1 of 2 left behind: thread"),
        ("hangs", "ranks 0 and 1 of 2 had not finished after 1 s"),
    ],
)
def test_after_a_failure_there_are_new_ranks(way: str, said: str) -> None:
    first = processes()
    kind = CollectiveTimeout if way == "hangs" else RankFailed
    with pytest.raises(kind) as caught:
        run(fails, 2, args=(way,), keep=True, timeout=1 if way == "hangs" else 30)
    assert str(caught.value).startswith(said)
    for process in first:
        wait_for_the_end(process)
    assert set(first).isdisjoint(processes())


def test_ranks_that_have_ended_between_tests_are_replaced() -> None:
    first = processes()
    os.kill(first[1], signal.SIGKILL)
    wait_for_the_end(first[1])
    second = processes()
    assert set(first).isdisjoint(second)
    wait_for_the_end(first[0])


def test_ranks_of_few_kinds_are_kept() -> None:
    first = processes(1)
    for ranks in range(2, 2 + kept_ranks._MOST_KINDS):
        run(lambda comm: None, ranks, keep=True)
    assert len(kept_ranks._idle) == kept_ranks._MOST_KINDS
    wait_for_the_end(first[0])


def test_threads_do_not_share_ranks() -> None:
    found: list[int] = []
    both = threading.Barrier(2)

    def one() -> None:
        both.wait(60)
        for _ in range(3):
            found.extend(processes(1))

    # The process that is kept must not have been started by one of the threads, which end.
    run(lambda comm: None, 1)
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6


def test_a_forked_process_leaves_them_alone() -> None:
    first = processes()
    child = os.fork()
    if child == 0:
        kept_ranks.end_kept_ranks()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert processes() == first


def test_they_end_with_the_process_that_uses_them() -> None:
    script = """
import os, signal
from allfold.testing import run
print(*run(lambda comm: os.getpid(), 2, keep=True), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert found.returncode == -signal.SIGKILL, found.stderr
    for process in map(int, found.stdout.split()):
        wait_for_the_end(process)


def test_a_group_of_torch_is_new_in_every_test_even_if_it_was_left() -> None:
    torch = pytest.importorskip("torch")

    def with_a_group(group: Any) -> tuple[int, float]:
        dist = torch.distributed
        x = torch.ones(2)
        dist.all_reduce(x, group=dist.new_group())
        assert group is dist.group.WORLD and len(dist.distributed_c10d._world.pg_map) == 2
        return os.getpid(), float(x[0])

    def without(comm: Any) -> int:
        torch.distributed.init_process_group("gloo")
        return os.getpid()

    first, second = (run(with_a_group, 2, backend="gloo", keep=True) for _ in range(2))
    assert first == second and {x for _, x in first} == {2.0}
    assert run(without, 1, keep=True) == run(without, 1, keep=True)


def test_the_mark_keeps_ranks_until_the_end_of_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import os
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.ranks(2, keep=True)
def test_it(comm, rank, n):
    comm.barrier()
    path = f"process-{rank}"
    if n == 0:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
    assert open(path).read() == str(os.getpid())
"""
    )
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider").parseoutcomes()["passed"] == 3
    assert not kept_ranks._idle
    for rank in range(2):
        wait_for_the_end(int((pytester.path / f"process-{rank}").read_text()))
