"""Edited code is run in a process of its own, with limits, and killed with everything it started when it exceeds them.

This protects the studio from mistakes: endless loops, a list that grows without end, a million moves. It is not a
sandbox. The code is the user's own, sent from the user's own page with the studio's token, and may do what the user
may.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

MOST_CODE = 200_000  # characters
_HAS_LIMITS = find_spec("resource") is not None  # not on Windows


@dataclass(frozen=True)
class Limits:
    """What edited code may use."""

    seconds: float = 5.0
    """Seconds of CPU time; four times as much wall-clock time, because others may need the machine too."""
    memory: int = 2 * 2**30
    """Bytes of address space."""
    moves: int = 200_000

    @property
    def wall(self) -> float:
        return 4 * self.seconds


class EditError(Exception):
    """The code does not run, or exceeds its limits; `line` is where, if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class _Worker:
    """A process that waits for its question, in an empty folder of its own."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]


class Workers:
    """Processes for edited code, each for one question. One that has loaded its modules waits for the next question."""

    def __init__(self) -> None:
        # A worker dies with the thread that started it (PR_SET_PDEATHSIG), so this thread starts all of them.
        self._starter = ThreadPoolExecutor(1, "allfold-studio-starter")
        self._next: Future[_Worker] | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start the worker of the next question now."""
        if not _HAS_LIMITS:
            return
        with self._lock:
            self._next = self._next or self._starter.submit(_start)

    def prove(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """The entry of the schedule that the code makes: proved, or with what is wrong with it."""
        if not _HAS_LIMITS:
            raise EditError(
                "edited code is run in a process with limits of time and memory, and this system (Windows) has none: "
                "save it to a file, and prove it with `allfold verify FILE.py:FUNCTION`"
            )
        with self._lock:
            ready, self._next = self._next or self._starter.submit(_start), None
        worker = ready.result()
        self.prepare()
        question = json.dumps({"limits": asdict(limits), "parent": os.getpid(), **request}).encode()
        process = worker.process
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has died, as its missing answer says
                process.stdin.write(question)
                process.stdin.close()
            answer = _receive(process, limits)
        finally:
            _end(worker)
        return _read(answer, process.returncode, limits)

    def close(self) -> None:
        """End the one that waits."""
        with self._lock:
            waiting, self._next = self._next, None
        self._starter.shutdown()
        if waiting is not None:
            _end(waiting.result())


def _start() -> _Worker:
    command = [sys.executable, "-I", "-c", "from allfold.studio.worker import main; main()"]
    # OpenBLAS would reserve address space for every core.
    environment = {"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    folder = tempfile.TemporaryDirectory(prefix="allfold-studio-")
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder.name,
        env=environment,
        start_new_session=True,
    )
    return _Worker(process, folder)


_START = 60.0  # seconds to load the interpreter and the modules, even on a busy machine
READY = b"."  # what the process writes when it is about to run the code
LENGTH = 12  # digits of the answer's length, which is sent before it


def _receive(process: subprocess.Popen[bytes], limits: Limits) -> bytes:
    """As much of the answer as arrived. Does not wait for the pipe's end: processes of the code may hold it open."""
    assert process.stdout is not None
    received, deadline = b"", time.monotonic() + _START
    while len(received) < len(READY) + LENGTH or len(received) < len(READY) + LENGTH + int(received[1 : 1 + LENGTH]):
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise EditError(f"the code ran for {limits.wall:g} s and was stopped")
        part = os.read(process.stdout.fileno(), 2**20)
        if not part:
            break
        if not received:
            deadline = time.monotonic() + limits.wall
        received += part
    return received[len(READY) + LENGTH :]


def _end(worker: _Worker) -> None:
    """End the process and everything it started: they are a session of their own."""
    process = worker.process
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended: Linux, macOS
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    worker.folder.cleanup()


def _read(answer: bytes, status: int, limits: Limits) -> dict[str, Any]:
    if not answer and status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise EditError(f"the code used {limits.seconds:g} s of processor time and was stopped")
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise EditError(f"the code ended the process that ran it ({how})") from None
    if "error" in found:
        raise EditError(found["error"]["message"], found["error"].get("line"))
    return found
