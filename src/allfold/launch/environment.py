"""This process's rank, from the environment variables of launchers; or that of this thread."""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allfold.errors import UsageError


class _InThisThread(threading.local):
    communicator: Any = None  # on the class: a lookup of what is not there takes as long as a call of MPI
    world: Any = None
    shared: Any = None


in_this_thread = _InThisThread()
"""In a thread that is a rank: its `communicator`, and `shared`, a dictionary that all ranks of the run have."""


@dataclass(frozen=True)
class Place:
    """One rank's place in a run. Every rank of a run holds the same key, and no other run of this user does."""

    rank: int
    size: int
    local_rank: int
    key: str
    spread: bool = False
    """The ranks may be on several hosts: they meet on a board."""


def place_from_environment(environ: Mapping[str, str] = os.environ) -> Place:
    """The place that the launcher gave this process; rank 0 of 1 if no variable points to a launcher."""
    return launched_place(environ) or Place(rank=0, size=1, local_rank=0, key=f"alone {os.getpid()}")


def launched_place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that the launcher gave this process; None if no variable points to a launcher.

    The launchers are tried from the innermost outwards: torchrun is often started by srun, and then RANK is the rank.
    """
    if any(name in environ for name in ("ALLFOLD_RANK", "ALLFOLD_SIZE", "ALLFOLD_KEY")):
        return _from_allfold(environ)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _from_torchrun(environ)
    if "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return _from_open_mpi(environ)
    if "PMI_RANK" in environ or "PMI_SIZE" in environ:
        return _from_mpich(environ)
    # Inside `salloc` SLURM_NTASKS stands alone: it describes the allocation, not this process.
    if "SLURM_PROCID" in environ:
        return _from_slurm(environ)
    return None


def with_meeting_point(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The same, with MASTER_ADDR and MASTER_PORT under srun, unless they are set.

    Slurm puts rank 0 on the first node of a step (but for `--distribution=arbitrary`). The ports are those above the ones
    that systems hand out by themselves; steps that share a node hardly ever get the same.
    """
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((environ[name] for name in names if name in environ), None)
    if nodes is None or job is None or step is None or "SLURM_PROCID" not in environ:
        return environ
    port = _SLURM_PORT + zlib.crc32(f"{job}.{step}".encode()) % (1 << 12)
    return {"MASTER_ADDR": _first_node(nodes), "MASTER_PORT": str(port), **environ}


_SLURM_PORT = 61440


