"""Collectives on arrays in a GPU's memory, through main memory, in the order of a stream.

The GPU copies the array into memory that the ranks share, a function on a thread of the driver makes the call there,
and the GPU copies the result back. The stream keeps the order: the host only puts the three into it, and goes on. This
needs nothing of the GPUs but copies: the ranks may have one GPU together, one each, or be on different hosts. A long
array goes in pieces: during the call of one, a second stream copies the result of the piece before and the next piece.

The calls of all ranks come in the same order, since each rank has one stream for them. That stream waits for the other
ranks inside the host function, so the engine is one that nobody else uses.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...collectives import COLLECTIVES
from ...errors import AllfoldError, DeviceError, UsageError
from ..buffer import Buffer
from ..engine import FAILURES, Call, Deferred, Engine
from ..shared_memory.engine import SharedMemory
from .batch import Batch
from .driver import GpuDriver
from .retire import Needed, forget_past, retire, standstill

PIECE_BYTES = 8 << 20
"""Longer arrays go in pieces of this length, so that copies and calls overlap, and little memory is pinned."""
_SLOTS = 2
"""Rooms that the pieces of an array use in turns."""
_LEAST_BYTES = 1 << 20
_SECONDS_TO_GIVE_UP = 5.0
_MOST_PAST_CALLS = 8


class Rooms:
    """Main memory that the ranks share and that the GPU reaches, and what the stream still needs of staged calls."""

    def __init__(self, device: GpuDriver, context: int) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.calls: deque[Needed] = deque()
        self._device, self._context = device, context

    def give_back(self) -> bool:
        """See `Retired`."""
        if not forget_past(self.calls):
            return False
        with standstill(self._device.lane(self._context)) as is_idle, self._device.within(self._context):
            while is_idle and self.arrays:
                self._device.unregister(self.arrays.popitem()[1].ctypes.data)
        return not self.arrays


class Staging:
    """The calls of one engine on arrays of one GPU."""

    def __init__(self, engine: Engine, device: GpuDriver, context: int) -> None:
        self.engine, self.lane = engine, device.lane(context)
        self._device, self._context = device, context
        self._rooms = Rooms(device, context)
        self._retires = weakref.finalize(self, retire, self._rooms)
        self._retires.atexit = False
        self.rooms_made = 0
        self.outcome = _native.Outcome()
        self._is_closed = False
        self._failure: BaseException | None = None

    def prepare(self, call: Call, source: Buffer | None, target: Buffer | None) -> Staged:
        """A call for the stream. The arrays are those of the call: its input and its output."""
        return Staged(self, call, source, target)

    def batch(self, call: Call, source: Buffer | None, target: Buffer | None) -> tuple[_native.Batch, list[Deferred]]:
        """The batch for the streams, and the engine calls that it contains."""
        pieces = _pieces(call, target)
        if len(pieces) > 1:
            return self._batch_in_pieces(call, pieces)
        is_root = call.root == self.engine.rank
        input, output = self._room("input", source), self._room("output 0", target)
        array, batch = source or target, Batch()
        moved = call._replace(input=input, output=output, dtype=None if array is None else array.dtype.name)
        deferred = self.engine.deferred(moved, self.outcome)
        _move(batch, input, source, goes_in=True)
        if _goes_in(call, is_root):
            _move(batch, output, target, goes_in=True)
        batch.call(deferred.function, deferred.argument)
        if _comes_out(call, is_root):
            _move(batch, output, target, goes_in=False)
        return batch.made(self._device), [deferred]

    def _batch_in_pieces(self, call: Call, pieces: Sequence[Buffer]) -> tuple[_native.Batch, list[Deferred]]:
        """In each turn: the call of one piece in the stream, and aside of it the copies of its neighbours."""
        is_root, batch, calls = call.root == self.engine.rank, Batch(), list[Deferred]()
        rooms = [self._room(f"output {slot}", pieces[0]) for slot in range(_SLOTS)]

        def room(number: int) -> np.ndarray[Any, Any]:
            found = rooms[number % _SLOTS]
            assert found is not None
            return found[: pieces[number].elements]

        for turn in range(-1, len(pieces) + 1):
            batch.meet()
            if 0 <= turn < len(pieces):
                moved = call._replace(output=room(turn), dtype=pieces[turn].dtype.name)
                calls.append(self.engine.deferred(moved, self.outcome))
                batch.call(calls[-1].function, calls[-1].argument)
            if turn > 0 and _comes_out(call, is_root):
                _move(batch, room(turn - 1), pieces[turn - 1], goes_in=False, aside=True)
            if turn + 1 < len(pieces) and _goes_in(call, is_root):
                _move(batch, room(turn + 1), pieces[turn + 1], goes_in=True, aside=True)
        batch.meet()
        return batch.made(self._device), calls

    def put(self, staged: Staged, before: int | None, holds: bool) -> _native.Mark:
        """Put a call into a stream. Raises the error of an earlier call, which nobody may have waited for."""
        if self._is_closed:
            raise UsageError(f"{staged.call.collective}: this communicator is closed")
        if self.outcome.failed or self._failure is not None:
            self.settle()
        try:
            mark = self.lane.launch(staged.batch, 0, before, holds)
        except DeviceError as error:
            self._failure = error
            raise
        calls = self._rooms.calls
        calls.append(Needed(mark, staged))
        if len(calls) > _MOST_PAST_CALLS:
            forget_past(calls)
        return mark

    def drain(self) -> None:
        """Return when the GPU has done all calls."""
        with self._device.within(self._context):
            self._device.synchronize(self.lane.stream)

    def settle(self) -> None:
        """Raise the error of the first call that failed."""
        error = self.error()
        if error is not None:
            raise error

    def error(self) -> BaseException | None:
        """The first error that is known."""
        if self._failure is None and self.outcome.failed:
            try:
                self.outcome.raise_error()
            except Exception as error:
                if isinstance(error, FAILURES):
                    self.engine.failed(error)
                self._failure = error
        return self._failure

    def fail(self, error: BaseException, because_of: Collection[int]) -> None:
        """End the running calls, here and on the other ranks, with this error, and reject new ones."""
        if self.error() is None:
            self._failure = error
            assert isinstance(self.engine, SharedMemory)  # others have no calls on the GPU that fail
            self.engine.abort(list(because_of))

    def close(self, seconds: float) -> None:
        """Wait for the work in the stream, end it after this many seconds, and free the memory."""
        if self._is_closed:
            return
        self._is_closed = True
        self._retires.detach()
        with contextlib.suppress(AllfoldError):
            if not self._has_done_all(seconds):
                self.engine.abort()
                self._has_done_all(_SECONDS_TO_GIVE_UP)
            if self._rooms.give_back():
                return
        retire(self._rooms)  # work of the user's own, or of another group, holds the stream up

    def _has_done_all(self, seconds: float) -> bool:
        """Wait for the calls in the stream, but no longer than this."""
        deadline = time.monotonic() + seconds
        while not forget_past(self._rooms.calls):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True

    def _room(self, name: str, array: Buffer | None) -> np.ndarray[Any, Any] | None:
        """Memory that the ranks share and that the GPU reaches, as long as the array."""
        if array is None:
            return None
        rooms = self._rooms.arrays
        room = rooms.get(name)
        if room is None or room.nbytes < array.bytes:
            self.drain()  # copies from and to the old one may be under way
            with self._device.within(self._context):
                if room is not None:
                    self._device.unregister(room.ctypes.data)
                    del rooms[name], room
                room = self.engine.empty(max(_LEAST_BYTES, 1 << (array.bytes - 1).bit_length()))
                self._device.register(room.ctypes.data, room.nbytes)
            rooms[name] = room
            self.rooms_made += 1
        return room[: array.bytes].view(array.dtype.carrier)


class Staged:
    """A call through main memory, which can be put into the stream again and again."""

    def __init__(self, staging: Staging, call: Call, source: Buffer | None, target: Buffer | None) -> None:
        self._staging, self.call, self._source, self._target = staging, call, source, target
        self._make()

    def _make(self) -> None:
        staging = self._staging
        self.batch, self._calls = staging.batch(self.call, self._source, self._target)
        self._rooms_made = staging.rooms_made

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        if self._rooms_made != self._staging.rooms_made:
            self._make()
        return self._staging.put(self, before, holds)


def _move(
    batch: Batch, room: np.ndarray[Any, Any] | None, array: Buffer | None, goes_in: bool, aside: bool = False
) -> None:
    if room is not None and array is not None and array.bytes:
        here, there = room.ctypes.data, array.pointer
        if goes_in:
            batch.copy(here, there, array.bytes, aside)
        else:
            batch.copy_in(there, here, array.bytes, aside)


def _goes_in(call: Call, is_root: bool) -> bool:
    """True if the call reads the previous contents of the output."""
    promise = COLLECTIVES[call.collective]
    return promise.in_place and promise.reads(is_root)


def _comes_out(call: Call, is_root: bool) -> bool:
    return COLLECTIVES[call.collective].writes(is_root)


def _pieces(call: Call, target: Buffer | None) -> list[Buffer]:
    """The output of a call in parts, each for a call of its own, if the call is in place and the array is long."""
    if target is None or not COLLECTIVES[call.collective].in_place or call.algorithm is not None:
        return []
    step = PIECE_BYTES // target.dtype.itemsize
    return [target.part(at, min(at + step, target.elements)) for at in range(0, target.elements, step)]
