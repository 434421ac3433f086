"""CUDA tensors in a group: the same calls, in the order of a stream, staged or on the GPU (cuda/ways.py).

As with NCCL, a call comes after the work that the current stream holds, `wait` makes the current stream wait for it,
and neither blocks the host. All calls of a rank are on one stream per GPU, in the order in which they were made. The
tensors of a call are kept until it is over. What goes wrong in a stream is raised by the next call, or by `wait` if it
is known by then.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..communicator.communicator import Communicator
from ..communicator.messages import Pending
from ..cuda.driver import driver
from ..cuda.staging import CAPTURED, OnDevice
from ..cuda.ways import Ways
from ..dtypes import find_dtype
from ..engines.engine import Call
from ..errors import CollectiveTimeout, UsageError
from ..ops import OPS
from .backend import Group
from .collectives import Engine, bring_home
from .tensors import as_moved, check, plain, to_dlpack
from .work import Awaited, GroupTimeout

if TYPE_CHECKING:
    from .process_group import Member

_FOR_EVER = timedelta(0)


@functools.lru_cache(maxsize=64)
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream for the calls of all groups on tensors of a GPU.

    The driver may call all host functions on one thread. If groups had streams of their own, one rank could wait in a
    call of the first group there, another rank in a call of the second, for ever.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class OnGpu(Group):
    """The part of a group that serves CUDA tensors."""

    serves = "cuda"

    def __init__(
        self, group: Member, communicator: Communicator, store: dist.Store, timeout: timedelta, ranks: list[int]
    ) -> None:
        super().__init__(communicator, store, timeout, ranks)
        self._engine = self._gpu = _GpuEngine(communicator, group)
        self._devices: set[torch.device] = set()
        self._kept: deque[Enqueued] = deque()
        self._name = group._name

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        return False  # `_check` says that tensors of one call must be on one device

    def sums_at_once(self, tensor: Tensor) -> bool:
        return False

    def _short(self, opts: Any, results: Any, collective: Any, *tensors: Tensor, **how: Any) -> Any:
        return None

    def _check(self, call: str, *tensors: Any) -> None:
        check(call, *tensors, device="cuda")
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                raise UsageError(
                    f"{call}: tensors are on {tensors[0].device} and on {tensor.device}; all of a call must be on one GPU"
                )
        if tensors:
            self._gpu.device = tensors[0].device

    def _perform(self, opts: Any, results: Any, action: Callable[[float | None], None]) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(CAPTURED)
        asked, device = opts.timeout.total_seconds(), self._gpu.device
        while self._kept and self._kept[0].is_completed():
            self._kept.popleft()
        with torch.cuda.device(device):
            stream = stream_of(device)
            self._devices.add(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream), torch.inference_mode():
                try:
                    action(asked if asked > 0 else self._seconds)
                except CollectiveTimeout as error:
                    raise GroupTimeout.of(error) from None
                work = Enqueued(self._gpu, stream, results, action)
        self._kept.append(work)
        return self._remember(work)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        return self._gpu.group.barrier(opts, timeout)

    def finish(self) -> None:
        """Return when the GPU has done all calls, and raise what went wrong in them."""
        for device in self._devices:
            stream_of(device).synchronize()
        self._kept.clear()
        error = self._gpu.error()
        if error is not None:
            raise error

    def abort(self) -> None:
        self._gpu.abort()
        super().abort()

    def _leave(self, patience: float) -> None:
        if self._communicator is not None:
            self._gpu.close(patience)
            self._kept.clear()
        super()._leave(patience)


class _GpuEngine(Engine):
    """The engine's collectives on CUDA tensors, one call each. Nothing here blocks: calls go into the current stream."""

    def __init__(self, communicator: Communicator, group: Member) -> None:
        super().__init__(communicator)
        self.group = group
        self._ways: dict[torch.device, Ways] = {}
        self.device = torch.device("cuda")

    def _call(self, name: str, tensors: tuple[Tensor | None, ...], **how: Any) -> None:
        given = [tensor for tensor in tensors if tensor is not None]
        if given and all(tensor.is_cpu for tensor in given):
            # What the ranks tell each other before the call, on the host.
            self.group._in_turn(lambda: self.group._engine._call(name, tensors, **how))
            return
        source, target = (*tensors, None)[:2]
        if name in ("all_reduce", "reduce", "broadcast", "scatter"):
            source, target = target, source
        op = how.get("op")
        call = Call(name, None, None, None if op is None else OPS[op], how.get("root", 0), None, how["timeout"], None)
        ways = self._ways.get(self.device)
        if ways is None:
            context = driver().context_of(0)
            ways = self._ways[self.device] = Ways(self.communicator._engine, driver(), context)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        ways.enqueue(call, _on_device(source), _on_device(target), stream)

    def send(self, tensor: Tensor, destination: int, tag: int) -> Pending:
        """The message is on its way when the GPU has copied it out, which the host waits for."""
        return self.communicator.isend(to_dlpack(as_moved(plain(tensor)).cpu()), destination, tag)

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> tuple[Pending, Callable[[], None] | None]:
        moved = as_moved(plain(tensor))
        here = torch.empty(moved.shape, dtype=moved.dtype, pin_memory=True)
        pending = self.communicator.irecv(to_dlpack(here), source, tag)
        return pending, lambda: bring_home(here.view(tensor.dtype).view(tensor.shape), tensor)

    def error(self) -> BaseException | None:
        """What is known to have gone wrong in the streams."""
        return next((error for ways in self._ways.values() if (error := ways.error()) is not None), None)

    def abort(self) -> None:
        for ways in self._ways.values():
            ways.abort()

    def close(self, seconds: float) -> None:
        for ways in self._ways.values():
            ways.close(seconds)


def _on_device(tensor: Tensor | None) -> OnDevice | None:
    if tensor is None:
        return None
    return OnDevice(tensor.data_ptr(), tensor.numel() * tensor.element_size(), find_dtype(tensor.dtype))


class Enqueued(Awaited):
    """A call in a stream. It keeps the tensors of the call until the call is over, or the current stream waits for it."""

    def __init__(self, gpu: _GpuEngine, stream: torch.cuda.Stream, results: Any, action: Any) -> None:
        super().__init__()
        self._over = stream.record_event()
        self._stream, self._results, self._action = stream, results, action
        self._gpu = gpu

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        error = self.exception()
        if error is not None:
            raise error
        torch.cuda.current_stream(self._stream.device).wait_event(self._over)
        self._action = None
        return True

    def is_completed(self) -> bool:
        return bool(self._over.query())

    def exception(self) -> BaseException | None:
        error = self._gpu.error()
        return GroupTimeout.of(error) if isinstance(error, CollectiveTimeout) else error

    def result(self) -> Any:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._stream.device])
        with torch.cuda.stream(self._stream):
            future.set_result(self._results)
        return future


WORKS = (Enqueued,)
