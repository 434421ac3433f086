"""A call on its way: what was asked for, and how it ends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ...fabrics.fabric import FOREVER
from ..came import Came

if TYPE_CHECKING:
    from .engine import Islands

NUMBER_BYTES = 8
_SPARE_SECONDS = 2.0


class Job:
    """One call of one rank, its arrays taken."""

    def __init__(self, engine: Islands, came: Came, number: int, text: str, signature: bytes, limit: float) -> None:
        self.engine, self.number, self.text, self.limit = engine, number, text, limit
        self.digest = signature + number.to_bytes(NUMBER_BYTES, "little")
        self.call, _, self.dtype, self.elements, self.input, self.output = came
        self.deadline = time.monotonic() + limit
        self.error: BaseException | None = None
        self.bell: threading.Event | None = None  # of a call in the background
        self.is_late = False
        self._over = False
        self._tags = 0

    def done(self) -> bool:
        return self._over

    def end(self, error: BaseException | None) -> None:
        if not self._over:
            self.error, self._over = error, True
            if self.bell is not None:
                self.bell.set()

    def left(self) -> float:
        """How many seconds transfers may still take: more than the call, whose end the others are told of in words."""
        return min(FOREVER, max(0.0, self.deadline - time.monotonic()) + _SPARE_SECONDS)

    def tag(self) -> int:
        """A new tag, the same one on every rank that has asked as often.

        No other call that can be under way now has it, and hardly ever the same call with another signature.
        """
        index, self._tags = self._tags, self._tags + 1
        signature: int = int.from_bytes(self.digest[:2], "little") & 1023
        return (self.number % 1023) << 21 | (index & 2047) << 10 | signature
