"""What a call on a group returns: something to wait for. And the line (queue) of calls that nobody waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..communicator.handle import Handle
from ..communicator.messages import Pending
from ..errors import AllfoldError, CollectiveTimeout

_FOR_EVER = timedelta(0)  # what torch passes where no timeout was given


class GroupTimeout(CollectiveTimeout, dist.DistBackendError):
    """A call did not finish within its timeout. Can be caught as allfold's error or as torch's."""

    @classmethod
    def of(cls, error: CollectiveTimeout) -> GroupTimeout:
        return cls(f"{error}; if that is to be expected, set a longer timeout in init_process_group or new_group")


class GroupDestroyed(AllfoldError, dist.DistBackendError):
    """A call on a group that no longer exists."""


class Done(dist._Work):
    """A call that was over before it returned. There is one of these for all such calls, since it holds nothing."""

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return []

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


DONE = Done()


class Awaited(dist._Work):
    """What follows from `wait`, `is_completed` and `exception`, which each subclass below implements."""

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def synchronize(self) -> None:
        self.wait()


class QueuedCall(Awaited):
    """A call that stands in line. Its tensors belong to it until it is over."""

    def __init__(self, action: Callable[[], None], results: Any) -> None:
        super().__init__()
        self._action: Callable[[], None] | None = action
        self._results = results
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        if not self._over.wait(_seconds(timeout)):
            raise GroupTimeout(f"wait: the call was not over within {timeout.total_seconds():g} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._over.is_set()

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            is_new = self._future is None
            if self._future is None:
                self._future = torch.futures.Future()
            future, over = self._future, self._over.is_set()
        if is_new and over:  # the thread that ended the call saw no future, and left it to us
            self.settle(future)
        return future

    # For the line ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        assert self._action is not None
        try:
            # Inference mode is per thread; inside it, inference tensors and ordinary ones may both be written.
            with torch.inference_mode():
                self._action()
        except BaseException as error:  # whatever it is, it is raised where somebody waits
            self._error = error
        self._action = None

    def end(self) -> torch.futures.Future[Any] | None:
        """Wake those who wait. Returns the future that the caller must now settle, if one was asked for."""
        with self._lock:
            self._over.set()
            return self._future

    def settle(self, future: torch.futures.Future[Any]) -> None:
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._results)


class Posted(Awaited):
    """A call that the engine makes in the background by itself."""

    def __init__(self, handle: Handle, results: Any, line: Line) -> None:
        super().__init__()
        self._handle = handle
        self._results = results
        self._line = line
        self._follower: QueuedCall | None = None

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        try:
            self._handle.wait(_seconds(timeout))
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None
        return True

    def is_completed(self) -> bool:
        return self._handle.done()

    def exception(self) -> BaseException | None:
        return _error_of(self) if self._handle.done() else None

    def result(self) -> Any:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        if self._follower is None:
            # Some thread must wait for the engine and settle the future; the line has one, and keeps the order.
            self._follower = QueuedCall(lambda: self._handle.wait(), self._results)
            self._line.submit(self._follower)
        return self._follower.get_future()


class MessageWork(Awaited):
    """A message on its way. The engine moves it; nobody here has to."""

    def __init__(self, pending: Pending, tensor: torch.Tensor, bring_home: Callable[[], None] | None) -> None:
        super().__init__()
        self._pending = pending
        self._tensor = tensor
        self._bring_home = bring_home  # from the contiguous copy that was received into
        self._source = -1
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        with self._lock:
            try:
                came = self._pending.wait(_seconds(timeout))
            except CollectiveTimeout as error:
                raise GroupTimeout.of(error) from None
            if came is not None:
                self._source = came.source
            if self._bring_home is not None:
                self._bring_home()
                self._bring_home = None
        return True

    def is_completed(self) -> bool:
        return self._pending.done()

    def exception(self) -> BaseException | None:
        return _error_of(self) if self._pending.done() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            self._future = torch.futures.Future()
            threading.Thread(target=self._follow, args=(self._future,), daemon=True).start()
        return self._future

    def _follow(self, future: torch.futures.Future[Any]) -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result([self._tensor])


WORKS = (Done, QueuedCall, Posted, MessageWork)


class Line:
    """The calls of a group that nobody waits for, one after the other, on threads of their own.

    A thread takes a call, makes it, and lets another thread continue before it settles the call's future: callbacks of
    the future may make further calls on the group and wait for them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.open = 0  # calls in line that are not over: the caller's own calls must not overtake them
        self._tasks: deque[QueuedCall] = deque()
        self._turn = threading.Condition()
        self._busy = False
        self._idle = 0
        self._closed = False

    def submit(self, task: QueuedCall) -> None:
        with self._turn:
            self._tasks.append(task)
            self.open += 1
            if not self._busy:
                self._hand_on()

    def drain(self, seconds: float) -> bool:
        """Wait until all calls are over; whether that was in time."""
        with self._turn:
            return self._turn.wait_for(lambda: self.open == 0, seconds)

    def close(self) -> None:
        """Let the threads end, once the calls in line are over."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _hand_on(self) -> None:
        if self._idle:
            self._turn.notify_all()  # all, since `drain` waits for the same condition
        else:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._turn:
                self._idle += 1
                self._turn.wait_for(lambda: (self._tasks and not self._busy) or (self._closed and not self._tasks))
                self._idle -= 1
                if not self._tasks:
                    return
                task = self._tasks.popleft()
                self._busy = True
            task.run()
            with self._turn:
                self._busy = False
                self.open -= 1
                future = task.end()
                if self._tasks and future is not None:
                    self._hand_on()
                elif not self.open:
                    self._turn.notify_all()
            if future is not None:
                task.settle(future)
            del task, future  # and with them the tensors, which must not live on until the next call


def _error_of(work: Posted | MessageWork) -> BaseException | None:
    try:
        work.wait()
    except Exception as error:
        return error
    return None


def _seconds(timeout: timedelta | None) -> float | None:
    return timeout.total_seconds() if timeout is not None and timeout > _FOR_EVER else None
