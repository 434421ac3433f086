"""The environment of this process: MPI's world, its beginning and end, and facts about the machine."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import numpy as np

from .. import _native
from ..communicator.communicator import Communicator, join
from ..engines.engine import Processes
from ..engines.table import in_threads
from ..errors import UsageError
from ..launch.environment import in_this_thread
from ..version import __version__
from . import constants as c
from .data.compiled import know
from .data.memory import buffer
from .failures import error
from .records import CommunicatorState

_numbers = itertools.count()


class MPIWorld:
    """The communicators and the buffer of one rank, from its beginning to its end."""

    def __init__(self, communicator: Communicator) -> None:
        rank, size = communicator.rank, communicator.size
        self.world = CommunicatorState(communicator, range(size), "MPI_COMM_WORLD")
        self.alone = CommunicatorState(_alone(communicator.timeout), [rank], "MPI_COMM_SELF")
        self.thread = threading.current_thread()
        self.buffer: Any = None
        self.is_over = False


_of_process: list[MPIWorld] = []
_lock = threading.Lock()


def world() -> MPIWorld:
    """The world of this rank, which begins with the first call that needs it."""
    if in_this_thread.communicator is not None:
        own: MPIWorld | None = in_this_thread.world
        if own is None or own.world.communicator is not in_this_thread.communicator:
            own = in_this_thread.world = MPIWorld(in_this_thread.communicator)
        return own
    if not _of_process:
        with _lock:
            if not _of_process:
                from ..launch.spawn import init  # not in a page, where there are no processes

                made = MPIWorld(init(timeout=_timeout()))
                _of_process.append(made)
                know({world_state: made.world, own_state: made.alone})
    return _of_process[0]


def world_state() -> CommunicatorState:
    return world().world


def own_state() -> CommunicatorState:
    return world().alone


def world_rank() -> int:
    return world().world.communicator.rank


def _timeout() -> float:
    from . import rc

    text = os.environ.get("ALLFOLD_MPI_TIMEOUT")
    if text is None:
        return float(rc.timeout)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"ALLFOLD_MPI_TIMEOUT is {text!r}; expected a non-negative number of seconds")
    return seconds


def _alone(timeout: float) -> Communicator:
    """A communicator of this rank only."""
    if in_this_thread.communicator is not None:
        return Communicator(in_threads("reference", 1, timeout)[0])
    return join(Processes(0, 1, f"alone {os.getpid()} {next(_numbers)} {time.monotonic_ns()}"), timeout)


def prepare() -> None:
    """Join the other ranks now, as the import of MPI does. Threads that are ranks join with their first call: only one
    of them runs the import. Without the engine all ranks are threads; in a process, the first call says what is missing."""
    if in_this_thread.communicator is None and _native.MISSING is None:
        world()


# Beginning and end ----------------------------------------------------------------------------------------------------


def Init() -> None:
    world()


def Init_thread(required: int = c.THREAD_MULTIPLE) -> int:
    world()
    return c.THREAD_MULTIPLE


def Finalize() -> None:
    here = world()
    if here.is_over:
        raise error("ERR_OTHER", "Finalize was called before")
    here.alone.attributes.delete_all(None)
    here.is_over = True
    for state in (here.world, here.alone):
        state.is_over = True
        state.leave_to_python()


def Is_initialized() -> bool:
    return bool(_of_process) or in_this_thread.communicator is not None


def Is_finalized() -> bool:
    return Is_initialized() and world().is_over


def Query_thread() -> int:
    return c.THREAD_MULTIPLE


def Is_thread_main() -> bool:
    return threading.current_thread() is world().thread


def abort(errorcode: int) -> NoReturn:
    """End all ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    communicator = world().world.communicator
    sys.stderr.write(f"allfold: rank {communicator.rank} called MPI's Abort with code {errorcode}\n")
    sys.stderr.flush()
    if in_this_thread.communicator is not None:
        raise SystemExit(errorcode or 1)
    communicator.abort()
    os._exit(errorcode & 0xFF or 1)


@atexit.register
def _end() -> None:
    for one in _of_process:
        one.is_over = True


# The machine ----------------------------------------------------------------------------------------------------------


def Get_version() -> tuple[int, int]:
    return c.VERSION, c.SUBVERSION


def Get_library_version() -> str:
    return f"allfold {__version__}: mpi4py's API on allfold's communicators"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in __version__.split("+")[0].split(".")[:3]]
    major, minor, micro = [*numbers, 0, 0, 0][:3]
    return "allfold", (major, minor, micro)


def Get_processor_name() -> str:
    return socket.gethostname()


def Get_hw_resource_info() -> Any:
    from .info import Info

    return Info.Create()


def Wtime() -> float:
    return time.perf_counter()


def Wtick() -> float:
    return time.get_clock_info("perf_counter").resolution


def Pcontrol(level: int) -> None:
    """Does nothing: there is no profiler of MPI calls; `comm.trace()` of allfold records calls."""


def Alloc_mem(size: int, info: Any = None) -> buffer:
    if size < 0:
        raise error("ERR_ARG", f"Alloc_mem: size must be 0 or more, not {size}")
    return buffer._over(np.empty(size, np.uint8))


def Free_mem(mem: buffer) -> None:
    mem.release()


def Get_address(location: Any) -> int:
    from .data.memory import address_of

    return address_of(location)


def Aint_add(base: int, disp: int) -> int:
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    return addr1 - addr2
