"""Communicators: how they are made and freed, their properties, and errors on them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

import numpy as np

from ..errors import AllfoldError
from . import constants as c
from . import failures
from .agreements import Agreement
from .collectives import Collectives, with_forms
from .data.attributes import new_keyval, remove_keyval
from .data.compiled import use
from .data.memory import array_of, buffer, bytes_of
from .environment import abort, own_state, world, world_state
from .failures import Errhandler, error, is_of_mpi, translated
from .groups import Group
from .info import INFO_NULL, Info
from .objects import ObjectCalls
from .point_to_point import MessageCalls, kind_of
from .records import CommunicatorState
from .refused import refuse
from .requests import Done, Request, await_all

_PREDEFINED = {
    c.TAG_UB: c.TAG_UB_VALUE,
    c.WTIME_IS_GLOBAL: True,
    c.IO: c.ANY_SOURCE,
    c.HOST: c.PROC_NULL,
}


@with_forms(
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter",
)  # fmt: skip
class Comm(Collectives, ObjectCalls):
    """A communicator: ranks that send each other messages and make collective calls."""

    _null_error = "ERR_COMM"
    _raw: Any  # the state that handles share; for a predefined communicator, a function that finds it

    @property
    def _ob(self) -> Any:
        raw = self._raw
        return raw() if callable(raw) else raw

    @_ob.setter
    def _ob(self, value: Any) -> None:
        self._raw = value

    def __eq__(self, other: object) -> bool:
        return self._ob is other._ob if isinstance(other, Comm) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def _class_for(cls, what: Any) -> type[Any]:
        from .topology import KINDS

        return cls if what is None else KINDS.get(type(what.topology), Intracomm)

    # Members ---------------------------------------------------------------------------------------------------------

    def Get_size(self) -> int:
        shared: CommunicatorState = self._need()
        return shared.size

    def Get_rank(self) -> int:
        shared: CommunicatorState = self._need()
        return shared.rank

    def Get_group(self) -> Group:
        return Group._from(self._need().world)

    def Compare(self, comm: Comm) -> int:
        own, other = self._need(), comm._need()
        if own is other:
            return c.IDENT
        if own.world == other.world:
            return c.CONGRUENT
        return c.SIMILAR if sorted(own.world) == sorted(other.world) else c.UNEQUAL

    def Is_inter(self) -> bool:
        self._need()
        return False

    def Is_intra(self) -> bool:
        self._need()
        return True

    def Get_topology(self) -> int:
        topology = self._need().topology
        return c.UNDEFINED if topology is None else int(topology.kind)

    @property
    def topology(self) -> int:
        return self.Get_topology()

    rank, size, group = property(Get_rank), property(Get_size), property(Get_group)
    is_inter, is_intra = property(Is_inter), property(Is_intra)

    @property
    def is_topo(self) -> bool:
        return self._ob is not None and self._need().topology is not None

    # New communicators -----------------------------------------------------------------------------------------------

    def _group(self, ranks: Sequence[int] | None) -> CommunicatorState | None:
        """A communicator of some ranks of this one; every rank calls it, with None if it joins no group."""
        shared: CommunicatorState = self._need()
        try:
            made = shared.run(lambda: shared.communicator.group([shared.rank] if ranks is None else ranks))
        except AllfoldError as problem:
            self._fail(problem)
        if ranks is None:
            made.engine.close(False)
            return None
        new = CommunicatorState(made, [shared.world[rank] for rank in ranks])
        new.errhandler = shared.errhandler
        return new

    def Dup(self, info: Info | None = None) -> Self:
        shared: CommunicatorState = self._need()
        new = self._group(range(shared.size))
        assert new is not None
        new.info = dict(shared.info) if info is None else dict(info.items())
        new.topology = shared.topology
        made = type(self)._of(new)
        shared.attributes.copy_to(new.attributes, self)
        return made

    def Dup_with_info(self, info: Info) -> Self:
        return self.Dup(info)

    def Clone(self) -> Self:
        return self.Dup()

    def Idup(self, info: Info | None = None) -> tuple[Self, Request]:
        return self.Dup(info), Request._of(Done())

    def Idup_with_info(self, info: Info) -> tuple[Self, Request]:
        return self.Idup(info)

    def Create(self, group: Group) -> Comm:
        shared: CommunicatorState = self._need()
        if not isinstance(group, Group):
            raise TypeError(f"Create: expected a Group, not {type(group).__name__}")
        wanted = group.ranks
        if not set(wanted) <= set(shared.world):
            self._fail(error("ERR_GROUP", "the group has ranks that this communicator does not have"))
        own = shared.world[shared.rank]
        ranks = [shared.world.index(one) for one in wanted] if own in wanted else None
        return self._made_of(self._group(ranks))

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        shared: CommunicatorState = self._need()
        if color < 0 and color != c.UNDEFINED:
            self._fail(error("ERR_ARG", f"Split: color must be 0 or more, or UNDEFINED, not {color}"))
        rows = np.empty((shared.size, 2), np.int64)
        self._run(lambda: shared.communicator.all_gather(np.array([color, key], np.int64), rows))
        same = [rank for rank, (one, _) in enumerate(rows.tolist()) if one == color]
        ranks = sorted(same, key=lambda rank: (rows[rank, 1], rank))
        return self._made_of(self._group(None if color == c.UNDEFINED else ranks))

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> Comm:
        shared: CommunicatorState = self._need()
        if split_type == c.UNDEFINED:
            return self.Split(c.UNDEFINED, key)
        by_resource = split_type in (c.COMM_TYPE_HW_GUIDED, c.COMM_TYPE_RESOURCE_GUIDED)
        is_known = by_resource and bool(info) and info.Get("mpi_hw_resource_type") == "mpi_shared_memory"
        if split_type != c.COMM_TYPE_SHARED and not is_known:
            return self.Split(c.UNDEFINED, key)
        hosts = shared.communicator.engine.hosts()
        return self.Split(next(number for number, host in enumerate(hosts) if shared.rank in host), key)

    @staticmethod
    def _made_of(shared: CommunicatorState | None) -> Comm:
        return COMM_NULL if shared is None else Intracomm._of(shared)

    def Free(self) -> None:
        shared: CommunicatorState = self._need()
        if self._predefined:
            raise error("ERR_COMM", f"{shared.name} cannot be freed")
        shared.attributes.delete_all(self)
        shared.close()
        self._ob = None

    def Disconnect(self) -> None:
        self.Free()

    # Names, hints, attributes ----------------------------------------------------------------------------------------

    def Get_name(self) -> str:
        return "MPI_COMM_NULL" if self._ob is None else str(self._need().name)

    def Set_name(self, name: str) -> None:
        self._need().name = name

    name = property(Get_name, Set_name)

    def Set_info(self, info: Info) -> None:
        self._need().info.update(info.items())

    def Get_info(self) -> Info:
        return Info.Create(self._need().info)

    info = property(Get_info, Set_info)

    def Get_attr(self, keyval: int) -> Any:
        shared: CommunicatorState = self._need()
        if keyval == c.LASTUSEDCODE:
            return failures.last_code()
        if keyval in _PREDEFINED:
            return _PREDEFINED[keyval]
        if keyval == c.UNIVERSE_SIZE:
            return len(world().world.world)
        return None if keyval == c.APPNUM else shared.attributes.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._need().attributes.set(self, keyval, attrval)

    def Delete_attr(self, keyval: int) -> None:
        self._need().attributes.delete(self, keyval)

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[..., Any] | None = None,
        delete_fn: Callable[..., Any] | None = None,
        nopython: bool = False,
    ) -> int:
        return new_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        return remove_keyval(keyval)

    # Buffered sends --------------------------------------------------------------------------------------------------

    def Attach_buffer(self, buf: Any) -> None:
        """Keep the buffer for `Detach_buffer`; allfold copies buffered messages into memory of its own."""
        shared: CommunicatorState = self._need()
        if shared.buffer is not None:
            raise error("ERR_BUFFER", "a buffer is attached already")
        shared.buffer = buf if buf is None or isinstance(buf, int) else array_of(buf, True)

    def Detach_buffer(self) -> Any:
        shared: CommunicatorState = self._need()
        self.Flush_buffer()
        found, shared.buffer = shared.buffer, None
        return buffer(found) if found is not None and not isinstance(found, int) else found

    def Flush_buffer(self) -> None:
        shared: CommunicatorState = self._need()
        await_all(shared.buffered, shared.communicator.timeout)
        shared.buffered = []

    def Iflush_buffer(self) -> Request:
        shared: CommunicatorState = self._need()
        return Request._of(shared.begin(self.Flush_buffer, self._fail))

    # Errors ----------------------------------------------------------------------------------------------------------

    def _fail(self, problem: BaseException) -> NoReturn:
        """Raise an error as MPI's exception, after calling the error handler."""
        made = problem
        if isinstance(problem, AllfoldError):
            is_revoked = self._ob is not None and self._need().is_revoked
            made = translated(problem, "ERR_REVOKED" if is_revoked else kind_of(problem))
        if not isinstance(made, failures.Exception):
            raise made
        handler = None if self._ob is None else self._need().errhandler
        if handler is failures.ERRORS_ARE_FATAL._ob or handler is failures.ERRORS_ABORT._ob:
            failures.fatal(made)
        if handler is not None and handler.function is not None:
            handler.function(self, made.Get_error_code())
        raise made

    def _fail_collective(self, problem: BaseException) -> NoReturn:
        """Raise the error of a collective call as MPI's exception, if MPI would raise it."""
        if is_of_mpi(problem):
            self._fail(problem)
        raise problem

    def _need(self) -> Any:
        shared = self._raw
        if type(shared) is CommunicatorState:
            return shared
        shared = self._ob
        if shared is None:
            raise error("ERR_COMM", "this communicator is null or was freed")
        if shared.is_over:
            raise error("ERR_OTHER", f"{shared.name} was used after Finalize")
        return shared

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Comm, int], None]) -> Errhandler:
        return failures.handler_of(errhandler_fn)

    def Get_errhandler(self) -> Errhandler:
        found = self._need().errhandler
        return Errhandler._of(found)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        self._need().errhandler = errhandler._need()

    def Call_errhandler(self, errorcode: int) -> None:
        handler = self._need().errhandler
        if handler.function is not None:
            handler.function(self, errorcode)
        elif handler is not failures.ERRORS_RETURN._ob:
            failures.fatal(failures.Exception(errorcode))

    def Abort(self, errorcode: int = 0) -> NoReturn:
        abort(errorcode)

    # After an error --------------------------------------------------------------------------------------------------

    def Revoke(self) -> None:
        shared: CommunicatorState = self._need()
        shared.is_revoked = True
        shared.leave_to_python()
        shared.communicator.abort()

    def Is_revoked(self) -> bool:
        return bool(self._need().is_revoked)

    def Shrink(self) -> Comm:
        shared: CommunicatorState = self._need()
        try:
            left = shared.communicator.shrink()
            ranks = np.empty(left.size, np.int64)
            left.all_gather(np.array([shared.world[shared.rank]], np.int64), ranks)
        except AllfoldError as problem:
            self._fail(problem)
        return Intracomm._of(CommunicatorState(left, ranks.tolist()))

    def Ishrink(self) -> tuple[Comm, Request]:
        return self.Shrink(), Request._of(Done())

    def Agree(self, flag: int) -> int:
        shared: CommunicatorState = self._need()
        made = Agreement(self, shared, operator.index(flag))
        made.wait()
        return made.flag

    def Iagree(self, flag: Any) -> Request:
        memory = array_of(flag, True)
        if memory.nbytes != 4:
            raise ValueError(f"Iagree: the flag is one int of 4 bytes, not {memory.nbytes} bytes")
        whole = bytes_of(memory).view(np.int32)
        return Request._of(Agreement(self, self._need(), int(whole[0]), whole))

    def Get_failed(self) -> Group:
        """An empty group: when a rank is lost, the error of the call names it."""
        self._need()
        return Group._from(())

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        self._need()
        return 0

    @classmethod
    def Get_parent(cls) -> Comm:
        return Intercomm._of(None)

    @classmethod
    def Join(cls, fd: int) -> NoReturn:
        raise refuse("ranks that join later", "start all ranks together: allfold run -n RANKS")


