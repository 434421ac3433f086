"""Agreements of all ranks of a communicator, which go on beside its other collective calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import AllfoldError
from .records import AGREEMENTS, CommunicatorState
from .requests import EMPTY, Arrived, PendingRequest


class Agreement(PendingRequest):
    """Every rank's flag goes to every other rank. Ranks may begin it before or after their other calls."""

    def __init__(self, comm: Any, shared: CommunicatorState, flag: int, memory: Any = None) -> None:
        self._comm, self._messages, self._memory = comm, shared.messages, memory
        self.flag = flag
        number, shared.agreements = shared.agreements, shared.agreements + 1
        self._every = np.full(shared.size, flag, np.int64)
        own = self._every[shared.rank : shared.rank + 1].copy()
        self._operations: list[Any] = [
            self._messages.start(is_send, data, peer, number, None, AGREEMENTS)
            for peer in range(shared.size)
            if peer != shared.rank
            for is_send, data in ((False, self._every[peer : peer + 1]), (True, own))
        ]

    def done(self) -> bool:
        return all(self._messages.done(one) for one in self._operations)

    def wait(self) -> tuple[Arrived, Any]:
        try:
            while self._operations:
                self._messages.wait(self._operations[-1], None)
                self._operations.pop()
        except AllfoldError as problem:
            self._comm._fail(problem)
        self.flag = int(np.bitwise_and.reduce(self._every))
        if self._memory is not None:
            self._memory[0] = self.flag
        return EMPTY, None
