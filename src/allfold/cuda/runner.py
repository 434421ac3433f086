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
import struct
import threading
import time
import weakref
from collections import deque
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from ..collectives import COLLECTIVES
from ..engines.engine import FAILURES, Call
from ..engines.shared_memory.engine import SharedMemory
from ..errors import AllfoldError, CollectiveTimeout, DeviceError, MismatchError, RankLost, UsageError
from ..programs.compile import Programs
from ..programs.versions import Memory
from ..proved import programs_of
from ..registry import AnyAlgorithm
from ..wording import name_ranks
from .blocks import Blocks, Reached
from .compose import ALIGNED, AREA_BYTES, WORD_BYTES, After, Places, State, compose
from .driver import Device
from .kernels import MOST_ARRAYS
from .programs import Facts, Program, check_overlap, facts_of, in_words, program_of
from .staging import OnDevice

_PAGE = 4096
_MEETING = struct.Struct("=64sq?")  # handle of the arena, page, whether all went well
_LOOK_AGAIN_SECONDS = 0.002
_MOST_UNSEEN_SECONDS = 0.05  # a rank that has died may have finished its part before
_LET_GO = 1 << 30  # more than any wait is ahead
_STANDING = _PAGE // 4 - 1  # the last word of a page: what its rank says of itself
_LEFT, _FAILED, _LATE = 1, 2, 3  # it has left; it gave up; it gave up because a call was not over in time

_MOST_BATCHES = 64  # of one call: one for every state of the areas and of the peers in which it was made


class Launched(NamedTuple):
    """A call in the stream, until it is over and known to be the same on all ranks."""

    number: int
    name: str
    deadline: float
    mark: _native.Mark | None  # None: somebody else has put it into the stream, and knows when it is over


