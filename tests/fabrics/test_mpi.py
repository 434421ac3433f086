"""The fabric over MPI: ranks that mpiexec starts. Skipped where there is none; `make bench-peers` installs one."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import mpi_checks
import pytest
from fabric_checks import CHECKS, PATIENCE, RANKS, VICTIM, Check, end, passed, start, those_who_are_left_go_on
from mpi_checks import ENDS, MORE

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers often have no other user

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed: make bench-peers"),
    pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec: make bench-peers"),
]


@functools.cache
def is_open_mpi() -> bool:
    asked = subprocess.run([str(MPIEXEC), "--version"], capture_output=True, text=True, timeout=60, check=False)
    return "Open MPI" in asked.stdout


def started(*words: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    more = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *options] if is_open_mpi() else []
    return start([str(MPIEXEC), "-n", str(RANKS), *more, sys.executable, *words], **ROOT)


def printed_by(*words: str) -> tuple[str, int]:
    ranks = started(*words)
    return end([ranks]), ranks.returncode


@pytest.fixture(scope="module")
def printed() -> str:
    return printed_by(mpi_checks.__file__, *(check.__name__ for check in (*CHECKS, *MORE)))[0]


@pytest.mark.parametrize("check", [*CHECKS, *MORE], ids=lambda check: check.__name__)
def test_over_mpi(check: Check, printed: str) -> None:
    assert [passed(check.__name__, rank) in printed for rank in range(RANKS)] == [True] * RANKS, printed


@pytest.mark.parametrize("check", ENDS, ids=lambda check: check.__name__)
def test_a_process_ends_well_whatever_is_open(check: Check) -> None:
    printed, status = printed_by(mpi_checks.__file__, check.__name__)
    assert [printed.count("passed on rank"), status] == [RANKS, 0], printed


def test_a_rank_that_is_killed_is_noticed(tmp_path: Path) -> None:
    if not is_open_mpi():
        pytest.skip("only Open MPI's mpiexec goes on without a rank (--with-ft ulfm)")
    # Open MPI's shared memory has a name, and nobody removes it when a rank is killed.
    options = ("--with-ft", "ulfm", "--mca", "btl_sm_backing_directory", str(tmp_path))
    ranks = started(mpi_checks.__file__, those_who_are_left_go_on.__name__, options=options)
    wanted = [passed(those_who_are_left_go_on.__name__, rank) for rank in range(VICTIM)]
    overdue = threading.Timer(PATIENCE, ranks.kill)
    overdue.start()
    try:
        assert ranks.stdout is not None
        printed = ""
        while not all(line in printed for line in wanted):
            line = ranks.stdout.readline()
            assert line, printed
            printed += line
    finally:
        overdue.cancel()
        # Open MPI's own end waits for the lost rank, now and then without end. Interrupted twice, it ends all ranks.
        for _ in range(2):
            ranks.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                ranks.wait(1)
        end([ranks])


def test_mpi_without_threads_is_refused() -> None:
    script = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from allfold.fabrics.mpi_store import Store
try:
    Store()
except ValueError as error:
    print(f"refused: {error}\\n", end="", flush=True)
"""
    printed, status = printed_by("-c", script)
    assert [printed.count("refused: MPI was initialised without MPI_THREAD_MULTIPLE"), status] == [RANKS, 0], printed
