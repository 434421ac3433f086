"""Programs on the GPU: the same compiled programs as in main memory, put into a stream.

Every rank has an arena in its GPU's memory, with two work areas, and a page in main memory with one word per peer, into
which the peer's stream writes how far it has come; all ranks reach all of them. An instruction is one kernel, or a
copy. "Wait until a peer has come far enough" is a wait of the stream for such a word. So no kernel ever waits for a
peer, and the host neither: it puts a call into the stream and goes on.

Nothing in a stream can raise. So a thread watches while calls are under way: it compares what the ranks called, and it
looks whether all ranks live. If something is wrong it lets its own stream go, by writing the words of its page itself,
and the next call raises the error.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ..collectives import COLLECTIVES, NOTHING
from ..division import chunk_bounds
from ..engines.engine import FAILURES, Call
from ..engines.shared_memory.engine import SharedMemory
from ..errors import AllfoldError, DeviceError, MismatchError, RankLost, UsageError
from ..programs.compile import INPUT, WORK, Programs
from ..proved import programs_of
from ..registry import AnyAlgorithm
from ..schedule import Schedule
from ..wording import name_ranks
from .driver import Device
from .kernels import MOST_ARRAYS
from .staging import OnDevice

AREA_BYTES = 64 << 20
"""Of each of the two work areas. Longer arrays go through them in segments."""
_ALIGNED = 256
_PAGE, _WORD_BYTES = 4096, 64  # a cache line per word
_MEETING = struct.Struct("=64s16sqq?")  # handle, identity of the GPU, flags, process, whether all went well
_NAMES = tuple(COLLECTIVES)
_LOOK_AGAIN_SECONDS = 0.002
_MOST_UNSEEN_SECONDS = 0.05  # a rank that has died may have finished its part before
_LET_GO = 1 << 30  # more than any wait is ahead

Slot = tuple[int, int, int]  # rank, space, index


class Instruction(NamedTuple):
    waits: list[tuple[int, int]]
    reuse: list[tuple[int, int]]
    sources: list[Slot]
    destinations: list[Slot]
    length_of: int
    complete: bool
    announce: bool


@dataclass(frozen=True)
class Program:
    """One rank's program, as it is put into a stream."""

    instructions: list[Instruction]
    leave: list[tuple[int, int]]
    stride: int
    work_slots: int
    one_area: bool
    chunks: int
    origins: tuple[int, int]  # the first chunk of the input, and of the output
    most_sources: int
    most_destinations: int


class Launched:
    """A call in the stream, and what is known of it."""

    def __init__(self, runner: Runner, words: np.ndarray[Any, Any], table: np.ndarray[Any, Any], ticket: Any) -> None:
        self.words, self.table, self.ticket = words, table, ticket
        self.event: int | None = None
        self._runner = runner

    def error(self) -> BaseException | None:
        return self._runner.failure


