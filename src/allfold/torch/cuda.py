"""CUDA tensors in a group: the same calls, in the order of a stream, staged or on the GPU (cuda/ways.py).

As with NCCL, a call comes after the work that the current stream holds, `wait` makes the current stream wait for it,
and neither blocks the host. All calls of a rank are on one stream per GPU, in the order in which they were made. The
tensors of a call are kept until it is over. What goes wrong in a stream is raised by the next call, or by `wait` if it
is known by then.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from .. import _native
from ..communicator.communicator import Communicator
from ..communicator.messages import Pending
from ..cuda.driver import refuse_capture
from ..cuda.engine import Stream
from ..cuda.runner import Again
from ..cuda.ways import Ways
from ..division import Lengths
from ..engines.buffer import Buffer
from ..engines.engine import Call
from ..errors import CollectiveTimeout, DeviceError
from ..ops import OPS
from .device import Device, bring_home
from .host import Host
from .tensors import ENGINE_DTYPES, as_moved, is_plain, plain, to_dlpack
from .work import DONE, Awaited, GroupTimeout

_FOR_EVER = timedelta(0)
_SOON_SECONDS = 50e-6


class Gpu(Device):
    """CUDA tensors. Nothing here blocks: calls go into the current stream."""

    def __init__(self, communicator: Communicator, host: Host) -> None:
        super().__init__(communicator, host.seconds)
        self.ways: dict[int, Ways] = {}  # by the number of the GPU
        self._host = host
        self._stream = Stream(communicator._engine)

    def at_once(
        self, name: str, source: Tensor | None, target: Tensor, op: str | None, root: int, opts: Any, results: Any
    ) -> Any:
        tensors = (target,) if source is None else (source, target)
        asked, is_async = opts.timeout, opts.asyncOp
        seconds = asked.total_seconds() if asked > _FOR_EVER else self.seconds
        over = self._launched(name, tensors, op, root, seconds, not is_async)
        if over is None:
            return None
        if not is_async:
            return DONE
        return self._keep(Enqueued(self.ways[target.get_device()], target.device, over, results, tensors))

    def _launched(
        self, name: str, tensors: tuple[Tensor, ...], op: str | None, root: int, seconds: float | None, holds: bool
    ) -> _native.Mark | None:
        """Put a call into the current stream, which waits for it with `holds`; None if it needs more than the engine."""
        if tensors[-1].requires_grad:  # `submit` marks it as changed
            return None
        index, where = tensors[0].get_device(), []
        for tensor in tensors:
            if not (tensor.is_cuda and is_plain(tensor)) or tensor.get_device() != index:
                return None
            where += [tensor.data_ptr(), tensor.numel(), tensor.dtype]
        ways = self.ways.get(index)
        if ways is None:
            return None
        key = (name, op, root, seconds, *where)
        again = ways.remembered.get(key)
        if again is None:
            if any(tensor.dtype not in ENGINE_DTYPES for tensor in tensors):
                return None
            source = tensors[0] if len(tensors) == 2 else None
            again = ways.remember(key, _prepared(ways, name, source, tensors[-1], op, root, seconds))
        try:
            return ways.launch(again, torch._C._cuda_getCurrentRawStream(index), holds)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None

    def submit(
        self, run: Callable[[Any, float | None], None], opts: Any, results: Any, tensors: Sequence[Tensor]
    ) -> Any:
        asked, device = opts.timeout.total_seconds(), tensors[0].device
        with torch.cuda.device(device):
            ways, stream = self.ways_on(device), torch.cuda.current_stream(device).cuda_stream
            try:
                ways.lane.follow(stream)
                with _on_stream(ways, device), torch.inference_mode():
                    run(self, asked if asked > 0 else self.seconds)
                mark = ways.lane.mark()
            except CollectiveTimeout as error:
                raise GroupTimeout.of(error) from None
            except DeviceError as error:
                raise ways.lost(error) from error
            return self._keep(Enqueued(ways, device, mark, results, [run], stream))

    def _keep(self, work: Enqueued) -> Enqueued:
        """Keep its tensors until the call has ended, or until the current stream waits for it."""
        with contextlib.suppress(DeviceError):  # the GPU is lost, and `wait` says why
            self._stream.keep(work)
        return work

    def call(
        self,
        name: str,
        source: Tensor | None,
        target: Tensor | None,
        op: str | None = None,
        root: int = 0,
        timeout: float | None = None,
        counts: Lengths | None = None,
    ) -> None:
        given = source if target is None else target
        assert given is not None  # barriers are made by the host
        if given.is_cpu:
            # What the ranks tell each other before the call, on the host.
            self._host.in_turn(lambda: self._host.call(name, source, target, op, root, timeout, counts))
            return
        ways = self.ways_on(given.device)
        ways.launch(_prepared(ways, name, source, target, op, root, timeout, counts), None, False)

    def ways_on(self, device: torch.device) -> Ways:
        """Made by all ranks together, in the first call on a GPU."""
        if device.index not in self.ways:
            if torch.cuda.is_current_stream_capturing():
                refuse_capture()
            self.ways[device.index] = self._stream.on_gpu()
        return self.ways[device.index]

    def empty(self, bytes: int, device: torch.device) -> Tensor:
        """Bytes on the GPU that all ranks reach, where there is such memory; made by all ranks together."""
        with torch.cuda.device(device):
            found = self.ways_on(device).empty(bytes)
            return torch.empty(bytes, dtype=torch.uint8, device=device) if found is None else _tensor_at(*found, bytes)

    def send(self, tensor: Tensor, destination: int, tag: int) -> Pending:
        """The message is on its way when the GPU has copied it out, which the host waits for."""
        return self.communicator.isend(to_dlpack(as_moved(plain(tensor)).cpu()), destination, tag)

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> tuple[Pending, Callable[[], None] | None]:
        moved = as_moved(plain(tensor))
        here = torch.empty(moved.shape, dtype=moved.dtype, pin_memory=True)
        pending = self.communicator.irecv(to_dlpack(here), source, tag)
        return pending, lambda: bring_home(here.view(tensor.dtype).view(tensor.shape), tensor)

    def finish(self) -> None:
        self._stream.finish()

    def abort(self) -> None:
        self._stream.abort()

    def close(self, patience: float) -> None:
        self._stream.close(compares=True, seconds=patience)


def _on_stream(ways: Ways, device: torch.device) -> AbstractContextManager[None]:
    """Let torch put its own work into the stream for calls."""
    return torch.cuda.stream(torch.cuda.ExternalStream(ways.lane.stream, device))  # type: ignore[no-untyped-call]


def _prepared(
    ways: Ways,
    name: str,
    source: Tensor | None,
    target: Tensor | None,
    op: str | None,
    root: int,
    seconds: float | None,
    counts: Lengths | None = None,
) -> Again:
    call = Call(name, op=None if op is None else OPS[op], root=root, timeout=seconds, counts=counts)
    return ways.prepare(call, _buffer(name, source, False), _buffer(name, target, True))


def _buffer(name: str, tensor: Tensor | None, written: bool) -> Buffer | None:
    return None if tensor is None else Buffer.of(name, tensor, None, written)


class _Memory:
    """Memory on the GPU, in the form that torch makes tensors of. It is let go with the last tensor in it."""

    def __init__(self, pointer: int, bytes: int) -> None:
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (bytes,), "typestr": "|u1", "version": 3}


def _tensor_at(pointer: int, let_go: Callable[[], None], bytes: int) -> Tensor:
    memory = _Memory(pointer, bytes)
    weakref.finalize(memory, let_go)
    return torch.as_tensor(memory, device="cuda")


class Enqueued(Awaited):
    """A call in a stream. Its tensors are kept until it is over, or until the stream that made it waits for it."""

    def __init__(
        self,
        ways: Ways,
        device: torch.device,
        over: _native.Mark,
        results: Any,
        needed: Sequence[Any],
        behind: int | None = None,
    ) -> None:
        super().__init__()
        self._ways, self._device, self._over, self._results, self._behind = ways, device, over, results, behind
        self._needed: Sequence[Any] | None = needed  # the tensors, or a function that holds them

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        error = self.exception()
        if error is not None:
            raise error
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        try:
            self._over.hold(stream)
        except DeviceError as lost:
            raise self._ways.lost(lost) from lost
        # Memory that is freed now is used again by later work of this stream, which comes after the call. With tensors
        # of other streams the caller must say so (`Tensor.record_stream`), as for any use of them on this one.
        if stream == (self._over.behind if self._behind is None else self._behind):
            self._needed = None
        return True

    def is_over(self) -> bool:
        return self._over.is_over()

    def is_completed(self) -> bool:
        return self.is_over() and self._ways.is_compared()

    def exception(self) -> BaseException | None:
        if self._over.is_right:
            return None
        error = self._ways.error()
        return GroupTimeout.of(error) if isinstance(error, CollectiveTimeout) else error

    def result(self) -> Any:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._device])
        if self._ways.takes_turns:
            _when_over.put((self, future))
        else:
            with _on_stream(self._ways, self._device):
                future.set_result(self._results)
        return future

    def complete(self, future: torch.futures.Future[Any]) -> None:
        """Complete it, when the call is over."""
        try:
            while not self.is_completed():
                time.sleep(_SOON_SECONDS)
            error = self.exception()
        except Exception as raised:
            error = raised
        # Not on the stream for calls: there, the future would come after calls that were made meanwhile.
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            if error is None:
                future.set_result(self._results)
            else:
                future.set_exception(error)


class _WhenOver:
    """Completes futures where processes take turns on the GPU; a thread does it, in the order of the calls.

    A stream waits for a future by an event, and while it does, its process keeps its turn on the GPU (lane.cpp). DDP
    waits for futures, and a step would take five times as long. So there a future is completed when its call is over,
    and it is the host that waits for it.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Enqueued, torch.futures.Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, pair: tuple[Enqueued, torch.futures.Future[Any]]) -> None:
        self._waiting.put(pair)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="allfold GPU futures")
            self._thread.start()

    def _run(self) -> None:
        while True:
            work, future = self._waiting.get()
            work.complete(future)
            del work, future


_when_over = _WhenOver()
