"""The names of the fabrics, and the place where the ranks of a run meet, from the environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ..errors import UsageError
from ..wording import suggest
from .board import Board
from .secret import Secret
from .stores import FolderStore, MemoryStore, Store, store_at

FABRICS = ("tcp", "ucx", "mpi")
"""The values of ALLFOLD_FABRIC. `mpi`: the ranks meet through MPI, and a fabric that fits the hosts carries the data."""

_REMOVED = {
    "gloo": "this fabric was removed, because tcp is faster and needs nothing installed; unset the variable, or set it to tcp"
}

# The variables of other launchers that `launch.environment` knows. Inside torchrun or `allfold run`, mpirun's variables
# belong to an outer run.
_OTHER_LAUNCHERS = ("ALLFOLD_RANK", "ALLFOLD_SIZE", "ALLFOLD_KEY", "RANK", "WORLD_SIZE")
_MPIRUN = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")

_boards = 0  # made by this process from its environment


def board_from_environment(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> Board:
    """The board where the ranks of this run meet, if they may be on several hosts."""
    global _boards
    _boards += 1
    store = _store(environ, rank, size, timeout)
    # Under srun, another step may use the same default port. (Ranks of torchrun may belong to several steps.)
    step = "" if "RANK" in environ else f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')} "
    return Board(store, rank, size, Secret.from_environment(environ), f"{step}{_boards}/")


def _store(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> Store:
    if meets_through_mpi(environ):
        from .mpi_store import store_through_mpi

        return store_through_mpi(rank, size, timeout)
    if path := environ.get("ALLFOLD_STORE"):
        return FolderStore(Path(path + ".entries"))
    if _names_a_place(environ):
        port = environ["MASTER_PORT"]
        if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise UsageError(f"MASTER_PORT={port!r}: expected a port from 1 to 65535")
        if _is_torchs(environ):
            from .torch_store import kept_by_torchrun

            return kept_by_torchrun(environ, rank, size, timeout)
        return store_at(environ["MASTER_ADDR"], int(port), rank, size, timeout)
    if size == 1:
        return MemoryStore()
    hint = "; or install mpi4py, and they meet through MPI" if _is_under_mpirun(environ) else ""
    raise UsageError(
        "the ranks are on several hosts: to meet they need MASTER_ADDR and MASTER_PORT, which torchrun sets; set them to an "
        f"address of rank 0's host and a free port there, the same for all ranks{hint}"
    )


def named_fabric(environ: Mapping[str, str]) -> str | None:
    """The value of ALLFOLD_FABRIC. Raises `UsageError` if there is no such fabric."""
    named = environ.get("ALLFOLD_FABRIC")
    if named is not None and named not in FABRICS:
        why = _REMOVED.get(named) or f"there is no such fabric; {suggest(named, FABRICS)}"
        raise UsageError(f"ALLFOLD_FABRIC={named!r}: {why}")
    return named


def meets_through_mpi(environ: Mapping[str, str]) -> bool:
    """True if the ranks meet through MPI: under mpirun, if mpi4py is installed and no other way was asked for."""
    named = named_fabric(environ)
    is_there = find_spec("mpi4py") is not None
    if named == "mpi":
        if not is_there:
            raise UsageError(f"ALLFOLD_FABRIC={named!r} needs mpi4py: pip install mpi4py")
        return True
    # A user who sets both a fabric and an address may want to do without MPI.
    return is_there and _is_under_mpirun(environ) and not (named and _names_a_place(environ))


def _is_under_mpirun(environ: Mapping[str, str]) -> bool:
    return any(name in environ for name in _MPIRUN) and not any(name in environ for name in _OTHER_LAUNCHERS)


def _names_a_place(environ: Mapping[str, str]) -> bool:
    return "MASTER_ADDR" in environ and "MASTER_PORT" in environ


def _is_torchs(environ: Mapping[str, str]) -> bool:
    """True if torch keeps the store at MASTER_PORT: torchrun does, and so does a process group of this process."""
    if any(name.startswith("TORCHELASTIC_") for name in environ):
        return True
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
