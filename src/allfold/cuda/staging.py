"""Collectives on arrays in a GPU's memory, through main memory, in the order of a stream.

The GPU copies the array into memory that the ranks share, a function on a thread of the driver makes the call there,
and the GPU copies the result back. The stream keeps the order: the host only puts the three into it, and goes on. This
needs nothing of the GPUs but copies: the ranks may have one GPU together, one each, or be on different hosts.

The calls of all ranks come in the same order, since each rank has one stream for them. That stream waits for the other
ranks inside the host function, so the engine is one that nobody else uses.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..collectives import COLLECTIVES
from ..dtypes import Dtype
from ..engines.engine import FAILURES, Call, Deferred, Engine
from ..errors import AllfoldError, UsageError
from .driver import Device

PIECE_BYTES = 32 << 20
"""Of a longer array, so much is moved at once: less of main memory is taken away from everybody else."""
_LEAST_BYTES = 1 << 20
_SECONDS_TO_GIVE_UP = 5.0

CAPTURED = (
    "the stream is being captured into a CUDA graph, and a call between processes cannot be part of one; make the call "
    "outside the capture"
)


class OnDevice(NamedTuple):
    """A contiguous array in a GPU's memory."""

    pointer: int
    bytes: int
    dtype: Dtype


class Staging:
    """The calls of one engine on arrays of one GPU."""

    def __init__(self, engine: Engine, device: Device, context: int) -> None:
        self.engine = engine
        self._device, self._context = device, context
        self._rooms: dict[str, np.ndarray[Any, Any]] = {}
        self._pending: deque[Deferred] = deque()
        self._stream: int | None = None
        self._is_closed = False
        self._failure: BaseException | None = None

    def enqueue(self, call: Call, source: OnDevice | None, target: OnDevice | None, stream: int) -> None:
        """Put a call into a stream, always the same one.

        The arrays are those of the call: its input and its output. An error of an earlier call is raised here, since
        nobody may have waited for that.
        """
        if self._is_closed:
            raise UsageError(f"{call.collective}: this communicator is closed")
        with self._device.within(self._context):
            self._stream = stream
            self.settle()
            for piece in _pieces(call, target):
                self._enqueue(call, source, piece, stream)

    def _enqueue(self, call: Call, source: OnDevice | None, target: OnDevice | None, stream: int) -> None:
        is_root = call.root == self.engine.rank
        moved = call._replace(input=self._room("input", source), output=self._room("output", target))
        if source or target:
            moved = moved._replace(dtype=(source or target).dtype.name)  # type: ignore[union-attr]
        deferred = self.engine.deferred(moved)
        if source is not None:
            self._copy(moved.input, source, stream, goes_in=True)
        if target is not None and _goes_in(call, is_root):
            self._copy(moved.output, target, stream, goes_in=True)
        self._device.call(stream, deferred.function, deferred.argument)
        self._pending.append(deferred)
        if target is not None and _comes_out(call, is_root):
            self._copy(moved.output, target, stream, goes_in=False)

    def _copy(self, room: Any, array: OnDevice, stream: int, goes_in: bool) -> None:
        source, target = (array.pointer, room.ctypes.data) if goes_in else (room.ctypes.data, array.pointer)
        if array.bytes:
            self._device.copy(target, source, array.bytes, stream)

    def settle(self) -> None:
        """Forget the calls that are over, and raise the error of the first that failed."""
        error = self.error()
        if error is not None:
            raise error

    def error(self) -> BaseException | None:
        """What is known to have gone wrong, the first of it."""
        while self._failure is None and self._pending and self._pending[0].ticket.done():
            try:
                self._pending.popleft().ticket.raise_error()
            except Exception as error:
                if isinstance(error, FAILURES):
                    self.engine.failed(error)
                self._failure = error
        return self._failure

    def close(self, seconds: float) -> None:
        """Wait for what is in the stream, end it after so many seconds, and give the memory back."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._all_over(seconds):
            self.engine.abort()
            self._all_over(_SECONDS_TO_GIVE_UP)
        with contextlib.suppress(AllfoldError), self._device.within(self._context):
            if self._stream is not None:
                self._device.synchronize(self._stream)
            for room in self._rooms.values():
                self._device.unregister(room.ctypes.data)
        self._rooms.clear()
        self._pending.clear()

    def _all_over(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while any(not one.ticket.done() for one in self._pending):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True

    def _room(self, name: str, array: OnDevice | None) -> np.ndarray[Any, Any] | None:
        """Memory that the ranks share and that the GPU reaches, as long as the array."""
        if array is None:
            return None
        room = self._rooms.get(name)
        if room is None or room.nbytes < array.bytes:
            assert self._stream is not None
            self._device.synchronize(self._stream)  # copies from and to the old one may be under way
            if room is not None:
                self._device.unregister(room.ctypes.data)
                del self._rooms[name], room
            room = self.engine.empty(max(_LEAST_BYTES, 1 << array.bytes.bit_length()))
            self._device.register(room.ctypes.data, room.nbytes)
            self._rooms[name] = room
        return room[: array.bytes].view(array.dtype.carrier)


def _goes_in(call: Call, is_root: bool) -> bool:
    """Whether what the output holds before the call matters."""
    return call.collective in ("all_reduce", "reduce") or (call.collective == "broadcast" and is_root)


def _comes_out(call: Call, is_root: bool) -> bool:
    if call.collective == "reduce":
        return is_root
    return not (call.collective == "broadcast" and is_root)


def _pieces(call: Call, target: OnDevice | None) -> Iterator[OnDevice | None]:
    """The output of a call: in parts, each for a call of its own, if the call is in place and the array is long."""
    may_be_cut = COLLECTIVES[call.collective].in_place and call.algorithm is None
    if target is None or target.bytes <= PIECE_BYTES or not may_be_cut:
        yield target
        return
    for start in range(0, target.bytes, PIECE_BYTES):
        yield OnDevice(target.pointer + start, min(PIECE_BYTES, target.bytes - start), target.dtype)
