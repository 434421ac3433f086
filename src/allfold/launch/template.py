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
from pathlib import Path
from typing import Any

WORKER = str(Path(__file__).with_name("worker.py"))
_LONGEST_MESSAGE = 256 * 1024


class Template:
    """A process of the launcher's. It dies with the launcher, and its ranks with it."""

    def __init__(
        self, work: int, modules: Sequence[str], environment: Mapping[str, str], ranks: int, has_output: bool
    ) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.setblocking(False)
        self.end_descriptor: int | None = None
        try:
            with theirs:
                self._process = self._start((theirs.fileno(), work), ranks, modules, environment, has_output)
        except BaseException:
            self.connection.close()
            raise
        with contextlib.suppress(OSError):
            self.end_descriptor = os.pidfd_open(self._process.pid)

    @staticmethod
    def _start(
        descriptors: tuple[int, int],
        ranks: int,
        modules: Sequence[str],
        environment: Mapping[str, str],
        has_output: bool,
    ) -> subprocess.Popen[bytes]:
        """Start the process, with descriptors for its end of the connection and for the work."""
        numbers = map(str, (os.getpid(), *descriptors, ranks))
        return subprocess.Popen(
            [sys.executable, "-P", WORKER, "fork", *numbers, *modules],
            env=environment,
            stdin=subprocess.DEVNULL,
            # Python decides by what it finds here, once, how it buffers the output of all ranks.
            stdout=None if has_output else subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )

    def request(self, variables: Mapping[str, str], descriptors: Sequence[int]) -> None:
        """Ask for the next rank."""
        with contextlib.suppress(ConnectionError):  # it has ended, which is noticed elsewhere
            socket.send_fds(self.connection, [json.dumps(variables).encode()], descriptors)

    def allow_waiting(self) -> None:
        """Say that the process ids of those that it named last are needed no more."""
        with contextlib.suppress(ConnectionError):
            self.connection.send(b"[]")

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has come from it."""
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
        """If somebody has stopped it, it cannot say who has ended."""
        self._process.send_signal(signal.SIGCONT)

    def close(self, patience: float) -> None:
        """End it, whatever it does; it has some time to wait for ranks that have ended."""
        self.connection.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.end_descriptor is not None:
            os.close(self.end_descriptor)
