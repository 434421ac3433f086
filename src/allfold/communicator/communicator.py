"""The communicator: what users hold. A rank, a size, and every collective on real data between real processes.

Memory. `all_reduce`, `reduce` and `broadcast` work in place: the array that is given is the result (on ranks that get
none, `reduce` leaves it as workspace, undefined). The others take an input and an output; the whole array is the
concatenation of the ranks' parts in order. Arrays are anything contiguous in memory that speaks the buffer protocol or
DLPack; a NumPy array or a torch tensor that is not contiguous is copied there and back. Arrays made by `empty` lie in
shared memory, and collectives on them copy nothing.

Every call must be made by every rank, in the same order, with the same collective, count, type, operation and root;
otherwise all ranks raise `MismatchError`. No call waits longer than its timeout.
"""

from __future__ import annotations

import atexit
import logging
import os
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np

from .. import _native
from ..dtypes import find_dtype
from ..engines.shared_memory.choice import Choice, choices, fetched
from ..engines.shared_memory.flight import FAILURES, keep
from ..engines.shared_memory.programs import MEMORIES, facts, keeps_rank_order, programs_of
from ..engines.shared_memory.rendezvous import exchange
from ..engines.shared_memory.shrink import agree_on_survivors, offsets_of, was_shrunk
from ..engines.shared_memory.stacks import answer_questions
from ..engines.shared_memory.tuning import Tuning, find_tuning
from ..errors import AllfoldError, MismatchError, UsageError
from ..ops import WHY_NOT, Op, find_op
from ..registry import Algorithm as RegisteredAlgorithm
from ..registry import Steps, algorithm_of
from .arrays import contiguous, copied, is_writable, put_back
from .handle import Handle
from .messages import PointToPoint
from .timeouts import check_timeout
from .trace import Trace

_log = logging.getLogger("allfold")

Algorithm = str | Callable[..., Steps] | RegisteredAlgorithm | None
Array = Any

DEFAULT_TIMEOUT = 300.0
_CODES = {name: number for number, name in enumerate(_native.COLLECTIVES)}
(
    _ALL_REDUCE,
    _REDUCE,
    _BROADCAST,
    _GATHER,
    _SCATTER,
    _ALL_GATHER,
    _REDUCE_SCATTER,
    _ALL_TO_ALL,
    _BARRIER,
) = range(len(_native.COLLECTIVES))
_OPS = {name: number for number, name in enumerate(_native.OPS)}
_ADDRESS_SPACE = 2**44  # every rank maps every rank's arena, and a process has 2**47 bytes of addresses
_DROPPED_AT_ONCE = 8  # groups that one call of group() can give back
_MEETING = struct.Struct("!QQQQ")  # where a rank's post, work area and inbox lie, and how large its arena is


_all: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """What is still under way when the interpreter ends is given up: it would need the interpreter to come to its end."""
    for communicator in list(_all):
        communicator._channel.close()
        if communicator._engine.end():
            _log.warning(
                "rank %d ends while a call is under way that was not waited for (call %d of %s); it was given up",
                communicator.rank,
                communicator._engine.calls(),
                communicator._label,
            )


