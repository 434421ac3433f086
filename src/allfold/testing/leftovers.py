"""Finds what a rank of a test leaves behind, and fails the test for it: child processes, threads, shared memory, GPU memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
# Time for things that are about to end. Only a rank that has left something waits.
_SECONDS_TO_END = 0.5
_LOOK_AGAIN_SECONDS = 0.005


class LeftBehind(Exception):
    """Something that the test's function started or created is still there after it has returned."""


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Raises LeftBehind if there is more at the end than at the beginning."""
    __tracebackhide__ = True
    # Grandchildren whose parents have ended then become children of this process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threads, children, gpu = set(threading.enumerate()), set(_children()), _gpu_memory()
    with _created_memory() as memory:
        yield

    def left() -> list[str]:
        return [
            *(f"child process {pid} ({_command(pid)})" for pid in _children() if pid not in children),
            *(
                f"thread {one.name!r}, which is not a daemon"
                for one in threading.enumerate()
                if one not in threads and not one.daemon
            ),
            *(f"shared memory {path}" for path in _existing(memory)),
            *(f"{more:,} bytes of GPU memory" for more in [_gpu_memory(gpu) - gpu] if more > 0),
        ]

    deadline = time.monotonic() + _SECONDS_TO_END
    while found := left():
        if time.monotonic() > deadline:
            # Nothing else would end a process that has a session of its own, or free the memory.
            for pid in set(_children()) - children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for path in _existing(memory):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise LeftBehind(", ".join(found))
        time.sleep(_LOOK_AGAIN_SECONDS)


def _children() -> Iterator[int]:
    """The children of this process that are still running."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    for file in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, Path(file).read_text().split()):
                # Python's resource tracker ends with this process.
                if pid != getattr(tracker, "_pid", None) and _state(pid) not in ("Z", "X", None):
                    yield pid


def _state(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:80]
    return "?"


def _gpu_memory(expected: int = 0) -> int:
    """The bytes of this process's tensors on GPUs, after a collection of garbage if there are more than expected."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0

    def allocated() -> int:
        return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))

    if allocated() > expected:
        torch._C._cuda_clearCublasWorkspaces()  # which torch keeps for later calls
        gc.collect()
    return allocated()


@contextlib.contextmanager
def _created_memory() -> Iterator[set[str]]:
    """The paths of shared memory that this process creates by `multiprocessing.shared_memory`.

    /dev/shm alone does not show which process created it.
    """
    import _posixshmem  # type: ignore[import-not-found]

    created: set[str] = set()
    shm_open: Callable[..., Any] = _posixshmem.shm_open

    def recorded(name: str, flags: int, *more: Any, **options: Any) -> Any:
        descriptor = shm_open(name, flags, *more, **options)
        if flags & os.O_CREAT:
            created.add(f"/dev/shm/{name.lstrip('/')}")
        return descriptor

    _posixshmem.shm_open = recorded
    try:
        yield created
    finally:
        _posixshmem.shm_open = shm_open


def _existing(created: set[str]) -> list[str]:
    """The created memory that still exists; torch's has the process id in its name."""
    return sorted({*filter(os.path.exists, created), *glob.glob(f"/dev/shm/torch_{os.getpid()}_*")})
