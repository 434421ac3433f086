"""Collectives on buffers: each is prepared as a function that runs now, in the background, or repeatedly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import UsageError
from .data.layout import Bytes
from .data.memory import InPlaceType
from .data.ops import SUM, Op
from .data.specs import BufferSpec, VectorSpec, plain, simple, vector, vector_of_types
from .failures import error
from .point_to_point import MessageCalls, whole
from .records import CommunicatorState
from .requests import Prequest, Repeated, Request

Made = Callable[[], None]
Class = TypeVar("Class", bound=type)


class Collectives(MessageCalls):
    """The part of a communicator that makes collective calls on buffers. `_bcast` prepares `Bcast`, and so on."""

    @abstractmethod
    def _fail_collective(self, problem: BaseException) -> NoReturn:
        """Raise the error of a collective call as MPI's exception, if MPI would raise it."""

    def _run(self, call: Callable[[], Any]) -> Any:
        shared: CommunicatorState = self._need()
        try:
            return shared.run(call)
        except (RuntimeError, UsageError) as problem:
            self._fail_collective(problem)

    def _barrier(self) -> Made:
        communicator = self._need().communicator
        return lambda: communicator.barrier()

    def _bcast(self, buf: Any, root: int = 0) -> Made:
        shared = self._rooted(root)
        if (found := plain(buf, True)) is not None and buf.dtype is found.layout.native:
            return lambda: shared.communicator.broadcast(buf, root)
        block = simple(buf, shared.rank != root)
        dtype = block.layout.native

        def call() -> None:
            data = block.read()
            shared.communicator.broadcast(_writable(data).view(dtype), root)
            if shared.rank != root and not block.is_plain:
                block.write(data)

        return call

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        shared = self._rooted(root)
        if shared.rank != root:
            if (found := plain(sendbuf, False)) is not None and sendbuf.dtype is found.layout.native:
                return lambda: shared.communicator.gather(sendbuf.reshape(-1), root=root)
            block = simple(sendbuf, False)
            own = block.layout.native
            return lambda: shared.communicator.gather(block.read().view(own), root=root)
        if _are_plain(recvbuf, sendbuf, shared.size):
            return lambda: shared.communicator.gather(sendbuf.reshape(-1), recvbuf.reshape(-1), root)
        part = simple(recvbuf, True, shared.size)
        whole = _times(part, shared.size)
        mine = _own(sendbuf, part, shared.rank, shared.size)
        dtype = part.layout.native

        def call() -> None:
            data = whole.read()
            shared.communicator.gather(mine().view(dtype), data.view(dtype), root)
            _put(whole, data)

        return call

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        shared = self._rooted(root)
        if shared.rank != root:
            if (found := plain(recvbuf, True)) is not None and recvbuf.dtype is found.layout.native:
                return lambda: shared.communicator.scatter(output=recvbuf.reshape(-1), root=root)
            block = simple(recvbuf, True)
            own = block.layout.native

            def receive() -> None:
                data = block.read()
                shared.communicator.scatter(output=data.view(own), root=root)
                _put(block, data)

            return receive
        if _are_plain(recvbuf, sendbuf, parts=shared.size):
            return lambda: shared.communicator.scatter(array=sendbuf.reshape(-1), output=recvbuf.reshape(-1), root=root)
        part = simple(sendbuf, False, shared.size)
        whole, dtype = _times(part, shared.size), part.layout.native
        target = None if _in_place(recvbuf) else simple(recvbuf, True)

        def call() -> None:
            data = whole.read()
            output = np.empty(part.bytes, np.uint8) if target is None else target.read()
            shared.communicator.scatter(array=data.view(dtype), output=output.view(dtype), root=root)
            if target is not None:
                _put(target, output)

        return call

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared: CommunicatorState = self._need()
        if _are_plain(recvbuf, sendbuf, shared.size):
            return lambda: shared.communicator.all_gather(sendbuf.reshape(-1), recvbuf.reshape(-1))
        part = simple(recvbuf, True, shared.size)
        whole, dtype = _times(part, shared.size), part.layout.native
        mine = _own(sendbuf, part, shared.rank, shared.size)

        def call() -> None:
            data = whole.read()
            shared.communicator.all_gather(mine().view(dtype), data.view(dtype))
            _put(whole, data)

        return call

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared: CommunicatorState = self._need()
        if _are_plain(recvbuf, sendbuf) and recvbuf.size % shared.size == 0:
            return lambda: shared.communicator.all_to_all(sendbuf.reshape(-1), recvbuf.reshape(-1))
        part = simple(recvbuf, True, shared.size)
        whole, dtype = _times(part, shared.size), part.layout.native
        source = whole if _in_place(sendbuf) else _times(simple(sendbuf, False, shared.size), shared.size)
        is_same = source is whole

        def call() -> None:
            given, data = source.read(), whole.read()
            shared.communicator.all_to_all((given.copy() if is_same else given).view(dtype), data.view(dtype))
            _put(whole, data)

        return call

    # Parts of different lengths ----------------------------------------------------------------------------------------

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        shared = self._rooted(root)
        if shared.rank != root:
            block = simple(sendbuf, False)
            own = block.layout.native

            def send() -> None:
                counts = np.empty(shared.size, np.int64)
                shared.communicator.broadcast(counts, root)
                shared.communicator.gather(block.read().view(own), root=root, counts=_elements(counts, own))

            return send
        parts = vector(recvbuf, True, shared.size)
        dtype = parts.datatype.layout.native
        mine = parts.parts[shared.rank] if _in_place(sendbuf) else simple(sendbuf, False)

        def call() -> None:
            counts = _bytes(parts)
            shared.communicator.broadcast(counts, root)
            data = np.empty(int(counts.sum()), np.uint8)
            own = mine.read().copy()
            shared.communicator.gather(own.view(dtype), data.view(dtype), root, counts=_elements(counts, dtype))
            _divide(parts.parts, data)

        return call

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        shared = self._rooted(root)
        if shared.rank != root:
            block = simple(recvbuf, True)
            own = block.layout.native

            def receive() -> None:
                counts = np.empty(shared.size, np.int64)
                shared.communicator.broadcast(counts, root)
                data = np.empty(int(counts[shared.rank]), np.uint8)
                shared.communicator.scatter(output=data.view(own), root=root, counts=_elements(counts, own))
                _fitting(self, block, data)

            return receive
        parts = vector(sendbuf, False, shared.size)
        dtype = parts.datatype.layout.native
        target = None if _in_place(recvbuf) else simple(recvbuf, True)

        def call() -> None:
            counts = _bytes(parts)
            shared.communicator.broadcast(counts, root)
            output = np.empty(int(counts[root]), np.uint8)
            data = _joined(parts.parts).view(dtype)
            counted = _elements(counts, dtype)
            shared.communicator.scatter(array=data, output=output.view(dtype), root=root, counts=counted)
            if target is not None:
                _fitting(self, target, output)

        return call

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared: CommunicatorState = self._need()
        parts = vector(recvbuf, True, shared.size)
        dtype = parts.datatype.layout.native
        mine = parts.parts[shared.rank] if _in_place(sendbuf) else simple(sendbuf, False)

        def call() -> None:
            counts = _bytes(parts)
            data = np.empty(int(counts.sum()), np.uint8)
            counted = _elements(counts, dtype)
            shared.communicator.all_gather(mine.read().view(dtype), data.view(dtype), counts=counted)
            _divide(parts.parts, data)

        return call

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared: CommunicatorState = self._need()
        targets = vector(recvbuf, True, shared.size)
        sources = targets if _in_place(sendbuf) else vector(sendbuf, False, shared.size)
        return self._exchange(shared, sources.parts, targets.parts, targets.datatype.layout.native)

    def _alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        shared: CommunicatorState = self._need()
        targets = vector_of_types(recvbuf, True, shared.size)
        sources = targets if _in_place(sendbuf) else vector_of_types(sendbuf, False, shared.size)
        return self._exchange(shared, sources, targets, np.dtype(np.uint8))

    def _exchange(
        self, shared: CommunicatorState, sources: list[BufferSpec], targets: list[BufferSpec], dtype: np.dtype[Any]
    ) -> Made:
        def call() -> None:
            given = _joined(sources)
            data = np.empty(sum(one.bytes for one in targets), np.uint8)
            counts = _elements(np.array([one.bytes for one in sources], np.int64), dtype)
            shared.communicator.all_to_all(given.view(dtype), data.view(dtype), counts=counts)
            _divide(targets, data)

        return call

    # Reductions --------------------------------------------------------------------------------------------------------

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Made:
        shared = self._rooted(root)
        is_root = shared.rank == root
        if is_root:
            made = _reduced_there(
                lambda buf, op: shared.communicator.reduce(buf, root, op, shared.algorithm_of_reduce(buf.nbytes)),
                sendbuf,
                recvbuf,
                op,
            )
            if made is not None:
                return made
        target = simple(recvbuf, True) if is_root else None
        source = target if _in_place(sendbuf) and is_root else simple(sendbuf, False)
        assert source is not None
        reduction = _Reduction(shared, op, source)
        if target is not None:
            _alike("Reduce", source, target)

        def call() -> None:
            data = reduction.to_one(source.read().copy(), root)
            if target is not None:
                target.write(data)

        return call

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        shared: CommunicatorState = self._need()
        if (made := _reduced_there(shared.communicator.all_reduce, sendbuf, recvbuf, op)) is not None:
            return made
        target, source = _ends("Allreduce", sendbuf, recvbuf)
        reduction = _Reduction(shared, op, target)

        def call() -> None:
            data = target.read()
            if source is not target:
                data[:] = source.read()
            _put(target, reduction.to_all(data), data)

        return call

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        shared: CommunicatorState = self._need()
        if _are_plain(recvbuf, sendbuf, parts=shared.size) and (known := _engines_op(op, recvbuf)) is not None:
            return lambda: shared.communicator.reduce_scatter(sendbuf.reshape(-1), recvbuf.reshape(-1), known)
        if _in_place(sendbuf):
            target = simple(recvbuf, True, shared.size)
            source = _times(target, shared.size)
        else:
            target = simple(recvbuf, True)
            source = _times(simple(sendbuf, False, shared.size), shared.size)
            _alike("Reduce_scatter_block", source, _times(target, shared.size))
        reduction = _Reduction(shared, op, target)
        return lambda: target.write(reduction.to_parts(source.read().copy(), [target.bytes] * shared.size))

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Made:
        shared: CommunicatorState = self._need()
        whole = simple(recvbuf, True)
        if recvcounts is None:
            if _in_place(sendbuf):
                counts = [whole.count // shared.size + (whole.count % shared.size > one) for one in range(shared.size)]
            else:
                counts = np.empty(shared.size, np.int64)  # type: ignore[assignment]
                shared.run(lambda: shared.communicator.all_gather(np.array([whole.count], np.int64), counts))
        else:
            counts = list(recvcounts)
            if len(counts) != shared.size:
                raise ValueError(f"expecting {shared.size} items, got {len(counts)}")
        counts = [int(one) for one in counts]
        source = whole if _in_place(sendbuf) else simple(sendbuf, False)
        if source is not whole:
            _same_type("Reduce_scatter", source, whole)
            if whole.count != counts[shared.rank]:
                own = f"recvcounts[{shared.rank}] = {counts[shared.rank]}"
                raise ValueError(f"Reduce_scatter: mismatch in receive count {whole.count} and {own}")
        if source.count != sum(counts):
            raise ValueError(f"message: mismatch in send count {source.count} and sum(counts) {sum(counts)}")
        target = BufferSpec(whole.raw, whole.start, counts[shared.rank], whole.datatype, whole.owner)
        reduction = _Reduction(shared, op, target)
        size = target.layout.size
        return lambda: target.write(reduction.to_parts(source.read().copy(), [one * size for one in counts]))

    def _scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        shared: CommunicatorState = self._need()
        if (made := _reduced_there(shared.communicator.scan, sendbuf, recvbuf, op)) is not None:
            return made
        target, source = _ends("Scan", sendbuf, recvbuf)
        reduction = _Reduction(shared, op, target)
        return lambda: target.write(reduction.prefix(source.read().copy(), inclusive=True))

    def _exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        shared: CommunicatorState = self._need()
        target, source = _ends("Exscan", sendbuf, recvbuf)
        reduction = _Reduction(shared, op, target)

        def call() -> None:
            data = reduction.prefix(source.read().copy(), inclusive=False)
            if shared.rank:
                target.write(data)

        return call

    def _rooted(self, root: int) -> CommunicatorState:
        shared: CommunicatorState = self._need()
        if type(root) is not int:
            root = whole("root", root)
        if not 0 <= root < shared.size:
            self._fail(error("ERR_ROOT", f"root must be a rank from 0 to {shared.size - 1}, not {root}"))
        return shared


class _Reduction:
    """One operation on one datatype: by the engine, or on gathered data where the engine does not know them."""

    def __init__(self, shared: CommunicatorState, op: Op, block: BufferSpec) -> None:
        if not isinstance(op, Op):
            raise TypeError(f"expected an Op, not {type(op).__name__}")
        self.operation, self.datatype = op._need(), block.datatype
        self.communicator, self.rank, self.size = shared.communicator, shared.rank, shared.size
        self.algorithm = shared.algorithm_of_reduce
        self.engines = self.operation.for_engine(self.datatype)
        self.dtype = self.datatype.layout.native

    def to_one(self, data: Bytes, root: int) -> Bytes:
        if self.engines is not None:
            self.communicator.reduce(data.view(self.dtype), root, self.engines, self.algorithm(data.size))
            return data
        everything = np.empty((self.size, data.size), np.uint8) if self.rank == root else None
        self.communicator.gather(data, everything, root)
        return data if everything is None else self._folded(everything)

    def to_all(self, data: Bytes) -> Bytes:
        if self.engines is not None:
            self.communicator.all_reduce(data.view(self.dtype), self.engines)
            return data
        return self._folded(self._everything(data))

    def to_parts(self, data: Bytes, lengths: list[int]) -> Bytes:
        start = sum(lengths[: self.rank])
        if self.engines is None:
            return self._folded(self._everything(data))[start : start + lengths[self.rank]]
        output = np.empty(lengths[self.rank], np.uint8)
        counts = None if len(set(lengths)) == 1 else _elements(np.array(lengths), self.dtype)
        self.communicator.reduce_scatter(data.view(self.dtype), output.view(self.dtype), self.engines, counts=counts)
        return output

    def prefix(self, data: Bytes, inclusive: bool) -> Bytes:
        if self.engines is not None:
            call = self.communicator.scan if inclusive else self.communicator.exscan
            call(data.view(self.dtype), self.engines)
            return data
        everything = self._everything(data)
        last = self.rank + inclusive
        return self._folded(everything[:last]) if last else data

    def _everything(self, data: Bytes) -> Any:
        everything = np.empty((self.size, data.size), np.uint8)
        self.communicator.all_gather(data, everything)
        return everything

    def _folded(self, everything: Any) -> Bytes:
        total: Bytes = everything[0].copy()
        for one in everything[1:]:
            total = self.operation.folded(total, one.copy(), self.datatype)
        return total


def _are_plain(written: Any, read: Any, times: int = 1, parts: int = 1) -> bool:
    """True if both are whole arrays of one type that the engine knows, and `parts` of the one that is written are as long as
    `times` of the other."""
    found = plain(written, True)
    return (
        found is not None
        and written.dtype is found.layout.native
        and plain(read, False) is found
        and written.size * parts == read.size * times
    )


def _engines_op(op: Op, written: Any) -> Any:
    """The engine's operation, if it knows it for the type of a whole array; otherwise None."""
    found = plain(written, True)
    if found is None or not isinstance(op, Op) or written.dtype is not found.layout.native:
        return None
    return op._need().for_engine(found)


def _reduced_there(call: Callable[[Any, Any], Any], sendbuf: Any, recvbuf: Any, op: Op) -> Made | None:
    """Make an in-place call of the engine in `recvbuf`; None unless the engine knows the type and the operation of whole
    arrays."""
    known, is_here = _engines_op(op, recvbuf), _in_place(sendbuf)
    if known is None or not (is_here or _are_plain(recvbuf, sendbuf)):
        return None

    def reduce() -> None:
        if not is_here:
            recvbuf[...] = sendbuf if sendbuf.shape == recvbuf.shape else sendbuf.reshape(recvbuf.shape)
        call(recvbuf, known)

    return reduce


def _in_place(buf: Any) -> bool:
    return buf is None or isinstance(buf, InPlaceType)


def _times(block: BufferSpec, many: int) -> BufferSpec:
    return BufferSpec(block.raw, block.start, block.count * many, block.datatype, block.owner)


def _own(sendbuf: Any, part: BufferSpec, rank: int, size: int) -> Callable[[], Bytes]:
    """The contribution of this rank; in place, it lies in its part of the result."""
    if _in_place(sendbuf):
        own = BufferSpec(part.raw, part.start + rank * part.count * part.layout.extent, part.count, part.datatype)
        return lambda: own.read().copy()
    return simple(sendbuf, False).read


def _ends(name: str, sendbuf: Any, recvbuf: Any) -> tuple[BufferSpec, BufferSpec]:
    target = simple(recvbuf, True)
    source = target if _in_place(sendbuf) else simple(sendbuf, False)
    _alike(name, source, target)
    return target, source


def _same_type(name: str, source: BufferSpec, target: BufferSpec) -> None:
    if source.datatype is not target.datatype and source.datatype != target.datatype:
        raise ValueError(f"{name}: mismatch in send and receive MPI datatypes")


def _alike(name: str, source: BufferSpec, target: BufferSpec) -> None:
    _same_type(name, source, target)
    if source.bytes != target.bytes:
        raise ValueError(f"{name}: mismatch in send count {source.count} and receive count {target.count}")


def _put(block: BufferSpec, data: Bytes, own: Bytes | None = None) -> None:
    """Write the result to its block, unless it was computed there; `own`: the block's memory, if that is possible."""
    if not block.is_plain or (own is not None and data is not own):
        block.write(data)


def _writable(data: Bytes) -> Bytes:
    return data if data.flags.writeable else data.copy()


def _bytes(parts: VectorSpec) -> Any:
    return np.array([one.bytes for one in parts.parts], np.int64)


def _elements(bytes: Any, dtype: np.dtype[Any]) -> list[int]:
    return [int(one) // dtype.itemsize for one in bytes]


def _joined(parts: list[BufferSpec]) -> Bytes:
    return np.concatenate([one.read() for one in parts]) if parts else np.empty(0, np.uint8)


def _divide(parts: list[BufferSpec], data: Bytes) -> None:
    start = 0
    for one in parts:
        one.write(data[start : start + one.bytes])
        start += one.bytes


def _fitting(comm: MessageCalls, block: BufferSpec, data: Bytes) -> None:
    if data.size > block.bytes:
        comm._fail(error("ERR_TRUNCATE", f"the root sends {data.size} bytes, and there is room for {block.bytes}"))
    block.write(data)


def with_forms(*names: str) -> Callable[[Class], Class]:
    """Add each collective in its three forms: `Bcast`, `Ibcast` and `Bcast_init`."""

    def add(cls: Class) -> Class:
        for name in names:
            for form, one in _forms(name).items():
                one.__name__, one.__qualname__ = form, f"{cls.__name__}.{form}"
                setattr(cls, form, one)
        return cls

    return add


def _forms(name: str) -> dict[str, Any]:
    prepare = f"_{name.lower()}"

    def now(self: Any, *args: Any, **more: Any) -> None:
        self._run(getattr(self, prepare)(*args, **more))

    def later(self: Any, *args: Any, **more: Any) -> Request:
        call = getattr(self, prepare)(*args, **more)
        request = Request._of(self._need().begin(call, self._fail))
        request._buf = args
        return request

    def repeated(self: Any, *args: Any, info: Any = None, **more: Any) -> Prequest:
        from .info import Info

        given = args[:-1] if args and isinstance(args[-1], Info) else args
        call = getattr(self, prepare)(*given, **more)
        shared = self._need()
        request = Prequest._of(Repeated(lambda: shared.begin(call, self._fail)))
        request._buf = args
        return request

    return {name: now, f"I{name[0].lower()}{name[1:]}": later, f"{name}_init": repeated}
