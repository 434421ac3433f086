"""Ranks of `spawn` from its second run on: forked from a process that is kept, where they cannot tell the difference."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.launch import kept


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept.end_kept()
    kept._seen.clear()
    yield
    kept.end_kept()
    kept._seen.clear()


def where(comm: Communicator, seconds: float = 0.0) -> tuple[int, str, str | None]:
    """The process that the template was forked from, this rank's folder, and a variable."""
    time.sleep(seconds)
    comm.barrier()
    return parent_of(os.getppid()), os.getcwd(), os.environ.get("ALLFOLD_TEST_WORD")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_kept() -> bool:
    """True if the ranks of a run come from the process that is kept; else from a template of their own."""
    servers = {one.process.pid for one in kept._servers.values()}
    (parent,) = {parent for parent, _, _ in af.spawn(where, 2)}
    assert parent == os.getpid() or parent in servers | {one.process.pid for one in kept._servers.values()}
    return parent != os.getpid()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_second_run_keeps_a_process_and_later_ones_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_kept() for _ in range(3)] == [False, True, True]
    (server,) = kept._servers.values()
    monkeypatch.chdir(tmp_path)
    assert {folder for _, folder, _ in af.spawn(where, 2)} == {str(tmp_path)}
    assert [*kept._servers.values()] == [server] and server.is_usable()


def _lower_the_limit_of_files() -> Callable[[], object]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _use_one_core() -> Callable[[], object]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    return lambda: os.sched_setaffinity(0, before)


def _ignore_a_signal() -> Callable[[], object]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before)


def _change_the_mask_of_files() -> Callable[[], object]:
    before = os.umask(0o027)
    return lambda: os.umask(before)


@pytest.mark.parametrize(
    "change", [_change_the_mask_of_files, _ignore_a_signal, _lower_the_limit_of_files, _use_one_core]
)
def test_what_a_process_inherits_is_compared(change: Callable[[], Callable[[], object]]) -> None:
    before = kept._inherited()
    undo = change()
    try:
        assert kept._inherited() != before
    finally:
        undo()
    assert kept._inherited() == before


def test_ranks_inherit_what_has_changed_and_at_most_two_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in "012":
        monkeypatch.setenv("ALLFOLD_TEST_WORD", number)
        assert [is_kept() for _ in range(2)] == [False, True]
        assert {word for _, _, word in af.spawn(where, 2)} == {number}
    assert len(kept._servers) == 2
    monkeypatch.setenv("ALLFOLD_TEST_WORD", "1")
    assert is_kept()  # it is still there


def test_a_run_after_somebody_has_killed_it() -> None:
    assert [is_kept() for _ in range(2)] == [False, True]
    (server,) = kept._servers.values()
    os.kill(server.process.pid, signal.SIGSTOP)  # so that its end comes while a request waits for its answer
    threading.Timer(0.5, server.process.kill).start()
    assert not is_kept()
    assert is_kept() and server not in kept._servers.values()


def test_it_ends_when_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_SECONDS_IDLE", 0.2)
    assert not is_kept()
    ((parent, _, _), _) = af.spawn(where, 2, args=(1.0,))  # longer than it may be idle
    (server,) = kept._servers.values()
    assert parent == server.process.pid
    wait_until(lambda: server.process.poll() is not None)
    assert server.process.returncode == 0
    assert is_kept()


def test_a_thread_keeps_none_because_it_would_end_with_the_thread() -> None:
    found: list[bool] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(is_kept()))
        thread.start()
        thread.join()
    assert found == [False, False] and not kept._servers
    assert is_kept()
    thread = threading.Thread(target=lambda: found.append(is_kept()))
    thread.start()
    thread.join()
    assert found[-1]


SCRIPT = """
import os
import allfold as af
from allfold.launch import kept

def work(comm):
    return comm.rank

if __name__ == "__main__":
    for _ in range(2):
        assert af.spawn(work, 2) == [0, 1]
    print(*(one.process.pid for one in kept._servers.values()), flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_it_ends_with_its_program(end: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(end=end))
    script = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, timeout=120)
    (process,) = map(int, done.stdout.split())
    wait_until(lambda: not Path(f"/proc/{process}").exists())
