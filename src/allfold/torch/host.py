"""A group's calls on tensors in main memory.

A call that is waited for runs on the thread that made it. One that is not waited for runs in the background: on the
engine's own thread if it needs nothing but the engine, else on a thread of the group (`Line`). Until the line is empty,
later calls join it, so that all ranks make the same calls in the same order.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor

from .. import _native
from ..collectives import COLLECTIVES
from ..communicator.communicator import Communicator
from ..communicator.handle import Handle
from ..division import Lengths
from ..errors import AllfoldError, CollectiveTimeout
from .device import Device
from .tensors import is_ready
from .work import DONE, GroupTimeout, Line, Posted, QueuedCall

_CODES = {name: code for code, name in enumerate(COLLECTIVES)}
_NO_TIME = timedelta(0)
LAST_CALLS_SECONDS = 5.0  # when leaving a group: how long calls that nobody waited for may take to finish


class Host(Device):
    """Main memory."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self.line = Line(f"allfold group of {communicator.size}")
        self._enter = communicator.entry()
        self._posted: deque[Handle] = deque()

    def at_once(
        self, name: str, source: Tensor | None, target: Tensor, op: str | None, root: int, opts: Any, results: Any
    ) -> Any:
        if (
            self.line.open  # it must not overtake
            or target.requires_grad  # `submit` marks it as changed
            or not is_ready(target)
            or (source is not None and not is_ready(source))
        ):
            return None
        try:
            if not opts.asyncOp:
                self._enter(_CODES[name], source, target, op, root, None, False, self.seconds, None)
                return DONE
            if source is not None and _native.overlap(source, target):  # it needs a copy, and somebody who copies
                return None
            seconds = opts.timeout.total_seconds() if opts.timeout > _NO_TIME else self.seconds
            handle = self._enter(_CODES[name], source, target, op, root, None, True, seconds, None)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None
        assert handle is not None
        while self._posted and self._posted[0].done():
            self._posted.popleft()
        self._posted.append(handle)
        return Posted(handle, results, self.line)

    def submit(
        self, run: Callable[[Any, float | None], None], opts: Any, results: Any, tensors: Sequence[Tensor]
    ) -> Any:
        asked = opts.timeout.total_seconds()
        seconds = asked if asked > 0 else self.seconds
        if not opts.asyncOp and not self.line.open:
            run(self, seconds)
            return DONE
        task = QueuedCall(lambda: run(self, seconds), results)
        self.line.submit(task)
        if opts.asyncOp:
            return task
        task.wait()
        return DONE

    def call(
        self,
        name: str,
        source: Tensor | None,
        target: Tensor | None,
        op: str | None = None,
        root: int = 0,
        timeout: float | None = None,
        counts: Lengths | None = None,
    ) -> None:
        uneven = () if counts is None else (counts,)
        try:
            self._enter(_CODES[name], source, target, op, root, None, False, timeout, None, *uneven)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None

    def in_turn(self, action: Callable[[], Any]) -> Any:
        """Do something with the communicator after the calls that are in line."""
        if not self.line.open:
            return action()
        results: list[Any] = []
        task = QueuedCall(lambda: results.append(action()), results)
        self.line.submit(task)
        task.wait()
        return results[0]

    def abort(self) -> None:
        self.communicator.abort()

    def close(self, patience: float) -> None:
        if not self.line.drain(patience) or not self._all_ended(patience):
            self.communicator.abort()
            self.line.drain(LAST_CALLS_SECONDS)
        self.line.close()
        self.communicator.close()

    def _all_ended(self, patience: float) -> bool:
        """Wait until the engine has nothing left in the background; whether that was in time."""
        deadline = time.monotonic() + patience
        for handle in self._posted:
            with contextlib.suppress(AllfoldError):
                handle.wait(max(0.0, deadline - time.monotonic()))
            if not handle.done():
                return False
        return True
