"""Which fabrics there are, and which one a run gets. A new fabric is a module beside this and a line here.

Fabrics are imported when they are used: each needs a package that may not be installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from ..errors import UsageError
from ..wording import suggest
from .fabric import Board

FABRICS = {
    "gloo": ".gloo",
    "mpi": ".mpi",
}
"""The module of each fabric, by name."""

_PACKAGES = {"gloo": "torch", "mpi": "mpi4py"}
_HOW_TO_GET = {"gloo": "pip install 'allfold[torch]'", "mpi": "pip install mpi4py"}

# What `launch.environment` knows of launchers, from the innermost outwards. Inside torchrun, or `allfold run`, what
# mpirun has set belongs to a run around this one.
_OTHER_LAUNCHERS = ("ALLFOLD_RANK", "ALLFOLD_SIZE", "ALLFOLD_KEY", "RANK", "WORLD_SIZE")
_MPIRUN = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")


def choose(environ: Mapping[str, str] = os.environ) -> str:
    """The name of the fabric for this process: the one that ALLFOLD_FABRIC names; under mpirun MPI; otherwise gloo."""
    named = environ.get("ALLFOLD_FABRIC")
    if named is not None:
        if named not in FABRICS:
            raise UsageError(f"ALLFOLD_FABRIC={named!r}: there is no such fabric; {suggest(named, FABRICS)}")
        if not _installed(named):
            raise UsageError(f"ALLFOLD_FABRIC={named!r} needs {_PACKAGES[named]}: {_HOW_TO_GET[named]}")
        return named
    under_mpirun = any(name in environ for name in _MPIRUN) and not any(name in environ for name in _OTHER_LAUNCHERS)
    if under_mpirun and _installed("mpi"):
        return "mpi"
    if _installed("gloo"):
        return "gloo"
    mpi = "mpi4py" if _installed("mpi") else f"mpi4py ({_HOW_TO_GET['mpi']})"
    raise UsageError(
        f"between hosts allfold needs torch, and it is not installed: {_HOW_TO_GET['gloo']}; "
        f"or {mpi} with ranks that mpirun has started"
    )


def board_from_environment(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> Board:
    """Where the ranks of this run meet, if they may be on several hosts."""
    make: Callable[..., Board] = import_module(FABRICS[choose(environ)], __package__).board_from_environment
    return make(environ, rank, size, timeout)


def _installed(fabric: str) -> bool:
    return find_spec(_PACKAGES[fabric]) is not None
