"""The shared-memory engine: ranks of one machine, as processes or threads, that read and write each other's arenas.

The work is done by the extension (`native/collectives`, `native/messages`). This file has what it asks Python for (a
program, when it is first needed), which algorithm it takes for which size, and how groups are made and end.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import struct
import weakref
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ... import _native
from ...collectives import COLLECTIVES
from ...dtypes import find_dtype
from ...errors import MismatchError, UsageError
from ...ops import Op
from ...proved import check_rank_order, check_uneven, programs_of
from ...registry import Algorithm, AnyAlgorithm, algorithm_of
from ...wording import name_ranks
from ..engine import (
    FAILURES,
    MEETINGS,
    Background,
    Call,
    Engine,
    Entry,
    Event,
    Processes,
    check_same_engine,
    name_group,
)
from ..last_words import last_words, note_ending, watch_multiprocessing
from ..signature import check_groups
from .choice import Manner, Way, choices, ways
from .flight import in_memory, keep
from .members import ADDRESS_SPACE, Loans, Member, allocate_parts, new_member, number_of, release_parts
from .programs import MEMORIES, facts
from .rendezvous import exchange
from .shrink import agree_on_survivors, offsets_of, was_shrunk
from .stacks import answer_questions
from .trace import readable
from .tuning import Tuning, find_tuning

_log = logging.getLogger("allfold")

_NAMES = tuple(COLLECTIVES)  # in the order of the extension's numbers
_CODES = {name: code for code, name in enumerate(_NAMES)}
_OPS = {name: number for number, name in enumerate(_native.OPS)}
_SECONDS_TO_COME_OUT = 5.0  # for threads that are in calls when the interpreter ends
_MOST_FUNCTIONS = 64  # of a user's own that a communicator remembers, with their programs
_MEETING = struct.Struct("!QQQQ")  # where a rank's post, work area and inbox lie, and how large its arena is

_all: weakref.WeakSet[SharedMemory] = weakref.WeakSet()


def _say_why() -> None:
    """At the end of the process: record its exception for the other ranks, in every group."""
    note_ending()
    for engine in list(_all):
        engine.native.say_last(last_words())


@atexit.register
def _end_all() -> None:
    """Abandon pending calls when the interpreter ends: they would need the interpreter to finish."""
    _say_why()
    if _native.MISSING is None and _native.end_dropped():
        _log.warning("this process ends while calls of a dropped communicator are under way; they were given up")
    for engine in list(_all):
        engine.messages.close()
        if engine.native.end():
            _log.warning(
                "rank %d ends while a call of %s is under way that nobody waits for; it was given up",
                engine.rank,
                engine.label,
            )
    if _native.MISSING is None:
        _native.await_threads(_SECONDS_TO_COME_OUT)
        _native.park_other_threads()  # those that are still in a call, or come back to one


def meet(
    rank: int, size: int, key: str, timeout: float, room: int | None = None, within: float | None = None
) -> SharedMemory:
    """Connect to the other ranks of this machine that use the same key, `within` this many seconds or the timeout.

    `room`: see `new_member`.
    """
    own = new_member(size, room or ADDRESS_SPACE)
    # Rank 0 decides what was tuned: files may differ from rank to rank, choices must not.
    tuned = find_tuning().pack(size) if rank == 0 else b""
    payload = _MEETING.pack(*own[1:], own.arena.size) + tuned
    others = exchange(rank, size, key, payload, [own.arena.descriptor], timeout if within is None else within)
    _check_names(others)
    tuning = Tuning.unpack(others[0][0][_MEETING.size :])
    members = []
    for peer, (payload, descriptors) in enumerate(others):
        *parts, bytes = _MEETING.unpack_from(payload)
        if peer == rank:
            os.close(descriptors[0])
            members.append(own)
        else:
            members.append(Member(_native.Arena(descriptors[0], bytes), *parts))
    engine = SharedMemory(rank, members, timeout, "the world", number_of(key), tuning)
    answer_questions(own.arena, engine)
    return engine


def in_processes(ranks: Processes, timeout: float) -> SharedMemory:
    _native.require_engine("a communicator")
    return meet(ranks.rank, ranks.size, ranks.key, timeout, ranks.room)


def compare_names(ranks: Processes, name: str, timeout: float) -> None:
    """Take part in the meeting of this engine's ranks without memory, to say that this rank uses another engine."""
    _check_names(exchange(ranks.rank, ranks.size, ranks.key, name.encode(), [], timeout))


