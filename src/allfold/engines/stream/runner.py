"""Programs on the GPU: the same compiled programs as in main memory, put into a stream.

The ranks reach each other's work areas on the GPU, and words in main memory into which a peer's stream writes how far it
has come (memory.py). An instruction is one kernel, or a copy. "Wait until a peer has come far enough" is a wait of the
stream for such a word. So no kernel ever waits for a peer, and the host neither: it puts a call into the stream and goes
on.

Nothing in a stream can raise. So a thread watches while calls are under way: it compares the calls of all ranks, and
checks that all ranks live. If something is wrong it lets its own stream go, by writing the words of its page itself, and
the next call raises the error.

A stream that was let go still publishes progress, which is no longer real. So a rank first publishes the last call that
is over on all ranks, as their words say. A call is over only if, after the stream has come to its end, every rank that
gave up covers it (`Ledger.uncovered`). A stream writes nothing but the work areas of the group, which only calls that
fail this check can have read, and the arrays of its own rank.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ... import _native
from ...errors import AllfoldError, CollectiveTimeout, DeviceError, MismatchError, RankLost, UsageError
from ...programs.versions import Memory
from ...proved import programs_of
from ...schedules import Schedule
from ...wording import name_ranks
from ..buffer import Buffer
from ..engine import FAILURES, Call
from ..shared_memory.engine import SharedMemory
from ..signature import ON_THE_GPU, STAGED, Signature, difference
from ..taken import elements_of
from .blocks import Reached
from .compose import ALIGNED, AREA_BYTES, Addresses, After, StreamState, compose
from .driver import GpuDriver
from .kernels import MOST_ARRAYS
from .memory import FAILED, LATE, LEFT, MISMATCHED, GroupMemory
from .programs import StreamProgram, check_overlap, program_of
from .retire import retire, sweep
from .staging import Staging

_LOOK_AGAIN_SECONDS = 0.002
_MOST_UNSEEN_SECONDS = 0.05  # a rank that has died may have finished its part before
_STAGED_LATER_SECONDS = 1.0  # the engine of a staged call has the better error, and raises it first
_RELEASE_SECONDS = 5.0
_ALL_NAMED_SECONDS = 1.0  # for the calls of all ranks, when two differ
_SAID_ELSEWHERE_SECONDS = 3.0  # for the words of a rank that met a difference in a staged call; it may be slow
_DEATH_SECONDS = 0.2  # until a process that is ending is known to have ended
_MOST_BATCHES = 64  # of one call: one for every state of the areas and of the peers in which it was made
_MOST_PROGRAMS = 256
_MOST_UNSETTLED = 64


@dataclass(slots=True, eq=False)
class Launched:
    """A call in the stream, until it is over and known to be the same on all ranks."""

    number: int
    name: str
    deadline: float
    mark: _native.Mark | None  # None: it is still being put there
    end: int | None  # the progress of every rank when it is over; None: staged
    start: int = 0  # that of a rank whose stream has come to it

    def is_past(self) -> bool:
        """True if the stream has reached its end."""
        return self.mark is not None and self.mark.is_over()


class Runner:
    """The calls of one engine on arrays of a GPU, or of GPUs that reach each other. Made by all ranks together."""

    def __init__(
        self, engine: SharedMemory, device: GpuDriver, context: int, staging: Staging, timeout: float | None
    ) -> None:
        sweep()
        self.engine, self._lane = engine, device.lane(context)
        self.failure: BaseException | None = None
        self._device, self._context, self._staging = device, context, staging
        self.memory = GroupMemory(engine, device, context, timeout)
        self.blocks, self._ledger = self.memory.blocks, self.memory.ledger
        self._base = self._settled = self._areas_used = 0
        self._programs: OrderedDict[tuple[bytes, Memory], StreamProgram] = OrderedDict()
        self._seen = [0] * engine.size  # how far the stream has waited for each rank
        self._launched: deque[Launched] = deque()
        self._unsettled: deque[tuple[int, int]] = deque()  # calls that are over here, and their ends
        self._changed, self._looking = threading.Condition(), threading.RLock()
        self._is_closed = False
        self._blamed: Collection[int] = ()  # because of whom this rank gives up
        self._differ_since: float | None = None
        launched = self._launched
        self.memory.is_drained = lambda: all(one.is_past() for one in list(launched))
        changed = self._changed

        def dropped(_: object) -> None:
            with changed:
                changed.notify()

        me = weakref.ref(self, dropped)
        self._retires = weakref.finalize(self, _leave_and_retire, self.memory)
        self._retires.atexit = False
        watched = (me, self._changed, self._launched)
        threading.Thread(target=_watch, args=watched, daemon=True, name="allfold GPU").start()

    def can_run(self, call: Call, dtype: str, built: Schedule, reached: Reached | None) -> bool:
        if call.op is not None and not (call.op.is_builtin and self._device.can_fold(call.op.name, dtype)):
            return False
        program = self._program(built, reached)
        return program.work_slots * ALIGNED <= AREA_BYTES and program.most_arrays <= MOST_ARRAYS

    def prepare(
        self, call: Call, source: Buffer | None, target: Buffer | None, built: Schedule, reached: Reached | None
    ) -> OnTheGpu:
        """A call for the stream; `reached`, if all ranks reach its arrays."""
        check_overlap(call, source, target, self.engine.rank)
        signature = self._signature(call, source, target, built, ON_THE_GPU if reached is None else reached.where)
        return OnTheGpu(self, call, signature, self._program(built, reached), source, target, reached)

    def accompany(
        self, call: Call, source: Buffer | None, target: Buffer | None, named: Schedule | None, other: Again
    ) -> Accompanied:
        """A call that staging puts into the stream, compared here; `named`: the schedule, if it names an algorithm."""
        return Accompanied(self, call, self._signature(call, source, target, named, STAGED), other)

    def _signature(
        self, call: Call, source: Buffer | None, target: Buffer | None, schedule: Schedule | None, place: int
    ) -> Signature:
        array = source or target
        assert array is not None
        elements = elements_of(call, source, target, self.engine.rank, self.engine.size)
        return Signature.of(call, array.dtype, elements, schedule, place)

    def check(self, name: str, signature: bytes) -> None:
        """Raise if no further call can be made."""
        if self._is_closed:
            raise UsageError(f"{name}: this communicator is closed")
        if self.failure is None and (given_up := self._ledger.uncovered(self._ledger.made + 1)) is not None:
            self._ledger.announce(signature)  # if the others gave up because calls differ, they name this one too
            with self._looking:
                try:
                    self._compare_calls(waits=False)
                    raise self._gave_up(given_up)
                except Exception as error:
                    self.fail(error)
        if self.failure is not None:
            raise self.failure

    def error(self) -> BaseException | None:
        """The error that ended the calls of this group, as far as it is known."""
        if self.failure is None and self._launched and self._ledger.uncovered(self._ledger.made) is not None:
            self.look()
        return self.failure

    def keep(
        self, signature: bytes, name: str, timeout: float, mark: _native.Mark | None, end: int | None, start: int = 0
    ) -> Launched:
        """Record this call for the other ranks to compare, and watch it until it has ended."""
        number, deadline = self._ledger.announce(signature), time.monotonic() + timeout
        launched = Launched(number, name, deadline, mark, end, start)
        self._launched.append(launched)
        if len(self._launched) == 1:
            with self._changed:
                self._changed.notify()
        return launched

    # Into the stream -------------------------------------------------------------------------------------------------

    def _program(self, built: Schedule, reached: Reached | None) -> StreamProgram:
        # Streams write no arrays of other ranks: a released one may reach the call when its peer has left it.
        memory: Memory = "private" if reached is None else "readable"
        key = built.digest, memory
        if key not in self._programs:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.popitem(last=False)
            programs = programs_of(built.collective, built, self.engine.size, built.root, memory)
            self._programs[key] = program_of(programs, self.engine.rank)
        self._programs.move_to_end(key)
        return self._programs[key]

    def put(self, one: OnTheGpu, signature: bytes, before: int | None, holds: bool) -> _native.Mark:
        """Put a call into the stream, and watch over it."""
        base = self._base
        # What a batch depends on, besides its call.
        state = StreamState(self._areas_used & 1, self._settled - base, tuple(seen - base for seen in self._seen))
        found = one.batches.get(state)
        if found is None:
            if len(one.batches) >= _MOST_BATCHES:
                one.batches.clear()
            places = Addresses(self.engine.rank, self.memory.words, self.memory.arenas, one.reached)
            made, after = compose(one.call, one.program, one.source, one.target, state, places)
            with self._device.within(self._context):
                found = one.batches[state] = made.made(self._device), after
        batch, after = found
        if before is not None:
            self._lane.check(before)
        # From here on it counts. It is watched while it is put into the stream too: if another thread frees memory just
        # then, that waits for what the stream holds already, which waits for the peers, and the rest waits for that.
        launched = self.keep(signature, one.call.collective, one.timeout, None, base + after.base, base + 1)
        try:
            launched.mark = self._lane.launch(batch, base & 0xFFFFFFFF, before, holds)
        except BaseException:
            self._launched.remove(launched)
            raise
        self._areas_used += after.areas
        self._settled, self._base = base + after.settled, base + after.base
        self._seen = [base + seen for seen in after.seen]
        return launched.mark

    # Meanwhile -------------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """True while calls are running; records errors."""
        with self._looking:
            if self.failure is None:
                try:
                    self._compare()
                    self._check_staging()
                    return not (self._all_over() or self._check_rest())
                except Exception as error:  # also one that a user's own operation raised
                    self.fail(error)
            self.memory.let_go(self._base)  # streams of peers may have written again
            try:
                return not self._all_over()
            except DeviceError:  # the GPU is lost, and all calls with it
                return False

    def _check_rest(self) -> bool:
        """Raise if the calls that are not over will not be; True if they are, after all."""
        first = self._first()
        if first is not None and self._is_agreed(first) and self._is_late():
            held: list[int] = []
            why = "a stream holds it up, or ranks call several groups in different orders"
            if first.end is not None:
                held = self.memory.held_up_before(first.start)
                inside = [rank for rank in self.memory.held_up_before(first.end) if rank != self.engine.rank]
                if held:
                    why = f"the stream of {name_ranks(held)} has not come to it"
                elif inside:
                    held, why = inside, f"{name_ranks(inside)} did not come to its end; {why}"
            raise self._because_of(
                held,
                CollectiveTimeout(
                    f"{first.name}: all ranks have made the call (number {first.number} of {self.engine.label} on the GPU), "
                    f"and it is not over in time: {why}"
                ),
            )
        gone = self._gone()
        if gone is None:
            return False
        time.sleep(_MOST_UNSEEN_SECONDS)
        if not self._all_over():
            raise gone
        return True

    def _because_of(self, ranks: Collection[int], error: AllfoldError) -> AllfoldError:
        """Record the rank that caused an error; ranks that see that this one gave up can read it."""
        self._blamed = ranks
        return error

    def _gone(self) -> AllfoldError | None:
        """The error for ranks that can no longer take part, if there are any: they have died or given up."""
        memory = self.memory
        standing, dead = {rank: memory.standing(rank) for rank in memory.others}, self._dead()
        mismatched, failed, late = (
            [rank for rank in memory.others if standing[rank] == how] for how in (MISMATCHED, FAILED, LATE)
        )
        where = f"of {self.engine.label}"
        if mismatched:
            return self._met_elsewhere(mismatched)
        if dead:
            return self._because_of(
                dead, RankLost(f"{name_ranks(dead)} {where} ended in the middle of a call on the GPU")
            )
        blamed = self._blamed_by(failed or late)
        why = f" because of {name_ranks(blamed)}" if blamed else ""
        blamed = blamed or failed
        if failed:
            return self._because_of(blamed, RankLost(f"{name_ranks(failed)} {where} gave up a call on the GPU{why}"))
        if late:
            text = f"{name_ranks(late)} {where} gave up a call on the GPU that was not over in time{why and ','}{why}"
            return self._because_of(blamed, CollectiveTimeout(text))
        return None

    def _met_elsewhere(self, ranks: Sequence[int]) -> AllfoldError:
        """The error of calls that differ, as these ranks found. They may have found it in a staged call, and say so there a
        moment later than here."""
        deadline = time.monotonic() + _SAID_ELSEWHERE_SECONDS
        differ = self._blamed_by(ranks) or range(self.engine.size)
        while True:
            calls = self._ledger.next()
            if len({*calls} - {None}) > 1:
                return self._mismatch(calls)
            try:
                self.engine.native.check_given_up("", self.memory.others)
            except MismatchError as error:
                return self._because_of(differ, error)
            except AllfoldError:  # it does not say what differs; another rank may, a moment later
                pass
            if time.monotonic() >= deadline:
                break
            time.sleep(_MOST_UNSEEN_SECONDS)
        what = f"{name_ranks(ranks)} of {self.engine.label} gave up a call on the GPU: the calls of {name_ranks(differ)} differ"
        return self._because_of(differ, MismatchError(what))

    def _dead(self) -> list[int]:
        """The ranks that ended in the middle: those that gave up before did so because of another, and then ended."""
        return [
            rank for rank in self.memory.others if not self.memory.standing(rank) and not self.memory.is_alive(rank)
        ]

    def _blamed_by(self, ranks: Collection[int]) -> list[int]:
        """The ranks that caused these ones to give up."""
        masks = [self._ledger.blamed(rank) for rank in ranks]
        return [rank for rank in range(self.engine.size) if any(mask >> rank & 1 for mask in masks)]

    def _gave_up(self, rank: int) -> AllfoldError:
        """The error of a call whose result cannot be trusted, because this rank gave up."""
        return self._gone() or self._because_of(
            [rank], RankLost(f"rank {rank} of {self.engine.label} gave up a call on the GPU")
        )

    def _compare(self) -> None:
        """Compare the calls of all ranks as far as they have come; raises if they differ, or if a rank comes too late."""
        first = self._first()
        is_late = self._is_late()
        if self._compare_calls(waits=not is_late) or first is None:
            return
        missing = self._missing()
        left = [rank for rank in missing if self.memory.standing(rank) == LEFT]
        if left and self._gone() is None:  # otherwise they have left because of those
            raise self._because_of(left, RankLost(f"{first.name}: {name_ranks(left)} of {self.engine.label} has left"))
        # Ranks that have not come here may have given up elsewhere: in the meeting of this group, or in the communicator
        # that it is made for. Asked first: a rank that gives up here says so here first, and says more.
        if missing and (lost := self.engine.native.given_up(missing)) and self._gone() is None:
            try:
                self.engine.native.check_given_up(first.name, missing)
            except (CollectiveTimeout, RankLost) as error:  # if calls differ, nobody else is to blame
                raise self._because_of(lost, error) from None
        if missing and is_late:
            raise self._because_of(
                missing,
                CollectiveTimeout(f"{first.name}: {name_ranks(missing)} did not arrive in time {self._where()}"),
            )

    def _missing(self) -> list[int]:
        """The ranks that have not made the first call that is not known to be the same on all ranks."""
        return [rank for rank, call in enumerate(self._ledger.next()) if call is None]

    def _compare_calls(self, waits: bool) -> bool:
        """Raise if the calls of two ranks differ; True if all calls made here are the same on all ranks.

        With `waits`, it first waits a while for the calls of the other ranks, so that the error can name all of them.
        """
        state = self._ledger.compare()
        if state is False:
            now = time.monotonic()
            self._differ_since = self._differ_since or now
            if not waits or not self._missing() or now >= self._differ_since + _ALL_NAMED_SECONDS or self._gone():
                raise self._mismatch(self._ledger.next())
        return bool(state)

    def _mismatch(self, calls: Sequence[bytes | None]) -> AllfoldError:
        # All whose calls are known here: ranks that come later may not see them any more.
        known = [rank for rank, call in enumerate(calls) if call is not None]
        what = difference({rank: Signature.unpacked(call) for rank, call in enumerate(calls) if call})
        return self._because_of(known, MismatchError(f"{what} {self._where()}"))

    def _where(self) -> str:
        return f"(call {self._ledger.agreed + 1} of {self.engine.label} on the GPU)"

    def _check_staging(self) -> None:
        """A staged call that failed ends the calls behind it."""
        error = self._staging.error()
        if error is None:
            return
        gone = self._gone() if isinstance(error, RankLost) else None
        # Who gave up in time ended the staged calls of all, which then only know that it did.
        raise gone if isinstance(gone, CollectiveTimeout) else error

    def _first(self) -> Launched | None:
        """The first call that is not over, or not known to be the same on all ranks."""
        try:
            return self._launched[0]
        except IndexError:
            return None

    def _is_late(self) -> bool:
        """True if a call should be over by now; one behind the first may have the shorter timeout."""
        now = time.monotonic()
        return any(one.deadline <= now for one in list(self._launched))

    def _is_agreed(self, launched: Launched) -> bool:
        return self.failure is not None or launched.number <= self._ledger.agreed

    def is_compared(self) -> bool:
        return self.failure is not None or self._ledger.agreed == self._ledger.made

    def _all_over(self) -> bool:
        """True if no call is left that may go wrong. Raises if a call was finished on progress that is not real."""
        while (launched := self._first()) is not None:
            if not self._is_agreed(launched) or not launched.is_past():
                return False
            if self.failure is None:
                self._confirm(launched)
            self._launched.popleft()
        return True

    def _confirm(self, launched: Launched) -> None:
        """Raise unless a call whose end the stream has reached is right."""
        if launched.end is None:
            self._check_staging()
        else:
            if (rank := self._ledger.uncovered(launched.number)) is not None:
                raise self._gave_up(rank)
            self._unsettled.append((launched.number, launched.end))
            if len(self._unsettled) > _MOST_UNSETTLED:
                self._settle()
        assert launched.mark is not None
        launched.mark.confirm()

    def _settle(self) -> None:
        """Forget the calls that are over on all ranks."""
        while self._unsettled and self.memory.all_have_come_to(self._unsettled[0][1]):
            self._unsettled.popleft()

    def _covered(self) -> int:
        """The last call that is over on all ranks."""
        with contextlib.suppress(Exception):
            self._all_over()
        self._settle()
        if self._unsettled:
            return self._unsettled[0][0] - 1
        first = self._first()
        return self._ledger.made if first is None else first.number - 1

    def fail(self, error: BaseException) -> None:
        """Give up and release the stream. Other ranks do not trust what it publishes from then on."""
        with self._looking:
            if self.failure is None:
                if isinstance(error, DeviceError):
                    error = self._cause_of(error)
                elif isinstance(error, CollectiveTimeout) and not self._blamed:  # of a staged call
                    self._blamed = self._missing()
                self._ledger.blame(sum(1 << rank for rank in self._blamed))
                kinds = {CollectiveTimeout: LATE, MismatchError: MISMATCHED}
                self.memory.stand(next((how for kind, how in kinds.items() if isinstance(error, kind)), FAILED))
                self._ledger.give_up(self._covered())
                self.failure = error  # from here on calls raise, and users may change the arrays
                self.memory.let_go(self._base)
                self._staging.fail(error, self._blamed)
                if isinstance(error, FAILURES):
                    self.engine.failed(error)
            self.memory.let_go(self._base)

    def lost(self, error: DeviceError) -> BaseException:
        """Give up after a driver error; returns the error to raise."""
        self.fail(error)
        return self.failure or error

    def _cause_of(self, error: DeviceError) -> AllfoldError:
        """Under MPS, the driver ends the work of all processes if one dies while the GPU runs a kernel of it."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while not (dead := self._dead()):
            if time.monotonic() >= deadline:
                return error
            time.sleep(_LOOK_AGAIN_SECONDS)
        lost = RankLost(f"{name_ranks(dead)} of {self.engine.label} ended, and then {error}")
        return self._because_of(dead, lost)

    def leave(self, seconds: float) -> None:
        """Wait until the stream is past all calls, and let it go after this many seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.failure is None:
            self.memory.stand(LEFT)
        deadline = time.monotonic() + seconds
        while self.look():
            if time.monotonic() >= deadline:
                if self.failure is not None:  # work of the user's own holds the stream up
                    break
                self.fail(RankLost(f"{self.engine.label} was closed while a call on the GPU was under way"))
                deadline = time.monotonic() + seconds
            time.sleep(_LOOK_AGAIN_SECONDS)
        with self._changed:
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """After `leave`: give the memory back, if the other ranks have left within this many seconds; otherwise later."""
        if self._retires.detach() is None:
            return
        deadline = time.monotonic() + (seconds if self.failure is None else 0.0)
        with contextlib.suppress(AllfoldError):
            while not self.memory.give_back():
                if time.monotonic() >= deadline:
                    retire(self.memory)
                    break
                time.sleep(_LOOK_AGAIN_SECONDS)
            self.engine.close(compares=False)


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
        signature: Signature,
        program: StreamProgram,
        source: Buffer | None,
        target: Buffer | None,
        reached: Reached | None,
    ) -> None:
        self._runner, self.call, self.program, self.source, self.target = runner, call, program, source, target
        self.reached = reached
        self._signature, self._name = signature.packed(), call.collective
        self.timeout = runner.engine.timeout if call.timeout is None else call.timeout
        self.batches: dict[StreamState, tuple[_native.Batch, After]] = {}

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        self._runner.check(self._name, self._signature)
        return self._runner.put(self, self._signature, before, holds)


class Accompanied:
    """A call that staging puts into the stream, and that is compared here."""

    def __init__(self, runner: Runner, call: Call, signature: Signature, other: Again) -> None:
        self._runner, self._other = runner, other
        self._signature, self._name = signature.packed(), call.collective
        self._timeout = runner.engine.timeout if call.timeout is None else call.timeout

    def launch(self, before: int | None, holds: bool) -> _native.Mark:
        runner = self._runner
        runner.check(self._name, self._signature)
        mark = self._other.launch(before, holds)
        runner.keep(self._signature, self._name, self._timeout + _STAGED_LATER_SECONDS, mark, None)
        return mark


def _watch(reference: weakref.ref[Runner], changed: threading.Condition, launched: deque[Launched]) -> None:
    runner = reference()
    while runner is not None and not runner._is_closed:
        try:
            runner.look()
        except DeviceError as error:  # the GPU is lost, or the process ends
            runner.fail(error)
            return
        time.sleep(_LOOK_AGAIN_SECONDS)
        with changed:
            if not launched:  # while there are calls, somebody must watch over them
                runner = None
                if reference() is not None:
                    changed.wait(1.0)
        runner = reference()
    if runner is None:  # dropped without close
        _give_back_soon()


def _leave_and_retire(memory: GroupMemory) -> None:
    if not memory.standing(memory.rank):  # why it gave up says more than that it has dropped the group since
        memory.stand(LEFT)
    retire(memory)


def _give_back_soon() -> None:
    """Memory that cannot be freed within a few seconds is tried again with the next group on a GPU."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    with contextlib.suppress(AllfoldError):
        while sweep() and time.monotonic() < deadline:
            time.sleep(10 * _LOOK_AGAIN_SECONDS)
