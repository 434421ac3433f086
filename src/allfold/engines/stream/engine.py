"""The engine for arrays in a GPU's memory (torch tensors, and whatever has `__cuda_array_interface__`), over another engine.

A call comes after what its arrays' streams hold when it is made, and what is put into those streams later comes after
the call. A call that is not async also waits for the GPU: when it returns, the result is there. Arrays are staged
through the memory of the other engine, or the programs run on the GPU itself (ways.py).
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ... import _native
from ...errors import AllfoldError, DeviceError, UsageError
from ..buffer import Buffer
from ..engine import CUDA, Call, Engine, Ticket
from ..shared_memory.engine import SharedMemory
from ..shared_memory.engine import in_threads as shared_in_threads
from ..taken import buffers_of
from .driver import driver, refuse_capture
from .retire import InStream, Kept, Needed, forget_past, retire
from .runner import Again
from .ways import Ways

Arguments = tuple[Call, Buffer | None, Buffer | None]
_LOOK_AGAIN_SECONDS = 20e-6
_LAST_CALLS_SECONDS = 5.0
_FAILED_CALL_SECONDS = 1.0  # for a released stream to reach the end of its calls


def over(engine: Engine) -> Stream:
    """The engine for arrays in a GPU's memory. It alone uses the one that it is given."""
    return Stream(engine)


def in_threads(ranks: int, timeout: float) -> list[Engine]:
    return [Stream(engine) for engine in shared_in_threads(ranks, timeout)]


class Stream(Engine):
    """One rank's end of a group. Its staging engine is its own: calls wait in a stream, and must not be overtaken."""

    memory = CUDA

    def __init__(self, staging: Engine) -> None:
        self.rank, self.size, self.label, self.timeout = staging.rank, staging.size, staging.label, staging.timeout
        self.messages = staging.messages
        self.ways: dict[int, Ways] = {}
        """The calls on each GPU, by context."""
        self._staging = staging
        self._made = 0
        self._kept: deque[InStream] = deque()
        weakref.finalize(self, retire, Kept(self._kept)).atexit = False

    def run(self, call: Call, async_op: bool) -> Ticket | None:
        input, output = buffers_of(call)
        for buffer in (input, output):
            if buffer is not None and buffer.flat is not None:
                raise UsageError(f"{call.collective}: the array is not in a GPU's memory, which this engine requires")
        if input is None and output is None:
            return self._run_without_arrays(call, async_op)
        ticket = None
        try:
            ticket = self._put(call, input, output)
            if async_op:
                return ticket  # the arrays are kept until the stream has come to its end
            ticket.wait()
            return None
        except AllfoldError:
            raise
        except BaseException:  # an interrupt: the call may have begun, and the other ranks must not wait for the rest
            self.abort()
            if ticket is not None:
                with contextlib.suppress(AllfoldError):
                    ticket.wait(_LAST_CALLS_SECONDS)
            raise

    def _run_without_arrays(self, call: Call, async_op: bool) -> Ticket | None:
        """A barrier, made on the host when the GPU has done the calls before it."""
        self.finish()
        self._made += 1
        return self._staging.run(call, async_op)

    def _put(self, call: Call, source: Buffer | None, target: Buffer | None) -> InTheStream:
        """Put a call into the stream for calls; its arrays' streams wait for it."""
        arrays = [one for one in (source, target) if one is not None]
        ways = self.on_gpu(driver().context_of(max(array.pointer for array in arrays)), call.timeout)
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
            self.keep(Needed(mark, [call.input, call.output]))
        except DeviceError as error:
            raise ways.lost(error) from error
        self._made += 1
        return InTheStream(ways, mark)

    def _again(self, ways: Ways, call: Call, source: Buffer | None, target: Buffer | None) -> Again:
        if call.algorithm is not None or (call.op is not None and not call.op.is_builtin):
            return ways.prepare(call, source, target)
        places = (source and source.place, target and target.place)
        key = (call.collective, call.op and call.op.name, call.root, call.timeout, call.counts, *places)
        return ways.remembered.get(key) or ways.remember(key, ways.prepare(call, source, target))

    def on_gpu(self, context: int, timeout: float | None = None) -> Ways:
        """The calls on one GPU; made by all ranks together, in the first call there."""
        if context not in self.ways:
            self.ways[context] = Ways(self._staging, driver(), context, timeout)
            if isinstance(self._staging, SharedMemory) and self._staging.native.given_up([self.rank]):
                self.abort()  # an abort that came meanwhile has not ended the calls, which were not there yet
        return self.ways[context]

    # For those who know their stream and GPU, as torch's backend does: nothing here blocks, but the first call on a GPU.

    def meet_on_gpu(self, is_captured: bool) -> int:
        """Prepare for calls on the current GPU, by all ranks together; its context, by which the calls below name it."""
        if is_captured:
            refuse_capture()
        context = driver().context_of(0)
        self.on_gpu(context)
        return context

    def enqueue(self, context: int, key: Any, make: Callable[[], Arguments], before: int, holds: bool) -> InTheStream:
        """Put a call into the stream for calls: the one that was made for this key before, or that `make` returns.

        It comes after what the stream `before` holds; with `holds`, that stream then waits for it. If that is the stream
        for calls itself (`around`), there is nothing to wait for, and the arrays are those of the moment: the call is
        not remembered.
        """
        ways = self.ways[context]
        if before == ways.lane.stream:
            return InTheStream(ways, ways.launch(ways.prepare(*make()), None, False))
        again = ways.remembered.get(key) or ways.remember(key, ways.prepare(*make()))
        return InTheStream(ways, ways.launch(again, before, holds))

    def around(self, context: int, stream: int, work: Callable[[int], None]) -> InTheStream:
        """Let `work` queue work in the stream for calls, which it gets as its argument, behind the work in `stream`."""
        ways = self.ways[context]
        try:
            ways.lane.follow(stream)
            work(ways.lane.stream)
            return InTheStream(ways, ways.lane.mark(), stream)
        except DeviceError as error:
            raise ways.lost(error) from error

    def empty_on(self, context: int, bytes: int) -> tuple[int, Callable[[], None]] | None:
        """Memory on a GPU that all ranks reach, and the function that releases it; None if impossible. All ranks call it."""
        return self.ways[context].empty(bytes)

    def keep(self, needed: InStream) -> None:
        """Keep what a call needs until the stream has come to its end."""
        self._kept.append(needed)
        forget_past(self._kept)

    def finish(self) -> None:
        """Return when the GPU has done all calls, and raise their error, if any."""
        for ways in self.ways.values():
            ways.finish()
        with contextlib.suppress(DeviceError):  # the GPU is lost, which is raised below
            forget_past(self._kept)
        for ways in self.ways.values():
            if (error := ways.error()) is not None:
                raise error

    def group(self, ranks: Sequence[int], timeout: float | None) -> Stream | None:
        self.finish()  # calls in the stream use the engine
        staging = self._staging.group(ranks, timeout)
        return None if staging is None else Stream(staging)

    def close(self, compares: bool, seconds: float = _LAST_CALLS_SECONDS) -> None:
        """Leave. Calls that nobody waited for may take this many seconds to finish."""
        for ways in self.ways.values():
            ways.close(seconds)
        with contextlib.suppress(DeviceError):
            forget_past(self._kept)  # or the arrays of the last calls would be kept until somebody looks again
        self._staging.close(compares)

    def abort(self) -> None:
        self._staging.abort()  # first: see `on_gpu`
        for ways in list(self.ways.values()):
            ways.abort()

    def calls(self) -> int:
        return self._made

    def failed(self, error: BaseException) -> None:
        self._staging.failed(error)


