"""A group's calls on CUDA tensors: enqueued in streams, staged through main memory or run on the GPU (stream/ways.py).

As with NCCL, a call comes after the work that is already in the current stream, `wait` makes the current stream wait for
it, and neither blocks the host. All calls of a rank are on one stream per GPU, in the order in which they were made. The
tensors of a call are kept until it has ended. The next call raises the errors of a stream, or `wait` does if they are
known by then.
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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..collectives import COLLECTIVES
from ..communicator.messages import Pending
from ..division import Lengths
from ..engines.buffer import Buffer
from ..engines.engine import CUDA, Call
from ..engines.stream.engine import Arguments, InTheStream, Stream
from ..errors import CollectiveTimeout, DeviceError
from ..intercept.done_work import NO_TIMEOUT
from ..ops import Op, find_op
from ..registry import AnyAlgorithm
from .device import Device, copy_back
from .host import Host
from .tensors import as_moved, check, plain, to_dlpack
from .work import Awaited, GroupTimeout, fail

_NAMES = tuple(COLLECTIVES)
_POLL_SECONDS = 50e-6


class Gpu(Device):
    """CUDA tensors. Nothing here blocks: calls go into the current stream."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.communicator, host.seconds)
        self._contexts: dict[int, int] = {}  # by GPU: the engine's context
        self._host = host
        engine = host.in_turn(lambda: host.communicator.engine_for(CUDA))
        assert isinstance(engine, Stream)
        self._stream = engine

    def enter(
        self,
        collective: int,
        input: Tensor | None,
        output: Tensor | None,
        op: str | Op | None,
        root: int,
        algorithm: AnyAlgorithm | None,
        async_op: bool,
        timeout: float | None,
        dtype: str | None,
        counts: Lengths | None = None,
        /,
    ) -> InTheStream:
        """See `Device.enter`. Unless the call is async, the current stream waits for it; the host never does."""
        given = input if output is None else output
        assert given is not None  # barriers run on the host
        assert algorithm is None and dtype is None  # torch has no such arguments
        index = given.get_device()
        if input is not None and (not input.is_cuda or input.get_device() != index):
            check(_NAMES[collective], input, given)  # raises: they are on different devices
        context = self._contexts.get(index)
        if context is None:
            context = self._context_of(given.device)
        key = (collective, op, root, timeout, counts, *_place(input), *_place(output))
        make = partial(_arguments, _NAMES[collective], input, output, op, root, timeout, counts)
        return self._stream.enqueue(context, key, make, torch._C._cuda_getCurrentRawStream(index), not async_op)

    def in_flight(self, ticket: InTheStream, source: Tensor | None, target: Tensor) -> Enqueued:
        return self._keep(Enqueued(ticket, target.device, [target], (source, target)))

    def around(self, action: Callable[[], None], is_async: bool, results: Any, tensors: Sequence[Tensor]) -> Enqueued:
        device = tensors[0].device
        with torch.cuda.device(device):
            context, stream = self._context_of(device), torch.cuda.current_stream(device).cuda_stream

            def work(own: int) -> None:
                with _on_stream(own, device), torch.inference_mode():
                    action()

            return self._keep(Enqueued(self._stream.around(context, stream, work), device, results, [action]))

    def _keep(self, work: Enqueued) -> Enqueued:
        """Keep the tensors of a call until it has ended, or until the current stream waits for it."""
        with contextlib.suppress(DeviceError):  # the GPU is lost; `wait` raises the reason
            self._stream.keep(work)
        return work

    def gather_numbers(self, numbers: list[int], timeout: float | None) -> Tensor:
        table: Tensor = self._host.in_turn(lambda: self._host.gather_numbers(numbers, timeout))
        return table

    def _context_of(self, device: torch.device) -> int:
        """The engine's context for a GPU. The first call is collective."""
        if device.index not in self._contexts:
            with torch.cuda.device(device):
                self._contexts[device.index] = self._stream.meet_on_gpu(torch.cuda.is_current_stream_capturing())
        return self._contexts[device.index]

    def empty(self, bytes: int, device: torch.device) -> Tensor:
        """Memory on the GPU that all ranks can reach, where there is such memory. Collective."""
        with torch.cuda.device(device):
            found = self._stream.empty_on(self._context_of(device), bytes)
            return torch.empty(bytes, dtype=torch.uint8, device=device) if found is None else _tensor_at(*found, bytes)

    def send(self, tensor: Tensor, destination: int, tag: int) -> Pending:
        """Send a copy in main memory. The host waits until the GPU has made it."""
        return self.communicator.isend(to_dlpack(as_moved(plain(tensor)).cpu()), destination, tag)

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> tuple[Pending, Callable[[], None] | None]:
        moved = as_moved(plain(tensor))
        here = torch.empty(moved.shape, dtype=moved.dtype, pin_memory=True)
        pending = self.communicator.irecv(to_dlpack(here), source, tag)
        return pending, lambda: copy_back(here.view(tensor.dtype).view(tensor.shape), tensor)

    def finish(self) -> None:
        self._stream.finish()

    def close(self, patience: float) -> None:
        self._stream.close(compares=True, seconds=patience)


