"""Ranks that `spawn` starts are forked from one process, and behave as if each had been started afresh."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import select
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest

import allfold as af
from allfold.errors import CollectiveTimeout, RankFailed
from allfold.launch.environment import Place
from allfold.launch.spawn import _modules, run_everywhere


def everywhere(work: Any, ranks: int, **options: Any) -> list[Any]:
    return run_everywhere(nullcontext, work, ranks, **options)


def what_a_rank_has(place: Place) -> dict[str, Any]:
    of_c = ctypes.CDLL(None).getenv
    of_c.restype = ctypes.c_char_p
    return {
        "variable of C": of_c(b"ALLFOLD_RANK").decode(),
        "process": os.getpid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "threads": threading.active_count(),
        "kernel threads": len(os.listdir("/proc/self/task")),
        "input": sys.stdin.read(),
        "says where it crashed": faulthandler.is_enabled(),
        "open": open_descriptors(),
        "random": random.random(),
        "NumPy's random": np.random.random(),
        "modules": {module.partition(".")[0] for module in sys.modules},
    }


def open_descriptors() -> list[tuple[str, bool]]:
    """What is open beside input, output and errors, and whether commands inherit it."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder itself is no longer open
            if number > 2:
                kind = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
                found.append((kind, os.get_inheritable(number)))
    return found


def test_a_forked_rank_is_as_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # NumPy's library then has threads before the ranks are forked
    ranks = everywhere(what_a_rank_has, 3)
    for rank, found in enumerate(ranks):
        assert found["variable of C"] == str(rank)
        assert found["process"] == found["session"] == found["group"]
        assert found["threads"] == found["kernel threads"] == 1
        assert found["input"] == ""
        assert found["says where it crashed"]
        assert found["open"] == [("pipe", False)], "its report, and nothing of other ranks"
        assert found["modules"] & {"numpy", "pytest", "torch"} == {"numpy"}
    for name in ("process", "random", "NumPy's random"):
        assert len({found[name] for found in ranks}) == 3, name


def test_nothing_is_written_twice_or_lost(capfd: pytest.CaptureFixture[str]) -> None:
    def work(place: Place) -> None:
        sys.stdout.write(f"of {place.rank}\n")  # into a buffer: nobody is at a terminal
        kept.append(open(os.dup(1), "w"))  # noqa: SIM115 - flushed when the interpreter ends
        kept[0].write(f"at the end of {place.rank}\n")

    kept: list[Any] = []
    everywhere(work, 2)
    assert sorted(capfd.readouterr().out.splitlines()) == ["at the end of 0", "at the end of 1", "of 0", "of 1"]


def test_a_rank_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    """Though it leaves alone what was imported before the fork."""
    (tmp_path / "of_the_rank.py").write_text("kept = []\n")

    def work(place: Place, extension: str) -> None:
        import atexit
        import importlib

        def late(name: str) -> None:
            threading.Event().wait(0.1)
            (tmp_path / f"{name} {place.rank}").write_text("done")

        def kept(name: str) -> Any:
            file = open(tmp_path / f"{name} {place.rank}", "w")  # noqa: SIM115 - flushed when the interpreter ends
            file.write("done")
            return file

        threading.Thread(target=late, args=("thread",)).start()
        atexit.register(late, "atexit")
        weakref.finalize(np, late, "finalizer")
        sys.path.append(str(tmp_path))
        importlib.import_module("of_the_rank").kept.append(kept("in a module of its own"))
        np.kept = kept("in a module of all ranks")  # type: ignore[attr-defined]
        if extension:
            importlib.import_module(extension)

    for extension in ("", "_lsprof"):
        everywhere(work, 2, args=(extension,))
        found = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".py"}
        kinds = ("thread", "atexit", "finalizer", "in a module of its own", "in a module of all ranks")
        assert found == {f"{kind} {rank}": "done" for kind in kinds for rank in range(2)}
        for name in found:
            (tmp_path / name).unlink()


def test_output_that_cannot_be_written_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(place: Place) -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        sys.stdout.write("into a buffer")

    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with pytest.raises(RankFailed, match="exited with status 120"):
        everywhere(work, 1)


def test_many_ranks() -> None:
    assert everywhere(lambda place: place.rank, 64, timeout=120) == list(range(64))


def test_ranks_die_with_the_process_that_forked_them(tmp_path: Path) -> None:
    def work(place: Place) -> None:
        (tmp_path / str(os.getpid())).touch()
        if place.rank == 2:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(
        RankFailed, match=r"^rank 0 \(process \d+\) was killed by SIGKILL; then ranks 1 and 2 were killed by SIGKILL$"
    ):
        everywhere(work, 3)
    for process in map(int, os.listdir(tmp_path)):
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        with open(descriptor) as file:
            assert select.select([file], [], [], 30)[0], f"process {process} is still there"


def test_a_timeout_before_any_rank_has_started() -> None:
    with pytest.raises(CollectiveTimeout, match=r"^spawn: ranks 0 and 1 of 2 had not finished after 0 s"):
        everywhere(lambda place: place.rank, 2, timeout=0)


def test_ignored_ends_of_children_do_not_matter() -> None:
    script = (
        "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "import allfold as af\n"
        "try: af.spawn(lambda comm: os._exit(3) if comm.rank else 1, 2)\n"
        "except af.RankFailed as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "rank 1" in done.stdout and "exited with status 3" in done.stdout, done


def uses_torch(comm: Any) -> float:
    import torch

    return float(torch.ones(3).sum())


def test_torch_is_imported_once_if_the_work_mentions_it() -> None:
    pytest.importorskip("torch")
    plain, of_torch = (cloudpickle.dumps(work) for work in (what_a_rank_has, uses_torch))
    assert "torch" in _modules(uses_torch, of_torch, [], {})
    assert "torch" not in _modules(what_a_rank_has, plain, [], {})
    assert "torch" in _modules(sys.modules["torch"].manual_seed, plain, [], {})  # by its name, with its whole module
    assert af.spawn(uses_torch, 2) == [3.0, 3.0]


def test_the_fabric_between_pretended_hosts_is_imported_once() -> None:
    assert "allfold.fabrics.ucx" in _modules(what_a_rank_has, b"", [2, 2], {})
    assert "allfold.fabrics.ucx" not in _modules(what_a_rank_has, b"", [], {})