class InTheStream:
    """A call in a stream, as a `Ticket`."""

    def __init__(self, ways: Ways, over: _native.Mark, behind: int | None = None) -> None:
        self._ways = ways
        self._over: _native.Mark | None = over
        self._final_error: BaseException | None = None
        self.behind = over.behind if behind is None else behind
        """The stream whose work it comes after."""

    @property
    def takes_turns(self) -> bool:
        """True if the processes take turns on the GPU."""
        return self._ways.takes_turns

    @property
    def stream(self) -> int:
        """The stream for calls, which it is in."""
        return self._ways.lane.stream

    def is_over(self) -> bool:
        """True if the stream has reached the end of the call."""
        over = self._over
        return over is None or over.is_over()

    def hold(self, stream: int) -> None:
        """Have a stream wait for it."""
        over = self._over
        if over is not None:
            try:
                over.hold(stream)
            except DeviceError as error:
                raise self._ways.lost(error) from error

    def error(self) -> BaseException | None:
        """The error of this call, if one is known."""
        over = self._over
        if over is None:
            return self._final_error
        return None if over.is_right else self._ways.error()

    def done(self) -> bool:
        over = self._over
        if over is not None:
            try:
                if not over.is_over() or not (over.is_right or self._ways.is_compared()):
                    return False
            except DeviceError as error:  # the GPU is lost
                self._final_error, self._over = self._ways.lost(error), None
                return True
            self._final_error = None if over.is_right else self._ways.error()
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
        error = self._final_error if self._over is None else self._ways.error()
        if error is not None:
            raise error
        return True
