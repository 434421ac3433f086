"""The same results on simulated hosts as in test_pretended.py, of ranks that mpirun has started and that meet through MPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_pretended import usually

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
OPTIONS = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIRUN is None,
    reason="there is no MPI: make bench-peers installs one",
)
@pytest.mark.parametrize(("hosts", "every"), usually((2, 2)))
def test_across_hosts_under_mpirun(hosts: tuple[int, ...], every: bool) -> None:
    script = Path(__file__).with_name("mpi_rank.py")
    words = [str(MPIRUN), "-n", str(sum(hosts)), *OPTIONS, sys.executable, str(script)]
    words += [",".join(map(str, hosts)), *(["every"] if every else [])]
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # containers often have no other user
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": str(script.parents[1]),
    }
    ended = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, timeout=180, check=False)
    assert ended.stdout.count("has passed") == sum(hosts) and ended.returncode == 0, ended.stdout + ended.stderr
