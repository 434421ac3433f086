"""The process from which the ranks of a run are forked, as the launcher sees it; what it does is in `worker.py`.

A fresh interpreter takes a few milliseconds, but each rank also needs NumPy and allfold, and perhaps torch. So one fresh
interpreter imports them, opens nothing, starts no thread, and then forks the ranks. It is their parent, hence it waits
for them, and a rank's process id stays taken until the launcher has said that it needs it no more.

The two talk in JSON through a socket:

    launcher → template   the variables of the next rank, with the descriptors that it writes to
    template → launcher   {"rank": 2, "started": 1234}, or {"error": [errno, text]} if it could not be
    template → launcher   {"ended": [[2, -9], …]}, statuses by rank, negative for a signal
    launcher → template   an empty list: these may be waited for now
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WORKER = str(Path(__file__).with_name("worker.py"))
_LONGEST_MESSAGE = 256 * 1024


@contextlib.contextmanager
def private_file(content: bytes) -> Iterator[int]:
    """A file that has no name and can no longer be changed: what templates and ranks unpickle comes only from here."""
    import fcntl  # only here: there is none on Windows

    descriptor = os.memfd_create("allfold-work", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


class Process(Protocol):
    """The methods of `subprocess.Popen` that a template's process needs."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int, /) -> None: ...


@dataclass(frozen=True)
class Start:
    """The facts that a template is started with."""

    descriptors: tuple[int, int]  # its end of the connection, and the work
    ranks: int
    modules: Sequence[str]
    environment: Mapping[str, str]
    has_output: bool


class Template:
    """A process of the launcher. It dies with the launcher, and its ranks with it."""

    keeps_ranks = False  # True: a rank that has reported a result goes on, and does other work later

    def __init__(
        self, work: int, modules: Sequence[str], environment: Mapping[str, str], ranks: int, has_output: bool
    ) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.setblocking(False)
        self.end_descriptor: int | None = None
        try:
            with theirs:
                self._process = self._start(Start((theirs.fileno(), work), ranks, modules, environment, has_output))
        except BaseException:
            self.connection.close()
            raise
        with contextlib.suppress(OSError):
            self.end_descriptor = os.pidfd_open(self._process.pid)

    @staticmethod
    def _start(start: Start) -> Process:
        """Start the process."""
        numbers = map(str, (os.getpid(), *start.descriptors, start.ranks))
        return subprocess.Popen(
            [sys.executable, "-P", WORKER, "fork", *numbers, *start.modules],
            env=start.environment,
            stdin=subprocess.DEVNULL,
            # Python decides by what it finds here, once, how it buffers the output of all ranks.
            stdout=None if start.has_output else subprocess.DEVNULL,
            pass_fds=start.descriptors,
            start_new_session=True,
        )

    def request(self, rank: int, variables: Mapping[str, str], descriptors: Sequence[int]) -> int | None:
        """Ask for the next rank; its process id, if it is there already."""
        with contextlib.suppress(ConnectionError):  # it has ended, which is noticed elsewhere
            socket.send_fds(self.connection, [json.dumps(variables).encode()], descriptors)
        return None

    def allow_waiting(self) -> None:
        """Release the process ids of the ranks that it named last."""
        with contextlib.suppress(ConnectionError):
            self.connection.send(b"[]")

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages that have come from it."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while message := self.connection.recv(_LONGEST_MESSAGE):
                yield json.loads(message)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()

    def wake(self) -> None:
        """Continue the process, in case somebody has stopped it: stopped, it cannot report which ranks have ended."""
        self._process.send_signal(signal.SIGCONT)

    def finish(self, is_clean: bool, patience: float) -> None:
        """Take the end of the run. `is_clean` if all ranks have returned a result."""
        self.close(patience)

    def close(self, patience: float) -> None:
        """End the process; before it is killed it has some time to reap ranks that have ended."""
        self.connection.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.end_descriptor is not None:
            os.close(self.end_descriptor)
