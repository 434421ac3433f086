"""The state that all handles of one communicator share."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import _native
from ..communicator.communicator import Communicator
from ..engines.shared_memory.engine import SharedMemory
from .data.attributes import Attributes
from .failures import ERRORS_RETURN, is_of_mpi
from .requests import EMPTY, Arrived, PendingRequest

_ONE_FOLDS_UP_TO, _ONE_FOLDS_FROM = 4, 16 << 10
"""In `Reduce` with few ranks, from this number of bytes on, the root folds everything. The engine's own choice divides the
work among all ranks, which write in their arrays. MPI's ranks may not, and copying the arrays first costs more: 1.2 to 2.2
times the time with 2 and 4 ranks on two cores, 64 KiB to 64 MiB. Below that size the root folds anyway."""
NEIGHBOURS, GROUPS, AGREEMENTS = 1, 2, 3
"""Contexts of messages, beside 0 for those of the program: see native/messages/channel.hpp."""


class CommunicatorState:
    """An MPI communicator: allfold's, with the state that MPI adds to it."""

    def __init__(self, communicator: Communicator, world: Sequence[int], name: str = "") -> None:
        self.communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self.world = tuple(world)
        self.name = name
        self.errhandler: Any = ERRORS_RETURN._ob
        self.attributes = Attributes()
        self.info: dict[str, str] = {}
        self.topology: Any = None
        self.buffered: list[PendingRequest] = []
        self.buffer: Any = None
        self.is_revoked = False
        self.agreements = 0
        self.is_over = False  # of the world, and of each rank's own: the program has called Finalize
        self._worker: _Worker | None = None
        self.messages = communicator.engine.messages
        self.reduces_by = "driver" if self._is_small() else None
        self.calls = self._compiled()

    def _is_small(self) -> bool:
        return self.size <= _ONE_FOLDS_UP_TO and isinstance(self.communicator.engine, SharedMemory)

    def _compiled(self) -> Any:
        """The state for calls that the extension makes without Python; None if all calls go through Python."""
        engine = self.communicator.engine
        if not isinstance(engine, SharedMemory):
            return None
        return _native.MpiCalls(engine.native, engine.messages, self.reduces_by, _ONE_FOLDS_FROM)

    def algorithm_of_reduce(self, bytes: int) -> str | None:
        """Of `Reduce` on this many bytes; None if the engine chooses."""
        return self.reduces_by if bytes >= _ONE_FOLDS_FROM else None

    def leave_to_python(self) -> None:
        """Leave all further calls to Python, which says why it refuses them."""
        if self.calls is not None:
            self.calls.is_open = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Make a collective call, after those that run in the background."""
        if self._worker is None:
            return call()
        return self._worker.begin(call).wait()[1]

    def begin(self, call: Callable[[], Any], fail: Callable[[BaseException], NoReturn]) -> PendingRequest:
        """Make a collective call in the background, after those that were begun before; `fail` raises its error."""
        if self._worker is None:
            if self.calls is not None:
                self.calls.is_queued = True
            self._worker = _Worker()
        return self._worker.begin(call, fail)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.begin(lambda: None).wait()
            self._worker.end()
            self._worker = None
        self.communicator.engine.close(False)


class _Worker:
    """A thread that makes the collective calls of one communicator in the order in which they were begun."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="allfold MPI", daemon=True).start()

    def begin(self, call: Callable[[], Any], fail: Callable[[BaseException], NoReturn] | None = None) -> _Call:
        made = _Call(call, fail)
        self._calls.put(made)
        return made

    def end(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()


class _Call(PendingRequest):
    """A collective call in the background."""

    def __init__(self, call: Callable[[], Any], fail: Callable[[BaseException], NoReturn] | None) -> None:
        self._call: Callable[[], Any] | None = call
        self._fail = fail
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        assert self._call is not None
        try:
            self._value = self._call()
        except BaseException as error:  # it is raised where the program waits
            self._error = error
        self._call = None
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> tuple[Arrived, Any]:
        self._ended.wait()
        if self._error is not None:
            if self._fail is not None and is_of_mpi(self._error):
                self._fail(self._error)
            raise self._error
        return EMPTY, self._value
