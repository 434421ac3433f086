"""A call on its way: what was asked for, and how it ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..came import Came

if TYPE_CHECKING:
    from .engine import Islands


class Job:
    """One call of one rank, its arrays taken."""

    def __init__(self, engine: Islands, came: Came, number: int, digest: bytes) -> None:
        self.engine, self.number, self.digest, self.text = engine, number, digest, came.text
        self.call, _, self.dtype, self.elements, self.input, self.output = came
        self.error: BaseException | None = None
        self.over = threading.Event()
        self.deadline = self.limit = float("inf")
        self._tags = 0

    def done(self) -> bool:
        return self.over.is_set()

    def end(self, error: BaseException | None) -> None:
        if not self.over.is_set():
            self.error = error
            self.over.set()

    def tag(self) -> int:
        """A new tag, the same one on every rank that has asked as often.

        No other call that can be under way now has it, and hardly ever the same call with another signature.
        """
        index, self._tags = self._tags, self._tags + 1
        signature: int = int.from_bytes(self.digest[:2], "little") & 1023
        return (self.number % 1023) << 21 | (index & 2047) << 10 | signature
