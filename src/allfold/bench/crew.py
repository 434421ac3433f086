"""A crew: the processes of one library, one per rank, started once and commanded in turns with other crews."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

from ..errors import AllfoldError

START_SECONDS = 90.0
ANSWER_SECONDS = 300.0
_LEAVE_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.2


class CrewFailed(AllfoldError, RuntimeError):
    """A library could not be started, died, raised or did not answer; the sentence says which rank and why."""


class AnyCrew(Protocol):
    """The interface of crews: processes started for measuring, or ranks that existed already."""

    name: str
    version: str

    def ask(self, do: str, **command: Any) -> list[dict[str, Any]]:
        """The answers of all ranks, by rank, to one command."""
        ...

    def close(self) -> None: ...


class Crew:
    """The ranks of one library. Any failure raises `CrewFailed`; after that the crew must be closed."""

    def __init__(
        self, name: str, ranks: int, commands: Callable[[str], Sequence[Sequence[str]]], environment: Mapping[str, str]
    ) -> None:
        """Start what `commands` returns for the address that ranks must connect to, and wait for all ranks."""
        self.name = name
        self.version = ""
        self._ranks = ranks
        self._channels: list[Any] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        address = f"allfold-bench-{secrets.token_hex(16)}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind("\0" + address)
                listener.listen(ranks)
                for command in commands(address):
                    self._processes.append(self._start(command, environment))
                self._gather(listener)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            # Ctrl-C is only for the benchmark, which then ends its crews. If it is killed, they read the end of their
            # sockets and exit.
            start_new_session=True,
        )

    def _gather(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_SECONDS
        arrived: dict[int, Any] = {}
        listener.settimeout(_LOOK_AGAIN_SECONDS)
        while len(arrived) < self._ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if any(process.poll() is not None for process in self._processes):
                    raise self._failure("could not be started") from None
                if time.monotonic() > deadline:
                    missing = sorted(set(range(self._ranks)) - set(arrived))
                    raise self._failure(f"ranks {missing} had not connected after {START_SECONDS:g} s") from None
                continue
            connection.settimeout(ANSWER_SECONDS)
            if _user_of(connection) != os.getuid():
                connection.close()
                continue
            channel = connection.makefile("rw", encoding="utf-8")
            connection.close()  # the file keeps it open
            hello = json.loads(channel.readline())
            arrived[hello["rank"]] = channel
            self.version = hello["version"]
        self._channels = [arrived[rank] for rank in range(self._ranks)]

    def ask(self, do: str, **command: Any) -> list[dict[str, Any]]:
        """The answers of all ranks, by rank, to one command."""
        line = json.dumps({"do": do, **command}) + "\n"
        rank = 0
        try:
            for channel in self._channels:
                channel.write(line)
                channel.flush()
            answers = []
            for rank, channel in enumerate(self._channels):
                said = channel.readline()
                if not said:
                    raise self._failure(f"rank {rank} died")
                answers.append(json.loads(said))
        except TimeoutError:
            raise self._failure(f"rank {rank} did not answer {do!r} within {ANSWER_SECONDS:g} s") from None
        except OSError:
            raise self._failure("a rank died") from None
        for rank, answer in enumerate(answers):
            if "error" in answer:
                raise self._failure(f"rank {rank} raised {answer['error']}")
        return answers

    def _failure(self, what: str) -> CrewFailed:
        self._output.seek(0)
        said = self._output.read().decode(errors="replace").strip()
        return CrewFailed(f"{self.name}: {what}" + (f"; it printed:\n{_of_use(said)}" if said else ""))

    def close(self) -> None:
        """Let the ranks exit; kill those that do not."""
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.close()
        self._channels = []
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if number is not None and process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            deadline = time.monotonic() + _LEAVE_SECONDS
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            if all(process.poll() is not None for process in self._processes):
                break
        self._output.close()


def _of_use(printed: str) -> str:
    """The error of the first rank that raised, because what the others raise follows from it; else the last lines."""
    lines = printed.splitlines()
    in_traceback = False
    for number, line in enumerate(lines):
        if line.startswith("Traceback "):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            # NCCL's errors say the cause in the lines that follow.
            return "\n".join(takewhile(lambda one: one and not one.startswith("Traceback "), lines[number:][:4]))
    return "\n".join(lines[-8:])


def _user_of(connection: socket.socket) -> int:
    """The user at the other end, from the kernel: an abstract address has no file permissions."""
    layout = struct.Struct("3i")
    _, user, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    return int(user)
