"""A rank's place in a group: its life, what torch asks it about itself, and where its calls run.

A call that is waited for runs on the thread that made it. One that is not waited for stands in line and runs on a
thread of the group; until it is over, later calls stand in line as well, so that all ranks make the same calls in the
same order.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..communicator.communicator import Communicator
from ..communicator.handle import Handle
from ..engines.last_words import note_ending
from ..errors import AllfoldError, CollectiveTimeout, UsageError
from .collectives import Engine
from .devices import backends_of, make_backend
from .tensors import is_in_memory, to_dlpack
from .work import Done, GroupDestroyed, GroupTimeout, Line, Posted, Task

DONE = Done()
_NO_TIME = timedelta(0)
_LAST_CALLS_SECONDS = 5.0  # when leaving a group: how long calls that nobody waited for may take to finish

_members: weakref.WeakSet[Member] = weakref.WeakSet()


class Member(dist.ProcessGroup):
    """What a group is apart from its collectives."""

    serves = "cpu"
    """The type of the devices whose tensors it takes itself."""

    def __init__(self, communicator: Communicator, store: dist.Store, timeout: timedelta, ranks: list[int]) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator: Communicator | None = communicator
        self._engine = Engine(communicator)
        self._short_ways(communicator)
        self._line = Line(f"allfold group of {communicator.size}")
        self._store = store
        self._timeout = timeout
        self._seconds: float | None = None  # a timeout that was set later; the communicator has the first one
        self._ranks = ranks
        self._others: dict[str, Any] = {}
        self._name, self._description = "", ""
        self._coalesced: list[Any] | None = None
        self._posted: deque[Handle] = deque()
        self._process = os.getpid()
        _members.add(self)

    def __repr__(self) -> str:
        state = "destroyed" if self._communicator is None else f"rank {self.rank()} of {self.size()}"
        return f"<allfold group {self._name!r}, {state}>"

    @property
    def communicator(self) -> Communicator:
        """The communicator under the group: for arrays in shared memory (`empty`), traces, and what torch lacks."""
        return self._living.communicator

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
        self._leave(_LAST_CALLS_SECONDS)

    def abort(self) -> None:
        """End all calls, here and on all other ranks."""
        if self._communicator is not None:
            self._communicator.abort()
        for other in self._others.values():
            if hasattr(other, "abort"):
                other.abort()
        self._leave(0.0)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout, self._seconds = timeout, timeout.total_seconds()
        self._short_ways(self._engine.communicator, self._seconds)

    _set_default_timeout = setTimeout = set_timeout

    def _leave(self, patience: float) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        _members.discard(self)
        if not self._line.drain(patience) or not self._all_over(patience):
            communicator.abort()
            self._line.drain(_LAST_CALLS_SECONDS)
        self._line.close()
        communicator.close()
        self._engine = _Destroyed(self._name)  # type: ignore[assignment]
        self._short_ways(self._engine)
        for other in self._others.values():
            if hasattr(other, "shutdown"):
                other.shutdown()
        self._others.clear()

    def _all_over(self, patience: float) -> bool:
        """Wait until the engine has nothing left in the background; whether that was in time."""
        deadline = time.monotonic() + patience
        for handle in self._posted:
            with contextlib.suppress(AllfoldError):
                handle.wait(max(0.0, deadline - time.monotonic()))
            if not handle.done():
                return False
        return True

    # What torch asks a group about itself ----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "allfold"

    name = _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in backends_of(self)]

    def _get_backend(self, device: Any) -> Any:
        device = torch.device(device)
        return self if device.type == self.serves else self._elsewhere(device)

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
        return 0 if self._communicator is None else self._communicator._engine.calls()

    def _has_hooks(self) -> bool:
        return False

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != self.serves:
            other = self._elsewhere(device)
            other._start_coalescing(*([device] if isinstance(other, Member) else []))
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._coalesced = self._coalesced or [], None
        if device.type != self.serves:
            other = self._elsewhere(device)
            return other._end_coalescing(*([device] if isinstance(other, Member) else []))
        return works[-1] if works else DONE  # the line keeps the order: when the last is over, all are

    def finish(self) -> None:
        """Return when the calls on tensors of other devices are over, where this backend makes them."""
        for other in self._others.values():
            if isinstance(other, Member):
                other.finish()

    # Where a call runs -----------------------------------------------------------------------------------------------

    def _short_ways(self, communicator: Any, seconds: float | None = None) -> None:
        """Set up the fast paths for calls that need nothing but the engine; with a timeout, if one was set later."""
        for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
            call = getattr(communicator, name)
            setattr(self, f"_{name}", call if seconds is None else functools.partial(call, timeout=seconds))
        self._sum = communicator.summing() if isinstance(communicator, Communicator) else communicator.all_reduce

    def _short(self, opts: Any, results: Any, collective: Callable[..., Any], *tensors: Tensor, **how: Any) -> Any:
        """Make a call that needs nothing but the engine; None if it is not such a call, and must go the long way.

        It must not overtake calls in line. If the engine refuses the arguments, the long way says why.
        """
        if self._line.open or not (is_in_memory(tensors[0]) and is_in_memory(tensors[-1])) or tensors[-1].requires_grad:
            return None
        asynchronous = opts.asyncOp
        if asynchronous and opts.timeout > _NO_TIME:
            how["timeout"] = opts.timeout.total_seconds()
        try:
            handle = collective(*map(to_dlpack, tensors), async_op=asynchronous, **how)
        except CollectiveTimeout as error:
            raise GroupTimeout.of(error) from None
        except (UsageError, BufferError):
            return None
        if not asynchronous:
            return DONE
        while self._posted and self._posted[0].done():
            self._posted.popleft()
        self._posted.append(handle)
        return self._remember(Posted(handle, results, self._line))

    def _perform(self, opts: Any, results: Any, action: Callable[[float | None], None]) -> Any:
        asked = opts.timeout.total_seconds()
        seconds = asked if asked > 0 else self._seconds
        line = self._line
        if not opts.asyncOp and not line.open:
            action(seconds)
            return DONE
        if self._communicator is None:
            raise GroupDestroyed(_destroyed(self._name))
        task = Task(lambda: action(seconds), results)
        line.submit(task)
        if not opts.asyncOp:
            task.wait()
            return DONE
        return self._remember(task)

    def _remember(self, work: Any) -> Any:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _only(self, call: str, tensors: Any) -> Tensor:
        if len(tensors) != 1 or not isinstance(tensors[0], Tensor):
            raise UsageError(f"{call}: expected a list of one tensor, got {len(tensors)}")
        tensor: Tensor = tensors[0]
        return tensor

    @property
    def _living(self) -> Engine:
        if self._communicator is None:
            raise GroupDestroyed(_destroyed(self._name))
        return self._engine

    def _elsewhere(self, device: torch.device) -> Any:
        """The backend for tensors of another device. All ranks take part in the first use of a device."""
        if device.type not in self._others:
            communicator = self.communicator
            if device.type == "cuda" and backends_of(self).get("cuda", "allfold") == "allfold":
                from .cuda import OnGpu

                own = self._in_turn(lambda: communicator.group(range(communicator.size)))
                made: Any = OnGpu(self, own, self._store, self._timeout, self._ranks)
            else:
                made = make_backend(self, device, self._store, self._timeout, self._ranks)
            self._others[device.type] = made
        return self._others[device.type]

    def _in_turn(self, action: Callable[[], Any]) -> Any:
        """Do something with the communicator after the calls that stand in line."""
        if not self._line.open:
            return action()
        results: list[Any] = []
        task = Task(lambda: results.append(action()), results)
        self._line.submit(task)
        task.wait()
        return results[0]


class _Destroyed:
    """Takes the engine's place once the group is destroyed: every call on it says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return self._refuse

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise GroupDestroyed(_destroyed(self._name))


def _destroyed(name: str) -> str:
    return (
        f"the group {name!r} was destroyed (destroy_process_group or abort); make a new one with init_process_group or "
        "new_group before calling this"
    )


@atexit.register
def _leave_all() -> None:
    """When the interpreter ends, no thread may be in the engine."""
    note_ending()
    for member in list(_members):
        if member._process == os.getpid():  # a forked child that ends must leave its parent's group alone
            member._leave(_LAST_CALLS_SECONDS)