def connect(
    rank: int, size: int, key: str, timeout: float = DEFAULT_TIMEOUT, room: int = _ADDRESS_SPACE
) -> Communicator:
    """Meet the other ranks that come with the same key, and be a communicator of all of them.

    `room` is how much of this process's address space the arenas of all ranks may take together.
    """
    check_timeout("connect", timeout)
    arena = _native.Arena(_arena_bytes(room // size))
    post, work, inbox = (
        arena.allocate(bytes) for bytes in (_native.POST_BYTES, _native.WORK_BYTES, _native.inbox_bytes(size))
    )
    # What was tuned is rank 0's to say: files may differ from rank to rank, choices must not.
    tuned = find_tuning().pack(size) if rank == 0 else b""
    payload = _MEETING.pack(post, work, inbox, arena.size) + tuned
    others = exchange(rank, size, key, payload, [arena.descriptor], timeout)
    tuning = Tuning.unpack(others[0][0][_MEETING.size :])
    members = []
    for peer, (payload, descriptors) in enumerate(others):
        peer_post, peer_work, peer_inbox, peer_size = _MEETING.unpack_from(payload)
        if peer == rank:
            os.close(descriptors[0])
            members.append((arena, post, work, inbox))
        else:
            members.append((_native.Arena(descriptors[0], peer_size), peer_post, peer_work, peer_inbox))
    communicator = Communicator(rank, members, timeout, "the world", _number_of(key), tuning)
    answer_questions(arena, communicator)
    return communicator


def _number_of(*names: object) -> int:
    """A number that all ranks of a communicator find alike, and that no other communicator of the machine has."""
    return int.from_bytes(blake2b(repr(names).encode(), digest_size=8).digest(), "little")


def _comes_from_python(error: BaseException) -> bool:
    """Whether an error that came out of the engine was raised by Python code that the engine had called."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _arena_bytes(room: int) -> int:
    """The most shared memory one rank may use: all of the machine's, unless told otherwise. Only what is touched counts."""
    text = os.environ.get("ALLFOLD_ARENA_BYTES")
    if text is None:
        return min(room, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # Fifteen digits at most: more are out of range, and a number of thousands of them is refused elsewhere, untyped.
    if not (text.isascii() and text.isdecimal() and len(text) <= 15) or not 2**23 <= int(text) <= 2**46:
        raise UsageError(f"ALLFOLD_ARENA_BYTES is {text!r}; expected a number of bytes from {2**23} to {2**46}")
    return int(text)


def _fetches() -> bool:
    """Whether large ordinary arrays may be read out of the memory of other ranks, where the system allows it."""
    text = os.environ.get("ALLFOLD_FETCH", "1")
    if text not in ("0", "1"):
        raise UsageError(f"ALLFOLD_FETCH is {text!r}; expected 1 (read large arrays across processes) or 0 (never)")
    return text == "1"


class Communicator(PointToPoint):
    """A group of ranks that communicate. Made by `connect`, `init`, `spawn` and `group`."""

    def __init__(
        self,
        rank: int,
        members: Sequence[tuple[Any, int, int, int]],
        timeout: float,
        label: str,
        number: int,
        tuning: Tuning = Tuning(),  # noqa: B008 - it is frozen
    ) -> None:
        self.rank = rank
        self.size = len(members)
        self.timeout = timeout
        self._members = list(members)
        self._label = label
        self._number = number  # see _number_of
        self._tuning = tuning
        self._functions: dict[tuple[str, str], RegisteredAlgorithm] = {}  # the users' own, by collective and name
        self._names: dict[tuple[str, int], str] = {}  # theirs, by collective and identity
        self._namesakes: Counter[str] = Counter()
        self._groups = 0
        self._lent: dict[int, tuple[list[int], list[int]]] = {}  # by group: its ranks, and what of the arena it has
        self._dropped: list[int] = []  # groups that nobody holds any more on this rank
        self._flight_is_kept = False
        # Where this one came from lives as long as it does: its life is that of the thread that says where this rank stands.
        self._parent: Communicator | None = None
        # The engine asks for programs; weakly, so that the two do not keep each other alive.
        me = weakref.ref(self)

        def compile_program(code: int, algorithm: str, root: int, memory: int) -> dict[str, Any]:
            communicator = me()
            assert communicator is not None  # it is making the call that this is for
            return communicator._compile(code, algorithm, root, memory)

        works = [(arena, post, work) for arena, post, work, _ in members]
        inboxes = [(arena, post, inbox) for arena, post, _, inbox in members]

        def long_way(*call: Any) -> Handle | None:
            communicator = me()
            assert communicator is not None
            return communicator._run(*call)

        def failed(error: BaseException) -> None:
            communicator = me()
            assert communicator is not None
            communicator._failed(error)

        ending = _native.Ending()
        self._engine = _native.Communicator(
            rank, works, label, compile_program, long_way, failed, timeout, _fetches(), number, ending
        )
        self._call = _native.caller(self._engine)
        self._channel = _native.Channel(rank, inboxes, label, timeout, ending)
        for name, code in _CODES.items():
            self._engine.choose(code, self._choices(name), *fetched(name, self.size))
        _all.add(self)

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}, {self._label}>"

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
    ) -> Handle | None:
        """Combine the arrays of all ranks; every rank's array becomes the result."""
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
    ) -> Handle | None:
        """Combine the arrays of all ranks; the root's array becomes the result, the others are used as workspace."""
        return self._call(_REDUCE, None, array, op, root, algorithm, async_op, timeout, dtype)

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Handle | None:
        """Every rank's array becomes the root's."""
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
    ) -> Handle | None:
        """The root's output becomes all ranks' arrays, one after the other; other ranks give no output."""
        self._only_root("gather", "output", output, root)
        return self._call(_GATHER, array, output, None, root, algorithm, async_op, timeout, dtype)

    def scatter(
        self,
        output: Array,
        array: Array = None,
        root: int = 0,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Handle | None:
        """Every rank's output becomes its part of the root's array; other ranks give no array."""
        self._only_root("scatter", "array", array, root)
        return self._call(_SCATTER, array, output, None, root, algorithm, async_op, timeout, dtype)

    def all_gather(
        self,
        array: Array,
        output: Array,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Handle | None:
        """Every rank's output becomes all ranks' arrays, one after the other."""
        return self._call(_ALL_GATHER, array, output, None, 0, algorithm, async_op, timeout, dtype)

    def reduce_scatter(
        self,
        array: Array,
        output: Array,
        op: str | Op = "sum",
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Handle | None:
        """Combine the arrays of all ranks; every rank's output becomes its part of the result."""
        return self._call(_REDUCE_SCATTER, array, output, op, 0, algorithm, async_op, timeout, dtype)

    def all_to_all(
        self,
        array: Array,
        output: Array,
        algorithm: Algorithm = None,
        async_op: bool = False,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Handle | None:
        """Part j of rank i's array becomes part i of rank j's output."""
        return self._call(_ALL_TO_ALL, array, output, None, 0, algorithm, async_op, timeout, dtype)

    def barrier(
        self, algorithm: Algorithm = None, async_op: bool = False, timeout: float | None = None
    ) -> Handle | None:
        """Return when every rank has come."""
        return self._call(_BARRIER, None, None, None, 0, algorithm, async_op, timeout, None)

    # Memory, groups, life --------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An array in shared memory. It, its slices and tensors made from it go through collectives without a copy.

        `bfloat16` comes as uint16; pass `dtype="bfloat16"` to the collectives then.
        """
        carrier = find_dtype(dtype).carrier
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(length < 0 for length in shape):
            raise UsageError(f"empty: negative length in shape {shape}")
        count = int(np.prod(shape, dtype=np.int64))
        raw = _native.empty(self._members[self.rank][0], max(1, count * carrier.itemsize))
        result: np.ndarray[Any, Any] = raw[: count * carrier.itemsize].view(carrier).reshape(shape)
        return result

    def group(self, ranks: Sequence[int], timeout: float | None = None) -> Communicator | None:
        """A communicator of some of the ranks, which are numbered anew in the order given; None for ranks outside.

        Every rank of this communicator takes part in the call. Different ranks may name different groups at the same
        time, as long as everyone in a group names it alike.
        """
        chosen = [int(rank) for rank in ranks] if isinstance(ranks, Iterable) else []
        if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= rank < self.size for rank in chosen):
            raise UsageError(f"group: expected different ranks from 0 to {self.size - 1}, not {ranks!r}")
        check_timeout("group", timeout)
        arena = self._members[self.rank][0]
        inside = self.rank in chosen
        needs = (_native.POST_BYTES, _native.WORK_BYTES, _native.inbox_bytes(len(chosen)))
        # A row: the ranks, where the parts of the new group lie, and which earlier groups are no more on this rank.
        own = np.full(self.size + len(needs) + _DROPPED_AT_ONCE, -1, np.int64)
        own[: len(chosen)] = chosen
        places, dropped = slice(self.size, self.size + len(needs)), slice(self.size + len(needs), None)
        own[places] = [arena.allocate(bytes) if inside else 0 for bytes in needs]
        gone = list(self._dropped)[:_DROPPED_AT_ONCE]
        own[dropped][: len(gone)] = gone
        table = np.empty((self.size, len(own)), np.int64)
        self.all_gather(own, table, timeout=timeout)
        self._groups += 1
        self._release({rank: set(table[rank, dropped].tolist()) for rank in range(self.size)})
        named = [[int(rank) for rank in row[: self.size] if rank >= 0] for row in table]
        for rank, group in enumerate(named):
            for other in group:
                if named[other] != group:
                    raise MismatchError(f"group: rank {rank} came with {group}, rank {other} with {named[other]}")
        if not inside:
            return None
        members = []
        for rank in chosen:
            post, work, inbox = (int(offset) for offset in table[rank, places])
            members.append((self._members[rank][0], post, work, inbox))
        label = f"group {self._groups} of {self._label}: ranks {', '.join(map(str, chosen))}"
        number = _number_of(self._number, self._groups, chosen)
        made = Communicator(chosen.index(self.rank), members, self.timeout, label, number, self._tuning)
        self._lent[self._groups] = (chosen, [int(offset) for offset in own[places]])
        weakref.finalize(made, self._dropped.append, self._groups).atexit = False
        made._parent = self
        return made

    def _release(self, dropped: dict[int, set[int]]) -> None:
        """Give back the memory of groups that are no more on any of their ranks: until then peers may look at it."""
        for number in sorted(dropped[self.rank] & self._lent.keys()):
            ranks, offsets = self._lent[number]
            if all(number in dropped[rank] for rank in ranks):
                for offset in offsets:
                    self._members[self.rank][0].release(offset)
                del self._lent[number]
                self._dropped.remove(number)

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """Record every instruction of the calls inside, on all ranks; all ranks take part in the call."""
        trace = Trace(self)
        self._engine.start_trace()
        try:
            yield trace
        finally:
            events = self._engine.stop_trace()
        trace.collect(events)

    def shrink(self, timeout: float | None = None) -> Communicator:
        """After an error: a communicator of those ranks that are left, numbered anew in their old order.

        Every rank that is left takes part. Ends the calls of this communicator on all ranks, which then raise, and is
        to be called by them in turn; after a mismatch, where nobody is lost, it gives a communicator of all ranks again.
        """
        if was_shrunk(self._members, self.rank):
            raise UsageError("shrink: this communicator was shrunk already; shrink the one that came of it")
        if self.flight()["standing"] == "left":
            raise UsageError("shrink: this communicator is closed")
        self.abort()
        arena = self._members[self.rank][0]
        needs = (_native.POST_BYTES, _native.WORK_BYTES, _native.inbox_bytes(self.size))
        post, work, inbox = (arena.allocate(bytes) for bytes in needs)
        limit = self.timeout if timeout is None else timeout
        left = agree_on_survivors(self._members, self.rank, (post, work, inbox), limit)
        members = [(self._members[rank][0], *offsets_of(self._members, rank)) for rank in left]
        label = f"what is left of {self._label}: ranks {', '.join(map(str, left))}"
        number = _number_of(self._number, "shrink", left)
        made = Communicator(left.index(self.rank), members, self.timeout, label, number, self._tuning)
        made._parent = self
        return made

    def flight(self) -> dict[str, Any]:
        """What the flight recorder holds of this rank: the last 256 calls with what they were and when, and how it stands."""
        record: dict[str, Any] = _native.flight(*self._members[self.rank][:2])
        return {"rank": self.rank, "size": self.size, "label": self._label, **record}

    def close(self) -> None:
        """Leave. Calls of other ranks that would need this one fail, naming it.

        A rank that needed nobody in its last call (the root of a broadcast) waits up to a second for the others to come to
        it, and raises `MismatchError` if one of them came with something else.
        """
        self._leave(compares=True)

    def _leave(self, compares: bool) -> None:
        self._channel.close()
        try:
            self._engine.close(compares)
        except FAILURES as error:
            self._failed(error)
            raise

    def abort(self) -> None:
        """End all calls on this communicator, here and on all other ranks, from any thread."""
        self._engine.abort()

    # ---

    def summing(self) -> Callable[[Array, float | None], None]:
        """`all_reduce(array, timeout=…)` on the shortest way, for backends that make one such call after the other.

        A tensor that speaks DLPack's quick exchange is taken as it lies in memory: whoever calls this has looked whether
        it is to be conjugated or negated first, which that does not say.
        """
        call = _native.caller_vouched(self._engine)

        def sums(array: Array, timeout: float | None) -> None:
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
    ) -> Handle | None:
        """The long way of a call, for what the engine does not take as it is."""
        collective = _native.COLLECTIVES[code]
        if not 0 <= root < self.size:
            raise UsageError(f"{collective}: root must be a rank from 0 to {self.size - 1}, not {root}")
        check_timeout(collective, timeout)
        number = _OPS.get(op) if type(op) is str else None
        if op is not None and number is None:
            number, algorithm = self._custom(collective, op, root, algorithm)
        if algorithm is not None and not isinstance(algorithm, str):
            algorithm = self._named(collective, algorithm)
        try:
            ticket = self._engine.run(code, source, target, number, root, algorithm, timeout, dtype, async_op)
        except (BufferError, TypeError, ValueError) as error:
            # What comes from deeper than the engine was raised by the user's own operation or algorithm: it stays.
            if isinstance(error, AllfoldError) or _comes_from_python(error):
                raise
            if isinstance(error, BufferError):
                return self._run_copied(code, source, target, op, root, algorithm, async_op, timeout, dtype)
            name = _native.OPS[number] if isinstance(number, int) else ""
            why = f": {WHY_NOT[name]}" if str(error).startswith(f"{name} is not defined for ") else ""
            raise UsageError(f"{collective}: {error}{why}") from None
        return Handle(self._engine, ticket, (source, target), self._failed) if async_op else None

    def _failed(self, error: BaseException) -> None:
        """An error is about to leave a call: what the flight recorders hold goes with it, with the first one."""
        if isinstance(error, FAILURES) and not self._flight_is_kept:
            self._flight_is_kept = True
            keep(error, self.rank, self._label, self._number, self._members)

    def _compile(self, code: int, algorithm: str, root: int, memory: int) -> dict[str, Any]:
        collective = _native.COLLECTIVES[code]
        chosen = self.algorithm_named(collective, algorithm)
        rooted = collective in ("reduce", "broadcast", "gather", "scatter")
        programs = programs_of(collective, chosen, self.size, root if rooted else None, MEMORIES[memory])
        return facts(programs, self.rank, algorithm)

    def _choices(self, collective: str) -> list[Choice]:
        return self._tuning.of(collective, self.size) or choices(collective, self.size)

    def algorithm_named(self, collective: str, name: str) -> str | RegisteredAlgorithm:
        """What the engine's name for an algorithm stands for: a registered one's own name, or a user's function."""
        return self._functions.get((collective, name), name)

    def _named(self, collective: str, algorithm: Callable[..., Steps] | RegisteredAlgorithm) -> str:
        """A name for a user's own generator function. That ranks mean the same by it is seen from the schedules."""
        key = (collective, id(algorithm))  # which stays its own: it is kept below
        if key not in self._names:
            chosen = algorithm_of(collective, algorithm)
            # Functions of the same name are counted, in the order of their first use.
            self._namesakes[chosen.name] += 1
            count = self._namesakes[chosen.name]
            self._names[key] = f"{chosen.name}()" if count == 1 else f"{chosen.name}()#{count}"
            self._functions[collective, self._names[key]] = chosen
        return self._names[key]

    def _custom(self, collective: str, op: str | Op, root: int, algorithm: Algorithm) -> tuple[Any, Algorithm]:
        """What the engine calls for an operation that is not one of its own, and the algorithm that is right for it."""
        found = find_op(op)
        if found.is_builtin:
            return _OPS[found.name], algorithm
        if not found.commutative:
            if algorithm is None and self._tuning.of(collective, self.size) is not None:
                algorithm = choices(collective, self.size)[-1][1]  # what was tuned may fold in another order
            chosen = algorithm if algorithm is not None else choices(collective, self.size)[-1][1]
            if not keeps_rank_order(collective, chosen, self.size, root if collective == "reduce" else None):
                name = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", "the algorithm")
                raise UsageError(
                    f"{collective}: {found.name} is not commutative, and {name} with {self.size} ranks does not keep rank "
                    f"order; `allfold verify {name} --ranks {self.size}` shows it, `algorithm=None` takes one that does"
                )

        def fold(operands: list[bytes], name: str) -> np.ndarray[Any, Any]:
            dtype = find_dtype(name)
            return found.fold([np.frombuffer(operand, dtype.carrier) for operand in operands], dtype)

        return fold, algorithm

    def _run_copied(
        self, code: int, source: Array, target: Array, op: Any, root: int, algorithm: Algorithm, *rest: Any
    ) -> Handle | None:
        """The same call on contiguous copies, for arrays that are not contiguous themselves, or that overlap."""
        collective = _native.COLLECTIVES[code]
        plain_source, plain_target = (contiguous(collective, array) for array in (source, target))
        if target is not None and not is_writable(target):
            raise UsageError(f"{collective}: the array for the result is read-only")
        if source is not None and target is not None and _native.overlap(plain_source, plain_target):
            # Whichever is the shorter: an input that is a part of its output, or an output that is a part of its input.
            if collective in ("scatter", "reduce_scatter"):
                plain_target = copied(plain_target)
            else:
                plain_source = copied(plain_source)
        handle = self._run(code, plain_source, plain_target, op, root, algorithm, *rest)
        if target is None or plain_target is target:
            return handle
        if handle is None:
            put_back(target, plain_target)
        else:
            handle.afterwards(lambda: put_back(target, plain_target))
        return handle

    def _only_root(self, collective: str, what: str, array: Array, root: int) -> None:
        if (array is None) != (self.rank != root):
            must = "must give" if self.rank == root else "gives no"
            raise UsageError(f"{collective}: the root {must} {what}; this is rank {self.rank}, the root is {root}")
