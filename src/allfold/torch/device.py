"""A group's collectives on tensors of one kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import Tensor

from ..collectives import COLLECTIVES
from ..communicator.communicator import Communicator
from ..communicator.messages import Pending
from ..division import Lengths
from ..engines.buffer import overlap, put_back
from ..engines.engine import Entry
from ..errors import CollectiveTimeout, UsageError
from ..intercept.done_work import NO_TIMEOUT
from .tensors import as_moved, check_reducible, for_message, is_ready, plain, unwrapped
from .work import DONE, CallQueue, GroupTimeout

_NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")  # as torch's RedOpType counts them
_PREMUL_SUM = int(dist.ReduceOp.RedOpType.PREMUL_SUM)
_CODES = {name: code for code, name in enumerate(COLLECTIVES)}
Counts = list[int] | list[list[int]]


class Reduction(NamedTuple):
    """An operation by the engine's name, and the factor that every contribution is multiplied by first."""

    name: str | None
    factor: float | Tensor | None = None

    @staticmethod
    def of(op: Any) -> Reduction:
        kind = int(op.op if isinstance(op, dist.ReduceOp) else op)
        if kind < len(_REDUCTIONS):
            return _REDUCTIONS[kind]
        if kind == _PREMUL_SUM:
            # Before torch 2.12 only the pickled form of an operation shows its factor.
            return Reduction("sum", op.factor if hasattr(op, "factor") else op.__getstate__()[1])
        raise UsageError(f"unknown operation {op}; known: {', '.join(_NAMES)}, premul_sum")


_REDUCTIONS = [Reduction(name) for name in _NAMES]
SUM, NO_REDUCTION = _REDUCTIONS[0], Reduction(None)


class Device(ABC):
    """A group's calls on tensors of one kind of device, in the order in which they are made.

    A collective on tensors that the engine can use directly is one call of the engine (`submit`). Everything else
    (several calls, or copies around one) is a function that makes those calls (`compose`).
    """

    queue: CallQueue | None = None
    """Where background calls wait for their turn, if the device has no streams."""
    enter: Entry
    """Makes one call of the engine on tensors that it can use directly, after all earlier calls. Returns a ticket if the
    call is async or in a stream."""

    def __init__(self, communicator: Communicator, seconds: float | None = None) -> None:
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.seconds = seconds
        """The timeout set with `Group.set_timeout`; None: the communicator's own."""

    # Making a call ---------------------------------------------------------------------------------------------------

    def submit(
        self, name: str, source: Tensor | None, target: Tensor, reduction: Reduction, root: int, opts: Any
    ) -> Any:
        """Make a call that needs nothing but the engine. Returns what torch waits for; None if it is not such a call."""
        queue, is_async, seconds = self.queue, opts.asyncOp, self.seconds
        if (
            reduction.factor is not None
            or target.requires_grad  # `collective` marks it as changed
            or not is_ready(target)
            or (source is not None and (source.is_cpu != target.is_cpu or not is_ready(source)))
        ):
            return None
        if queue is not None and (
            queue.open  # it must not overtake queued calls
            or (is_async and source is not None and overlap(source, target))  # it needs a copy, and a thread to make it
        ):
            return None
        if is_async or queue is None:
            # In other calls torch's functions set no timeout, and reading it takes noticeable time in small calls.
            seconds = self._timeout_of(opts)
        try:
            ticket = self.enter(_CODES[name], source, target, reduction.name, root, None, is_async, seconds, None)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None
        return self.in_flight(ticket, source, target) if is_async else DONE

    def compose(self, run: Callable[[float | None], None], opts: Any, results: Any, tensors: Sequence[Tensor]) -> Any:
        """Make a call of any kind, `run(timeout)`. Returns what torch waits for."""
        try:
            return self.around(partial(run, self._timeout_of(opts)), opts.asyncOp, results, tensors)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None

    def _timeout_of(self, opts: Any) -> float | None:
        asked = opts.timeout
        return asked.total_seconds() if asked > NO_TIMEOUT else self.seconds

    @abstractmethod
    def in_flight(self, ticket: Any, source: Tensor | None, target: Tensor) -> Any:
        """The object that torch waits on, for an async call that the engine has begun."""

    @abstractmethod
    def around(self, action: Callable[[], None], is_async: bool, results: Any, tensors: Sequence[Tensor]) -> Any:
        """Run an action that makes calls of the engine. Returns what torch waits for."""

    @abstractmethod
    def gather_numbers(self, numbers: list[int], timeout: float | None) -> Tensor:
        """All ranks' numbers, one row per rank, in main memory. Part of a call that `compose` makes."""

    def finish(self) -> None:  # noqa: B027 - does nothing by default
        """Wait for all calls in streams, and raise their errors."""

    @abstractmethod
    def close(self, patience: float) -> None:
        """Leave the group. Calls in flight get this many seconds to finish."""

    # The parts of a call ---------------------------------------------------------------------------------------------

    def collective(
        self,
        name: str,
        source: Tensor | None,
        target: Tensor | None,
        reduction: Reduction = NO_REDUCTION,
        root: int = 0,
        timeout: float | None = None,
        counts: Counts | None = None,
    ) -> None:
        """One collective on any dense tensors. Those that the engine cannot take are copied, or moved as bytes.

        `counts`: the lengths of the parts in elements, where they differ; for all_to_all, those of all ranks.
        """
        promise = COLLECTIVES[name]
        is_written = promise.writes(self.rank == root)
        work = None if target is None else plain(target)
        sent = None if source is None else plain(source)
        if reduction.name is not None:
            # The contribution is the source, or in place the target.
            if sent is not None:
                sent = _contribution(name, sent, reduction)
            elif work is not None:
                work = _contribution(name, work, reduction)
        if promise.in_place and promise.reduces and not is_written:
            assert work is not None and target is not None
            if shares_memory(work, target):
                work = work.clone()  # the engine uses it as workspace, but torch promises to leave it unchanged
        input, output = (None if one is None else as_moved(one) for one in (sent, work))
        uneven: tuple[Lengths, ...] = ()
        if counts is not None:
            assert target is not None and output is not None
            moved = np.asarray(counts, np.int64) * (target.element_size() // output.element_size())  # as bytes, perhaps
            uneven = (Lengths(promise, self.size, moved),)
        self.enter(_CODES[name], input, output, reduction.name, root, None, False, timeout, None, *uneven)
        if work is not None and target is not None and is_written:
            copy_back(work, target)

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, tensor: Tensor, destination: int, tag: int) -> Pending:
        return self.communicator.isend(for_message(as_moved(plain(tensor))), destination, tag)

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> tuple[Pending, Callable[[], None] | None]:
        """The pending receive, and a function to call once the message has arrived (None: nothing to do)."""
        work = plain(tensor)
        pending = self.communicator.irecv(for_message(as_moved(work)), source, tag)
        is_there = shares_memory(work, tensor) and not tensor.requires_grad
        return pending, None if is_there else lambda: copy_back(work, tensor)


def _contribution(call: str, work: Tensor, reduction: Reduction) -> Tensor:
    check_reducible(call, work)
    factor = reduction.factor
    if factor is None:
        return work
    return (work * (factor.to(work.dtype) if isinstance(factor, Tensor) else factor)).to(work.dtype)


def shares_memory(work: Tensor, tensor: Tensor) -> bool:
    return work.data_ptr() == unwrapped(tensor).data_ptr()


def copy_back(work: Tensor, tensor: Tensor) -> None:
    """Copy a result into the caller's tensor, unless it is there already."""
    put_back(unwrapped(tensor), work)
