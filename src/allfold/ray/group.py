"""A group of Ray actors whose collectives are allfold's.

Ray hands over every array inside a list, with one entry per GPU; here it has one entry, in main memory. `allreduce`,
`broadcast` and `recv` change the array that is given. `reduce` changes the root's only, as Ray's own groups do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from .. import _native
from ..dtypes import describe
from ..engines.buffer import Buffer, Flat, check_writable, contiguous, memory_of, put_back, shape_of
from ..engines.engine import DEFAULT_TIMEOUT, MAIN, UnfitArray
from ..errors import AllfoldError, MismatchError, UsageError
from .meeting import meet

_OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "product", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}
_SMALL_BYTES = 256 * 1024  # of one array in a list: up to here a copy costs less than another call
_SEGMENT_BYTES = 4 << 20  # of one array in a list, copied at a time

Method = TypeVar("Method", bound=Callable[..., None])


def _names_the_group(method: Method) -> Method:
    """Add the name of the group to errors: an actor may be in several."""

    @functools.wraps(method)
    def call(self: RayGroup, *arguments: Any, **named: Any) -> None:
        try:
            method(self, *arguments, **named)
        except AllfoldError as error:
            error.args = (f"{error} (in Ray's group {self.group_name!r})",)
            raise

    return call  # type: ignore[return-value]


class RayGroup(BaseGroup):
    """One actor's end of a group: what `ray.util.collective` makes for `backend="allfold"`."""

    timeout = DEFAULT_TIMEOUT  # seconds, for making a group and for calls whose options name none

    @_names_the_group
    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._communicator = meet(group_name, rank, world_size, self.timeout)
        self._workspace: Flat | None = None  # shared memory for lists, created when first needed

    @classmethod
    def backend(cls) -> str:
        return "ALLFOLD"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return _native.MISSING is None

    @_names_the_group
    def destroy_group(self) -> None:
        """Leave the group: calls of others that need this member then fail, and name it."""
        self._workspace = None
        self._communicator.close()

    @_names_the_group
    def allreduce(self, tensor: Sequence[Any], allreduce_options: Any = None) -> None:
        array = _only("allreduce", tensor)
        self._communicator.all_reduce(array, _op("allreduce", allreduce_options), timeout=_seconds(allreduce_options))

    @_names_the_group
    def barrier(self, barrier_options: Any = None) -> None:
        self._communicator.barrier(timeout=_seconds(barrier_options))

    @_names_the_group
    def reduce(self, tensor: Sequence[Any], reduce_options: Any = None) -> None:
        array, root = _only("reduce", tensor), getattr(reduce_options, "root_rank", 0)
        op, timeout = _op("reduce", reduce_options), _seconds(reduce_options)
        if self.rank == root:
            self._communicator.reduce(array, root, op, timeout=timeout)
        else:
            _, own = _taken("reduce", array, written=False)
            # A copy, because the engine uses it as workspace.
            self._communicator.reduce(_flat(own).copy(), root, op, timeout=timeout, dtype=own.dtype.name)

    @_names_the_group
    def broadcast(self, tensor: Sequence[Any], broadcast_options: Any = None) -> None:
        root = getattr(broadcast_options, "root_rank", 0)
        self._communicator.broadcast(_only("broadcast", tensor), root, timeout=_seconds(broadcast_options))

    @_names_the_group
    def allgather(self, tensor_list: Sequence[list[Any]], tensor: Sequence[Any], allgather_options: Any = None) -> None:
        """Entry r of every rank's list becomes rank r's array. The arrays may differ in length from rank to rank."""
        timeout = _seconds(allgather_options)
        _, own = _taken("allgather", _only("allgather", tensor), written=False)
        outputs = self._entries("allgather", tensor_list)
        taken = [_taken("allgather", output, written=True) for output in outputs]
        counts = self._lengths("allgather", "the array to gather", own, [buffer for _, buffer in taken])
        flats = [_flat(buffer) for _, buffer in taken]
        if counts is None and own.bytes > _SMALL_BYTES:
            flats[self.rank][:] = _flat(own)
            for root, flat in enumerate(flats):
                self._communicator.broadcast(flat, root, timeout=timeout, dtype=own.dtype.name)
        else:
            table = np.empty(sum(flat.size for flat in flats), own.dtype.carrier)
            self._communicator.all_gather(_flat(own), table, timeout=timeout, dtype=own.dtype.name, counts=counts)
            start = 0
            for flat in flats:
                flat[:] = table[start : (start := start + flat.size)]
        for output, (plain, _) in zip(outputs, taken, strict=True):
            if plain is not output:
                put_back(output, plain)

    @_names_the_group
    def reducescatter(
        self, tensor: Sequence[Any], tensor_list: Sequence[list[Any]], reducescatter_options: Any = None
    ) -> None:
        """Rank r's array becomes the combination of entries r of all lists. The entries may differ in length."""
        output = _only("reducescatter", tensor)
        op, timeout = _op("reducescatter", reducescatter_options), _seconds(reducescatter_options)
        plain, own = _taken("reducescatter", output, written=True)
        entries = self._entries("reducescatter", tensor_list)
        parts = [_taken("reducescatter", entry, written=False)[1] for entry in entries]
        counts = self._lengths("reducescatter", "the array for the result", own, parts)
        flats = [_flat(part) for part in parts]
        if counts is None:
            self._reduce_scatter(flats, _flat(own), op, timeout, own.dtype.name)
        else:
            whole = np.concatenate(flats)
            self._communicator.reduce_scatter(
                whole, _flat(own), op, timeout=timeout, dtype=own.dtype.name, counts=counts
            )
        if plain is not output:
            put_back(output, plain)

    @_names_the_group
    def send(self, tensor: Sequence[Any], send_options: Any) -> None:
        """Send an array; it may be changed as soon as this returns, which may be before it was received."""
        array = _first(_only("send", tensor), send_options)
        self._communicator.send(array, send_options.dst_rank, timeout=_seconds(send_options))

    @_names_the_group
    def recv(self, tensor: Sequence[Any], recv_options: Any) -> None:
        array = _first(_only("recv", tensor), recv_options)
        message = self._communicator.recv(array, recv_options.src_rank, timeout=_seconds(recv_options))
        if message.elements != _length(array):
            raise UsageError(
                f"recv: rank {message.source} sent {message.elements} elements, and the array has {_length(array)}"
            )

    # ---

    def _reduce_scatter(self, parts: list[Flat], output: Flat, op: str, timeout: float | None, dtype: str) -> None:
        """A reduce_scatter of parts of equal length, in segments, so that only small copies are needed."""
        communicator, elements = self._communicator, output.size
        if self._workspace is None:
            self._workspace = communicator.empty(self.world_size * _SEGMENT_BYTES, np.uint8)
        workspace, step = self._workspace.view(output.dtype), _SEGMENT_BYTES // output.itemsize
        if elements > step:
            # Ranks with different lengths would make different numbers of calls, and the engine would notice too late.
            ends = np.array([elements, -elements])
            communicator.all_reduce(ends, "max", timeout=timeout)
            if ends[0] != -ends[1]:
                raise MismatchError(
                    f"reducescatter: the arrays of the ranks have from {-ends[1]} to {ends[0]} elements; this one has "
                    f"{elements}"
                )
        for start in range(0, elements or 1, step):
            stop = min(elements, start + step)
            rows = workspace[: self.world_size * (stop - start)].reshape(self.world_size, stop - start)
            for row, part in zip(rows, parts, strict=True):
                row[:] = part[start:stop]
            communicator.reduce_scatter(rows, output[start:stop], op, timeout=timeout, dtype=dtype)

    def _entries(self, call: str, lists: Sequence[list[Any]]) -> list[Any]:
        entries: list[Any] = _only(call, lists)
        if len(entries) != self.world_size:
            raise UsageError(
                f"{call}: the list has {len(entries)} arrays, expected one for each of {self.world_size} ranks"
            )
        for entry in entries:
            _check_memory(call, entry)
        return entries

    def _lengths(self, call: str, what: str, own: Buffer, entries: list[Buffer]) -> list[int] | None:
        """The lengths of the entries of a list, None if all are equal, after comparing them with this rank's array."""
        for place, entry in enumerate(entries):
            if entry.dtype != own.dtype or (place == self.rank and entry.elements != own.elements):
                raise UsageError(
                    f"{call}: entry {place} of the list is {describe(entry.dtype, [entry.elements])}, and {what} of rank "
                    f"{self.rank} is {describe(own.dtype, [own.elements])}"
                )
        lengths = [entry.elements for entry in entries]
        return None if len(set(lengths)) == 1 else lengths


