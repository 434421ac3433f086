"""The fabric over MPI: ranks that mpiexec starts. Skipped where there is none; `make bench-peers` installs one."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import mpi_checks
import pytest
from fabric_checks import CHECKS, RANKS, VICTIM, Check, end, passed, start, those_who_are_left_go_on
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


def printed_by(*words: str, options: tuple[str, ...] = ()) -> tuple[str, int]:
    more = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *options] if is_open_mpi() else []
    ranks = start([str(MPIEXEC), "-n", str(RANKS), *more, sys.executable, *words], **ROOT)
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


def test_a_rank_that_is_killed_is_noticed() -> None:
    if not is_open_mpi():
        pytest.skip("only Open MPI's mpiexec goes on without a rank (--with-ft ulfm)")
    printed, _ = printed_by(mpi_checks.__file__, those_who_are_left_go_on.__name__, options=("--with-ft", "ulfm"))
    for rank in range(VICTIM):
        assert passed(those_who_are_left_go_on.__name__, rank) in printed, printed


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
