"""A call on its way: what was asked for, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ... import _native
from ...dtypes import Dtype
from ...fabrics import tags
from ...fabrics.fabric import FOREVER
from ...schedules import Schedule
from ..buffer import Flat
from ..engine import Call
from ..signature import Signature
from ..taken import Taken, take

_SPARE_SECONDS = 2.0


class Job:
    """One call of one rank."""

    signature: Signature
    packed: bytes
    """The signature, as it is sent."""
    digest: bytes
    """Of the signature and the number of the call."""
    dtype: Dtype
    elements: int
    input: Flat | None
    output: Flat | None
    named: Schedule | None = None
    """The schedule of the algorithm that the call names: the one that is compared."""
    number = 0
    error: BaseException | None = None
    bell: threading.Event | None = None  # of a call in the background
    is_late = False
    is_over = False
    _tags = 0
    _taken: Taken | None = None

    def __init__(self, call: Call, limit: float, prepared: Sequence[_native.Prepared] | None = None) -> None:
        """`prepared`: what an island does in a small all_reduce, for a rank that need not take its arrays."""
        self.call, self.limit, self.prepared = call, limit, prepared
        self.deadline = time.monotonic() + limit

    def take(self, rank: int, ranks: int) -> None:
        """Take the arrays of a call of this rank, of this many; errors of the caller are raised here."""
        if self._taken is None:
            self._taken = take(self.call, rank, ranks, self.call.algorithm)
            _, self.signature, self.named, self.dtype, self.elements, self.input, self.output = self._taken

    @property
    def bytes(self) -> int:
        """Of the whole buffer."""
        if self._taken is None:
            assert self.call.output is not None
            return self.call.output.nbytes  # type: ignore[no-any-return]
        return self.elements * self.dtype.itemsize

    def done(self) -> bool:
        """Whether its caller may go on, and use its arrays again."""
        return self.is_over and (self.bell is None or self.bell.is_set())

    def end(self, error: BaseException | None) -> None:
        """Say how it ends; the first to say so is right. Whoever waits for it goes on after `release`."""
        if not self.is_over:
            self.error, self.is_over = error, True

    def release(self) -> None:
        if self.bell is not None:
            self.bell.set()

    def left(self) -> float:
        """How many seconds transfers may still take: more than the call, whose end the others are told of in words."""
        return min(FOREVER, max(0.0, self.deadline - time.monotonic()) + _SPARE_SECONDS)

    def tag(self) -> int:
        """A new tag, the same one on every rank that has asked as often."""
        index, self._tags = self._tags, self._tags + 1
        return tags.of_call(int.from_bytes(self.digest[:8], "little"), self.number, index)
