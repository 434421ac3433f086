"""The group: every collective as torch.distributed calls it. Thin: it checks the arguments, the engine does the rest.

Calls on tensors of other devices go to the backend for those. Messages are independent and do not stand in line.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..errors import CollectiveTimeout, UsageError
from . import coalesce, lists, sparse
from .collectives import Reduction
from .devices import first_of
from .monitored import Monitor
from .options import listed, plain_options, reduced, rooted
from .process_group import DONE, Member
from .tensors import check, describe
from .work import GroupDestroyed, GroupTimeout, Message

_SUM = dist.ReduceOp.SUM


class Group(Member):
    """A process group."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self._monitor = Monitor()

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        return not tensor.is_cpu

    def _check(self, call: str, *tensors: Any) -> None:
        check(call, *tensors, device=self.serves)

    # Reductions ------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        is_plain_call = opts is not None and len(tensors) == 1 and not opts.asyncOp and opts.reduceOp == _SUM
        if is_plain_call and self.sums_at_once(tensors[0]):
            return DONE
        tensors, opts = listed(tensors), reduced(c10d.AllreduceOptions, opts, op, timeout)
        tensor = self._only("all_reduce", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).allreduce(tensors, opts)
        reduction = Reduction.of(opts.reduceOp)
        if reduction.factor is None:
            work = self._short(opts, tensors, self._all_reduce, tensor, op=reduction.name)
            if work is not None:
                return work
        if tensor.layout is torch.sparse_coo and tensor.is_cpu:
            return self._perform(opts, tensors, lambda time: sparse.all_reduce(self._engine, tensor, reduction, time))
        self._check("all_reduce", tensor)
        return self._perform(opts, tensors, lambda time: self._engine.all_reduce(tensor, reduction, time))

    def sums_at_once(self, tensor: Tensor) -> bool:
        """The fast path for the usual call: a plain sum. False if this is not one; then nothing has been done."""
        # The engine itself notices a tensor that is not contiguous.
        if (
            self._line.open
            or tensor.__class__ is not Tensor
            or not tensor.is_cpu
            or tensor.is_neg()
            or tensor.is_conj()
            or tensor.requires_grad  # the long way marks it as changed
        ):
            other = self._others.get(tensor.device.type)
            return isinstance(other, Group) and other.sums_at_once(tensor)
        try:
            self._sum(tensor, self._seconds)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None
        except (UsageError, BufferError, GroupDestroyed):  # torch has the better error message
            return False
        return True

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.AllreduceCoalescedOptions, opts)
        if tensors and self._is_elsewhere(tensors[0]):
            return self._elsewhere(tensors[0].device).allreduce_coalesced(tensors, opts)
        self._check("all_reduce_coalesced", *tensors)
        reduction = Reduction.of(opts.reduceOp)
        return self._perform(opts, tensors, lambda time: coalesce.all_reduce(self._engine, tensors, reduction, time))

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, root: int | None = None
    ) -> Any:
        opts, tensors = rooted(c10d.ReduceOptions, opts, root, timeout, op), listed(tensors)
        tensor = self._only("reduce", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).reduce(tensors, opts)
        self._check("reduce", tensor)
        root, reduction = opts.rootRank, Reduction.of(opts.reduceOp)
        return self._perform(opts, tensors, lambda time: self._engine.reduce(tensor, root, reduction, time))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = reduced(c10d.ReduceScatterOptions, opts, op, timeout)
        output = self._only("reduce_scatter", outputs)
        if self._is_elsewhere(output):
            return self._elsewhere(output.device).reduce_scatter(outputs, inputs, opts)
        parts = list(inputs[0])
        self._check("reduce_scatter", output, *parts)
        reduction = Reduction.of(opts.reduceOp)
        return self._perform(
            opts, outputs, lambda time: lists.reduce_scatter(self._engine, parts, output, reduction, time)
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        if opts is not None:
            reduction = Reduction.of(opts.reduceOp)
            if reduction.factor is None:
                work = self._short(opts, [output], self._reduce_scatter, tensor, output, op=reduction.name)
                if work is not None:
                    return work
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.ReduceScatterOptions, opts)
        if outputs and self._is_elsewhere(outputs[0]):
            other = self._elsewhere(outputs[0].device)
            return first_of(other, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")(
                outputs, tensors, opts
            )
        self._check("reduce_scatter", *outputs, *tensors)
        reduction = Reduction.of(opts.reduceOp)
        pairs = list(zip(outputs, tensors, strict=True))
        for output, tensor in pairs:
            _check_times("reduce_scatter", "input", tensor, self.size(), "output", output)

        def run(time: float | None) -> None:
            for output, tensor in pairs:
                self._engine.reduce_scatter(tensor, output, reduction, time)

        return self._perform(opts, outputs, run)

    # Moving data -----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if type(opts) is c10d.BroadcastOptions and len(tensors) == 1:
            work = self._short(opts, tensors, self._broadcast, tensors[0], root=opts.rootRank)
            if work is not None:
                return work
        opts, tensors = rooted(c10d.BroadcastOptions, opts, root, timeout), listed(tensors)
        tensor = self._only("broadcast", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).broadcast(tensors, opts)
        self._check("broadcast", tensor)
        root = opts.rootRank
        return self._perform(opts, tensors, lambda time: self._engine.broadcast(tensor, root, time))

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs], [tensors]
        opts = plain_options(c10d.AllgatherOptions, opts, timeout)
        tensor = self._only("all_gather", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).allgather(outputs, tensors, opts)
        places = list(outputs[0])
        self._check("all_gather", tensor, *places)
        return self._perform(opts, outputs, lambda time: lists.all_gather(self._engine, tensor, places, time))

    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Any:
        """`outputs[r][i]` becomes tensor i of rank r."""
        opts = plain_options(c10d.AllgatherOptions, opts)
        if tensors and self._is_elsewhere(tensors[0]):
            return self._elsewhere(tensors[0].device).allgather_coalesced(outputs, tensors, opts)
        self._check("all_gather_coalesced", *tensors, *(place for places in outputs for place in places))
        columns = [[places[number] for places in outputs] for number in range(len(tensors))]

        def run(time: float | None) -> None:
            for tensor, places in zip(tensors, columns, strict=True):
                lists.all_gather(self._engine, tensor, places, time)

        return self._perform(opts, outputs, run)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        if opts is not None:
            work = self._short(opts, [output], self._all_gather, tensor, output)
            if work is not None:
                return work
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = plain_options(c10d.AllgatherOptions, opts)
        if outputs and self._is_elsewhere(outputs[0]):
            other = self._elsewhere(outputs[0].device)
            return first_of(other, "all_gather_single_coalesced", "allgather_into_tensor_coalesced")(
                outputs, tensors, opts
            )
        self._check("all_gather", *outputs, *tensors)
        pairs = list(zip(outputs, tensors, strict=True))
        for output, tensor in pairs:
            _check_times("all_gather", "output", output, self.size(), "input", tensor)

        def run(time: float | None) -> None:
            for output, tensor in pairs:
                self._engine.all_gather(tensor, output, time)

        return self._perform(opts, outputs, run)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs] if outputs else [], [tensors]
        opts = rooted(c10d.GatherOptions, opts, root, timeout)
        tensor, root = self._only("gather", tensors), opts.rootRank
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).gather(outputs, tensors, opts)
        places = list(outputs[0]) if outputs else None
        self._check("gather", tensor, *(places or ()))
        return self._perform(opts, outputs, lambda time: lists.gather(self._engine, tensor, places, root, time))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = rooted(c10d.ScatterOptions, opts, root, timeout)
        output, root = self._only("scatter", outputs), opts.rootRank
        if self._is_elsewhere(output):
            return self._elsewhere(output.device).scatter(outputs, inputs, opts)
        parts = list(inputs[0]) if inputs else None
        self._check("scatter", output, *(parts or ()))
        return self._perform(opts, outputs, lambda time: lists.scatter(self._engine, output, parts, root, time))

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.AllToAllOptions, opts, timeout)
        if inputs and self._is_elsewhere(inputs[0]):
            return self._elsewhere(inputs[0].device).alltoall(outputs, inputs, opts)
        self._check("all_to_all", *outputs, *inputs)
        return self._perform(opts, outputs, lambda time: lists.all_to_all(self._engine, inputs, outputs, time))

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int] | None = None,
        splits: list[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        opts = plain_options(c10d.AllToAllOptions, opts, timeout)
        if self._is_elsewhere(tensor):
            other = first_of(self._elsewhere(tensor.device), "all_to_all_single", "alltoall_base")
            return other(output, tensor, output_splits or [], splits or [], opts)
        self._check("all_to_all", output, tensor)
        own, theirs = list(splits or ()), list(output_splits or ())
        return self._perform(
            opts, [output], lambda time: lists.all_to_all_split(self._engine, tensor, output, own, theirs, time)
        )

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        tensor = self._only("send", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).send(tensors, destination, tag)
        self._check("send", tensor)
        return Message(self._living.send(tensor, destination, tag), tensor, None)

    def recv(self, tensors: list[Tensor], source: int | None, tag: int = 0) -> Any:
        tensor = self._only("recv", tensors)
        if self._is_elsewhere(tensor):
            return self._elsewhere(tensor.device).recv(tensors, source, tag)
        self._check("recv", tensor)
        pending, bring_home = self._living.receive(tensor, source, tag)
        return Message(pending, tensor, bring_home)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    # Meeting ---------------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.BarrierOptions, opts, timeout)
        self.finish()
        return self._perform(opts, [], lambda time: self._engine.barrier(time))

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        if timeout is None:
            timeout = self._timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._monitor.barrier(self._living, seconds, wait_all_ranks)

    # The names that these had up to torch 2.12
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _check_times(call: str, what: str, whole: Tensor, size: int, part_name: str, part: Tensor) -> None:
    if whole.numel() != size * part.numel() or whole.dtype != part.dtype:
        raise UsageError(
            f"{call}: the {what} is {describe(whole)} and the {part_name} {describe(part)}; expected the same type, and "
            f"{size} × {part.numel()} = {size * part.numel()} elements in the {what}"
        )
