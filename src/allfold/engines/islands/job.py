"""A call in progress: its arguments, its number, its signature and its outcome."""

from __future__ import annotations

import threading
import time

from ... import _native
from ...dtypes import DTYPES, Dtype
from ...fabrics import tags
from ...fabrics.fabric import FOREVER
from ...ops import OPS
from ...schedules import Schedule
from ..buffer import Flat
from ..engine import Call
from ..signature import Signature
from ..taken import take

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
    """The schedule of the algorithm that the call names; part of the signature."""
    number = 0
    error: BaseException | None = None
    bell: threading.Event | None = None  # of a call in the background
    is_late = False
    is_over = False
    is_taken = False
    _tags = 0

    def __init__(self, call: Call, limit: float) -> None:
        self.call, self.limit = call, limit
        self.deadline = time.monotonic() + limit

    def take(self, rank: int, ranks: int) -> None:
        """Read and check the arguments. Raises the caller's errors."""
        if not self.is_taken:
            taken = take(self.call, rank, ranks, self.call.algorithm)
            _, self.signature, self.named, self.dtype, self.elements, self.input, self.output = taken
            self.is_taken = True

    @classmethod
    def made_directly(cls, facts: _native.DirectCall) -> Job:
        """A job for a call that the extension makes."""
        number, packed, limit, deadline, *_ = facts
        signature = Signature.unpacked(packed)
        job = cls(Call(signature.collective, op=OPS.get(signature.op)), limit)
        job.number, job.deadline, job.signature, job.packed = number, deadline, signature, packed
        job.dtype, job.elements, job.input, job.output = DTYPES[signature.dtype], signature.elements, None, None
        job.is_taken = True
        return job

    @property
    def bytes(self) -> int:
        """The length of the whole buffer."""
        return self.elements * self.dtype.itemsize

    def done(self) -> bool:
        """True once the caller may use its arrays again."""
        return self.is_over and (self.bell is None or self.bell.is_set())

    def end(self, error: BaseException | None) -> None:
        """Set the outcome, unless it is set already. Waiting threads continue after `release`."""
        if not self.is_over:
            self.error, self.is_over = error, True

    def release(self) -> None:
        if self.bell is not None:
            self.bell.set()

    def remaining(self) -> float:
        """The seconds that transfers may still take. More than the call has, so that its timeout is reported first."""
        return min(FOREVER, max(0.0, self.deadline - time.monotonic()) + _SPARE_SECONDS)

    def tag(self) -> int:
        """A new tag: the n-th tag of a call is the same on every rank."""
        index, self._tags = self._tags, self._tags + 1
        return tags.of_call(int.from_bytes(self.digest[:8], "little"), self.number, index)