@with_forms("Scan", "Exscan")
class Intracomm(Comm):
    """A communicator of one group of ranks."""

    def Create_group(self, group: Group, tag: int = 0) -> Comm:
        shared: CommunicatorState = self._need()
        own = shared.world[shared.rank]
        if own not in group.ranks:
            return COMM_NULL
        ranks = [shared.world.index(one) for one in group.ranks]
        try:
            made = shared.communicator.engine.group_of(ranks, tag, None)
        except AllfoldError as problem:
            self._fail(problem)
        from ..communicator.communicator import Communicator

        new = CommunicatorState(Communicator(made), group.ranks)
        new.errhandler = shared.errhandler
        return Intracomm._of(new)

    @classmethod
    def Create_from_group(
        cls, group: Group, stringtag: str = "", info: Info = INFO_NULL, errhandler: Errhandler | None = None
    ) -> Comm:
        return COMM_WORLD.Create_group(group)

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False) -> Any:
        from .topology import create_cart

        return create_cart(self, dims, periods)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        from .topology import create_graph

        return create_graph(self, index, edges)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Any = None,
        destweights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        from .topology import create_adjacent

        return create_adjacent(self, sources, destinations, sourceweights, destweights)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        from .topology import create_distributed

        return create_distributed(self, sources, degrees, destinations, weights)

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | None = None) -> int:
        return self._mapped(int(np.prod(dims)))

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        from .topology import ends_of

        return self._mapped(len(ends_of(index, edges)))

    def _mapped(self, needed: int) -> int:
        shared: CommunicatorState = self._need()
        if needed > shared.size:
            self._fail(error("ERR_ARG", f"{needed} ranks are needed, and there are {shared.size}"))
        return shared.rank if shared.rank < needed else c.UNDEFINED

    def Create_intercomm(self, local_leader: int, peer_comm: Comm, remote_leader: int, tag: int = 0) -> NoReturn:
        raise refuse("intercommunicators", "use one communicator of all ranks, and Split it")

    def Spawn(self, *args: Any, **more: Any) -> NoReturn:
        raise refuse("ranks that join later", "start all ranks together: allfold run -n RANKS")

    Spawn_multiple = Accept = Connect = Spawn


