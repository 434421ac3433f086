"""The process group: everything that torch.distributed calls, and asks, of a group.

A collective is made by what serves the device of its tensors: `Host` for main memory, `Gpu` for CUDA tensors, or
another backend (devices.py). Messages are independent of each other and of collectives.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..communicator.communicator import Communicator
from ..engines.last_words import note_ending
from ..errors import UsageError
from . import coalesce, lists, sparse
from .device import SUM, Device, Reduction
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
        self._devices: dict[str, Device] = {"cpu": Host(communicator)}  # by type of device; none: it was destroyed
        self._others: dict[str, Any] = {}  # the same: backends that are not ours
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
        """The communicator under the group: for arrays in shared memory (`empty`), traces, and what torch lacks."""
        return self._host.communicator

    # How a call is made ----------------------------------------------------------------------------------------------

    def _at_once(
        self, name: str, source: Tensor | None, target: Tensor, op: str | None, root: int, opts: Any, results: Any
    ) -> Any:
        """The fast path: make a call that needs nothing but the engine. None if it is not such a call."""
        device = self._devices.get("cpu" if target.is_cpu else target.device.type)
        work = None if device is None else device.at_once(name, source, target, op, root, opts, results)
        return work if self._coalesced is None or work is None else self._remember(work)

    def _submit(
        self,
        call: str,
        tensors: Sequence[Tensor],
        opts: Any,
        results: Any,
        run: Callable[[Any, float | None], None],
        elsewhere: Callable[[Any], Any],
        is_sparse: bool = False,
    ) -> Any:
        """Make a call: `run(device, timeout)` if the tensors' device is ours, `elsewhere(backend)` if it is not."""
        served = self._serving(call, tensors)
        if not isinstance(served, Device):
            return elsewhere(served)
        check(call, *tensors, allows_sparse=is_sparse)
        return self._remember(served.submit(run, opts, results, tensors))

    def _remember(self, work: Any) -> Any:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _serving(self, call: str, tensors: Sequence[Any]) -> Any:
        """The `Device`, or other backend, that serves these tensors."""
        if not tensors:
            return self._host
        if not isinstance(tensors[0], Tensor):
            raise UsageError(f"{call}: expected a tensor, got a {type(tensors[0]).__name__}")
        return self.serving(tensors[0].device)

    def serving(self, device: torch.device) -> Any:
        """The `Device`, or other backend, that serves tensors of a device. All ranks take part in its first use."""
        host, kind = self._host, device.type
        if kind in self._others:
            return self._others[kind]
        if kind not in self._devices:
            if not self._is_ours(device):
                self._others[kind] = make_backend(self, device, self._store, self._timeout, self._ranks)
                return self._others[kind]
            from .cuda import Gpu

            own = host.in_turn(lambda: host.communicator.group(range(host.size)))
            self._devices[kind] = Gpu(own, host)
        return self._devices[kind]

    def _is_ours(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and backends_of(self).get("cuda", "allfold") == "allfold")

    @property
    def _host(self) -> Host:
        host = self._devices.get("cpu")
        if host is None:
            raise GroupDestroyed(
                f"the group {self._name!r} was destroyed (destroy_process_group or abort); make a new one with "
                "init_process_group or new_group before calling this"
            )
        assert isinstance(host, Host)
        return host

    # Reductions ------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        if opts.__class__ is not _ALL_REDUCE or len(tensors) != 1:
            tensors, opts = listed(tensors), reduced(_ALL_REDUCE, opts, op, timeout)
            _only("all_reduce", tensors)
        tensor, wanted = tensors[0], opts.reduceOp
        # The usual one by itself: small calls notice what finding the others costs.
        reduction = SUM if wanted == _SUM else Reduction.of(wanted)
        if reduction.factor is None:
            work = self._at_once("all_reduce", None, tensor, reduction.name, 0, opts, tensors)
            if work is not None:
                return work
        return self._allreduce(tensors, opts, reduction)

    def _allreduce(self, tensors: list[Tensor], opts: Any, reduction: Reduction) -> Any:
        """The slow path. Apart, because functions inside a function make its variables slower."""
        (tensor,) = tensors
        is_sparse = tensor.layout is torch.sparse_coo and tensor.is_cpu

        def run(device: Device, time: float | None) -> None:
            if is_sparse:
                sparse.all_reduce(device, tensor, reduction, time)
            else:
                device.all_reduce(tensor, reduction, time)

        return self._submit(
            "all_reduce", [tensor], opts, tensors, run, lambda other: other.allreduce(tensors, opts), is_sparse
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.AllreduceCoalescedOptions, opts)
        reduction = Reduction.of(opts.reduceOp)
        return self._submit(
            "all_reduce_coalesced",
            tensors,
            opts,
            tensors,
            lambda device, time: coalesce.all_reduce(device, tensors, reduction, time),
            lambda other: other.allreduce_coalesced(tensors, opts),
        )

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, root: int | None = None
    ) -> Any:
        opts, tensors = rooted(c10d.ReduceOptions, opts, root, timeout, op), listed(tensors)
        tensor, to, reduction = _only("reduce", tensors), opts.rootRank, Reduction.of(opts.reduceOp)
        return self._submit(
            "reduce",
            [tensor],
            opts,
            tensors,
            lambda device, time: device.reduce(tensor, to, reduction, time),
            lambda other: other.reduce(tensors, opts),
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = reduced(c10d.ReduceScatterOptions, opts, op, timeout)
        output, parts, reduction = _only("reduce_scatter", outputs), list(inputs[0]), Reduction.of(opts.reduceOp)
        return self._submit(
            "reduce_scatter",
            [output, *parts],
            opts,
            outputs,
            lambda device, time: lists.reduce_scatter(device, parts, output, reduction, time),
            lambda other: other.reduce_scatter(outputs, inputs, opts),
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = reduced(c10d.ReduceScatterOptions, opts)
        reduction = Reduction.of(opts.reduceOp)
        if reduction.factor is None and tensor.numel() == self._size * output.numel():
            work = self._at_once("reduce_scatter", tensor, output, reduction.name, 0, opts, [output])
            if work is not None:
                return work
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = reduced(c10d.ReduceScatterOptions, opts)
        reduction = Reduction.of(opts.reduceOp)
        pairs = list(zip(outputs, tensors, strict=True))

        def run(device: Device, time: float | None) -> None:
            for output, tensor in pairs:
                device.reduce_scatter(tensor, output, reduction, time)

        def elsewhere(other: Any) -> Any:
            if hasattr(other, "reduce_scatter_single_coalesced"):
                return other.reduce_scatter_single_coalesced(outputs, tensors, opts)
            return other.reduce_scatter_tensor_coalesced(outputs, tensors, opts)

        for output, tensor in pairs:
            check_times("reduce_scatter", "input", tensor, self._size, "output", output)
        return self._submit("reduce_scatter", [*outputs, *tensors], opts, outputs, run, elsewhere)

    # Moving data -----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if opts.__class__ is not c10d.BroadcastOptions:
            opts, tensors = rooted(c10d.BroadcastOptions, opts, root, timeout), listed(tensors)
        tensor, source = _only("broadcast", tensors), opts.rootRank
        work = self._at_once("broadcast", None, tensor, None, source, opts, tensors)
        if work is not None:
            return work
        return self._submit(
            "broadcast",
            [tensor],
            opts,
            tensors,
            lambda device, time: device.broadcast(tensor, source, time),
            lambda other: other.broadcast(tensors, opts),
        )

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs], [tensors]
        opts = plain_options(c10d.AllgatherOptions, opts, timeout)
        tensor, places = _only("all_gather", tensors), list(outputs[0])
        return self._submit(
            "all_gather",
            [tensor, *places],
            opts,
            outputs,
            lambda device, time: lists.all_gather(device, tensor, places, time),
            lambda other: other.allgather(outputs, tensors, opts),
        )

    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Any:
        """`outputs[r][i]` becomes tensor i of rank r."""
        opts = plain_options(c10d.AllgatherOptions, opts)
        columns = [[places[number] for places in outputs] for number in range(len(tensors))]

        def run(device: Device, time: float | None) -> None:
            for tensor, places in zip(tensors, columns, strict=True):
                lists.all_gather(device, tensor, places, time)

        return self._submit(
            "all_gather_coalesced",
            [*tensors, *(place for places in outputs for place in places)],
            opts,
            outputs,
            run,
            lambda other: other.allgather_coalesced(outputs, tensors, opts),
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = plain_options(c10d.AllgatherOptions, opts)
        if output.numel() == self._size * tensor.numel():
            work = self._at_once("all_gather", tensor, output, None, 0, opts, [output])
            if work is not None:
                return work
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Any:
        opts = plain_options(c10d.AllgatherOptions, opts)
        pairs = list(zip(outputs, tensors, strict=True))

        def run(device: Device, time: float | None) -> None:
            for output, tensor in pairs:
                device.all_gather(tensor, output, time)

        def elsewhere(other: Any) -> Any:
            if hasattr(other, "all_gather_single_coalesced"):
                return other.all_gather_single_coalesced(outputs, tensors, opts)
            return other.allgather_into_tensor_coalesced(outputs, tensors, opts)

        for output, tensor in pairs:
            check_times("all_gather", "output", output, self._size, "input", tensor)
        return self._submit("all_gather", [*outputs, *tensors], opts, outputs, run, elsewhere)

    def gather(self, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(tensors, Tensor):
            outputs, tensors = [outputs] if outputs else [], [tensors]
        opts = rooted(c10d.GatherOptions, opts, root, timeout)
        tensor, to = _only("gather", tensors), opts.rootRank
        places = list(outputs[0]) if outputs else None
        return self._submit(
            "gather",
            [tensor, *(places or ())],
            opts,
            outputs,
            lambda device, time: lists.gather(device, tensor, places, to, time),
            lambda other: other.gather(outputs, tensors, opts),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: int | None = None) -> Any:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = rooted(c10d.ScatterOptions, opts, root, timeout)
        output, source = _only("scatter", outputs), opts.rootRank
        parts = list(inputs[0]) if inputs else None
        return self._submit(
            "scatter",
            [output, *(parts or ())],
            opts,
            outputs,
            lambda device, time: lists.scatter(device, output, parts, source, time),
            lambda other: other.scatter(outputs, inputs, opts),
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.AllToAllOptions, opts, timeout)
        return self._submit(
            "all_to_all",
            [*inputs, *outputs],
            opts,
            outputs,
            lambda device, time: lists.all_to_all(device, inputs, outputs, time),
            lambda other: other.alltoall(outputs, inputs, opts),
        )

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

        def elsewhere(other: Any) -> Any:
            exchange = other.all_to_all_single if hasattr(other, "all_to_all_single") else other.alltoall_base
            return exchange(output, tensor, theirs, own, opts)

        return self._submit(
            "all_to_all",
            [tensor, output],
            opts,
            [output],
            lambda device, time: lists.all_to_all_split(device, tensor, output, own, theirs, time),
            elsewhere,
        )

    # The names that these had up to torch 2.12
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        tensor = _only("send", tensors)
        served = self.serving(tensor.device)
        if not isinstance(served, Device):
            return served.send(tensors, destination, tag)
        check("send", tensor)
        return MessageWork(served.send(tensor, destination, tag), tensor, None)

    def recv(self, tensors: list[Tensor], source: int | None, tag: int = 0) -> Any:
        tensor = _only("recv", tensors)
        served = self.serving(tensor.device)
        if not isinstance(served, Device):
            return served.recv(tensors, source, tag)
        check("recv", tensor)
        pending, bring_home = served.receive(tensor, source, tag)
        return MessageWork(pending, tensor, bring_home)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    # Barriers --------------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = plain_options(c10d.BarrierOptions, opts, timeout)
        host = self._host
        for device in self._devices.values():
            device.finish()
        return self._remember(host.submit(lambda device, time: device.barrier(time), opts, [], []))

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        if timeout is None:
            timeout = self._timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._monitor.barrier(self._host, seconds, wait_all_ranks)

    # Groups and life -------------------------------------------------------------------------------------------------

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> dist.ProcessGroup | None:
        """A group of some ranks of this one, made by those ranks alone."""
        if self.rank() not in new_ranks:
            return None
        backend = c10d._world.pg_backend_config.get(self, "cpu:allfold")
        ranks = [self._ranks[rank] for rank in new_ranks]
        split: dist.ProcessGroup = dist.new_group(
            ranks, timeout or self._timeout, backend, opts, use_local_synchronization=True, group_desc=group_desc
        )
        return split

    def shutdown(self) -> None:
        """Leave: calls of other ranks that would need this one fail. Calls that nobody waited for may still finish."""
        self._leave(LAST_CALLS_SECONDS)

    def abort(self) -> None:
        """End all calls, here and on all other ranks."""
        for device in self._devices.values():
            device.abort()
        for other in self._others.values():
            if hasattr(other, "abort"):
                other.abort()
        self._leave(0.0)

    def _leave(self, patience: float) -> None:
        devices, self._devices = self._devices, {}
        others, self._others = self._others, {}
        _groups.discard(self)
        for device in devices.values():
            device.close(patience)
        for other in others.values():
            if hasattr(other, "shutdown"):
                other.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        for device in self._devices.values():
            device.seconds = timeout.total_seconds()

    _set_default_timeout = setTimeout = set_timeout

    # What torch asks a group about itself ----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "allfold"

    name = _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in backends_of(self)]

    def _get_backend(self, device: Any) -> Any:
        device = torch.device(device)
        return self if self._is_ours(device) else self.serving(device)

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
        return self._host.communicator._engine.calls() if self._devices else 0

    def _has_hooks(self) -> bool:
        return False

    def _start_coalescing(self, device: torch.device = _CPU) -> None:
        if not self._is_ours(device):
            self.serving(device)._start_coalescing()
        self._coalesced = []

    def _end_coalescing(self, device: torch.device = _CPU) -> Any:
        works, self._coalesced = self._coalesced or [], None
        if not self._is_ours(device):
            return self.serving(device)._end_coalescing()
        return works[-1] if works else DONE  # calls end in their order: when the last has ended, all have


def _only(call: str, tensors: Any) -> Tensor:
    if len(tensors) != 1 or not isinstance(tensors[0], Tensor):
        raise UsageError(f"{call}: expected a list of one tensor, got {len(tensors)}")
    tensor: Tensor = tensors[0]
    return tensor


@atexit.register
def _leave_all() -> None:
    """When the interpreter ends, no thread may be in the engine."""
    note_ending()
    for group in list(_groups):
        if group._process == os.getpid():  # a forked child that ends must leave its parent's group alone
            group._leave(LAST_CALLS_SECONDS)
