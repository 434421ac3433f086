"""A group's calls on tensors in main memory.

A call that blocks runs on the thread that made it. An async call runs in the background: on the engine's own thread if it
needs nothing but the engine, else on a thread of the group (`CallQueue`). While that queue is not empty, later calls join
it, so that all ranks make the same calls in the same order.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..communicator.communicator import Communicator
from ..communicator.handle import Handle
from ..errors import AllfoldError
from .device import Device
from .work import DONE, CallQueue, Posted, QueuedCall

LAST_CALLS_SECONDS = 5.0  # for calls in flight to finish when a rank leaves its group


class Host(Device):
    """Tensors in main memory."""

    queue: CallQueue

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self.queue = CallQueue(f"allfold group of {communicator.size}")
        self.enter = communicator.entry()
        self._posted: deque[Handle] = deque()

    def in_flight(self, ticket: Handle, source: Tensor | None, target: Tensor) -> Posted:
        while self._posted and self._posted[0].done():
            self._posted.popleft()
        self._posted.append(ticket)
        return Posted(ticket, [target], self.queue)

    def around(self, action: Callable[[], None], is_async: bool, results: Any, tensors: Sequence[Tensor]) -> Any:
        if not is_async and not self.queue.open:
            action()
            return DONE
        task = QueuedCall(action, results)
        self.queue.submit(task)
        if is_async:
            return task
        task.wait()
        return DONE

    def in_turn(self, action: Callable[[], Any]) -> Any:
        """The result of an action that uses the communicator, run after the queued calls."""
        results: list[Any] = []
        self.around(lambda: results.append(action()), False, results, ())
        return results[0]

    def gather_numbers(self, numbers: list[int], timeout: float | None) -> Tensor:
        table = torch.empty((self.size, len(numbers)), dtype=torch.int64)
        self.collective("all_gather", torch.tensor(numbers, dtype=torch.int64), table, timeout=timeout)
        return table

    def close(self, patience: float) -> None:
        if not self.queue.drain(patience) or not self._all_ended(patience):
            self.communicator.abort()
            self.queue.drain(LAST_CALLS_SECONDS)
        self.queue.close()
        self.communicator.close()

    def _all_ended(self, patience: float) -> bool:
        """Wait for the engine's background calls. Returns False at the timeout."""
        deadline = time.monotonic() + patience
        for handle in self._posted:
            with contextlib.suppress(AllfoldError):
                handle.wait(max(0.0, deadline - time.monotonic()))
            if not handle.done():
                return False
        return True