class Intercomm(Comm):
    """A communicator of two groups. Only the null one exists."""

    @classmethod
    def _fits(cls, what: Any) -> bool:
        return what is None

    @classmethod
    def Create_from_groups(cls, *args: Any, **more: Any) -> NoReturn:
        raise refuse("intercommunicators", "use one communicator of all ranks, and Split it")

    def Get_remote_size(self) -> NoReturn:
        raise error("ERR_COMM", "this is not an intercommunicator")

    def Get_remote_group(self) -> NoReturn:
        raise error("ERR_COMM", "this is not an intercommunicator")

    def Merge(self, high: bool = False) -> NoReturn:
        raise error("ERR_COMM", "this is not an intercommunicator")


use(
    Comm,
    "Barrier",
    "Bcast",
    "Gather",
    "Scatter",
    "Allgather",
    "Alltoall",
    "Reduce",
    "Allreduce",
    "Reduce_scatter_block",
)
use(Intracomm, "Scan", "Exscan")
use(MessageCalls, "Send", "Rsend", "Recv", "recv", "Isend", "Irsend", "Irecv", "Sendrecv")
use(Request, "Wait", "wait", "Test", "Waitall")

COMM_NULL = Comm._of(None)
COMM_WORLD = Intracomm._of(world_state)
COMM_SELF = Intracomm._of(own_state)
for _one in (COMM_NULL, COMM_WORLD, COMM_SELF):
    _one._predefined = True


def Attach_buffer(buf: Any) -> None:
    COMM_WORLD.Attach_buffer(buf)


def Detach_buffer() -> Any:
    return COMM_WORLD.Detach_buffer()


def Flush_buffer() -> None:
    COMM_WORLD.Flush_buffer()


def Iflush_buffer() -> Request:
    return COMM_WORLD.Iflush_buffer()
