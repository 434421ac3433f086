"""A communicator's calls on arrays in a GPU's memory: torch tensors, and whatever has `__cuda_array_interface__` (CuPy).

A call comes after what its arrays' streams hold when it is made, and what is put into those streams later comes after
the call. A call that is not async also waits for the GPU: when it returns, the result is there.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque

from .. import _native
from ..cuda.driver import driver
from ..cuda.retire import InStream, Kept, Needed, forget_past, retire
from ..cuda.runner import Again
from ..cuda.ways import Ways
from ..engines.buffer import CUDA, Buffer, memory_of
from ..engines.engine import Call, Engine
from ..engines.taken import buffers_of as take_buffers
from ..errors import AllfoldError, DeviceError, UsageError

_LOOK_AGAIN_SECONDS = 20e-6
_LAST_CALLS_SECONDS = 5.0
_FAILED_CALL_SECONDS = 1.0  # for a stream that was let go to come to the end of its calls


class GpuCalls:
    """The calls of one communicator. The engine is its own: calls wait in a stream, and others must not overtake them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._device = driver()
        self._ways: dict[int, Ways] = {}  # by context
        self._kept: deque[InStream] = deque()
        weakref.finalize(self, retire, Kept(self._kept)).atexit = False

    def enqueue(self, call: Call, source: Buffer | None, target: Buffer | None) -> GpuCall:
        """Put a call into the stream for calls; its arrays' streams wait for it."""
        arrays = [one for one in (source, target) if one is not None]
        context = self._device.context_of(max(array.pointer for array in arrays))
        if context not in self._ways:
            self._ways[context] = Ways(self._engine, self._device, context, call.timeout)
        ways = self._ways[context]
        # Calls are remembered, arrays are not.
        again = self._again(ways, call._replace(input=None, output=None), source, target)
        streams = {array.stream for array in arrays}
        try:
            if len(streams) == 1:
                mark = ways.launch(again, streams.pop(), True)
            else:
                for stream in streams:
                    ways.lane.follow(stream)
                mark = ways.launch(again, None, False)
                for stream in streams:
                    mark.hold(stream)
            forget_past(self._kept)
        except DeviceError as error:
            raise ways.lost(error) from error
        self._kept.append(Needed(mark, [call.input, call.output]))
        return GpuCall(ways, mark)

    def _again(self, ways: Ways, call: Call, source: Buffer | None, target: Buffer | None) -> Again:
        if call.algorithm is not None or (call.op is not None and not call.op.is_builtin):
            return ways.prepare(call, source, target)
        places = (source and source.place, target and target.place)
        key = (call.collective, call.op and call.op.name, call.root, call.timeout, *places)
        return ways.remembered.get(key) or ways.remember(key, ways.prepare(call, source, target))

    def abort(self) -> None:
        for ways in self._ways.values():
            ways.abort()

    def close(self) -> None:
        for ways in self._ways.values():
            ways.close(_LAST_CALLS_SECONDS)
        self._engine.close(compares=False)


class GpuCall:
    """A call in a stream, as a `Ticket`."""

    def __init__(self, ways: Ways, over: _native.Mark) -> None:
        self._ways = ways
        self._over: _native.Mark | None = over
        self._error: BaseException | None = None

    def done(self) -> bool:
        if self._over is not None:
            try:
                if not self._over.is_over() or not (self._over.is_right or self._ways.is_compared()):
                    return False
            except DeviceError as error:  # the GPU is lost
                self._error, self._over = self._ways.lost(error), None
                return True
            self._error = None if self._over.is_right else self._ways.error()
            self._over = None
        return True

    def wait(self, timeout: float | None = None) -> bool:
        limit, failed_at = None if timeout is None else time.monotonic() + timeout, None
        while not self.done():
            now = time.monotonic()
            if limit is not None and now >= limit:
                return False
            if failed_at is None and self._ways.error() is not None:
                failed_at = now
            if failed_at is not None and now >= failed_at + _FAILED_CALL_SECONDS:
                break  # work of the user's own holds the stream up, for as long as it likes
            time.sleep(_LOOK_AGAIN_SECONDS)
        error = self._error if self._over is None else self._ways.error()
        if error is not None:
            raise error
        return True

    def wait_or_abort(self) -> None:
        """Wait for a call whose caller cannot wait again: an interrupt ends the calls of all ranks."""
        try:
            self.wait()
        except AllfoldError:
            raise
        except BaseException:
            self._ways.abort()
            with contextlib.suppress(AllfoldError):
                self.wait(_LAST_CALLS_SECONDS)
            raise


def buffers_of(call: Call) -> tuple[Buffer | None, Buffer | None]:
    """The input and the output of a call, both in a GPU's memory."""
    for array in (call.input, call.output):
        if array is not None and memory_of(array) != CUDA:
            raise UsageError(f"{call.collective}: one array is in a GPU's memory, the other is not; both must be")
    return take_buffers(call)
