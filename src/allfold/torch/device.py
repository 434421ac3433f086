"""The collectives of a group on tensors of one kind of device, one call of the engine each. Everything here blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..collectives import COLLECTIVES
from ..communicator.communicator import Communicator
from ..communicator.messages import Pending
from ..division import Lengths
from ..errors import UsageError
from .tensors import as_moved, check_reducible, is_plain, plain, to_dlpack

_NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")  # as torch's RedOpType counts them
Counts = list[int] | list[list[int]]
_PREMUL_SUM = int(dist.ReduceOp.RedOpType.PREMUL_SUM)


class Reduction(NamedTuple):
    """An operation by the engine's name, and the factor that every contribution is multiplied by first."""

    name: str
    factor: float | Tensor | None = None

    @staticmethod
    def of(op: Any) -> Reduction:
        kind = int(op.op if isinstance(op, dist.ReduceOp) else op)
        if kind < len(_REDUCTIONS):
            return _REDUCTIONS[kind]
        if kind == _PREMUL_SUM:
            # Before torch 2.12 an operation gives its factor only when it is pickled.
            return Reduction("sum", op.factor if hasattr(op, "factor") else op.__getstate__()[1])
        raise UsageError(f"unknown operation {op}; known: {', '.join(_NAMES)}, premul_sum")


_REDUCTIONS = [Reduction(name) for name in _NAMES]
SUM = _REDUCTIONS[0]


class Device(ABC):
    """A group's calls on tensors of one kind of device."""

    def __init__(self, communicator: Communicator, seconds: float | None = None) -> None:
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.seconds = seconds
        """A timeout that was set later; the communicator has the first one."""

    # How a call is made ----------------------------------------------------------------------------------------------

    @abstractmethod
    def at_once(
        self, name: str, source: Tensor | None, target: Tensor, op: str | None, root: int, opts: Any, results: Any
    ) -> Any:
        """The fast path: make a call that needs nothing but the engine. None if it is not such a call."""

    @abstractmethod
    def submit(
        self, run: Callable[[Any, float | None], None], opts: Any, results: Any, tensors: Sequence[Tensor]
    ) -> Any:
        """Make a call of any kind, `run(device, timeout)`, after those made before it; what torch waits for."""

    @abstractmethod
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
        """One call of the engine on plain tensors; in-place collectives have their tensor as the target."""

    def finish(self) -> None:  # noqa: B027 - nothing is the default
        """Return when all calls have ended that do not block the host, and raise what went wrong in them."""

    @abstractmethod
    def abort(self) -> None:
        """End all calls, here and on all other ranks."""

    @abstractmethod
    def close(self, patience: float) -> None:
        """Leave. Calls that nobody waited for may take this many seconds to finish."""

    # The collectives -------------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, reduction: Reduction, timeout: float | None = None) -> None:
        check_reducible("all_reduce", tensor)
        work = _contribution(tensor, reduction)
        self.call("all_reduce", None, work, reduction.name, 0, timeout)
        bring_home(work, tensor)

    def reduce(self, tensor: Tensor, root: int, reduction: Reduction, timeout: float | None = None) -> None:
        check_reducible("reduce", tensor)
        work = _contribution(tensor, reduction)
        if self.rank != root and shares_memory(work, tensor):
            work = work.clone()  # the engine uses it as workspace; torch leaves it alone
        self.call("reduce", None, work, reduction.name, root, timeout)
        if self.rank == root:
            bring_home(work, tensor)

    def broadcast(self, tensor: Tensor, root: int, timeout: float | None = None) -> None:
        work = plain(tensor)
        self.call("broadcast", None, as_moved(work), None, root, timeout)
        if self.rank != root:
            bring_home(work, tensor)

    # `counts`: the elements of the parts, where they differ; of an all_to_all, those of all ranks.

    def all_gather(
        self, tensor: Tensor, output: Tensor, timeout: float | None = None, counts: Counts | None = None
    ) -> None:
        self._into("all_gather", tensor, output, counts, timeout=timeout)

    def all_to_all(
        self, tensor: Tensor, output: Tensor, timeout: float | None = None, counts: Counts | None = None
    ) -> None:
        self._into("all_to_all", tensor, output, counts, timeout=timeout)

    def reduce_scatter(
        self,
        tensor: Tensor,
        output: Tensor,
        reduction: Reduction,
        timeout: float | None = None,
        counts: Counts | None = None,
    ) -> None:
        check_reducible("reduce_scatter", tensor)
        work = _contribution(tensor, reduction)
        self._into("reduce_scatter", work, output, counts, op=reduction.name, timeout=timeout)

    def gather(self, tensor: Tensor, output: Tensor | None, root: int, timeout: float | None = None) -> None:
        self._into("gather", tensor, output, root=root, timeout=timeout)

    def scatter(self, output: Tensor, tensor: Tensor | None, root: int, timeout: float | None = None) -> None:
        self._into("scatter", tensor, output, root=root, timeout=timeout)

    def _into(
        self, name: str, tensor: Tensor | None, output: Tensor | None, counts: Counts | None = None, **how: Any
    ) -> None:
        work = None if output is None else plain(output)
        source, target = (None if one is None else as_moved(plain(one)) for one in (tensor, work))
        if counts is not None:
            assert output is not None and target is not None
            moved = np.asarray(counts, np.int64) * (output.element_size() // target.element_size())  # as bytes, perhaps
            how["counts"] = Lengths(COLLECTIVES[name], self.size, moved)
        self.call(name, source, target, **how)
        if work is not None and output is not None:
            bring_home(work, output)

    def barrier(self, timeout: float | None = None) -> None:
        self.call("barrier", None, None, timeout=timeout)

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, tensor: Tensor, destination: int, tag: int) -> Pending:
        return self.communicator.isend(to_dlpack(as_moved(plain(tensor))), destination, tag)

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> tuple[Pending, Callable[[], None] | None]:
        """The message that will arrive, and what has to be done once it has arrived."""
        work = plain(tensor)
        pending = self.communicator.irecv(to_dlpack(as_moved(work)), source, tag)
        is_there = shares_memory(work, tensor) and not tensor.requires_grad
        return pending, None if is_there else lambda: bring_home(work, tensor)


def _contribution(tensor: Tensor, reduction: Reduction) -> Tensor:
    work = plain(tensor)
    if reduction.factor is None:
        return work
    factor = reduction.factor
    return (work * (factor.to(work.dtype) if isinstance(factor, Tensor) else factor)).to(work.dtype)


def shares_memory(work: Tensor, tensor: Tensor) -> bool:
    return work is tensor or (is_plain(tensor) and work.data_ptr() == tensor.data_ptr())


def bring_home(work: Tensor, tensor: Tensor) -> None:
    """Copy a result to where it was asked for, unless it is there already."""
    if not shares_memory(work, tensor):
        tensor.detach().copy_(work)
    elif tensor.requires_grad:
        torch.autograd.graph.increment_version(tensor)  # torch's backward then refuses what was saved before


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
