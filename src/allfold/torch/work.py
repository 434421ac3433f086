"""The objects that torch waits on, one class per kind of call; and the queue of a group's background calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..communicator.handle import Handle
from ..communicator.messages import Pending
from ..errors import AllfoldError, CollectiveTimeout
from ..intercept.done_work import NO_TIMEOUT, DoneWork


class GroupTimeout(CollectiveTimeout, dist.DistBackendError):
    """A call did not finish within its timeout. Can be caught as allfold's error or as torch's."""

    @classmethod
    def of(cls, error: CollectiveTimeout) -> GroupTimeout:
        if isinstance(error, cls):  # from a background call that this one waited for
            return error
        return cls(f"{error}; if this is expected, set a longer timeout in init_process_group or new_group")


class GroupDestroyed(AllfoldError, dist.DistBackendError):
    """A call on a group that no longer exists."""


DONE = DoneWork()


class _Failed:
    """The value of a future whose call has failed.

    torch's C++ looks for tensors in a value by pickling it, as DDP does at the end of a backward pass. It gets the error. In
    the value that `Future.set_exception` sets, it finds no tensor, and reads beyond the end of an empty list.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def raise_error(self) -> NoReturn:
        raise self._error

    def __reduce__(self) -> NoReturn:
        self.raise_error()


def fail(future: torch.futures.Future[Any], error: BaseException) -> None:
    """Complete the future with an error, for those who wait for it in Python or in C++."""
    future._set_unwrap_func(_Failed.raise_error)
    future.set_result(_Failed(error))


class Awaited(dist._Work):
    """The methods that follow from `wait`, `is_completed` and `exception`, which each subclass implements."""

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def synchronize(self) -> None:
        self.wait()


class QueuedCall(Awaited):
    """A call in a queue. It keeps its tensors until it has ended."""

    def __init__(self, action: Callable[[], None], results: Any) -> None:
        super().__init__()
        self._action: Callable[[], None] | None = action
        self._results = results
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if not self._ended.wait(_seconds(timeout)):
            raise GroupTimeout(f"wait: the call was not done within {timeout.total_seconds():g} s; it continues")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

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
            future, has_ended = self._future, self._ended.is_set()
        if is_new and has_ended:  # the thread that ended the call saw no future, so it is settled here
            self.settle(future)
        return future

    # For the queue ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        assert self._action is not None
        try:
            # Inference mode is per thread. In it, both inference tensors and ordinary ones may be written.
            with torch.inference_mode():
                self._action()
        except CollectiveTimeout as error:
            self._error = GroupTimeout.of(error)
        except BaseException as error:  # of any kind: `wait` raises it
            self._error = error
        self._action = None

    def end(self) -> torch.futures.Future[Any] | None:
        """Wake all waiting threads. Returns the future that the caller must now settle, if one was requested."""
        with self._lock:
            self._ended.set()
            return self._future

    def settle(self, future: torch.futures.Future[Any]) -> None:
        if self._error is not None:
            fail(future, self._error)
        else:
            future.set_result(self._results)


class Posted(Awaited):
    """A call that the engine makes in the background."""

    def __init__(self, handle: Handle, results: Any, queue: CallQueue) -> None:
        super().__init__()
        self._handle = handle
        self._results = results
        self._queue = queue
        self._follower: QueuedCall | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
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
            # A thread must wait for the engine and settle the future; the queue has one, and keeps the order.
            self._follower = QueuedCall(lambda: self._handle.wait(), self._results)
            self._queue.submit(self._follower)
        return self._follower.get_future()


class MessageWork(Awaited):
    """A message on its way. The engine moves it, without a thread of the group."""

    def __init__(self, pending: Pending, tensor: torch.Tensor, copy_back: Callable[[], None] | None) -> None:
        super().__init__()
        self._pending = pending
        self._tensor = tensor
        self._copy_back = copy_back  # from a contiguous tensor that the message is received into
        self._source = -1
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        with self._lock:
            try:
                received = self._pending.wait(_seconds(timeout))
            except CollectiveTimeout as error:
                raise GroupTimeout.of(error) from None
            if received is not None:
                self._source = received.source
            if self._copy_back is not None:
                self._copy_back()
                self._copy_back = None
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
            fail(future, error)
        else:
            future.set_result([self._tensor])


WORKS = (DoneWork, QueuedCall, Posted, MessageWork)


class CallQueue:
    """The background calls of a group, made one after the other on threads of their own.

    A thread takes a call, makes it, and lets another thread continue before it settles the call's future, because
    callbacks of the future may make further calls on the group and wait for them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.open = 0  # queued calls that have not ended: the caller's own calls must not overtake them
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
        """Wait until all calls have ended. Returns False at the timeout."""
        with self._turn:
            return self._turn.wait_for(lambda: self.open == 0, seconds)

    def close(self) -> None:
        """Let the threads end once all queued calls have ended."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _hand_on(self) -> None:
        if self._idle:
            self._turn.notify_all()  # all, since `drain` waits on the same condition
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
            del task, future  # and with them the tensors, which must not live until the next call


def _error_of(work: Posted | MessageWork) -> BaseException | None:
    try:
        work.wait()
    except Exception as error:
        return error
    return None


def _seconds(timeout: timedelta | None) -> float | None:
    return timeout.total_seconds() if timeout is not None and timeout > NO_TIMEOUT else None
