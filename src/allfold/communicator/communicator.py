"""The communicator: what users hold. A rank, a size, and every collective on real data between real processes.

Memory. `all_reduce`, `reduce`, `broadcast`, `scan` and `exscan` work in place: the array that is given becomes the
result (on ranks that get none, `reduce` uses it as workspace and leaves it undefined). The others take an input and an
output, or return a new array where no output is given; the whole array is the concatenation of the ranks' parts in
order. Arrays are anything contiguous in memory that supports the buffer protocol or DLPack; a NumPy array or a torch
tensor that is not contiguous is copied, and the result copied back. Arrays made by `empty` lie in shared memory, and
collectives on them copy nothing. Numbers are taken too, and their results returned; `all_gather_object` and its like
take any object.

Every call must be made by every rank, in the same order, with the same collective, count, type, operation and root;
otherwise all ranks raise `MismatchError`. No call waits longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, SupportsIndex
from warnings import warn

import numpy as np

from ..collectives import COLLECTIVES
from ..division import Lengths
from ..dtypes import find_dtype
from ..engines.buffer import Kind, check_writable, contiguous, copied, overlap, put_back
from ..engines.choose import Engines, meet
from ..engines.engine import DEFAULT_TIMEOUT, Array, Call, Engine, Entry, Processes, UnfitArray
from ..errors import MismatchError, SharedMemoryError, UsageError
from ..ops import Op, check_average, find_op
from ..registry import AnyAlgorithm
from .handle import Handle
from .messages import PointToPoint
from .objects import Objects
from .timeouts import check_timeout
from .trace import Trace
from .values import (
    NUMBERS,
    as_array,
    describe_part,
    in_place,
    number_in,
    output_for,
    output_of_length,
    whole_numbers,
)

Algorithm = AnyAlgorithm | None
Counts = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any] | None

_NAMES = tuple(COLLECTIVES)
(
    _ALL_REDUCE,
    _REDUCE,
    _BROADCAST,
    _GATHER,
    _SCATTER,
    _ALL_GATHER,
    _REDUCE_SCATTER,
    _ALL_TO_ALL,
    _SCAN,
    _EXSCAN,
    _BARRIER,
) = range(len(_NAMES))


def connect(rank: int, size: int, key: str, timeout: float = DEFAULT_TIMEOUT, room: int | None = None) -> Communicator:
    """Connect to the other ranks that use the same key; returns the communicator of all of them.

    `room` is how much of this process's address space the engine may take.
    """
    return join(Processes(rank, size, key, room=room), timeout)


def join(ranks: Processes, timeout: float = DEFAULT_TIMEOUT, engine: str | None = None) -> Communicator:
    """Connect to the other ranks, on the named engine if there is one; returns the communicator of all of them."""
    if timeout is None:
        raise UsageError("timeout must be a number of seconds: calls that are given none take this one")
    check_timeout("connect", timeout)
    return Communicator(meet(ranks, timeout, engine))


class Communicator(PointToPoint, Objects):
    """A group of ranks that communicate. Made by `connect`, `init`, `spawn` and `group`.

    >>> x = np.full(4, comm.rank + 1.0)
    >>> comm.all_reduce(x)
    >>> comm.rank, comm.size, x
    (0, 2, array([3., 3., 3., 3.]))
    """

    def __init__(self, engine: Engine) -> None:
        self.rank = engine.rank
        self.size = engine.size
        self.timeout = engine.timeout
        self.engine = engine
        """One rank's end of the group, which makes the calls: for tools that ask about hosts, networks and calls."""
        self._engines = Engines(engine)
        self._call: Entry = engine.entry(self._run)

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}, {self.engine.label}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(compares=kind is None)

    # Collectives -----------------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        array: Array,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine the arrays of all ranks; every rank's array becomes the result.

        A number cannot be changed: for numbers, the result is returned.

        >>> x = np.array([comm.rank, 10.0])
        >>> comm.all_reduce(x, op="max", algorithm="ring")
        >>> x
        array([ 1., 10.])
        >>> handle = comm.all_reduce(x, async_op=True)  # other work can be done here
        >>> handle.wait()
        >>> x
        array([ 2., 20.])
        >>> comm.all_reduce(comm.rank + 0.5)
        2.0
        """
        return self._call(_ALL_REDUCE, None, array, op, 0, algorithm, async_op, timeout, dtype)

    def reduce(
        self,
        array: Array,
        root: int = 0,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine the arrays of all ranks; the root's array becomes the result, the others are used as workspace.

        For numbers, the result is returned: None on ranks other than the root.

        >>> x = np.array([1, 2]) * (comm.rank + 1)
        >>> comm.reduce(x, root=0)
        >>> x
        array([3, 6])
        """
        return self._call(_REDUCE, None, array, op, root, algorithm, async_op, timeout, dtype)

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Every rank's array becomes a copy of the root's. For numbers, the root's is returned.

        >>> x = np.arange(3.0) if comm.rank == 0 else np.empty(3)
        >>> comm.broadcast(x, root=0)
        >>> x
        array([0., 1., 2.])
        """
        return self._call(_BROADCAST, None, array, None, root, algorithm, async_op, timeout, dtype)

    def gather(
        self,
        array: Array,
        output: Array = None,
        root: int = 0,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
        counts: Counts = None,
    ) -> Any:
        """The root's output becomes all ranks' arrays, one after the other; other ranks pass no output.

        If the root passes none either, a new array is returned there, and None elsewhere. `counts`: see `all_gather`.

        >>> output = np.empty(4, np.int64) if comm.rank == 0 else None
        >>> comm.gather(np.array([comm.rank, 10 + comm.rank]), output, root=0)
        >>> output
        array([ 0, 10,  1, 11])
        """
        if self.rank == root:
            if output is None and counts is None:
                return self._returned(_GATHER, array, None, root, algorithm, async_op, timeout, dtype)
        elif output is not None:
            raise UsageError(f"gather: only the root passes an output; this is rank {self.rank}, the root is {root}")
        if counts is not None:
            return self._uneven(_GATHER, array, output, None, root, algorithm, async_op, timeout, dtype, counts)
        return self._call(_GATHER, array, output, None, root, algorithm, async_op, timeout, dtype)

    def scatter(
        self,
        *order: Any,
        array: Array = None,
        output: Array = None,
        root: int = 0,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
        counts: Counts = None,
    ) -> Any:
        """Every rank's output becomes its part of the root's array; other ranks pass no array.

        If no rank passes an output, a new array is returned. It takes one more message, which says how long it is.
        `counts`: see `all_gather`.

        Pass arguments by name. In order they are still taken as `(output, array, root, …)`, with a `DeprecationWarning`:
        the other collectives have the array first, and so will this one.

        >>> output = np.empty(2, np.int64)
        >>> comm.scatter(array=np.arange(4) if comm.rank == 0 else None, output=output, root=0)
        >>> output
        array([0, 1])
        """
        if order:
            # Between two arrays of one rank nothing tells which is the input, so the new order cannot be taken yet.
            warn(
                "scatter(output, array, …): pass array=… and output=… by name; a later version takes the array first",
                DeprecationWarning,
                stacklevel=2,
            )
            named = {"output": output, "array": array, "root": root, "algorithm": algorithm}
            named |= {"async_op": async_op, "timeout": timeout, "dtype": dtype, "counts": counts}
            if len(order) > len(named):
                raise TypeError(f"scatter takes at most {len(named)} arguments in order, got {len(order)}")
            return self.scatter(**{**named, **dict(zip(named, order, strict=False))})
        if (array is None) != (self.rank != root):
            raise UsageError(f"scatter: only the root passes an array; this is rank {self.rank}, the root is {root}")
        if output is None:
            return self._scattered(array, root, algorithm, async_op, timeout, dtype, counts)
        if counts is not None:
            return self._uneven(_SCATTER, array, output, None, root, algorithm, async_op, timeout, dtype, counts)
        return self._call(_SCATTER, array, output, None, root, algorithm, async_op, timeout, dtype)

    def all_gather(
        self,
        array: Array,
        output: Array = None,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
        counts: Counts = None,
    ) -> Any:
        """Every rank's output becomes all ranks' arrays, one after the other; without an output, a new array is returned.

        `counts`: the elements of every rank's array, by rank, if they are not equally many; the same on all ranks. An
        array may be empty.

        >>> output = np.empty(2, np.int64)
        >>> comm.all_gather(np.array([comm.rank + 5]), output)
        >>> output
        array([5, 6])
        >>> comm.all_gather([comm.rank, 7])
        array([0, 7, 1, 7])
        >>> comm.all_gather(np.arange(1 + 2 * comm.rank), counts=[1, 3])
        array([0, 0, 1, 2])
        """
        if counts is not None:
            return self._uneven(_ALL_GATHER, array, output, None, 0, algorithm, async_op, timeout, dtype, counts)
        if output is None:
            return self._returned(_ALL_GATHER, array, None, 0, algorithm, async_op, timeout, dtype)
        return self._call(_ALL_GATHER, array, output, None, 0, algorithm, async_op, timeout, dtype)

    def reduce_scatter(
        self,
        array: Array,
        output: Array = None,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
        counts: Counts = None,
    ) -> Any:
        """Combine the arrays of all ranks; every rank's output becomes its part of the result.

        Without an output, a new array is returned. `counts`: the elements of every rank's part; see `all_gather`.

        >>> output = np.empty(1, np.int64)
        >>> comm.reduce_scatter(np.array([1, 2]) * (comm.rank + 1), output)
        >>> output
        array([3])
        """
        if counts is not None:
            return self._uneven(_REDUCE_SCATTER, array, output, op, 0, algorithm, async_op, timeout, dtype, counts)
        if output is None:
            return self._returned(_REDUCE_SCATTER, array, op, 0, algorithm, async_op, timeout, dtype)
        return self._call(_REDUCE_SCATTER, array, output, op, 0, algorithm, async_op, timeout, dtype)

    def all_to_all(
        self,
        array: Array,
        output: Array = None,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
        counts: Counts = None,
    ) -> Any:
        """Part j of rank i's array becomes part i of rank j's output; without an output, a new array is returned.

        `counts`, if parts are not equally long: the elements that this rank sends to each rank. The ranks then exchange
        these numbers first, in a small all_gather that waits for all of them. If every rank knows what all ranks send,
        it may pass all rows, one per rank, the same on every rank; nothing is exchanged then.

        >>> output = np.empty(2, np.int64)
        >>> comm.all_to_all(np.array([10, 11]) + 10 * comm.rank, output)
        >>> output
        array([10, 20])
        >>> comm.all_to_all(np.array([10, 11, 12]) + 10 * comm.rank, counts=[1, 2])  # rank 0 sends 1 to itself
        array([10, 20])
        """
        if counts is not None:
            return self._uneven(_ALL_TO_ALL, array, output, None, 0, algorithm, async_op, timeout, dtype, counts)
        if output is None:
            return self._returned(_ALL_TO_ALL, array, None, 0, algorithm, async_op, timeout, dtype)
        return self._call(_ALL_TO_ALL, array, output, None, 0, algorithm, async_op, timeout, dtype)

    def scan(
        self,
        array: Array,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine the arrays of ranks 0 to r, in this order, on rank r: an inclusive prefix.

        Every rank's array becomes its result; for numbers, it is returned. `avg` is not defined here.

        >>> x = np.array([10.0, comm.rank + 1])
        >>> comm.scan(x)  # rank 1 gets [20, 3]
        >>> x
        array([10.,  1.])
        >>> comm.scan(comm.rank + 5)
        5
        """
        return self._call(_SCAN, None, array, op, 0, algorithm, async_op, timeout, dtype)

    def exscan(
        self,
        array: Array,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine the arrays of ranks 0 to r−1, in this order, on rank r: an exclusive prefix.

        Every rank's array becomes its result; for numbers, it is returned. Rank 0, which has no rank below it, keeps
        what it has (MPI leaves that undefined). `avg` is not defined here.

        >>> begins = comm.exscan(3 + comm.rank)  # rank 1 gets 3
        >>> begins if comm.rank else 0
        0
        """
        return self._call(_EXSCAN, None, array, op, 0, algorithm, async_op, timeout, dtype)

    def barrier(
        self, algorithm: Algorithm = None, async_op: bool = False, timeout: float | None = None
    ) -> Handle | None:
        """Return when every rank has entered the barrier.

        >>> comm.barrier()  # both ranks have reached this line
        """
        handle: Handle | None = self._call(_BARRIER, None, None, None, 0, algorithm, async_op, timeout, None)
        return handle

    # Memory, groups, life --------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An array in shared memory. Collectives on it, its slices and tensors made from it copy nothing.

        `bfloat16` is stored as uint16; pass `dtype="bfloat16"` to the collectives then.

        >>> x = comm.empty((2, 3), np.float64)
        >>> x[:] = comm.rank + 1
        >>> comm.all_reduce(x)  # copies nothing
        >>> x
        array([[3., 3., 3.],
               [3., 3., 3.]])
        """
        carrier = find_dtype(dtype).carrier
        lengths = whole_numbers(shape if isinstance(shape, Iterable) else [shape])
        if lengths is None or any(length < 0 for length in lengths):
            raise UsageError(f"empty: expected non-negative whole numbers as lengths, not {shape!r}")
        bytes = prod(lengths) * carrier.itemsize
        if max(bytes, *lengths, 0) >= 2**47:
            raise SharedMemoryError(f"empty: {shape!r} exceeds a process's address space")
        return self.engine.empty(bytes).view(carrier).reshape(lengths)

    def group(self, ranks: Sequence[int], timeout: float | None = None) -> Communicator | None:
        """A communicator of some of the ranks, renumbered in the order given; None for ranks outside.

        Every rank of this communicator takes part in the call. Different ranks may name different groups at the same
        time, as long as all ranks of a group name the same ranks in the same order.

        >>> alone = comm.group([comm.rank])
        >>> alone.rank, alone.size
        (0, 1)
        >>> alone.close()
        """
        chosen = whole_numbers(ranks) if isinstance(ranks, Iterable) else None
        if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= rank < self.size for rank in chosen):
            raise UsageError(f"group: expected different ranks from 0 to {self.size - 1}, not {ranks!r}")
        check_timeout("group", timeout)
        engine = self.engine.group(chosen, timeout)
        return None if engine is None else Communicator(engine)

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """Record every instruction of the calls inside, on all ranks; all ranks take part in the call.

        >>> x = comm.empty(1000)
        >>> x[:] = 1
        >>> with comm.trace() as trace:
        ...     comm.all_reduce(x, algorithm="ring")
        >>> len(trace.to_json()) > 0
        True
        """
        trace = Trace(self)
        self.engine.start_trace()
        try:
            yield trace
        finally:
            events = self.engine.stop_trace()
        trace.collect(events)

    def shrink(self, timeout: float | None = None) -> Communicator:
        """After an error: a communicator of the surviving ranks, renumbered in their old order.

        Every rank that is left takes part. It ends the calls of this communicator on all ranks: these raise, and the
        ranks must then call `shrink` as well. After a mismatch, where no rank is lost, the result is a communicator of
        all ranks again.

        >>> other = comm.group([0, 1])  # for a group, as for the communicator itself
        >>> left = other.shrink()  # no rank was lost: all are left
        >>> left.rank, left.size
        (0, 2)
        >>> left.close()
        """
        check_timeout("shrink", timeout)
        return Communicator(self.engine.shrink(timeout))

    def flight(self) -> dict[str, Any]:
        """This rank's flight records: its last 256 calls with their times, and the rank's standing.

        >>> comm.barrier()
        >>> comm.flight()["calls"][-1]["collective"]
        'barrier'
        """
        return self.engine.flight()

    def close(self) -> None:
        """Leave. Calls of other ranks that would need this one fail, naming it.

        A rank that needed nobody in its last call (the root of a broadcast) waits up to a second for the others to make
        that call, and raises `MismatchError` if one of them made a different one.

        >>> other = comm.group([0, 1])
        >>> other.close()
        """
        self._leave(compares=True)

    def abort(self) -> None:
        """End all calls on this communicator, here and on all other ranks, from any thread.

        >>> other = comm.group([0, 1])
        >>> other.abort()
        """
        self._engines.abort()

    def _leave(self, compares: bool) -> None:
        self._engines.close(compares)

    # ---

    def entry(self) -> Entry:
        """The shortest way to make calls, for backends; `engines.engine.Entry` says what it takes.

        A tensor that supports DLPack's fast exchange is taken as it lies in memory. That exchange does not say whether
        the tensor is to be conjugated or negated first: the caller must have checked it. The caller keeps the
        communicator, because the entry alone cannot make every call.

        >>> call, x = comm.entry(), np.ones(3)
        >>> call(0, None, x, "sum", 0, None, False, 10.0, None)  # collective 0: all_reduce
        >>> x
        array([2., 2., 2.])
        """
        return self.engine.entry(self._run, vouched=True)

    def engine_for(self, memory: str, timeout: float | None = None) -> Engine:
        """The engine that serves arrays in main memory ("cpu") or in a GPU's ("cuda"), for backends.

        All ranks take part in the first use of a GPU.

        >>> comm.engine_for("cpu") is comm.engine
        True
        """
        return self._engines.for_memory("engine_for", memory, timeout)

    def summing(self) -> Callable[[Array, float | None], None]:
        """Deprecated: `all_reduce(array, timeout=…)` does the same as the function that is returned.

        >>> add, x = comm.summing(), np.ones(3)
        >>> add(x, 10.0)
        >>> x
        array([2., 2., 2.])
        """
        warn("Communicator.summing is deprecated; use all_reduce(array, timeout=…)", DeprecationWarning, stacklevel=2)
        call = self.entry()

        # It keeps the communicator: the entry alone cannot make every call.
        def sums(array: Array, timeout: float | None, _keeps: Communicator = self) -> None:
            call(_ALL_REDUCE, None, array, "sum", 0, None, False, timeout, None)

        return sums

    def _run(
        self,
        code: int,
        source: Array,
        target: Array,
        op: str | Op | None,
        root: int,
        algorithm: Algorithm,
        async_op: bool,
        timeout: float | None,
        dtype: str | None,
        counts: Lengths | None = None,
    ) -> Any:
        """One call, after checking its arguments; the engine's entry passes on to this what it cannot run directly."""
        collective = _NAMES[code]
        if COLLECTIVES[collective].in_place and isinstance(target, NUMBERS):
            return self._call_on_number(code, target, op, root, algorithm, async_op, timeout, dtype)
        source = as_array(collective, source)
        if isinstance(root, bool) or not isinstance(root, SupportsIndex):
            raise UsageError(f"{collective}: root must be a rank, a whole number, not {root!r:.40}")
        if not 0 <= root.__index__() < self.size:
            raise UsageError(f"{collective}: root must be a rank from 0 to {self.size - 1}, not {root}")
        check_timeout(collective, timeout)
        found = None if op is None else find_op(op)
        if found is not None:
            check_average(COLLECTIVES[collective], found)
        call = Call(
            collective,
            input=source,
            output=target,
            op=found,
            root=root,
            algorithm=algorithm,
            timeout=timeout,
            dtype=dtype,
            counts=counts,
        )
        try:
            ticket = self._engines.serving(call).run(call, bool(async_op))
        except UnfitArray:
            return self._run_copied(code, source, target, op, root, algorithm, async_op, timeout, dtype, counts)
        except MismatchError as error:
            if counts is not None:  # what ranks exchange of them is a digest
                error.args = (f"{error}; the counts here are {counts}",)
            raise
        return None if ticket is None else Handle(ticket, (source, target))

    def _call_on_number(
        self, code: int, number: Any, op: Any, root: int, algorithm: Algorithm, async_op: bool, *rest: Any
    ) -> Any:
        """A call that would change its array, on a number: returns the result."""
        collective = _NAMES[code]
        if async_op:
            raise UsageError(f"{collective}: a number cannot be changed in the background; pass x = numpy.array([…])")
        array = in_place(collective, number)
        self._call(code, None, array, op, root, algorithm, False, *rest)
        return number_in(array, number) if not COLLECTIVES[collective].ends.root_only or self.rank == root else None

    def _returned(
        self, code: int, array: Any, op: Any, root: int, algorithm: Algorithm, async_op: bool, *rest: Any
    ) -> Any:
        """A call without an output: returns a new one."""
        collective = _NAMES[code]
        if async_op:
            raise UsageError(f"{collective}: async_op requires an output")
        array = as_array(collective, array)
        output = output_for(collective, array, self.size)
        self._call(code, array, output, op, root, algorithm, False, *rest)
        return output

    def _uneven(
        self,
        code: int,
        array: Any,
        output: Any,
        op: Any,
        root: int,
        algorithm: Algorithm,
        async_op: bool,
        timeout: float | None,
        dtype: str | None,
        counts: Any,
    ) -> Any:
        """A call on parts of different lengths."""
        promise = COLLECTIVES[_NAMES[code]]
        if promise.exchanges and np.iterable(counts) and not any(map(np.iterable, counts)):
            counts = self._rows(counts, timeout)
        lengths = counts if isinstance(counts, Lengths) else Lengths(promise, self.size, counts)
        made = None
        if output is None and (self.rank == root or not promise.ends.root_only):
            if async_op:
                raise UsageError(f"{promise.name}: async_op requires an output")
            array = as_array(promise.name, array)
            output = made = output_of_length(promise.name, array, lengths.of_arrays(promise, self.rank)[1])
        handle = self._call(code, array, output, op, root, algorithm, async_op, timeout, dtype, lengths)
        return handle if made is None else made

    def _rows(self, counts: Any, timeout: float | None) -> Any:
        """The counts of all ranks in an all_to_all, gathered from each rank's own row."""
        row = Lengths(COLLECTIVES["all_gather"], self.size, counts).table
        rows = np.empty((self.size, self.size), np.int64)
        self._run(_ALL_GATHER, row, rows, None, 0, None, False, timeout, None)
        return rows

    def _scattered(
        self,
        array: Any,
        root: int,
        algorithm: Algorithm,
        async_op: bool,
        timeout: float | None,
        dtype: str | None,
        counts: Any = None,
    ) -> Any:
        """A scatter without an output: the root sends the shape of the parts, and every rank creates one."""
        if async_op:
            raise UsageError("scatter: async_op requires an output")
        wrong = part = None
        if self.rank == root:
            try:
                array = as_array("scatter", array)
                if counts is not None:
                    array = array.reshape(-1)
                part = describe_part(array, 1 if counts is not None else self.size)
            except UsageError as error:
                wrong = str(error)
        wrong, part = self._broadcast_json("scatter", (wrong, part), root, timeout)
        if wrong is not None:
            raise UsageError(wrong)
        kind, shape = part
        if counts is not None:
            lengths = Lengths(COLLECTIVES["scatter"], self.size, counts)
            output = Kind(*kind).new([lengths.of_arrays(COLLECTIVES["scatter"], self.rank)[1]])
            self._uneven(_SCATTER, array, output, None, root, algorithm, False, timeout, dtype, lengths)
            return output
        output = Kind(*kind).new(shape)
        self._call(_SCATTER, array, output, None, root, algorithm, False, timeout, dtype)
        return output

    def _run_copied(
        self, code: int, source: Array, target: Array, op: Any, root: int, algorithm: Algorithm, *rest: Any
    ) -> Handle | None:
        """The same call on contiguous copies, for arrays that are not contiguous themselves, or that overlap."""
        collective = _NAMES[code]
        plain_source, plain_target = (contiguous(collective, array) for array in (source, target))
        if target is not None:
            check_writable(collective, target)
        if source is not None and target is not None and overlap(plain_source, plain_target):
            # Copy the shorter one: an input that is a part of its output, or an output that is a part of its input.
            if COLLECTIVES[collective].ends.sliced:
                plain_target = copied(plain_target)
            else:
                plain_source = copied(plain_source)
        handle: Handle | None = self._run(code, plain_source, plain_target, op, root, algorithm, *rest)
        if target is None or plain_target is target:
            return handle
        if handle is None:
            put_back(target, plain_target)
        else:
            handle.afterwards(lambda: put_back(target, plain_target))
        return handle
