"""Messages of collectives between the ranks of a group, and the message programs that run on them.

Inside an island a message goes through shared memory, to other islands by the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...division import Division
from ...dtypes import Dtype
from ...fabrics.fabric import FOREVER, Bytes, Fabric, Transfer
from ...ops import Op
from ...programs.messages import ChunkPlace, Kind, MessagePrograms, ProgramMessage
from ...programs.versions import INPUT, OUTPUT, WORK
from ..buffer import Flat
from .recorder import Recorder

_LEAST_KEPT, _MOST_KEPT = 1 << 16, 64 << 20  # bytes; less is cheap to have anew, and more too much to keep
_OPS = {name: number for number, name in enumerate(_native.OPS)}


class Inside:
    """A message through shared memory."""

    def __init__(self, channel: _native.Channel, operation: _native.Operation, peer: int, limit: float) -> None:
        self._channel, self._operation, self._peer, self._limit = channel, operation, peer, limit

    def wait(self, within: float = FOREVER) -> int:
        self._channel.wait(self._operation, min(within, self._limit))
        return self._peer


class PeerLinks:
    """To every rank of a group, whatever way."""

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
    """Memory for messages that is used again: the system takes longer to hand out fresh memory than to fill it."""

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
        """After everything that was sent from it or received into it has been waited for."""
        if not _LEAST_KEPT <= memory.size <= _MOST_KEPT:
            return
        if self._kept + memory.size > _MOST_KEPT:
            self._free.clear()
            self._kept = 0
        self._free.setdefault(memory.size, []).append(memory)
        self._kept += memory.size


Folding = Callable[[Sequence[Flat], Flat, bool], None]


def folding(op: Op | None, dtype: Dtype, ranks: int) -> Folding:
    """A function that folds arrays into an array; it is told whether every rank's contribution is then in."""

    def fold(sources: Sequence[Flat], destination: Flat, complete: bool) -> None:
        if len(sources) == 1:
            destination[...] = sources[0]
        elif op is None or op.is_builtin:
            number = 0 if op is None else _OPS[op.name]
            _native.fold(number, dtype.name, sources, destination, ranks if complete and op and op.averages else 1)
        else:
            destination[...] = op.fold(sources, dtype)

    return fold


class Run:
    """One rank's message program, on real arrays. `start` goes as far as it can without waiting, `finish` to the end."""

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
        left: Callable[[], float],
    ) -> None:
        """`peers`: the ranks that the program calls 0, 1, 2 …; `left`: how many seconds the call may still take."""
        self._made, self._program, self._at = made, made.programs[rank], 0
        self._peers, self._links, self._tag, self._fold = peers, links, tag, fold
        self._left, self._memory = left, memory
        self._taken: list[Bytes] = []
        self._itemsize, self._carrier = dtype.itemsize, dtype.carrier
        schedule = made.schedule
        promise, part = schedule.promise, schedule.chunks // schedule.promise.slices(schedule.ranks)
        self._length = division.length
        if not promise.carries_data:  # a barrier has chunks, but no arrays
            input = output = np.empty(0, dtype.carrier)
        # An array may hold one slice only: its own rank's.
        self._arrays = {}
        for space, array, holds in ((INPUT, input, promise.starts), (OUTPUT, output, promise.ends)):
            bounds = division.bounds(rank, of_output=space == OUTPUT)
            self._arrays[space] = array, bounds, bounds[rank * part] if holds.sliced else 0
        self._slots = [self._take(division.longest).view(dtype.carrier) for _ in range(made.work_slots[rank])]
        self._arrived: dict[int, list[Flat]] = {}
        self._receives: dict[int, Transfer] = {}
        self._sends: dict[int, tuple[Transfer, Any]] = {}

    def post(self) -> None:
        """Begin the first receives, while the arrays are still in use: only those that go to memory of their own."""
        while self._at < len(self._program) and self._program[self._at].kind == Kind.POST:
            if self._made.messages[self._program[self._at].message].into:
                break
            self._do()

    def start(self) -> None:
        while self._at < len(self._program) and self._program[self._at].kind not in (Kind.AWAIT, Kind.SENT):
            self._do()

    def finish(self) -> None:
        while self._at < len(self._program):
            self._do()
        while self._taken:
            self._memory.give_back(self._taken.pop())

    def _do(self) -> None:
        one = self._program[self._at]
        self._at += 1
        if one.kind == Kind.FOLD:
            sources = [self._view(place, one.length_of) for place in one.sources]
            self._fold(sources, self._view(one.destination, one.length_of), one.complete)
            return
        number, message = one.message, self._made.messages[one.message]
        if one.kind == Kind.POST:
            data = self._room(number)
            self._receives[number] = self._links.receive(self._peers[message.source], data, self._tag)
        elif one.kind == Kind.AWAIT:
            self._receives.pop(number).wait(self._left())
        elif one.kind == Kind.SEND:
            data = self._joined(message)
            self._sends[number] = self._links.send(self._peers[message.destination], data, self._tag), data
        else:
            self._sends.pop(number)[0].wait(self._left())

    def _take(self, elements: int) -> Bytes:
        self._taken.append(self._memory.take(elements * self._itemsize))
        return self._taken[-1]

    def _view(self, place: ChunkPlace, length_of: int) -> Flat:
        length = self._length(length_of)
        if place.space == WORK:
            return self._slots[place.at][:length]
        if place.space in self._arrays:
            array, bounds, shift = self._arrays[place.space]
            assert array is not None
            start = bounds[place.at] - shift
            return array[start : start + length]
        return self._arrived[place.at][place.part]

    def _room(self, number: int) -> Bytes:
        """Where a message is received: where it belongs, or in memory of its own."""
        message = self._made.messages[number]
        lengths = [self._length(chunk) for chunk in message.lengths]
        if message.into and sum(lengths):
            array, bounds, shift = self._arrays[OUTPUT]
            assert array is not None
            start = bounds[message.into[0].at] - shift
            return _as_bytes(array[start : start + sum(lengths)])
        # Nothing at all is one byte, so that there is something to wait for.
        memory = self._take(sum(lengths)) if sum(lengths) else np.empty(1, np.uint8)
        whole = memory[: sum(lengths) * self._itemsize].view(self._carrier)
        ends = np.cumsum(lengths).tolist()
        self._arrived[number] = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        return memory

    def _joined(self, message: ProgramMessage) -> Bytes:
        """What a message carries, as one piece of memory: as it lies, if its parts lie side by side."""
        parts = [self._view(*part) for part in zip(message.places, message.lengths, strict=True)]
        total = sum(part.size for part in parts)
        if not total:
            return np.zeros(1, np.uint8)
        first, *others = message.places
        array, bounds, shift = self._arrays.get(first.space, (None, [], 0))
        side_by_side = all(place == (first.space, first.at + 1 + number, 0) for number, place in enumerate(others))
        chunks = (datum % self._made.schedule.chunks for datum in message.lengths)
        in_place = all(place.at == chunk for place, chunk in zip(message.places, chunks, strict=True))
        if array is not None and side_by_side and in_place:
            start = bounds[first.at] - shift
            return _as_bytes(array[start : start + total])
        return _as_bytes(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _as_bytes(array: Flat) -> Bytes:
    return array.view(np.uint8)
