"""Ranks that are kept: they do the work of one run after another, each run with a communicator of its own.

Their template is forked from the process that is kept (`kept.py`), and each rank has a socket to the launcher. For every run
a rank gets the JSON of its own variables, with the descriptors of a pickled (folder, environment), of the work, of the pipe
for its report, and of its output and errors. A rank that has reported a result waits for the next run. After anything else
all of them are ended, and the next run starts new ones.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import socket
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from allfold.errors import AllfoldError
from allfold.launch.kept import KeptTemplate
from allfold.launch.template import private_file

# Ranks of other kinds are ended, those that were used least recently first.
_MOST_KINDS = 4
_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 1.0

_idle: dict[Hashable, KeptRanks] = {}  # in the order in which they were used
_lock = threading.Lock()


class KeptRanks(KeptTemplate):
    """A template whose ranks are kept."""

    keeps_ranks = True

    def __init__(self, kind: Hashable, modules: Sequence[str], environment: Mapping[str, str], ranks: int) -> None:
        self.kind = kind
        self.owner = os.getpid()
        self.processes: list[int] = []
        self.connections: list[socket.socket] = []
        self._files = contextlib.ExitStack()  # of the run
        self._descriptors: tuple[int, int] | None = None
        with private_file(pickle.dumps((sys.path, [], None, [], None))) as no_work:
            super().__init__(no_work, modules, environment, ranks, has_output=False)
        try:
            for rank in range(ranks):
                self.processes.append(self._started(rank))
        except BaseException:
            self.close(0)
            raise

    def _started(self, rank: int) -> int:
        """The process id of a new rank."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connections.append(ours)
        with theirs:
            super().request(rank, {}, [theirs.fileno()])
        self.connection.settimeout(_SECONDS_TO_START)
        answer: dict[str, Any] = {}
        try:
            with contextlib.suppress(ConnectionError):
                answer = json.loads(self.connection.recv(1024) or b"{}")
        except TimeoutError:
            raise AllfoldError(f"rank {rank} did not start within {_SECONDS_TO_START:g} s") from None
        finally:
            self.connection.setblocking(False)
        if "error" in answer:
            raise OSError(*answer["error"])
        if "started" not in answer:
            raise AllfoldError(f"the process that forks ranks has ended before rank {rank} started")
        return int(answer["started"])

    def begin(self, work: int, environment: Mapping[str, str]) -> None:
        """Start a run."""
        start = private_file(pickle.dumps((os.getcwd(), dict(environment))))
        self._descriptors = self._files.enter_context(start), work

    def request(self, rank: int, variables: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """Have a rank do the work of the run."""
        assert self._descriptors is not None
        with contextlib.suppress(ConnectionError):  # it has ended, as the template says
            socket.send_fds(
                self.connections[rank], [json.dumps(variables).encode()], [*self._descriptors, *descriptors]
            )
        return self.processes[rank]

    def is_usable(self) -> bool:
        """True if this process has made them, and none has ended."""
        ends = select.poll()
        for connection in self.connections:
            ends.register(connection, select.POLLIN)  # ranks send nothing
        return self.owner == os.getpid() and not self.has_ended() and not ends.poll(0)

    def finish(self, is_clean: bool, patience: float) -> None:
        self._files.close()
        if not is_clean or not _put_back(self):
            self.close(patience)

    def close(self, patience: float) -> None:
        is_owner = self.owner == os.getpid()
        for connection in self.connections:
            # Not only closed: a process that this one has forked may have the connection, too.
            with contextlib.suppress(OSError):
                if is_owner:
                    connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if is_owner:
            super().close(patience)
        else:
            self.connection.close()  # they are for the process that this one was forked from


def take(
    kind: Hashable, work: int, modules: Sequence[str], environment: Mapping[str, str], ranks: int, has_output: bool
) -> KeptRanks:
    """Ranks for a run: kept ones of this kind, or else new ones."""
    with _lock:
        found = _idle.pop(kind, None)
    if found is not None and not found.is_usable():
        found.close(_SECONDS_TO_END)
        found = None
    ranks_of_the_run = found or KeptRanks(kind, modules, environment, ranks)
    ranks_of_the_run.begin(work, environment)
    return ranks_of_the_run


def _put_back(ranks: KeptRanks) -> bool:
    with _lock:
        if ranks.kind in _idle:  # of a run in another thread
            return False
        if not _idle:
            atexit.unregister(end_kept_ranks)
            atexit.register(end_kept_ranks)
        _idle[ranks.kind] = ranks
        oldest = _idle.pop(next(iter(_idle))) if len(_idle) > _MOST_KINDS else None
    if oldest is not None:
        oldest.close(_SECONDS_TO_END)
    return True


def end_kept_ranks() -> None:
    """End all ranks that are kept."""
    with _lock:
        ended = [*_idle.values()]
        _idle.clear()
    for one in ended:
        one.close(_SECONDS_TO_END)
