"""A call on its way: what was asked for, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _native
from ...dtypes import Dtype
from ...fabrics import tags
from ...fabrics.fabric import FOREVER
from ...schedule import Schedule
from ..arrays import Flat, Taken, take
from ..engine import Call
from ..signature import Signature

if TYPE_CHECKING:
    from .engine import Islands

NUMBER_BYTES = 8
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

    def __init__(
        self, engine: Islands, call: Call, limit: float, prepared: Sequence[_native.Prepared] | None = None
    ) -> None:
        """`prepared`: what an island does in a small all_reduce, for a rank that need not take its arrays."""
        self.engine, self.call, self.limit, self.prepared = engine, call, limit, prepared
        self.deadline = time.monotonic() + limit

    def take(self) -> None:
        """Take the arrays; errors of the caller are raised here."""
        if self._taken is None:
            self._taken = take(self.call, self.engine.size, self.call.algorithm)
            _, self.signature, self.named, self.dtype, self.elements, self.input, self.output = self._taken

    def describe(self) -> None:
        """Find the bytes that are sent and compared, once the call has its number."""
        self.take()
        self.packed, digest = self.engine.known(self.signature)
        self.digest = digest + self.number.to_bytes(NUMBER_BYTES, "little")

    def schedule(self) -> tuple[str, dict[str, Any]]:
        """The algorithm that the call follows if it names none, and its parameters."""
        call, op = self.call, self.call.op
        bytes = call.output.nbytes if self._taken is None else self.elements * self.dtype.itemsize  # type: ignore[union-attr]
        return self.engine.crossing.schedule(
            call.collective, self.engine.islands, bytes, commutative=op is None or op.commutative
        )

    def algorithm(self) -> str:
        """The name of the algorithm that the call follows."""
        return self.schedule()[0] if self.named is None else self.named.algorithm

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
