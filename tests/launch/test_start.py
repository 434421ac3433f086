"""`allfold.start`: the script is a rank of its launcher, or starts the ranks itself."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launchers import MPICH, OPEN_MPI, SLURM, TORCHRUN
from processes import PATIENCE, allfold_run, with_allfold

import allfold
from allfold.errors import RankFailed, UsageError

# Prints who did the work, whether in this process, and that the communicator is unusable afterwards.
STARTING = """
import os, sys
import allfold as af

def work(comm, word):
    if word == "raise" and comm.rank == 1:
        raise LookupError("no such luck")
    comm.barrier()
    work.held = comm
    return f"{comm.rank} of {comm.size}: {word} in {os.getpid()}"

result = af.start(work, 3, args=(sys.argv[1],))
who, _, process = result.rpartition(" ")
where = "here" if process == str(os.getpid()) else "elsewhere"
if where == "here":
    try:
        work.held.barrier()
    except af.UsageError as error:
        where += ", " + str(error)
sys.stdout.write(f"{who} {where}\\n")
"""


@pytest.fixture
def starting(tmp_path: Path) -> Path:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    return script


def without_launcher() -> dict[str, str]:
    prefixes = ("ALLFOLD_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
    others = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: text for name, text in with_allfold().items() if not name.startswith(prefixes) and name not in others}


def as_rank(rank: int, size: int) -> str:
    return f"{rank} of {size}: word in here, barrier: this communicator is closed"


def test_start_spawns_where_no_launcher_did(starting: Path) -> None:
    command = [sys.executable, str(starting), "word"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_launcher(), timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("0 of 3: word in elsewhere\n", "")


@pytest.mark.parametrize("ranks", [1, 2])
def test_start_is_a_rank_of_allfold_run(starting: Path, ranks: int) -> None:
    status, output, errors = allfold_run("-n", ranks, starting, "word")
    assert (status, errors) == (0, b"")
    assert sorted(output.decode().splitlines()) == [as_rank(rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("variables", "rank_names", "size_names", "run_name"),
    [
        (TORCHRUN, ["RANK", "LOCAL_RANK"], ["WORLD_SIZE", "LOCAL_WORLD_SIZE"], "TORCHELASTIC_RUN_ID"),
        (
            OPEN_MPI,
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
            ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            "PMIX_NAMESPACE",
        ),
        (MPICH, ["PMI_RANK", "MPI_LOCALRANKID"], ["PMI_SIZE", "MPI_LOCALNRANKS"], "PMI_JOBID"),
        (SLURM, ["SLURM_PROCID", "SLURM_LOCALID"], ["SLURM_NTASKS"], "SLURM_JOB_ID"),
    ],
    ids=["torchrun", "Open MPI", "MPICH", "srun"],
)
def test_start_is_a_rank_of_other_launchers(
    starting: Path, variables: dict[str, str], rank_names: list[str], size_names: list[str], run_name: str
) -> None:
    common = without_launcher() | variables | dict.fromkeys(size_names, "2") | {run_name: secrets.token_hex(8)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(starting), "word"],
            env=common | dict.fromkeys(rank_names, str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (0, as_rank(rank, 2) + "\n")


def test_an_error_comes_out_of_start_as_it_is_under_a_launcher_and_as_rank_failed_else(starting: Path) -> None:
    status, output, errors = allfold_run("-n", 2, starting, "raise")
    assert (status, output) == (1, b"")
    assert b"\nLookupError: no such luck\n" in errors and b"RankFailed" not in errors
    command = [sys.executable, str(starting), "raise"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_launcher(), timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "allfold.errors.RankFailed: rank 1" in done.stderr and "LookupError: no such luck" in done.stderr


def test_start_without_the_rank_that_it_stands_for() -> None:
    def work(comm: Any) -> int:
        if comm.rank == 0:
            os._exit(3)
        return int(comm.rank)

    assert allfold.start(work, 2, survive=True) is None
    with pytest.raises(RankFailed, match="rank 0"):
        allfold.start(work, 2)


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["alone", "launched"])
def test_start_refuses_what_spawn_refuses(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    for ranks in (0, -1, 2.0, True, "2"):
        with pytest.raises(UsageError, match="expected a whole number of ranks, at least 1"):
            allfold.start(lambda comm: None, ranks)  # type: ignore[arg-type]


def test_start_refuses_half_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="WORLD_SIZE is not set although RANK='0' is"):
        allfold.start(lambda comm: None, 2)