class Runner:
    """The calls of one engine on arrays of a GPU, or of GPUs that reach each other. Made by all ranks together."""

    def __init__(self, engine: SharedMemory, device: Device, context: int) -> None:
        self.engine, self._lane = engine, device.lane(context)
        self.failure: BaseException | None = None
        self._device, self._context = device, context
        self.arena = self._page = 0
        self._arenas: list[int] = []
        self._flags: list[np.ndarray[Any, Any]] = []
        self._words: list[int] = []
        self._base = self._settled = self._areas_used = 0
        self._programs: dict[int, tuple[Programs, Program]] = {}
        self.blocks = Blocks(device, context, engine.rank, self._exchanged)
        self._seen = [0] * engine.size  # how far the stream has waited for each rank
        self._launched: deque[Launched] = deque()
        self._changed, self._looking = threading.Condition(), threading.Lock()
        self._is_closed = False
        with device.within(context):
            self._meet()
        me = weakref.ref(self)
        watched = (me, self._changed, self._launched)
        threading.Thread(target=_watch, args=watched, daemon=True, name="allfold GPU").start()

    def _meet(self) -> None:
        """Exchange arenas and words with all ranks. If one cannot, all raise."""
        device, engine = self._device, self.engine
        arena = engine.members[engine.rank].arena
        self._page = arena.allocate(2 * _PAGE + _native.Ledger.bytes)
        trouble, handle = "", b""
        try:
            if not device.can_fold("sum", "int32"):
                raise DeviceError("there is no run-time compiler for GPU kernels (NVRTC) in this environment")
            self.arena = device.allocate(2 * AREA_BYTES)
            handle = device.handle_of(self.arena)
        except DeviceError as error:
            trouble = str(error)
        own = _MEETING.pack(handle, self._page, not trouble)
        met = [_MEETING.unpack(one) for one in self._exchanged(own)]
        records = []
        if all(one[2] for one in met) and not trouble:
            try:
                for rank, (theirs, page, _) in enumerate(met):
                    # On another GPU only if the two have access to each other's memory.
                    self._arenas.append(self.arena if rank == engine.rank else device.open(theirs))
                    # A whole page of its own in the middle of the two, since pages are what is registered.
                    start = -(-page // _PAGE) * _PAGE
                    memory = engine.members[rank].arena.view(start, _PAGE + _native.Ledger.bytes)
                    flags = memory[:_PAGE]
                    records.append(memory[_PAGE:])
                    device.register(flags.ctypes.data, _PAGE)
                    self._flags.append(flags.view(np.uint32))
                    self._words.append(device.reached_at(flags.ctypes.data))
            except DeviceError as error:
                trouble = str(error)
        well = self._exchanged(struct.pack("=?", not trouble))
        if not all(one[0] for one in well):
            self._release()
            failed = [rank for rank, one in enumerate(well) if not one[0]]
            raise DeviceError(trouble or f"{name_ranks(failed)} cannot reach the others' memory on the GPU")
        self._flags[engine.rank][:] = 0
        records[engine.rank][:] = 0
        self._ledger = _native.Ledger(engine.rank, records)
        self._exchanged(b"\0")

    def _exchanged(self, own: bytes) -> list[bytes]:
        given = np.frombuffer(own, np.uint8)
        table = np.empty((self.engine.size, len(own)), np.uint8)
        self.engine.run(Call("all_gather", given, table, None, 0, None, None, None), False)
        return [row.tobytes() for row in table]

    def can_run(self, call: Call, dtype: str, algorithm: AnyAlgorithm, memory: Memory) -> bool:
        if call.op is not None and not (call.op.is_builtin and self._device.can_fold(call.op.name, dtype)):
            return False
        program = self._program(call, algorithm, memory)
        return program.work_slots * ALIGNED <= AREA_BYTES and program.most_arrays <= MOST_ARRAYS

    def prepare(
        self,
        call: Call,
        source: OnDevice | None,
        target: OnDevice | None,
        algorithm: AnyAlgorithm,
        reached: Reached | None,
    ) -> OnTheGpu:
        """A call for the stream; `reached`, if all ranks reach its arrays."""
        check_overlap(call, source, target, self.engine.rank)
        program = self._program(call, algorithm, "private" if reached is None else "shared")
        return OnTheGpu(self, call, program, source, target, reached)

    def accompany(self, call: Call, source: OnDevice | None, target: OnDevice | None, other: Again) -> Accompanied:
        """A call that somebody else puts into the stream, compared here."""
        return Accompanied(self, call, source, target, other)

    def check(self, name: str) -> None:
        if self._is_closed:
            raise UsageError(f"{name}: this communicator is closed")
        if self.failure is not None:
            raise self.failure

    def keep(self, facts: Facts, name: str, deadline: float, mark: _native.Mark | None) -> None:
        """Write down what was called here, for the other ranks to compare, and watch over it until it is over."""
        self._launched.append(Launched(self._ledger.announce(*facts), name, deadline, mark))
        if len(self._launched) == 1:
            with self._changed:
                self._changed.notify()

    # Into the stream -------------------------------------------------------------------------------------------------

    def _program(self, call: Call, algorithm: AnyAlgorithm, memory: Memory) -> Program:
        root = call.root if COLLECTIVES[call.collective].rooted else None
        programs = programs_of(call.collective, algorithm, self.engine.size, root, memory)
        # By identity: a name may come to mean another algorithm. The programs are kept, so that the number stays theirs.
        if id(programs) not in self._programs:
            self._programs[id(programs)] = programs, program_of(programs, self.engine.rank)
        return self._programs[id(programs)][1]

    def put(self, one: OnTheGpu, before: int | None, holds: bool) -> _native.Mark:
        base = self._base
        # What a batch depends on, besides its call.
        state = State(self._areas_used & 1, self._settled - base, tuple(seen - base for seen in self._seen))
        found = one.batches.get(state)
        if found is None:
            if len(one.batches) >= _MOST_BATCHES:
                one.batches.clear()
            places = Places(self.engine.rank, self._words, self._arenas, one.reached)
            made, after = compose(one.call, one.program, one.source, one.target, state, places)
            with self._device.within(self._context):
                found = one.batches[state] = made.made(self._device), after
        batch, after = found
        mark = self._lane.launch(batch, base & 0xFFFFFFFF, before, holds)
        self._areas_used += after.areas
        self._settled, self._base = base + after.settled, base + after.base
        self._seen = [base + seen for seen in after.seen]
        return mark

    # Meanwhile -------------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Whether calls are still under way; notes what went wrong."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        if self.failure is not None:  # streams of peers may have written again
            self.fail(self.failure)
        try:
            self._compare()
            self._check_time()
        except AllfoldError as error:
            self.fail(error)
        gone = self._gone()
        if gone is not None and self.failure is None and not self._all_over():
            time.sleep(_MOST_UNSEEN_SECONDS)
            if not self._all_over():
                self.fail(gone)
        return not self._all_over()

    def _gone(self) -> AllfoldError | None:
        """If ranks can no longer take part, the error that says so: they have died, or otherwise they gave up."""
        if not self._flags:  # closed meanwhile
            return None
        others = [rank for rank in range(self.engine.size) if rank != self.engine.rank]
        standing = {rank: int(self._flags[rank][_STANDING]) for rank in others}
        members = self.engine.members
        dead = [rank for rank in others if standing[rank] != _LEFT and not _native.is_alive(members[rank].arena)]
        failed, late = ([rank for rank in others if standing[rank] == how] for how in (_FAILED, _LATE))
        where = f"of {self.engine.label}"
        if dead:
            return RankLost(f"{name_ranks(dead)} {where} ended in the middle of a call on the GPU")
        if failed:
            return RankLost(f"{name_ranks(failed)} {where} gave up a call on the GPU")
        if late:
            return CollectiveTimeout(f"{name_ranks(late)} {where} gave up a call on the GPU that was not over in time")
        return None

    def _compare(self) -> None:
        """Compare the calls of all ranks as far as they have come; raises if they differ, or if a rank comes too late."""
        state = self._ledger.compare()
        first = self._first()
        if state or self.failure is not None or first is None:
            return
        calls = self._ledger.next()
        where = f"(call {self._ledger.agreed + 1} of {self.engine.label} on the GPU)"
        if state is False:
            by_call: dict[str, list[int]] = {}
            for rank, (_, facts) in enumerate(calls):
                by_call.setdefault(in_words(facts), []).append(rank)
            came = ", ".join(f"{name_ranks(ranks)} came with {words}" for words, ranks in by_call.items())
            raise MismatchError(f"{came} {where}")
        missing = [rank for rank, (is_known, _) in enumerate(calls) if not is_known]
        left = [rank for rank in missing if self._flags[rank][_STANDING] == _LEFT]
        if left and self._gone() is None:  # otherwise they have left because of those
            raise RankLost(f"{first.name}: {name_ranks(left)} of {self.engine.label} has left")
        if missing and time.monotonic() >= first.deadline:
            raise CollectiveTimeout(f"{first.name}: {name_ranks(missing)} did not come in time {where}")

    def _check_time(self) -> None:
        first = self._first()
        if first is not None and self._is_agreed(first) and time.monotonic() >= first.deadline and not self._all_over():
            raise CollectiveTimeout(
                f"{first.name}: all ranks have made the call (number {first.number} of {self.engine.label} on the GPU), and "
                "it is not over in time: a stream holds it up, or ranks call several groups in different orders"
            )

    def _first(self) -> Launched | None:
        """The first call that is not over, or not known to be the same on all ranks."""
        try:
            return self._launched[0]
        except IndexError:
            return None

    def _is_agreed(self, launched: Launched) -> bool:
        return self.failure is not None or launched.number <= self._ledger.agreed

    def is_compared(self) -> bool:
        return self.failure is not None or self._ledger.agreed == self._ledger.made

    def _all_over(self) -> bool:
        while (launched := self._first()) is not None:
            if not self._is_agreed(launched) or (launched.mark is not None and not launched.mark.is_over()):
                return False
            self._launched.popleft()
        return True

    def fail(self, error: BaseException) -> None:
        """Let the stream go: its waits see that everybody has come far enough. What it computes is worth nothing."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, FAILURES):
                self.engine.failed(error)
        if self._flags:
            own = self._flags[self.engine.rank]
            own[:: WORD_BYTES // 4] = (self._base + _LET_GO) & 0xFFFFFFFF
            own[_STANDING] = _LATE if isinstance(self.failure, CollectiveTimeout) else _FAILED

    def close(self, seconds: float) -> None:
        """Wait for what is in the stream, let it go after so many seconds, and give the memory back."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.failure is None:
            self._flags[self.engine.rank][_STANDING] = _LEFT
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
        self.blocks.close()
        with contextlib.suppress(AllfoldError), device.within(self._context):
            for peer, arena in enumerate(self._arenas):
                if peer != rank:
                    device.close(arena)
            for flags in self._flags:
                device.unregister(flags.ctypes.data)
            if self.arena:
                device.free(self.arena)
        if self.failure is None:  # otherwise peers may still look at it
            self.engine.members[rank].arena.release(self._page)
        self._arenas, self._flags, self.arena = [], [], 0


class Again(Protocol):
    """A call that can be put into the stream, again and again."""

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        """Put it behind what the stream `before` holds; with `holds`, that stream then waits for it."""
        ...


class OnTheGpu:
    """A call that runs on the GPU."""

    def __init__(
        self,
        runner: Runner,
        call: Call,
        program: Program,
        source: OnDevice | None,
        target: OnDevice | None,
        reached: Reached | None,
    ) -> None:
        self._runner, self.call, self.program, self.source, self.target = runner, call, program, source, target
        self.reached = reached
        where = 0 if reached is None else reached.where
        self._facts, self._name = facts_of(call, source, target, runner.engine.size, where), call.collective
        self._timeout = runner.engine.timeout if call.timeout is None else call.timeout
        self.batches: dict[State, tuple[_native.Batch, After]] = {}

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        runner = self._runner
        runner.check(self._name)
        try:
            mark = runner.put(self, before, holds)
        except DeviceError as error:
            runner.fail(error)
            raise
        runner.keep(self._facts, self._name, time.monotonic() + self._timeout, mark)
        return mark


class Accompanied:
    """A call that somebody else puts into the stream, and that is compared here."""

    def __init__(
        self, runner: Runner, call: Call, source: OnDevice | None, target: OnDevice | None, other: Again
    ) -> None:
        self._runner, self._other = runner, other
        self._facts, self._name = facts_of(call, source, target, runner.engine.size, 0), call.collective

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        self._runner.check(self._name)
        mark = self._other.launch(before, holds)
        self._runner.keep(self._facts, self._name, inf, None)
        return mark


def _watch(reference: weakref.ref[Runner], changed: threading.Condition, launched: deque[Launched]) -> None:
    while True:
        runner = reference()
        if runner is None or runner._is_closed:
            return
        try:
            runner.look()
        except DeviceError as error:  # the GPU is lost, or the process ends
            runner.fail(error)
            return
        del runner
        time.sleep(_LOOK_AGAIN_SECONDS)
        with changed:
            if not launched:
                changed.wait(1.0)
