"""Messages for the judge of lesson 10: carried as late and as strictly as any library may carry them.

A test that a wrong program passes by luck teaches the wrong thing, so nothing here depends on timing:

- `send` waits until the receiver has asked for the message.
- `isend` remembers its array. Receiving into it, or changing it in any other way before `wait`, is an error.
- `irecv` writes into its array in `wait`, never earlier.
- Ranks that wait for each other are found when the circle closes, without a timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..communicator.communicator import Communicator
from ..communicator.messages import Message
from .findings import Wrong, learners_line

ANY_TAG = -1
_LONGEST = 30.0  # seconds that a rank waits for one that computes


@dataclass
class _Sent:
    source: int
    tag: int
    data: np.ndarray[Any, Any]
    taken: bool = False


@dataclass
class _Wanted:
    source: int | None
    tag: int
    message: _Sent | None = None

    def takes(self, sent: _Sent) -> bool:
        return self.source in (None, sent.source) and self.tag in (ANY_TAG, sent.tag)


@dataclass
class _Blocked:
    """A rank that waits: until `ready`, for `peer` (None: for anybody)."""

    ready: Callable[[], bool]
    peer: int | None
    doing: str
    line: int | None


@dataclass
class Exchange:
    """The state that the ranks of one run share."""

    ranks: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    sent: dict[int, list[_Sent]] = field(default_factory=dict)
    wanted: dict[int, list[_Wanted]] = field(default_factory=dict)
    waiting: dict[int, _Blocked] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    wrong: Wrong | None = None
    """The first fault that was found; every rank that waits raises it."""

    def put(self, destination: int, message: _Sent) -> None:
        with self.changed:
            for one in self.wanted.setdefault(destination, []):
                if one.message is None and one.takes(message):
                    one.message, message.taken = message, True
                    break
            else:
                self.sent.setdefault(destination, []).append(message)
            self.changed.notify_all()

    def ask(self, rank: int, wanted: _Wanted) -> None:
        with self.changed:
            queue = self.sent.setdefault(rank, [])
            found = next((one for one in queue if wanted.takes(one)), None)
            if found is None:
                self.wanted.setdefault(rank, []).append(wanted)
            else:
                queue.remove(found)
                wanted.message, found.taken = found, True
            self.changed.notify_all()

    def wait(self, rank: int, waiting: _Blocked) -> None:
        with self.changed:
            self.waiting[rank] = waiting
            self.changed.notify_all()
            while not waiting.ready():
                if self.wrong is None and (circle := self._circle(rank)):
                    self.refuse(self._stuck(circle), "deadlock", waiting.line)
                if self.wrong is not None:
                    raise self.wrong
                if not self.changed.wait(_LONGEST):
                    self.refuse(f"rank {rank} waited {_LONGEST:g} s in {waiting.doing}", "deadlock", waiting.line)
            del self.waiting[rank]

    def refuse(self, message: str, kind: str, line: int | None) -> None:
        """Keep the first fault, for all ranks to raise."""
        with self.changed:
            self.wrong = self.wrong or Wrong(message, line, kind)
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()

    def _circle(self, rank: int) -> list[int]:
        """The ranks that wait for each other, beginning with this one, or for one that has returned; else empty."""
        stuck = {one for one, waiting in self.waiting.items() if not waiting.ready()} | self.left
        chain = [rank]
        while True:
            peer = self.waiting[chain[-1]].peer
            if peer is None:
                others = [one for one in range(self.ranks) if one not in stuck]
                return [] if others else chain
            if peer not in stuck:
                return []
            if peer in chain or peer in self.left:
                return [*chain, peer]
            chain.append(peer)

    def _stuck(self, circle: list[int]) -> str:
        said = []
        for rank in dict.fromkeys(circle):
            if rank in self.left:
                said.append(f"rank {rank} has returned")
            else:
                said.append(f"rank {rank} waits in {self.waiting[rank].doing}")
        return f"{', and '.join(said[:3])}{', and so on' if len(said) > 3 else ''}: nobody gets any further"


class MessageRequest:
    """A message under way, as `isend` and `irecv` return it."""

    def __init__(self, comm: OnlyMessages, doing: str, array: Any, finish: Callable[[], Any], ready: _Blocked) -> None:
        self.doing, self.array, self.line, self.waited = doing, array, ready.line, False
        self._comm, self._finish, self._ready = comm, finish, ready

    def done(self) -> bool:
        """True if it has ended. As in other libraries, the array is then yours again."""
        with self._comm.board.changed:
            ready = self._ready.ready()
        if ready:
            self._complete()
        return ready

    def wait(self, timeout: float | None = None) -> Any:
        self._comm.board.wait(self._comm.rank, self._ready)
        return self._complete()

    def _complete(self) -> Any:
        if not self.waited:
            self.waited = True
            return self._finish()
        return None


class OnlyMessages:
    """A communicator without collectives, which counts the elements that are sent."""

    def __init__(self, comm: Communicator, board: Exchange) -> None:
        self.rank, self.size, self.board, self.sent = comm.rank, comm.size, board, 0
        self._started: list[MessageRequest] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"comm.{name} is not there: this exercise has rank, size, send, isend, recv and irecv")

    def send(self, array: Any, destination: int, tag: int = 0, timeout: float | None = None) -> None:
        message = self._put(array, destination, tag)
        line = learners_line()
        doing = f"send to rank {destination}{_at(line)}"
        self.board.wait(self.rank, _Blocked(lambda: message.taken, destination, doing, line))

    def isend(self, array: Any, destination: int, tag: int = 0, timeout: float | None = None) -> MessageRequest:
        message = self._put(array, destination, tag)
        line = learners_line()

        def finish() -> None:
            if message.data.tobytes() != np.asarray(array).tobytes():
                where = f"the array that isend{_at(line)} was sending"
                self._refuse(f"rank {self.rank} changed {where} before wait() had returned", "changed", learners_line())

        waiting = _Blocked(lambda: message.taken, destination, f"wait of isend to rank {destination}{_at(line)}", line)
        return self._start("isend", array, finish, waiting)

    def recv(self, array: Any, source: int | None = None, tag: int = 0, timeout: float | None = None) -> Message:
        pending = self._receive("recv", array, source, tag)
        found: Message = pending.wait()
        return found

    def irecv(
        self, array: Any, source: int | None = None, tag: int = 0, timeout: float | None = None
    ) -> MessageRequest:
        return self._receive("irecv", array, source, tag)

    def _put(self, array: Any, destination: int, tag: int) -> _Sent:
        self._check(destination, "send to")
        message = _Sent(self.rank, tag, np.array(array))
        self.sent += message.data.size
        self.board.put(destination, message)
        return message

    def _receive(self, doing: str, array: Any, source: int | None, tag: int) -> MessageRequest:
        line = learners_line()
        if source is not None:
            self._check(source, "receive from")
        for one in self._started:
            if one.doing == "isend" and not one.waited and np.size(array) and np.shares_memory(one.array, array):
                where = f"the array that isend{_at(one.line)} is still sending"
                self._refuse(f"rank {self.rank} receives{_at(line)} into {where}", "changed", line)
        wanted = _Wanted(source, tag)
        self.board.ask(self.rank, wanted)

        def finish() -> Message:
            message = wanted.message
            assert message is not None
            given, came = np.asarray(array), message.data
            if given.dtype != came.dtype or given.size < came.size:
                says = f"{came.size} elements of {came.dtype}, and has room for {given.size} of {given.dtype}"
                self._refuse(f"rank {self.rank} is sent{_at(line)} {says}", "does_not_fit", line)
            np.put(array, np.arange(came.size), came)
            return Message(message.source, message.tag, came.size)

        whom = "anybody" if source is None else f"rank {source}"
        waiting = _Blocked(lambda: wanted.message is not None, source, f"recv from {whom}{_at(line)}", line)
        return self._start(doing, array, finish, waiting)

    def _start(self, doing: str, array: Any, finish: Callable[[], Any], waiting: _Blocked) -> MessageRequest:
        pending = MessageRequest(self, doing, array, finish, waiting)
        self._started.append(pending)
        return pending

    def _check(self, rank: int, doing: str) -> None:
        if not isinstance(rank, int | np.integer) or not 0 <= rank < self.size:
            ranks = f"there are ranks 0 to {self.size - 1}"
            self._refuse(f"rank {self.rank} wants to {doing} rank {rank!r}; {ranks}", "no_such_rank", learners_line())

    def _refuse(self, message: str, kind: str, line: int | None) -> None:
        self.board.refuse(message, kind, line)
        assert self.board.wrong is not None
        raise self.board.wrong

    def finish(self) -> None:
        """The learner's function has returned: nothing may still be under way."""
        for one in self._started:
            if not one.waited:
                what = f"its {one.doing}{_at(one.line)} was never waited for"
                self._refuse(f"rank {self.rank} has returned, and {what}", "not_waited", one.line)


def by_messages(comm: Communicator, board: Exchange, function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """The result of `function(comm, *arguments)` on this rank, and the number of elements it has sent."""
    only = OnlyMessages(comm, board)
    try:
        result = function(only, *arguments)
        only.finish()
        return result, only.sent
    except Wrong:
        raise
    except Exception as error:
        board.refuse(f"rank {comm.rank} raised {type(error).__name__}: {error}", "raised", learners_line(error))
        raise
    finally:
        board.leave(comm.rank)


def _at(line: int | None) -> str:
    return "" if line is None else f" (line {line})"
