"""Ranks that mpiexec starts, and that meet through MPI. Skipped where there is none; `make bench-peers` installs one."""

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

import fabric_checks
import pytest
from fabric_checks import CHECKS, PATIENCE, RANKS, VICTIM, Check, end, passed, start, those_who_are_left_go_on

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
    return printed_by(fabric_checks.__file__, "mpi", *(check.__name__ for check in CHECKS))[0]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ranks_that_met_through_mpi(check: Check, printed: str) -> None:
    assert [passed(check.__name__, rank) in printed for rank in range(RANKS)] == [True] * RANKS, printed


def test_a_rank_that_is_killed_is_noticed(tmp_path: Path) -> None:
    if not is_open_mpi():
        pytest.skip("only Open MPI's mpiexec goes on without a rank (--with-ft ulfm)")
    # Open MPI's shared memory has a name, and nobody removes it when a rank is killed.
    options = ("--with-ft", "ulfm", "--mca", "btl_sm_backing_directory", str(tmp_path))
    ranks = started(fabric_checks.__file__, "mpi", those_who_are_left_go_on.__name__, options=options)
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


TWICE = """
import mpi4py
mpi4py.rc.threads = False
import os
import numpy as np
import allfold as af
os.environ["ALLFOLD_HOSTID"] = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
for engine in range(2):
    with af.init() as comm:
        array = np.full(3, comm.rank + 1.0)
        comm.all_reduce(array)
        print(f"{comm.engine.fabric_name} {array[0]:g}\\n", end="", flush=True)
"""


def test_a_process_meets_again_and_mpi_needs_no_threads() -> None:
    printed, status = printed_by("-c", TWICE)
    assert [printed.count("tcp 6"), status] == [2 * RANKS, 0], printed


LATE = """
import os, sys, time
from pathlib import Path
import mpi4py.MPI
from allfold.errors import AllfoldError
from allfold.fabrics.table import board_from_environment

rank, told = mpi4py.MPI.COMM_WORLD.rank, Path(sys.argv[1])
if rank < 2:
    try:
        board_from_environment(os.environ, rank, 3, 1.0)
    except AllfoldError as error:
        (told / str(rank)).write_text(str(error))
deadline = time.monotonic() + 60
while len(list(told.iterdir())) < 2 and time.monotonic() < deadline:
    time.sleep(0.02)
"""


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    printed, status = printed_by("-c", LATE, str(tmp_path))
    assert status == 0, printed
    assert {path.read_text() for path in tmp_path.iterdir()} == {"init: rank 2 of 3 did not arrive within 1 s"}


def test_ranks_that_mpi_numbers_differently_are_told() -> None:
    script = """
import os
from allfold.errors import UsageError
from allfold.fabrics.table import board_from_environment
try:
    board_from_environment(os.environ, 7, 8, 10.0)
except UsageError as error:
    print(f"refused: {error}\\n", end="", flush=True)
"""
    printed, status = printed_by("-c", script)
    assert [printed.count("refused: this process is rank 7 of 8, but MPI says rank"), status] == [RANKS, 0], printed
