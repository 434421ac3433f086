"""The libraries that we are compared with: which there are, where they are installed, how to get and to start them.

Each runs with its best sensible settings for the number of ranks and cores; these were found by experiment, as the
comments at the settings say.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..wording import suggest
from . import HOW_TO_GET
from .crew import Crew, CrewFailed
from .libraries import mpi_version

_MODULE = "allfold.bench.peer"
_ASK_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_ASK_SECONDS = 60.0

ON_GPUS = ("gloo", "nccl")
"""The peers on CUDA tensors. NCCL needs a GPU for every rank."""

ENGINE = "engine"
"""Our own communicator, called directly: what our torch backend is compared with, besides the peers."""


@dataclass(frozen=True)
class WantedPeer:
    """A peer by its name, and the interpreter that has it, if the user named one."""

    name: str
    python: str | None = None


def parse_peers(text: str, through_torch: bool = False, device: str = "cpu") -> list[WantedPeer]:
    """`gloo,openmpi,mpich=/opt/mpich/bin/python`, `all` or `none`; through torch, the engine itself is also a peer."""
    if text == "none":
        return []
    known = [*ON_GPUS] if device == "cuda" else [*([ENGINE] if through_torch else []), *HOW_TO_GET]
    wanted = []
    for word in known if text == "all" else text.split(","):
        name, equals, python = word.strip().partition("=")
        if name not in known:
            raise UsageError(f"--peers: unknown peer {name!r}; {suggest(name, [*known, 'all', 'none'])}")
        if equals and shutil.which(python) is None:
            raise UsageError(f"--peers {word.strip()}: there is no executable interpreter {python!r}")
        wanted.append(WantedPeer(name, python or None))
    return wanted


def start_ours(ranks: int, through_torch: bool = False, tuned: bool = True, device: str = "cpu") -> Crew:
    """`tuned`: they follow the user's tuning file, if there is one."""
    return _start_torch("allfold", ranks, device) if through_torch else _start_engine("allfold", ranks, tuned)


def start_peer(wanted: WantedPeer, ranks: int, device: str = "cpu") -> Crew:
    """The peer's crew; if it is not installed, `CrewFailed` says how to get it."""
    if device == "cuda":
        return _start_torch(wanted.name, ranks, device)
    if wanted.name == ENGINE:
        return _start_engine(ENGINE, ranks)
    if wanted.name == "gloo":
        return _start_torch("gloo", ranks, device)
    python = _python_with(wanted)
    launcher = shutil.which("mpiexec", path=str(Path(python).parent)) or shutil.which("mpiexec")
    if launcher is None:
        raise CrewFailed(f"{wanted.name}: there is no mpiexec beside {python}; to get it: {HOW_TO_GET[wanted.name]}")
    options, settings = _open_mpi(ranks) if wanted.name == "openmpi" else ([], {})
    # One thread per rank needs no locks. But MPICH yields its core while it waits only if it was initialised with
    # threads: with 4 ranks on 2 cores, 8 bytes took 12 ms without them (three time slices of the kernel), and 0.14 ms
    # with them.
    threads = wanted.name == "mpich" and ranks > cores()
    given = json.dumps({"threads": threads})
    script = str(Path(__file__).with_name("peer.py"))
    return Crew(
        wanted.name,
        ranks,
        lambda address: [[launcher, "-n", str(ranks), *options, python, script, "mpi", address, given]],
        _environment(ranks) | settings,
    )


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _own(library: str, address: str, given: Sequence[object]) -> list[list[str]]:
    return [[sys.executable, "-m", _MODULE, library, address, json.dumps(one)] for one in given]


def _environment(ranks: int) -> dict[str, str]:
    # We may run inside another launcher's rank; our ranks must not take themselves for ranks of that run.
    others = ("ALLFOLD_", "OMPI_", "PMIX_", "PMI_", "MPIR_", "SLURM_", "TORCHELASTIC_")
    kept = {
        name: value for name, value in os.environ.items() if name == "ALLFOLD_TUNING" or not name.startswith(others)
    }
    # If every rank had a thread pool as large as the machine, they would all compete for the same cores.
    return {"OMP_NUM_THREADS": str(max(1, cores() // ranks)), **kept}


def _start_engine(name: str, ranks: int, tuned: bool = True) -> Crew:
    key = secrets.token_hex(16)
    given = [{"rank": rank, "size": ranks, "key": key} for rank in range(ranks)]
    environment = _environment(ranks) | ({} if tuned else {"ALLFOLD_TUNING": "off"})
    return Crew(name, ranks, lambda address: _own("allfold", address, given), environment)


def _start_torch(backend: str, ranks: int, device: str) -> Crew:
    if importlib.util.find_spec("torch") is None:
        raise CrewFailed(f"{backend}: torch is not installed; to get it: {HOW_TO_GET['gloo']}")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = [{"rank": rank, "size": ranks, "port": port, "backend": backend} for rank in range(ranks)]
    # All ranks are on this machine, and loopback is its fastest interface.
    environment = _environment(ranks) | {"GLOO_SOCKET_IFNAME": "lo"}
    kind = "torch" if device == "cpu" else device
    return Crew(backend, ranks, lambda address: _own(kind, address, given), environment)


def _python_with(wanted: WantedPeer) -> str:
    """The first interpreter whose mpi4py uses the wanted MPI."""
    family = {"openmpi": "Open MPI", "mpich": "MPICH"}[wanted.name]
    beside = Path(sys.prefix).parent / f".venv-{wanted.name}" / "bin" / "python"
    candidates = [wanted.python] if wanted.python else [sys.executable, str(beside)]
    found = []
    for python in candidates:
        version = _mpi_of(python)
        if version.startswith(family):
            return python
        found += [f"{python} has {version}"] if version else []
    instead = f" ({'; '.join(found)})" if found else ""
    raise CrewFailed(f"{wanted.name}: not installed{instead}; to get it: {HOW_TO_GET[wanted.name]}")


def _mpi_of(python: str) -> str:
    if shutil.which(python) is None:
        return ""
    try:
        asked = subprocess.run(
            [python, "-c", _ASK_MPI], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return mpi_version(asked.stdout) if asked.returncode == 0 else ""


def _open_mpi(ranks: int) -> tuple[list[str], dict[str, str]]:
    # With its defaults it took two to three times as long with 2 ranks from 64 KiB to 1 MiB. Its newer collective
    # modules (xhc, acoll) were faster at some sizes and far slower at others.
    options = ["--map-by", ":OVERSUBSCRIBE", "--mca", "pml", "ob1", "--mca", "btl", "self,sm"]
    if ranks > cores():
        # Without binding and yielding, ranks spin while they wait for others that are bound to the same core.
        options += ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    # Containers often have no user but root.
    return options, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