class Runner:
    """The calls of one engine on arrays of one GPU, which all its ranks use. Made by all ranks together."""

    def __init__(self, engine: SharedMemory, device: Device, context: int) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._device, self._context = device, context
        self.arena = self._page = 0
        self._arenas: list[int] = []
        self._flags: list[np.ndarray[Any, Any]] = []
        self._words: list[int] = []
        self._watches: list[int] = []
        self._base = self._settled = self._areas_used = 0
        self._seen = [0] * engine.size
        self._launched: deque[Launched] = deque()
        self._changed, self._looking = threading.Condition(), threading.Lock()
        self._is_closed = False
        with device.within(context):
            self._meet()
        me = weakref.ref(self)
        self._watcher = threading.Thread(target=_watch, args=(me, self._changed), daemon=True, name="allfold GPU")
        self._watcher.start()

    def _meet(self) -> None:
        """Exchange arenas and words with all ranks. If one cannot, all raise."""
        device, engine = self._device, self.engine
        arena = engine.members[engine.rank].arena
        self._page = arena.allocate(2 * _PAGE)
        trouble, handle, identity = "", bytes(64), bytes(16)
        try:
            identity = device.identity()
            self.arena = device.allocate(2 * AREA_BYTES)
            handle = device.handle_of(self.arena)
        except DeviceError as error:
            trouble = str(error)
        own = _MEETING.pack(handle, identity, self._page, os.getpid(), not trouble)
        met = [_MEETING.unpack(one) for one in self._exchanged(own)]
        if not trouble and len({one[1] for one in met}) > 1:
            trouble = "the ranks are on different GPUs"
        if all(one[4] for one in met) and not trouble:
            try:
                for rank, (theirs, _, page, process, _) in enumerate(met):
                    self._arenas.append(self.arena if rank == engine.rank else device.open(theirs))
                    # A whole page of its own in the middle of the two, since pages are what is registered.
                    start = -(-page // _PAGE) * _PAGE
                    flags = engine.members[rank].arena.view(start, _PAGE)
                    device.register(flags.ctypes.data, _PAGE)
                    self._flags.append(flags.view(np.uint32))
                    self._words.append(device.reached_at(flags.ctypes.data))
                    if rank != engine.rank:
                        self._watches.append(os.pidfd_open(process))
            except (DeviceError, OSError) as error:
                trouble = str(error)
        well = self._exchanged(struct.pack("=?", not trouble))
        if not all(one[0] for one in well):
            self._release()
            failed = [rank for rank, one in enumerate(well) if not one[0]]
            raise DeviceError(trouble or f"{name_ranks(failed)} cannot reach the others' memory on the GPU")
        self._flags[engine.rank][:] = 0
        self._exchanged(b"\0")

    def _exchanged(self, own: bytes) -> list[bytes]:
        given = np.frombuffer(own, np.uint8)
        table = np.empty((self.engine.size, len(own)), np.uint8)
        self.engine.run(Call("all_gather", given, table, None, 0, None, None, None), False)
        return [row.tobytes() for row in table]

    def can_run(self, call: Call, dtype: str, algorithm: AnyAlgorithm) -> bool:
        if call.op is not None and not (call.op.is_builtin and self._device.can_fold(call.op.name, dtype)):
            return False
        program = self._program(call, algorithm)
        fits = program.work_slots * _ALIGNED <= AREA_BYTES
        return fits and max(program.most_sources, program.most_destinations) <= MOST_ARRAYS

    def enqueue(
        self, call: Call, source: OnDevice | None, target: OnDevice | None, stream: int, algorithm: AnyAlgorithm
    ) -> Launched:
        """Put a call into a stream, always the same one."""
        if self._is_closed:
            raise UsageError(f"{call.collective}: this communicator is closed")
        if self.failure is not None:
            raise self.failure
        launched = self.announce(call, source, target)
        try:
            with self._device.within(self._context):
                self._launch(call, self._program(call, algorithm), source, target, stream)
                launched.event = self._device.new_event(stream)
        except BaseException as error:
            self.fail(error)
            raise
        self._keep(launched)
        return launched

    def accompany(self, call: Call, source: OnDevice | None, target: OnDevice | None) -> None:
        """The same for a call that somebody else puts into the stream: only compare it."""
        if self.failure is not None:
            raise self.failure
        self._keep(self.announce(call, source, target))

    def _keep(self, launched: Launched) -> None:
        with self._changed:
            self._launched.append(launched)
            self._changed.notify()

    def announce(self, call: Call, source: OnDevice | None, target: OnDevice | None) -> Launched:
        """Tell the other ranks what is called here; the answer is compared later."""
        array = source or target
        words = np.zeros(8, np.int64)
        if array is not None:
            words[1] = _elements(call, source, target, self.engine.size)
            words[3:5] = struct.unpack("=qq", array.dtype.name.encode().ljust(16, b"\0"))
        words[0] = _NAMES.index(call.collective)
        words[5] = call.root
        if call.op is not None:
            words[6:8] = struct.unpack("=qq", call.op.name.encode()[:16].ljust(16, b"\0"))
        table = np.empty((self.engine.size, len(words)), np.int64)
        ticket = self.engine.run(Call("all_gather", words, table, None, 0, None, call.timeout, None), True)
        return Launched(self, words, table, ticket)

    # Into the stream -------------------------------------------------------------------------------------------------

    def _program(self, call: Call, algorithm: AnyAlgorithm) -> Program:
        root = call.root if COLLECTIVES[call.collective].rooted else None
        return _compiled(programs_of(call.collective, algorithm, self.engine.size, root, "private"), self.engine.rank)

    def _launch(
        self, call: Call, program: Program, source: OnDevice | None, target: OnDevice | None, stream: int
    ) -> None:
        device, rank, size = self._device, self.engine.rank, self.engine.size
        array = source or target
        assert array is not None
        item = array.dtype.itemsize
        bounds = chunk_bounds(_elements(call, source, target, size), program.chunks).tolist()
        longest = max(end - start for start, end in pairwise(bounds))
        segment, segments = longest, 1
        if program.work_slots and longest:
            step = _ALIGNED // item
            slot = AREA_BYTES // program.work_slots // _ALIGNED * step
            segment = ceil(ceil(longest / ceil(longest / slot)) / step) * step
            segments = ceil(longest / segment)

        def wait(peer: int, value: int) -> None:
            # What the stream has waited for once, it need not wait for again.
            if peer != rank and self._seen[peer] < value:
                self._seen[peer] = value
                device.wait_for_value(stream, self._words[rank] + peer * _WORD_BYTES, value)

        def publish(value: int) -> None:
            for peer in range(size):
                if peer != rank:
                    device.write_value(stream, self._words[peer] + rank * _WORD_BYTES, value)

        def at(slot: Slot, start: int) -> int:
            owner, space, index = slot
            if space == WORK:
                return int(self._arenas[owner] + (self._areas_used & 1) * AREA_BYTES + index * segment * item)
            given = source if space == INPUT else target
            assert given is not None and owner == rank
            return int(given.pointer + (bounds[index] - bounds[program.origins[space != INPUT]] + start) * item)

        for peer in range(size):
            wait(peer, self._settled)
        begin = self._base + 1
        for number in range(segments):
            here = begin + number * program.stride
            if number == 1:
                for peer in range(size):
                    wait(peer, self._base)
            for position, one in enumerate(program.instructions):
                for peer, count in one.waits:
                    wait(peer, here + count)
                if number >= 2:
                    for peer, count in one.reuse:
                        wait(peer, here - 2 * program.stride + count)
                length = bounds[one.length_of + 1] - bounds[one.length_of]
                start = min(length, number * segment)
                elements = min(length, start + segment) - start
                if one.sources and elements:
                    sources = [at(slot, start) for slot in one.sources]
                    self._fold(
                        call, stream, array, sources, [at(slot, start) for slot in one.destinations], elements, one
                    )
                if one.announce:
                    publish(here + position + 1)
            self._areas_used += not program.one_area
        self._areas_used += program.one_area
        last = begin + (segments - 1) * program.stride
        for peer, count in program.leave:
            wait(peer, last + count)
        self._settled = last if segments > 1 and not program.one_area else self._base
        self._base = begin + segments * program.stride + 1
        publish(self._base)

    def _fold(
        self,
        call: Call,
        stream: int,
        array: OnDevice,
        sources: list[int],
        destinations: list[int],
        elements: int,
        one: Instruction,
    ) -> None:
        if len(sources) == 1:
            for destination in destinations:
                if destination != sources[0]:
                    self._device.copy(destination, sources[0], elements * array.dtype.itemsize, stream)
            return
        assert call.op is not None
        divisor = self.engine.size if call.op.averages and one.complete else 1
        self._device.fold(stream, call.op.name, array.dtype.name, sources, destinations, elements, divisor)

    # Meanwhile -------------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Whether calls are still under way; notes what went wrong."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        if self.failure is not None:  # streams of peers may have written again
            self.fail(self.failure)
        for launched in list(self._launched):
            if launched.ticket is not None and launched.ticket.done():
                try:
                    launched.ticket.raise_error()
                    _compare(launched.table, self.engine.label)
                except AllfoldError as error:
                    self.fail(error)
                launched.ticket = None
        dead = [bool(select.select([watch], [], [], 0)[0]) for watch in self._watches]
        if any(dead):
            others = [rank for rank in range(self.engine.size) if rank != self.engine.rank]
            time.sleep(_MOST_UNSEEN_SECONDS)
            if not self._all_over():
                lost = [rank for rank, is_dead in zip(others, dead, strict=True) if is_dead]
                self.fail(
                    RankLost(f"{name_ranks(lost)} of {self.engine.label} is gone, and a call on the GPU needs it")
                )
        return not self._all_over()

    def is_compared(self) -> bool:
        return self.failure is not None or all(one.ticket is None for one in list(self._launched))

    def _all_over(self) -> bool:
        with self._device.within(self._context):
            while self._launched:
                launched = self._launched[0]
                if launched.ticket is not None and self.failure is None:
                    return False
                if launched.event is not None:
                    if not self._device.is_over(launched.event):
                        return False
                    self._device.drop_event(launched.event)
                self._launched.popleft()
        return not self._launched

    def fail(self, error: BaseException) -> None:
        """Let the stream go: its waits see that everybody has come far enough. What it computes is worth nothing."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, FAILURES):
                self.engine.failed(error)
            with contextlib.suppress(AllfoldError):
                self.engine.abort()
        self._flags[self.engine.rank][:: _WORD_BYTES // 4] = (self._base + _LET_GO) & 0xFFFFFFFF

    def close(self, seconds: float) -> None:
        """Wait for what is in the stream, let it go after so many seconds, and give the memory back."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + seconds
        while self.look():
            if time.monotonic() >= deadline:
                self.fail(RankLost(f"{self.engine.label} was closed while a call on the GPU was under way"))
                deadline = float("inf")
            time.sleep(_LOOK_AGAIN_SECONDS)
        with self._changed:
            self._changed.notify()
        # Peers may read this rank's arena until they have ended, too.
        with contextlib.suppress(AllfoldError):
            if self.failure is None:
                self.engine.run(Call("barrier", None, None, None, 0, None, seconds, None), False)
        self._release()
        with contextlib.suppress(AllfoldError):
            self.engine.close(compares=False)

    def _release(self) -> None:
        device, rank = self._device, self.engine.rank
        with contextlib.suppress(AllfoldError), device.within(self._context):
            for peer, arena in enumerate(self._arenas):
                if peer != rank:
                    device.close(arena)
            for flags in self._flags:
                device.unregister(flags.ctypes.data)
            if self.arena:
                device.free(self.arena)
        for watch in self._watches:
            os.close(watch)
        self._arenas, self._flags, self._watches, self.arena = [], [], [], 0


def _watch(reference: weakref.ref[Runner], changed: threading.Condition) -> None:
    while True:
        runner = reference()
        if runner is None or runner._is_closed:
            return
        busy = runner.look()
        del runner
        if busy:
            time.sleep(_LOOK_AGAIN_SECONDS)
        else:
            with changed:
                changed.wait(1.0)


def _compare(table: np.ndarray[Any, Any], label: str) -> None:
    """Raise if ranks called different things."""
    if (table == table[0]).all():
        return
    said = [_in_words(row) for row in table.tolist()]
    by_call: dict[str, list[int]] = {}
    for rank, words in enumerate(said):
        by_call.setdefault(words, []).append(rank)
    came = ", ".join(f"{name_ranks(ranks)} with {words}" for words, ranks in by_call.items())
    raise MismatchError(f"ranks of {label} made different calls on the GPU: {came}")


def _in_words(row: list[int]) -> str:
    dtype, op = (struct.pack("=qq", *row[at : at + 2]).rstrip(b"\0").decode() for at in (3, 6))
    promise = COLLECTIVES[_NAMES[row[0]]]
    root = f" root {row[5]}" if promise.rooted else ""
    return f"{promise.name} {dtype}[{row[1]}]{f' {op}' if op else ''}{root}"


def _elements(call: Call, source: OnDevice | None, target: OnDevice | None, size: int) -> int:
    """The elements of the whole buffer."""
    array = source or target
    assert array is not None
    given, wanted = (0 if one is None else one.bytes // array.dtype.itemsize for one in (source, target))
    if call.collective in ("all_gather", "gather"):
        whole, fits = given * size, target is None or wanted == given * size
    elif call.collective in ("reduce_scatter", "scatter"):
        whole, fits = wanted * size, source is None or given == wanted * size
    elif call.collective == "all_to_all":
        whole, fits = given, given == wanted and given % size == 0
    else:
        whole, fits = wanted, True
    if not fits:
        raise UsageError(
            f"{call.collective}: one array must be {size} times as long as the other, or equal for all_to_all; got {given} "
            f"and {wanted}"
        )
    return whole


@lru_cache(maxsize=256)
def _cached(key: int, rank: int) -> Program:
    return _made(_programs[key], rank)


_programs: dict[int, Programs] = {}


def _compiled(programs: Programs, rank: int) -> Program:
    _programs[id(programs)] = programs  # kept, so that the number stays its own
    return _cached(id(programs), rank)


def _made(programs: Programs, rank: int) -> Program:
    width = programs.width

    def slots(pairs: Sequence[tuple[int, int]]) -> list[Slot]:
        return [
            (owner, value // width, value % width) if value < WORK * width else (owner, WORK, value - WORK * width)
            for owner, value in pairs
        ]

    instructions = [
        Instruction(
            programs.waits.of(row),
            programs.reuse.of(row),
            slots(programs.sources.of(row)),
            slots(programs.destinations.of(row)),
            int(programs.length_of[row]),
            bool(programs.complete[row]),
            bool(programs.announce[row]),
        )
        for row in range(int(programs.starts[rank]), int(programs.starts[rank + 1]))
    ]
    return Program(
        instructions,
        programs.leave.of(rank),
        int(np.diff(programs.starts).max(initial=0)),
        int(programs.work_slots.max(initial=0)),
        programs.one_area,
        programs.schedule.chunks,
        _origins(programs.schedule, rank),
        max((len(one.sources) for one in instructions), default=0),
        max((len(one.destinations) for one in instructions), default=0),
    )


def _origins(built: Schedule, rank: int) -> tuple[int, int]:
    if built.promise.in_place:
        return 0, 0
    held = [
        layout(built.ranks, built.root, built.chunks)[rank] != NOTHING
        for layout in (built.promise.starts_with, built.promise.ends_with)
    ]
    return int(held[0].argmax()), int(held[1].argmax())
