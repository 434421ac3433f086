"""mpi4py's API on allfold: programs written for mpi4py run without MPI.

    from allfold.mpi4py import MPI

or, without a change in the program, `python -m allfold.mpi4py program.py` (docs/howto-mpi.md).
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "4.1.2"
"""The version of mpi4py whose API this is."""


class Rc:
    """Settings that a program may change before it imports MPI. `timeout` is allfold's: seconds that a call may wait."""

    initialize = True
    threads = True
    thread_level = "multiple"
    finalize: bool | None = None
    fast_reduce = True
    recv_mprobe = True
    irecv_bufsz = 32768
    errors = "exception"
    timeout = 300.0

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            raise TypeError(f"rc has no setting {name!r}")
        super().__setattr__(name, value)

    def __call__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)


rc: Any = Rc()
sys.modules[f"{__name__}.rc"] = rc  # programs use `import mpi4py.rc`


def get_config() -> dict[str, str]:
    """The build settings of MPI: empty, because there is no MPI."""
    return {}


def get_include() -> str:
    """Refused: there are no headers for C."""
    from .refused import refuse

    raise refuse("interface for C", "use mpi4py with an MPI for programs that call MPI from C")


def profile(name: str, *, path: Any = None) -> None:
    """Does nothing: there is no profiler of MPI calls."""