def _on_stream(stream: int, device: torch.device) -> AbstractContextManager[None]:
    """Let torch put its own work into the stream for calls."""
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device))  # type: ignore[no-untyped-call]


def _place(tensor: Tensor | None) -> tuple[Any, ...]:
    """Distinguishes a tensor from all others that exist at the same time."""
    return (None,) if tensor is None else (tensor.data_ptr(), tensor.numel(), tensor.dtype)


def _arguments(
    name: str,
    source: Tensor | None,
    target: Tensor | None,
    op: str | Op | None,
    root: int,
    seconds: float | None,
    counts: Lengths | None,
) -> Arguments:
    call = Call(name, op=None if op is None else find_op(op), root=root, timeout=seconds, counts=counts)
    return call, _buffer(name, source, False), _buffer(name, target, True)


def _buffer(name: str, tensor: Tensor | None, written: bool) -> Buffer | None:
    return None if tensor is None else Buffer.of(name, tensor, None, written)


class _Memory:
    """Memory on the GPU from which torch can make a tensor. It is released with the last tensor that uses it."""

    def __init__(self, pointer: int, bytes: int) -> None:
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (bytes,), "typestr": "|u1", "version": 3}


def _tensor_at(pointer: int, release: Callable[[], None], bytes: int) -> Tensor:
    memory = _Memory(pointer, bytes)
    weakref.finalize(memory, release)
    return torch.as_tensor(memory, device="cuda")


class Enqueued(Awaited):
    """A call in a stream. It keeps its tensors until it has ended, or until the stream that made it waits for it."""

    def __init__(self, ticket: InTheStream, device: torch.device, results: Any, needed: Sequence[Any]) -> None:
        super().__init__()
        self._ticket, self._device, self._results = ticket, device, results
        self._needed: Sequence[Any] | None = needed  # the tensors, or a function that holds them

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        error = self.exception()
        if error is not None:
            raise error
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        self._ticket.hold(stream)
        # torch may reuse memory that is freed now for later work of this stream, which comes after the call. For tensors
        # of other streams the caller must call `Tensor.record_stream`, as for any other use on this stream.
        if stream == self._ticket.behind:
            self._needed = None
        return True

    def is_over(self) -> bool:
        return self._ticket.is_over()

    def is_completed(self) -> bool:
        return self._ticket.done()

    def exception(self) -> BaseException | None:
        error = self._ticket.error()
        return GroupTimeout.of(error) if isinstance(error, CollectiveTimeout) else error

    def result(self) -> Any:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._device])
        if self._ticket.takes_turns:
            _completer.put((self, future))
        else:
            with _on_stream(self._ticket.stream, self._device):
                future.set_result(self._results)
        return future

    def complete(self, future: torch.futures.Future[Any]) -> None:
        """Wait until the call has ended, and complete the future."""
        try:
            while not self.is_completed():
                time.sleep(_POLL_SECONDS)
            error = self.exception()
        except Exception as raised:
            error = raised
        # Not on the stream for calls: there, the future would wait for calls made since.
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            if error is None:
                future.set_result(self._results)
            else:
                fail(future, error)


class _Completer:
    """Completes futures on a thread, in the order of the calls, where processes take turns on the GPU.

    A stream waits for a future by an event, and keeps its process's turn on the GPU meanwhile (lane.cpp). DDP waits for
    futures, so a step would take five times as long. Here a future is completed when its call has ended, so the host
    waits for it and not the stream.
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


_completer = _Completer()
