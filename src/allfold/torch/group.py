"""The process group: every method of a group that torch.distributed calls.

A `Device` makes a collective on CPU or CUDA tensors; another backend may serve other tensors (devices.py). It is looked
up once per call, in `_collective` (one collective of the engine) or `_composed` (lists, several tensors, copies). Messages
are independent of each other and of collectives.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..communicator.communicator import Communicator
from ..engines.last_words import note_ending
from ..errors import UsageError
from ..intercept import is_wanted
from . import coalesce, lists, sparse
from .device import NO_REDUCTION, SUM, Device, Reduction
from .devices import backends_of, make_backend
from .host import LAST_CALLS_SECONDS, Host
from .monitored import Monitor
from .options import listed, plain_options, reduced, rooted
from .tensors import check, check_times
from .work import DONE, GroupDestroyed, MessageWork

_CPU, _SUM, _ALL_REDUCE = torch.device("cpu"), dist.ReduceOp.SUM, c10d.AllreduceOptions

_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class Group(dist.ProcessGroup):
    """One rank's end of a process group."""

    def __init__(self, communicator: Communicator, store: dist.Store, timeout: timedelta, ranks: list[int]) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._devices: dict[str, Device] = {"cpu": Host(communicator)}  # by device type; empty in a destroyed group
        self._others: dict[str, Any] = {}  # by device type: backends that are not ours
        self._size = communicator.size  # `size()` takes a microsecond
        self._store = store
        self._timeout = timeout
        self._ranks = ranks
        self._name, self._description = "", ""
        self._coalesced: list[Any] | None = None
        self._monitor = Monitor()
        self._process = os.getpid()
        _groups.add(self)

    def __repr__(self) -> str:
        state = f"rank {self.rank()} of {self.size()}" if self._devices else "destroyed"
        return f"<allfold group {self._name!r}, {state}>"

    @property
    def communicator(self) -> Communicator:
        """The group's communicator: for arrays in shared memory (`empty`), traces, and whatever torch does not offer."""
        return self._host.communicator

    # Making a call ---------------------------------------------------------------------------------------------------

    def _collective(
        self, name: str, source: Tensor | None, target: Tensor, reduction: Reduction, root: int, opts: Any
    ) -> Any:
        """Make a call of one collective. Returns None if another backend serves its tensors."""
        device = self._devices.get("cpu" if target.is_cpu else target.device.type) or self.serving(target.device)
        if device is None:
            return None
        work = device.submit(name, source, target, reduction, root, opts)
        if work is None:
            tensors = [target] if source is None else [target, source]
            if target.layout is torch.sparse_coo and name == "all_reduce" and target.is_cpu:
                return self._submit(device, tensors, opts, [target], sparse.all_reduce, target, reduction)
            check(name, *tensors)
            arguments = (name, source, target, reduction, root)
            return self._submit(device, tensors, opts, [target], Device.collective, *arguments)
        return work if self._coalesced is None else self._remember(work)

    def _composed(
        self, call: str, tensors: Sequence[Tensor], opts: Any, results: Any, run: Callable[..., None], *arguments: Any
    ) -> Any:
        """Make a call of several collectives, `run(device, *arguments, timeout)`. Returns None if another backend serves its
        tensors."""
        device: Device | None = self._host
        if tensors:
            if not isinstance(tensors[0], Tensor):
                raise UsageError(f"{call}: expected a tensor, got a {type(tensors[0]).__name__}")
            device = self.serving(tensors[0].device)
        if device is None:
            return None
        check(call, *tensors)
        return self._submit(device, tensors, opts, results, run, *arguments)

    def _submit(
        self,
        device: Device,
        tensors: Sequence[Tensor],
        opts: Any,
        results: Any,
        run: Callable[..., None],
        *arguments: Any,
    ) -> Any:
        """Have a device make a call, `run(device, *arguments, timeout)`. Returns what torch waits for."""
        return self._remember(device.compose(partial(run, device, *arguments), opts, results, tensors))

    def _remember(self, work: Any) -> Any:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def serving(self, device: torch.device) -> Device | None:
        """Our `Device` for a torch device; None if another backend serves it. The first call for a device is collective."""
        host, kind = self._host, device.type
        if kind not in self._devices and self._is_ours(device):
            from .cuda import Gpu

            self._devices[kind] = Gpu(host)
        return self._devices.get(kind)

    def _other(self, tensor: Tensor | torch.device) -> Any:
        """The other backend that serves a tensor or a device. The first call for a device is collective."""
        device = tensor.device if isinstance(tensor, Tensor) else tensor
        if device.type not in self._others:
            self._others[device.type] = make_backend(self, device, self._store, self._timeout, self._ranks)
        return self._others[device.type]

    def _other_call(self, tensor: Tensor, name: str, old_name: str) -> Any:
        """A method of the other backend that serves a tensor; `old_name`: its name up to torch 2.12."""
        other = self._other(tensor)
        return getattr(other, name if hasattr(other, name) else old_name)

    def _is_ours(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and backends_of(self).get("cuda", "allfold") == "allfold")

    @property
    def _host(self) -> Host:
        host = self._devices.get("cpu")
        if host is None:
            raise GroupDestroyed(
                f"the group {self._name!r} was destroyed (destroy_process_group or abort); create a new one with "
                "init_process_group or new_group"
            )
        assert isinstance(host, Host)
        return host

    # Reductions ------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        if opts.__class__ is not _ALL_REDUCE or len(tensors) != 1:
            tensors, opts = listed(tensors), reduced(_ALL_REDUCE, opts, op, timeout)
            _only("all_reduce", tensors)
        tensor, wanted = tensors[0], opts.reduceOp
        # A short cut for the usual operation: looking it up takes noticeable time in small calls.
        reduction = SUM if wanted == _SUM else Reduction.of(wanted)
        made = self._collective("all_reduce", None, tensor, reduction, 0, opts)
        return made or self._other(tensor).allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.AllreduceCoalescedOptions, opts)
        what = tensors, Reduction.of(opts.reduceOp)
        made = self._composed("all_reduce_coalesced", tensors, opts, tensors, coalesce.all_reduce, *what)
        return made or self._other(tensors[0]).allreduce_coalesced(tensors, opts)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, root: int | None = None
    ) -> Any:
        opts, tensors = rooted(c10d.ReduceOptions, opts, root, timeout, op), listed(tensors)
        tensor = _only("reduce", tensors)
        what = "reduce", None, tensor, Reduction.of(opts.reduceOp), opts.rootRank
        made = self._composed("reduce", [tensor], opts, tensors, Device.collective, *what)
        return made or self._other(tensor).reduce(tensors, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = reduced(c10d.ReduceScatterOptions, opts, op, timeout)
        output, parts = _only("reduce_scatter", outputs), list(inputs[0])
        what = parts, output, Reduction.of(opts.reduceOp)
        made = self._composed("reduce_scatter", [output, *parts], opts, outputs, lists.reduce_scatter, *what)
        return made or self._other(output).reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = reduced(c10d.ReduceScatterOptions, opts)
        if tensor.numel() != self._size * output.numel():
            check_times("reduce_scatter", "input", tensor, self._size, "output", output)
        made = self._collective("reduce_scatter", tensor, output, Reduction.of(opts.reduceOp), 0, opts)
        return made or self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.ReduceScatterOptions, opts)
        for output, tensor in zip(outputs, tensors, strict=True):
            check_times("reduce_scatter", "input", tensor, self._size, "output", output)
        what = "reduce_scatter", tensors, outputs, Reduction.of(opts.reduceOp)
        made = self._composed("reduce_scatter", [*outputs, *tensors], opts, outputs, coalesce.one_by_one, *what)
        names = "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
        return made or self._other_call(outputs[0], *names)(outputs, tensors, opts)

    # Moving data -----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if opts.__class__ is not c10d.BroadcastOptions:
            opts, tensors = rooted(c10d.BroadcastOptions, opts, root, timeout), listed(tensors)
        tensor = _only("broadcast", tensors)
        made = self._collective("broadcast", None, tensor, NO_REDUCTION, opts.rootRank, opts)
        return made or self._other(tensor).broadcast(tensors, opts)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs], [tensors]
        opts = plain_options(c10d.AllgatherOptions, opts, timeout)
        tensor, places = _only("all_gather", tensors), list(outputs[0])
        made = self._composed("all_gather", [tensor, *places], opts, outputs, lists.all_gather, tensor, places)
        return made or self._other(tensor).allgather(outputs, tensors, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Any:
        """`outputs[r][i]` becomes tensor i of rank r."""
        opts = plain_options(c10d.AllgatherOptions, opts)
        everything = [*tensors, *(place for places in outputs for place in places)]
        what = tensors, outputs
        made = self._composed("all_gather_coalesced", everything, opts, outputs, lists.all_gather_several, *what)
        return made or self._other(tensors[0]).allgather_coalesced(outputs, tensors, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = plain_options(c10d.AllgatherOptions, opts)
        if output.numel() != self._size * tensor.numel():
            check_times("all_gather", "output", output, self._size, "input", tensor)
        made = self._collective("all_gather", tensor, output, NO_REDUCTION, 0, opts)
        return made or self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = plain_options(c10d.AllgatherOptions, opts)
        for output, tensor in zip(outputs, tensors, strict=True):
            check_times("all_gather", "output", output, self._size, "input", tensor)
        what = "all_gather", tensors, outputs, NO_REDUCTION
        made = self._composed("all_gather", [*outputs, *tensors], opts, outputs, coalesce.one_by_one, *what)
        names = "all_gather_single_coalesced", "allgather_into_tensor_coalesced"
        return made or self._other_call(outputs[0], *names)(outputs, tensors, opts)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs] if outputs else [], [tensors]
        opts = rooted(c10d.GatherOptions, opts, root, timeout)
        tensor, places = _only("gather", tensors), list(outputs[0]) if outputs else None
        what = tensor, places, opts.rootRank
        made = self._composed("gather", [tensor, *(places or ())], opts, outputs, lists.gather, *what)
        return made or self._other(tensor).gather(outputs, tensors, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = rooted(c10d.ScatterOptions, opts, root, timeout)
        output, parts = _only("scatter", outputs), list(inputs[0]) if inputs else None
        what = output, parts, opts.rootRank
        made = self._composed("scatter", [output, *(parts or ())], opts, outputs, lists.scatter, *what)
        return made or self._other(output).scatter(outputs, inputs, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.AllToAllOptions, opts, timeout)
        what = inputs, outputs
        made = self._composed("all_to_all", [*inputs, *outputs], opts, outputs, lists.all_to_all, *what)
        return made or self._other(outputs[0]).alltoall(outputs, inputs, opts)

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
        own, theirs = list(splits or ()), list(output_splits or ())
        what = tensor, output, own, theirs
        made = self._composed("all_to_all", [tensor, output], opts, [output], lists.all_to_all_split, *what)
        return made or self._other_call(output, "all_to_all_single", "alltoall_base")(output, tensor, theirs, own, opts)

    # The names of these methods up to torch 2.12
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        tensor = _only("send", tensors)
        device = self.serving(tensor.device)
        if device is None:
            return self._other(tensor).send(tensors, destination, tag)
        check("send", tensor)
        return MessageWork(device.send(tensor, destination, tag), tensor, None)

    def recv(self, tensors: list[Tensor], source: int | None, tag: int = 0) -> Any:
        tensor = _only("recv", tensors)
        device = self.serving(tensor.device)
        if device is None:
            return self._other(tensor).recv(tensors, source, tag)
        check("recv", tensor)
        pending, copy_back = device.receive(tensor, source, tag)
        return MessageWork(pending, tensor, copy_back)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    # Barriers --------------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.BarrierOptions, opts, timeout)
        host = self._host
        for device in self._devices.values():
            device.finish()
        return self._submit(host, [], opts, [], Device.collective, "barrier", None, None, NO_REDUCTION, 0)

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        if timeout is None:
            timeout = self._timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._monitor.barrier(self._host, seconds, wait_all_ranks)

    # Creation and end of groups --------------------------------------------------------------------------------------

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> dist.ProcessGroup | None:
        """A group of some ranks of this one. Only those ranks need to call it."""
        if self.rank() not in new_ranks:
            return None
        backend = c10d._world.pg_backend_config.get(self, "cpu:allfold")
        ranks = [self._ranks[rank] for rank in new_ranks]
        split: dist.ProcessGroup = dist.new_group(
            ranks, timeout or self._timeout, backend, opts, use_local_synchronization=True, group_desc=group_desc
        )
        return split

    def shutdown(self) -> None:
        """Leave the group: other ranks' calls that need this one fail. Calls in flight get a few seconds to finish."""
        self._leave(LAST_CALLS_SECONDS)

    def abort(self) -> None:
        """End all calls, here and on all other ranks."""
        if self._devices:
            self._host.communicator.abort()
        for other in self._others.values():
            if hasattr(other, "abort"):
                other.abort()
        self._leave(0.0)

    def _leave(self, patience: float) -> None:
        devices, self._devices = self._devices, {}
        others, self._others = self._others, {}
        _groups.discard(self)
        for device in reversed(devices.values()):  # the host last: the engines of the others belong to its communicator
            device.close(patience)
        for other in others.values():
            if hasattr(other, "shutdown"):
                other.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        for device in self._devices.values():
            device.seconds = timeout.total_seconds()

    _set_default_timeout = setTimeout = set_timeout

    # Facts about the group -------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "allfold"

    name = _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in backends_of(self)]

    def _get_backend(self, device: Any) -> Any:
        device = torch.device(device)
        return self if self._is_ours(device) else self._other(device)

    def get_group_store(self) -> dist.Store:
        return self._store

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: the engine counts the calls of all ranks from the start."""

    def _get_sequence_number_for_group(self) -> int:
        return self._host.communicator.engine.calls() if self._devices else 0

    def _has_hooks(self) -> bool:
        return False

    def _start_coalescing(self, device: torch.device = _CPU) -> None:
        if not self._is_ours(device):
            self._other(device)._start_coalescing()
        self._coalesced = []

    def _end_coalescing(self, device: torch.device = _CPU) -> Any:
        works, self._coalesced = self._coalesced or [], None
        if not self._is_ours(device):
            return self._other(device)._end_coalescing()
        return works[-1] if works else DONE  # calls end in order: when the last one has ended, all have


def _only(call: str, tensors: Any) -> Tensor:
    if len(tensors) != 1 or not isinstance(tensors[0], Tensor):
        raise UsageError(f"{call}: expected a list of one tensor, got {len(tensors)}")
    tensor: Tensor = tensors[0]
    return tensor


@atexit.register
def _leave_all() -> None:
    """Leave all groups at exit, because no thread may be in the engine when the interpreter ends."""
    note_ending()
    for group in list(_groups):
        if group._process == os.getpid():  # a forked child that ends must leave its parent's group alone
            group._leave(LAST_CALLS_SECONDS)


if is_wanted():  # the dispatcher, where other backends are watched, does not see the calls of this class
    from ..intercept.dispatch import watch_class

    watch_class(Group)