def _check_names(met: Sequence[tuple[bytes, list[int]]]) -> None:
    """Raise if some of the ranks that met use another engine: they handed in its name, and no descriptor."""
    try:
        check_same_engine(["shared_memory" if descriptors else payload.decode() for payload, descriptors in met])
    except MismatchError:
        for _, descriptors in met:
            for descriptor in descriptors:
                os.close(descriptor)
        raise


def in_threads(ranks: int, timeout: float) -> list[Engine]:
    """Every arena is mapped once, so that all ranks use the same addresses: sanitizers need that to see conflicts."""
    members = [new_member(ranks) for _ in range(ranks)]
    number = secrets.randbits(64)
    return [SharedMemory(rank, members, timeout, "the world", number) for rank in range(ranks)]


class SharedMemory(Engine):
    """One rank's end of a group in shared memory."""

    messages: _native.Channel

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        timeout: float,
        label: str,
        number: int,
        tuning: Tuning = Tuning(),  # noqa: B008 - it is frozen
    ) -> None:
        self.rank = rank
        self.size = len(members)
        self.label = label
        self.timeout = timeout
        self.members = list(members)
        self._number = number  # see number_of
        self._tuning = tuning
        self._functions: dict[tuple[str, str], Algorithm] = {}  # users' own algorithms, by collective and name
        self._names: OrderedDict[tuple[str, int], str] = OrderedDict()  # by collective and identity, the last used last
        self._namesakes: Counter[str] = Counter()
        self._traced: dict[tuple[str, str], Algorithm] | None = None  # while a trace is on: those forgotten since
        self._groups = 0
        self._loans = Loans()  # of this rank's arena: one for all engines that came of the same one
        self._flight_is_kept = False
        # Keeps alive the engine that this one was made from, and with it the thread that answers for this rank.
        self._parent: SharedMemory | None = None
        self._whole = label, list(range(self.size))  # before it was shrunk: the label, and the numbers of these ranks
        self._long_way: weakref.WeakMethod[Any] | None = None
        # The extension calls back; weakly, so that the two do not keep each other alive.
        me = weakref.ref(self)

        def compile_program(code: int, algorithm: str, root: int, memory: int, manner: int) -> dict[str, Any]:
            engine = me()
            assert engine is not None  # it is making the call that needs this program
            return engine._compile(code, algorithm, root, memory, manner)

        def long_way(*call: Any) -> Any:
            engine = me()
            run = engine._long_way() if engine is not None and engine._long_way is not None else None
            if run is None:  # the interpreter is ending, and has destroyed it
                raise UsageError("this communicator is gone")
            return run(*call)

        def failed(error: BaseException) -> None:
            if (engine := me()) is not None:
                engine.failed(error)

        works = [(member.arena, member.post, member.work) for member in members]
        inboxes = [(member.arena, member.post, member.inbox) for member in members]
        first_error = _native.FirstError()
        # Held by everything that touches the group's memory: see Attachment in native/shared/attachment.hpp.
        self._attachment = _native.Attachment(rank, [(member.arena, member.post) for member in members])
        self.native = _native.Communicator(
            rank,
            works,
            label,
            compile_program,
            long_way,
            failed,
            timeout,
            _fetches(),
            number,
            first_error,
            self._attachment,
        )
        self.messages = _native.Channel(rank, inboxes, label, timeout, _fetches(), first_error, self._attachment)
        self._manners: list[Manner] = []  # by the numbers that the extension has for them
        for name in _CODES:
            self.choose_ways(name, tuning.ways_of(name, self.size) or ways(name, self.size))
        _all.add(self)
        watch_multiprocessing(_say_why)

    def choose_ways(self, collective: str, rows: Sequence[Way]) -> None:
        """Set how the following calls move ordinary arrays. All ranks must choose the same ways before the same call."""
        self._manners = list(dict.fromkeys([*self._manners, *(way.manner for way in rows)]))
        numbered = [(way.limit, way.fetches, self._manners.index(way.manner)) for way in rows]
        chosen = self._tuning.of(collective, self.size) or choices(collective, self.size)
        self.native.choose(_CODES[collective], chosen, numbered)

    # Calls -----------------------------------------------------------------------------------------------------------

    def entry(self, run: Entry, vouched: bool = False) -> Entry:
        self._long_way = weakref.WeakMethod(run)
        return _native.caller(self.native, vouched)

    def run(self, call: Call, async_op: bool) -> Background | None:
        ticket = self.native.run(*self._in_numbers(call), async_op)
        return None if ticket is None else Background(ticket.done, partial(self._wait, ticket))

    def _wait(self, ticket: _native.Ticket, timeout: float | None) -> bool:
        """Wait for a call that the extension's worker makes."""
        try:
            return self.native.wait(ticket, -1.0 if timeout is None else max(0.0, timeout))
        except FAILURES as error:
            self.failed(error)
            raise

    def deferred(self, call: Call, outcome: _native.Outcome) -> _native.Deferred:
        return self.native.deferred(*self._in_numbers(call), outcome)

    def _in_numbers(self, call: Call) -> _InNumbers:
        """A call as the extension takes it."""
        op, algorithm, number = call.op, call.algorithm, None
        name = algorithm if algorithm is None or isinstance(algorithm, str) else self._named(call.collective, algorithm)
        if op is not None:
            number = _OPS[op.name] if op.is_builtin else (_folding(op), op.name, op.digest)
            if not op.commutative:
                name = self._in_rank_order(call, name, op)
        counts = None
        if call.counts is not None:
            name = self._for_uneven(call, name)
            counts = call.counts.table.reshape(-1).view(np.uint64), call.counts.digest
        code = _CODES[call.collective]
        return code, call.input, call.output, number, call.root, name, call.timeout, call.dtype, counts

    def calls(self) -> int:
        return self.native.calls()

    def close(self, compares: bool) -> None:
        self.native.say_last(last_words())
        self.messages.close()
        try:
            self.native.close(compares)
        except FAILURES as error:
            self.failed(error)
            raise

    def abort(self, because_of: Sequence[int] = ()) -> None:
        """`because_of`: the ranks that are the cause, if the caller knows that from elsewhere."""
        self.native.say_last(last_words())
        self.native.abort(because_of)

    def failed(self, error: BaseException) -> None:
        """Attach what the flight recorders hold to the first error."""
        if isinstance(error, FAILURES) and not self._flight_is_kept:
            self._flight_is_kept = True
            whole = (self.rank, self.label, self._number, self.size)
            keep(error, *whole, lambda: in_memory(self.rank, self.members))

    # Memory and groups -----------------------------------------------------------------------------------------------

    def empty(self, bytes: int) -> np.ndarray[Any, Any]:
        memory: np.ndarray[Any, Any] = _native.empty(self.members[self.rank].arena, max(1, bytes))
        return memory[:bytes]

    def group(self, ranks: Sequence[int], timeout: float | None, label: str | None = None) -> SharedMemory | None:
        """`label`: the group's name in errors, if it is not one of this engine's groups."""
        chosen = list(ranks)
        arena = self.members[self.rank].arena
        inside = self.rank in chosen
        parts = allocate_parts(arena, len(chosen)) if inside else (0, 0, 0)
        # A row: the ranks, and where the parts of the new group lie.
        own = np.full(self.size + len(parts), -1, np.int64)
        own[: len(chosen)] = chosen
        own[self.size :] = parts
        table = np.empty((self.size, len(own)), np.int64)
        self._gather(own, table, timeout)
        self._check_nobody_gave_up()
        self._groups += 1
        self._loans.collect()  # now, because all ranks have just dropped the groups that they drop in a loop
        try:
            check_groups([[rank for rank in row if rank >= 0] for row in table[:, : self.size].tolist()])
        except MismatchError:  # on every rank, so that nobody uses these parts
            if inside:
                release_parts(Member(arena, *parts))
            raise
        if not inside:
            return None
        members = [Member(self.members[rank].arena, *table[rank, self.size :].tolist()) for rank in chosen]
        return self._smaller(chosen, members, label or name_group(self._groups, chosen, self.label), self._groups)

    def group_of(self, ranks: Sequence[int], tag: int, timeout: float | None) -> SharedMemory:
        chosen, messages = list(ranks), self.messages
        arena = self.members[self.rank].arena
        own = np.array(allocate_parts(arena, len(chosen)), np.int64)
        others = [rank for rank in chosen if rank != self.rank]
        rows = {rank: np.empty(len(own), np.int64) for rank in others} | {self.rank: own}
        under_way = [messages.start(False, rows[rank], rank, tag, None, MEETINGS) for rank in others]
        under_way += [messages.start(True, own, rank, tag, None, MEETINGS) for rank in others]
        for one in under_way:
            messages.wait(one, timeout)
        members = [Member(self.members[rank].arena, *rows[rank].tolist()) for rank in chosen]
        label = f"a group of {self.label}: {name_ranks(chosen)}"
        return self._smaller(chosen, members, label, f"tag {tag}")

    def inner(self, timeout: float | None) -> SharedMemory:
        made = self.group(range(self.size), timeout)
        assert made is not None
        made.native.follow(self.native)
        return made

    def _check_nobody_gave_up(self) -> None:
        """Raise why, if a rank gave up. A rank that comes late to `group` finds there what the others have brought, though
        they have given it up. It must not go on: nobody would come to the calls of the new group."""
        standings = [_native.standing(member.arena, member.post) for member in self.members]
        gone = [rank for rank, standing in enumerate(standings) if standing in ("late", "aborted", "mismatch")]
        if gone:
            try:
                self.native.check_given_up("all_gather", gone)
            finally:
                self.native.abort()  # those that have not given up must not wait for this rank in the new group

    def shrink(self, timeout: float | None) -> SharedMemory:
        if was_shrunk(self.members, self.rank):
            raise UsageError("shrink: already shrunk; call shrink() on the communicator it returned")
        if self.flight()["standing"] == "left":
            raise UsageError("shrink: this communicator is closed")
        self.native.abort()
        arena, limit = self.members[self.rank].arena, self.timeout if timeout is None else timeout
        left = agree_on_survivors(self.members, self.rank, lambda: allocate_parts(arena, self.size), limit)
        members = [Member(self.members[rank].arena, *offsets_of(self.members, rank)) for rank in left]
        label, ranks = self._whole
        remaining = [ranks[rank] for rank in left]
        made = self._smaller(left, members, f"what is left of {label}: {name_ranks(remaining)}", "shrink")
        made._whole = label, remaining
        return made

    def _smaller(self, ranks: list[int], members: list[Member], label: str, what: int | str) -> SharedMemory:
        number = number_of(self._number, what, ranks)
        rank = ranks.index(self.rank)
        made = SharedMemory(rank, members, self.timeout, label, number, self._tuning)
        made._parent = self
        made._loans = self._loans
        self._loans.lend(members[rank], members)
        return made

    def _gather(self, own: Any, table: Any, timeout: float | None) -> None:
        try:
            self.run(Call("all_gather", input=own, output=table, timeout=timeout), False)
        except FAILURES as error:
            self.failed(error)
            raise

    # What happened ---------------------------------------------------------------------------------------------------

    def flight(self) -> dict[str, Any]:
        own = self.members[self.rank]
        record: dict[str, Any] = _native.flight(own.arena, own.post)
        return {"rank": self.rank, "size": self.size, "label": self.label, **record}

    def start_trace(self) -> None:
        self._traced = {}
        self.native.start_trace()

    def stop_trace(self) -> list[Event]:
        events = self.native.stop_trace()
        try:
            return [readable(event, self.rank, self.size, self._algorithm_named) for event in events]
        finally:
            self._traced = None

    # Algorithms ------------------------------------------------------------------------------------------------------

    def _compile(self, code: int, algorithm: str, root: int, memory: int, manner: int) -> dict[str, Any]:
        promise = COLLECTIVES[_NAMES[code]]
        chosen = self._algorithm_named(promise.name, algorithm)
        handed, segment, in_rows = self._manners[manner]
        programs = programs_of(
            promise.name, chosen, self.size, root if promise.rooted else None, MEMORIES[memory], handed
        )
        return facts(programs, self.rank, algorithm, segment, in_rows)

    def _algorithm_named(self, collective: str, name: str) -> str | Algorithm:
        """The algorithm behind the extension's name for it: the name of a registered one, or a user's function."""
        key = collective, name
        return self._functions.get(key) or (self._traced or {}).get(key) or name

    def _named(self, collective: str, algorithm: AnyAlgorithm) -> str:
        """A name for a user's generator function. That it means the same on all ranks is checked by the schedules."""
        key = (collective, id(algorithm))  # the id stays unique: the function is kept below
        name = self._names.get(key)
        if name is None:
            chosen = algorithm_of(collective, algorithm)
            # Functions of the same name are counted, in the order of their first use.
            self._namesakes[chosen.name] += 1
            count = self._namesakes[chosen.name]
            name = self._names[key] = f"{chosen.name}()" if count == 1 else f"{chosen.name}()#{count}"
            self._functions[collective, name] = chosen
            if len(self._names) > _MOST_FUNCTIONS:
                self._forget_function()
        self._names.move_to_end(key)
        return name

    def _forget_function(self) -> None:
        """Forget the user's function that was not used for the longest time, and its programs.

        All ranks make the same calls, so they forget the same one at the same call, and the names that they give stay
        the same. They would not if a function were forgotten when nobody holds it any more: garbage collectors run at
        different times.
        """
        (collective, _), name = self._names.popitem(last=False)
        chosen = self._functions.pop((collective, name))
        if self._traced is not None:
            self._traced[collective, name] = chosen
        self.native.forget(_CODES[collective], name)

    def _for_uneven(self, call: Call, name: str | None) -> str | None:
        """The name of a call's algorithm, if it can move slices of any length. The rule's choice can."""
        by_rule = choices(call.collective, self.size)[-1][1]
        root = call.root if COLLECTIVES[call.collective].rooted else None
        check_uneven(call.collective, self._algorithm_named(call.collective, name or by_rule), self.size, root)
        is_tuned = self._tuning.of(call.collective, self.size) is not None
        return by_rule if name is None and is_tuned else name

    def _in_rank_order(self, call: Call, name: str | None, op: Op) -> str | None:
        """The name of a call's algorithm, if it keeps rank order. The rule's choice does; a tuned choice may not."""
        by_rule = choices(call.collective, self.size)[-1][1]
        root = call.root if COLLECTIVES[call.collective].rooted else None
        check_rank_order(call.collective, self._algorithm_named(call.collective, name or by_rule), self.size, root, op)
        is_tuned = self._tuning.of(call.collective, self.size) is not None
        return by_rule if name is None and is_tuned else name


_InNumbers = tuple[int, Any, Any, Any, int, str | None, float | None, str | None, Any]


def _folding(op: Op) -> Any:
    """The function that the extension calls for an operation that is not built in."""

    def fold(operands: list[bytes], name: str) -> np.ndarray[Any, Any]:
        dtype = find_dtype(name)
        return op.fold([np.frombuffer(operand, dtype.carrier) for operand in operands], dtype)

    return fold


def _fetches() -> bool:
    """True if large ordinary arrays may be read out of the memory of other ranks, where the system allows it."""
    text = os.environ.get("ALLFOLD_FETCH", "1")
    if text not in ("0", "1"):
        raise UsageError(f"ALLFOLD_FETCH is {text!r}; expected 1 (read large arrays across processes) or 0 (never)")
    return text == "1"
