"""Messages of collectives between the ranks of a group, and the message programs that run on them.

Inside an island a message goes through shared memory, to other islands by the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ... import _native
from ...division import Division
from ...dtypes import Dtype
from ...fabrics.fabric import FOREVER, Bytes, Fabric, Transfer
from ...ops import Op
from ...programs.messages import (
    ARRIVED,
    ChunkPlace,
    InstructionKind,
    IslandCall,
    MessagePrograms,
    ProgramMessage,
    are_side_by_side,
)
from ...programs.versions import INPUT, OUTPUT, WORK
from ..buffer import Flat
from .recorder import Recorder

_LEAST_KEPT, _MOST_KEPT = 1 << 16, 64 << 20  # bytes; less is cheap to allocate, and more is too much to keep
_OPS = {name: number for number, name in enumerate(_native.OPS)}


class Inside:
    """A message through shared memory."""

    def __init__(self, channel: _native.Channel, operation: _native.Operation, peer: int, limit: float) -> None:
        self._channel, self._operation, self._peer, self._limit = channel, operation, peer, limit

    def wait(self, within: float = FOREVER) -> int:
        self._channel.wait(self._operation, min(within, self._limit))
        return self._peer


class PeerLinks:
    """Messages to and from every rank of a group: through shared memory, or by the fabric."""

    def __init__(self, fabric: Fabric, channel: _native.Channel, local: dict[int, int], limit: float) -> None:
        self.fabric, self._channel, self._limit = fabric, channel, limit
        self._local = local  # by rank of this island: its number there
        self.recorder: Recorder | None = None  # while a trace is on

    def send(self, peer: int, data: Bytes, tag: int) -> Transfer:
        if (number := self._local.get(peer)) is None:
            if self.recorder is not None:
                return self.recorder.send(self.fabric, peer, data, tag)
            return self.fabric.send(peer, data, tag)
        operation = self._channel.start(True, data, number, tag, None)
        return Inside(self._channel, operation, peer, self._limit)

    def receive(self, peer: int, data: Bytes, tag: int) -> Transfer:
        if (number := self._local.get(peer)) is None:
            if self.recorder is not None:
                return self.recorder.receive(self.fabric, peer, data, tag)
            return self.fabric.receive(peer, data, tag)
        operation = self._channel.start(False, data, number, tag, None)
        return Inside(self._channel, operation, peer, self._limit)


class Memory:
    """Reuses memory for messages: the system takes longer to provide fresh memory than it takes to fill it."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}
        self._kept = 0

    def take(self, bytes: int) -> Bytes:
        free = self._free.get(bytes)
        if not free:
            return np.empty(bytes, np.uint8)
        self._kept -= bytes
        return free.pop()

    def give_back(self, memory: Bytes) -> None:
        """Keep memory for reuse. All transfers that use it must have been waited for."""
        if not _LEAST_KEPT <= memory.size <= _MOST_KEPT:
            return
        if self._kept + memory.size > _MOST_KEPT:
            self._free.clear()
            self._kept = 0
        self._free.setdefault(memory.size, []).append(memory)
        self._kept += memory.size


Folding = Callable[[Sequence[Flat], Flat, bool], None]
CollectiveInside = Callable[[IslandCall, Flat | None, Flat | None], None]
"""A function that runs a collective of the island on its input and output."""


def folding(op: Op | None, dtype: Dtype, ranks: int) -> Folding:
    """A function that folds arrays into one. Its last argument: True if the result then has all ranks' contributions."""

    def fold(sources: Sequence[Flat], destination: Flat, complete: bool) -> None:
        if len(sources) == 1:
            destination[...] = sources[0]
        elif op is None or op.is_builtin:
            number = 0 if op is None else _OPS[op.name]
            _native.fold(number, dtype.name, sources, destination, ranks if complete and op and op.averages else 1)
        else:
            destination[...] = op.fold(sources, dtype)

    return fold