def _first_node(nodes: str) -> str:
    """`gpu01` of `gpu[01-04,07],login`: the first name of a list as Slurm writes it."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[([^,\-\]]*)[^\]]*\]", r"\1", first[0])


def _from_allfold(environ: Mapping[str, str]) -> Place:
    rank, size = _rank_and_size(environ, "ALLFOLD_RANK", "ALLFOLD_SIZE")
    # Our launcher sets RANK and WORLD_SIZE as well. Where they differ, another launcher was started inside a rank of
    # ours: its processes all inherited the same ALLFOLD_RANK, and believing it would make every one of them that rank.
    for ours, value, theirs in (("ALLFOLD_RANK", rank, "RANK"), ("ALLFOLD_SIZE", size, "WORLD_SIZE")):
        if theirs in environ and _number(environ, theirs) != value:
            raise UsageError(
                f"{theirs}={environ[theirs]!r} contradicts {ours}={environ[ours]!r}: a launcher started inside a rank of "
                "`allfold run` must not inherit ALLFOLD_RANK, ALLFOLD_SIZE and ALLFOLD_KEY; unset them there"
            )
    spread = "ALLFOLD_HOSTID" in environ
    local_rank = _local_rank(environ, "LOCAL_RANK", rank, size) if spread else rank
    return Place(rank, size, local_rank, _text(environ, "ALLFOLD_KEY", beside="ALLFOLD_RANK"), spread)


def _from_torchrun(environ: Mapping[str, str]) -> Place:
    rank, size = _rank_and_size(environ, "RANK", "WORLD_SIZE")
    spread = _is_spread(environ, "LOCAL_WORLD_SIZE", "WORLD_SIZE", size)
    # A restarted or elastic run keeps address and port; these two tell its generations apart.
    generation = [
        f"{name}={environ[name]}" for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") if name in environ
    ]
    key = " ".join(["torchrun", _meeting_point(environ) or _parent(), *generation])
    return Place(rank, size, _local_rank(environ, "LOCAL_RANK", rank, size), key, spread)


def _from_open_mpi(environ: Mapping[str, str]) -> Place:
    rank, size = _rank_and_size(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    spread = _is_spread(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", size)
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    key = f"openmpi {job or _meeting_point(environ) or _parent('prterun', 'mpirun', 'orted', 'prted')}"
    return Place(rank, size, _local_rank(environ, "OMPI_COMM_WORLD_LOCAL_RANK", rank, size), key, spread)


def _from_mpich(environ: Mapping[str, str]) -> Place:
    rank, size = _rank_and_size(environ, "PMI_RANK", "PMI_SIZE")
    # `srun --mpi=pmi2` uses PMI, and names its nodes in variables of its own.
    known = "MPI_LOCALNRANKS" in environ
    spread = _is_spread(environ, "MPI_LOCALNRANKS", "PMI_SIZE", size) if known else _has_nodes(environ)
    # PMI_FD and PMI_ID differ from rank to rank. What the ranks have in common is a job's name, the port of the process
    # manager, or the process that started them all.
    job = environ.get("PMI_JOBID") or environ.get("PMI_PORT")
    key = f"pmi {job or _parent('hydra_pmi_proxy', 'slurmstepd')}"
    return Place(rank, size, _local_rank(environ, "MPI_LOCALRANKID", rank, size), key, spread)


def _from_slurm(environ: Mapping[str, str]) -> Place:
    rank, size = _rank_and_size(environ, "SLURM_PROCID", "SLURM_NTASKS")
    spread = _has_nodes(environ)
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if job is not None and step is None and size > 1:
        # A batch script itself runs as task 0 of all tasks: believing that, we would wait for ranks that nobody starts.
        raise UsageError(
            f"SLURM_STEP_ID is not set but SLURM_NTASKS={environ['SLURM_NTASKS']!r} is: this process belongs to a batch "
            "script and not to a job step; start the ranks with srun, or unset SLURM_PROCID to run alone"
        )
    key = f"slurm {job}.{step}" if job is not None else f"slurm {_meeting_point(environ) or _parent('slurmstepd')}"
    return Place(rank, size, _local_rank(environ, "SLURM_LOCALID", rank, size), key, spread)


def _rank_and_size(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    size = _number(environ, size_name, beside=rank_name)
    if size < 1:
        raise UsageError(f"{size_name}={environ[size_name]!r}: expected at least one rank")
    rank = _number(environ, rank_name, beside=size_name)
    if rank >= size:
        raise UsageError(
            f"{rank_name}={environ[rank_name]!r}: expected a rank from 0 to {size - 1}, since {size_name} is {size}"
        )
    return rank, size


def _local_rank(environ: Mapping[str, str], name: str, rank: int, size: int) -> int:
    if name not in environ:
        return rank  # on one machine the two are the same
    local_rank = _number(environ, name)
    if local_rank >= size:
        raise UsageError(f"{name}={environ[name]!r}: expected a rank from 0 to {size - 1}, since the run has {size}")
    return local_rank


def _number(environ: Mapping[str, str], name: str, beside: str | None = None) -> int:
    value = _text(environ, name, beside)
    # int() accepts more than any launcher writes: blanks, signs, underscores and the digits of all scripts.
    if re.fullmatch(r"[0-9]{1,9}", value) is None:
        raise UsageError(f"{name}={value!r}: expected a whole number from 0 to 999999999")
    return int(value)


def _text(environ: Mapping[str, str], name: str, beside: str | None = None) -> str:
    value = environ.get(name)
    if value is None:
        if beside is not None and beside in environ:
            raise UsageError(
                f"{name} is not set although {beside}={environ[beside]!r} is: a launcher sets both; set it or unset {beside}"
            )
        raise UsageError(f"{name} is not set although other variables of its launcher are; set it or unset them all")
    if not value:
        raise UsageError(f"{name}={value!r}: expected a value, and it is empty")
    return value


def _is_spread(environ: Mapping[str, str], local_name: str, size_name: str, size: int) -> bool:
    """True if the ranks are on several hosts, judging by how many of them are on this one."""
    if local_name not in environ:
        return "ALLFOLD_HOSTID" in environ
    local_size = _number(environ, local_name)
    if not 1 <= local_size <= size:
        raise UsageError(f"{local_name}={environ[local_name]!r}: expected 1 to {size}, since {size_name} is {size}")
    return local_size < size or "ALLFOLD_HOSTID" in environ


def _has_nodes(environ: Mapping[str, str]) -> bool:
    """True if Slurm's ranks are on several hosts."""
    # The step's own count goes first: one step of a large allocation may well keep to one node.
    for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"):
        if name in environ:
            return _number(environ, name) > 1
    return "ALLFOLD_HOSTID" in environ


def _meeting_point(environ: Mapping[str, str]) -> str | None:
    """MASTER_ADDR and MASTER_PORT, which name a run because only one process can listen there; None without them."""
    if "MASTER_ADDR" not in environ and "MASTER_PORT" not in environ:
        return None
    address = _text(environ, "MASTER_ADDR", beside="MASTER_PORT")
    port = _number(environ, "MASTER_PORT", beside="MASTER_ADDR")
    if not 1 <= port <= 65535:
        raise UsageError(f"MASTER_PORT={environ['MASTER_PORT']!r}: expected a port from 1 to 65535")
    return f"{address}:{port}"


def _parent(*launchers: str) -> str:
    """The nearest ancestor with one of these names, else the parent: what the ranks of one run have in common.

    The start time goes with the process id, since ids are reused.
    """
    process = parent = os.getppid()
    while process > 1:
        name, next_process, _ = ancestry(process)
        if name in launchers:
            parent = process
            break
        process = next_process
    return f"parent {parent} started {ancestry(parent)[2]}"


def ancestry(process: int) -> tuple[str, int, str]:
    """Name, parent and start time of a process; empty and zero if /proc does not say."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0, "0"
    # The name is in parentheses, and may contain blanks and parentheses.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), fields[19]