def _only(call: str, arrays: Sequence[Any]) -> Any:
    if len(arrays) != 1:
        raise UsageError(f"{call}: allfold takes one array per actor, and {len(arrays)} were given")
    if not isinstance(arrays[0], list):
        _check_memory(call, arrays[0])
    return arrays[0]


def _check_memory(call: str, array: Any) -> None:
    if memory_of(array) != MAIN:
        raise UsageError(
            f"{call}: in Ray, allfold takes arrays in main memory; move this one there first (tensor.cpu())"
        )


def _taken(call: str, array: Any, written: bool) -> tuple[Any, Buffer]:
    """The array that holds the elements (this one, or a contiguous copy), and its buffer for the engine."""
    try:
        return array, Buffer.of(call, array, None, written)
    except UnfitArray:
        if written:
            check_writable(call, array)
        plain = contiguous(call, array)
        return plain, Buffer.of(call, plain, None, written)


def _flat(buffer: Buffer) -> Flat:
    assert buffer.flat is not None  # in main memory
    return buffer.flat


def _length(array: Any) -> int:
    return int(np.prod(shape_of(array)))


def _first(array: Any, options: Any) -> Any:
    """The array, or its first elements if the options name a number."""
    elements: int = getattr(options, "n_elements", 0)
    if not elements:
        return array
    if not 0 < elements <= _length(array):
        raise UsageError(f"n_elements is {elements}; the array has {_length(array)}")
    return array.reshape(-1)[:elements]


def _op(call: str, options: Any) -> str:
    op = getattr(options, "reduceOp", ReduceOp.SUM)
    if op not in _OPS:
        raise UsageError(f"{call}: expected a ReduceOp of Ray, not {op!r}")
    return _OPS[op]


def _seconds(options: Any) -> float | None:
    """The timeout of a call; None if the options name none. Ray's field is named timeout_ms, but may hold a timedelta."""
    timeout = getattr(options, "timeout_ms", -1)
    seconds: float = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout / 1000
    return None if seconds < 0 else seconds