class MessageRun:
    """Runs one rank's message program on arrays: `start` up to the first wait, `finish` to the end."""

    def __init__(
        self,
        made: MessagePrograms,
        rank: int,
        peers: Sequence[int],
        links: PeerLinks,
        memory: Memory,
        tag: int,
        input: Flat | None,
        output: Flat | None,
        division: Division,
        dtype: Dtype,
        fold: Folding,
        remaining: Callable[[], float],
        inside: CollectiveInside | None = None,
        work: Bytes | None = None,
    ) -> None:
        """`peers`: the ranks that the program calls 0, 1, 2 …; `remaining`: the seconds that transfers may still take;
        `inside`: runs the collectives of the island; `work`: memory for the work slots."""
        self._made, self._program, self._at = made, made.programs[rank], 0
        self._begins = made.begins[rank] if made.begins else 0
        self._inside = inside
        self._peers, self._links, self._tag, self._fold = peers, links, tag, fold
        self._remaining, self._memory = remaining, memory
        self._taken: list[Bytes] = []
        self._itemsize, self._carrier = dtype.itemsize, dtype.carrier
        schedule = made.schedule
        promise, part = schedule.promise, schedule.chunks // schedule.promise.slices(schedule.ranks)
        self._length = division.length
        if not promise.carries_data:  # a barrier has chunks, but no arrays
            input = output = np.empty(0, dtype.carrier)
        # An array may hold only this rank's slice.
        self._arrays = {}
        for space, array, holds in ((INPUT, input, promise.starts), (OUTPUT, output, promise.ends)):
            bounds = division.bounds(rank, of_output=space == OUTPUT)
            self._arrays[space] = array, bounds, bounds[rank * part] if holds.sliced else 0
        self._longest, slots = division.longest, made.work_slots[rank]
        assert not made.even or division.is_even, "chunks must be equally long"
        self._work = (self._take(slots * self._longest) if work is None else work).view(dtype.carrier)
        self._arrived: dict[
            int, tuple[Flat, list[int]]
        ] = {}  # messages with memory of their own; the starts of their parts
        self._receives: dict[int, Transfer] = {}
        self._sends: dict[int, tuple[Transfer, Any]] = {}

    def begin(self) -> None:
        """In two-level programs: run up to the first wait for other islands."""
        while self._at < self._begins:
            self._do()

    def start(self) -> None:
        while self._at < len(self._program) and self._program[self._at].kind not in (
            InstructionKind.AWAIT,
            InstructionKind.SENT,
        ):
            self._do()

    def finish(self) -> None:
        while self._at < len(self._program):
            self._do()
        while self._taken:
            self._memory.give_back(self._taken.pop())

    def _do(self) -> None:
        one = self._program[self._at]
        self._at += 1
        if one.kind == InstructionKind.FOLD:
            length = self._length(one.length_of) * one.chunks
            destination = self._view(one.destination, length)
            if one.sources:
                self._fold([self._view(place, length) for place in one.sources], destination, one.complete)
            else:
                destination[...] = 0
        elif one.kind == InstructionKind.COLLECTIVE:
            assert self._inside is not None
            self._inside(self._made.collectives[one.message], self._together(one.sources), self._together(one.into))
        else:
            self._exchange(one.kind, one.message, self._made.messages[one.message])

    def _exchange(self, kind: InstructionKind, number: int, message: ProgramMessage) -> None:
        if kind == InstructionKind.POST:
            self._receives[number] = self._links.receive(self._peers[message.source], self._room(number), self._tag)
        elif kind == InstructionKind.AWAIT:
            self._receives.pop(number).wait(self._remaining())
        elif kind == InstructionKind.SEND:
            data = self._joined(message)
            self._sends[number] = self._links.send(self._peers[message.destination], data, self._tag), data
        else:
            self._sends.pop(number)[0].wait(self._remaining())

    def _take(self, elements: int) -> Bytes:
        self._taken.append(self._memory.take(elements * self._itemsize))
        return self._taken[-1]

    def _view(self, place: ChunkPlace, length: int) -> Flat:
        """This many elements, from the beginning of a place."""
        if place.space == WORK:
            start = place.at * self._longest
            return self._work[start : start + length]
        if place.space in self._arrays:
            array, bounds, shift = self._arrays[place.space]
            assert array is not None
            start = bounds[place.at] - shift
            return array[start : start + length]
        arrived, starts = self._arrived[place.at]
        return arrived[starts[place.part] : starts[place.part] + length]

    def _together(self, places: Sequence[ChunkPlace]) -> Flat | None:
        """The memory of adjacent places."""
        if not places or not self._made.schedule.promise.carries_data:
            return None
        first, last = places[0], places[-1]
        if first.space == WORK:
            return self._work[first.at * self._longest : (last.at + 1) * self._longest]
        array, bounds, shift = self._arrays[first.space]
        assert array is not None
        return array[bounds[first.at] - shift : bounds[last.at + 1] - shift]

    def _room(self, number: int) -> Bytes:
        """The memory that a message is received into: its destination, or memory of its own."""
        message = self._made.messages[number]
        total = sum(map(self._length, message.lengths))
        if message.into and total:
            array = self._together(message.into)
            assert array is not None
            return _as_bytes(array)
        # An empty message has one byte, so that there is something to wait for.
        memory = self._take(total) if total else np.empty(1, np.uint8)
        starts = list(accumulate(map(self._length, message.lengths), initial=0))
        self._arrived[number] = memory[: total * self._itemsize].view(self._carrier), starts
        return memory

    def _joined(self, message: ProgramMessage) -> Bytes:
        """The data of a message in one piece of memory: without a copy if its parts are adjacent."""
        lengths = list(map(self._length, message.lengths))
        if not sum(lengths):
            return np.zeros(1, np.uint8)
        chunks = (datum % self._made.schedule.chunks for datum in message.lengths)
        in_place = all(place.at == chunk for place, chunk in zip(message.places, chunks, strict=True))
        whole = (in_place and message.places[0].space in self._arrays) or self._made.even
        if whole and message.places[0].space != ARRIVED and are_side_by_side(message.places):
            array = self._together(message.places)
            assert array is not None
            return _as_bytes(array)
        parts = [self._view(*part) for part in zip(message.places, lengths, strict=True)]
        return _as_bytes(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _as_bytes(array: Flat) -> Bytes:
    return array.view(np.uint8)
