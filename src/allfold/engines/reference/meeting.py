"""Where ranks that are threads of one process meet: for calls and for messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ...errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from ...wording import name_ranks
from ..last_words import ending, last_words
from ..mailbox import Sent, Wanted, remove, taken, wait


class Meeting:
    """One group: for each call, the arguments of every rank and the result; and the messages on their way."""

    def __init__(self, size: int, label: str) -> None:
        self.size = size
        self.label = label
        self.lock = threading.RLock()
        self.sent: list[list[Sent]] = [[] for _ in range(size)]  # by destination: what nobody has asked for yet
        self.wanted: list[list[Wanted]] = [[] for _ in range(size)]  # by destination: what has not come yet
        self.begun = [0] * size  # by rank: how many calls it has come to
        self.groups = 0  # how many were made of this one
        self._calls: dict[int, tuple[dict[int, Any], Future[Any]]] = {}  # those that are not over, by number
        self._left: set[int] = set()
        self._last_words: dict[int, str] = {}  # of ranks that have left
        self._ended: AllfoldError | None = None

    def come(self, rank: int, own: Any, perform: Callable[[list[Any], int], Any]) -> tuple[int, Future[Any]]:
        """Come to this rank's next call. The last rank to come performs it, with the arguments of all ranks.

        The number of the call, and its result, which is the same for all ranks.
        """
        with self.lock:
            self.check_open(rank)
            self.begun[rank] += 1
            number = self.begun[rank]
            arrived, result = self._calls.setdefault(number, ({}, Future()))
            arrived[rank] = own
            if len(arrived) == self.size:
                del self._calls[number]
                try:
                    if len({type(one) for one in arrived.values()}) > 1:
                        raise MismatchError(
                            f"mismatched calls: some ranks make a group (call {number} of {self.label})"
                        )
                    result.set_result(perform([arrived[rank] for rank in range(self.size)], number))
                except Exception as error:
                    result.set_exception(error)
                    if isinstance(error, MismatchError):
                        self.end(error)
            else:
                self._fail_what_cannot_be()
            return number, result

    def missing(self, number: int) -> list[int]:
        """The ranks that have not come to a call yet."""
        with self.lock:
            arrived, _ = self._calls.get(number, (range(self.size), None))
            return [rank for rank in range(self.size) if rank not in arrived]

    def check_open(self, rank: int) -> None:
        if rank in self._left:
            raise UsageError(f"this communicator is closed ({self.label})")
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    def leave(self, rank: int) -> None:
        with self.lock:
            self._left.add(rank)
            self._last_words[rank] = last_words()
            self._fail_what_cannot_be()

    def end(self, error: AllfoldError) -> None:
        """Make all calls and messages fail, those under way and later ones."""
        with self.lock:
            self._ended = self._ended or error
            self._fail_what_cannot_be()

    def _fail_what_cannot_be(self) -> None:
        for number, (arrived, result) in list(self._calls.items()):
            if lost := self.lost(rank for rank in range(self.size) if rank not in arrived):
                del self._calls[number]
                result.set_exception(lost)
        for rank, wanted in enumerate(self.wanted):
            for one in list(wanted):
                sources = {one.source} if one.source is not None else set(range(self.size)) - {rank}
                if lost := (None if sources - self._left and self._ended is None else self.lost(sources)):
                    wanted.remove(one)
                    one.result.set_exception(lost)

    def lost(self, needed: Any) -> AllfoldError | None:
        if self._ended is not None:
            return self._ended
        gone = sorted(self._left.intersection(needed))
        have = "have" if len(gone) > 1 else "has"
        why = ending(self._last_words[rank] for rank in gone)
        return RankLost(f"{name_ranks(gone)} {have} left {self.label}{why}") if gone else None


class Mailbox:
    """One rank's end of the messages. A send is done at once: the message is copied."""

    def __init__(self, rank: int, meeting: Meeting, timeout: float) -> None:
        self._rank = rank
        self._meeting = meeting
        self._timeout = timeout

    def send(self, array: Any, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None:
        self.start(True, array, destination, tag, dtype)

    def receive(
        self, array: Any, source: int | None, tag: int, timeout: float | None, dtype: str | None
    ) -> tuple[int, int, int]:
        wanted = self.start(False, array, source, tag, dtype)
        try:
            came = self.wait(wanted, timeout)
        finally:
            with self._meeting.lock:  # a receive that nobody waits for any more must not take a message
                box = self._meeting.wanted[self._rank]
                box[:] = [one for one in box if one.result is not wanted]
        assert came is not None
        return came

    def start(
        self, sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None
    ) -> Future[tuple[int, int, int] | None]:
        meeting = self._meeting
        kind, data = taken(sends, array, peer, tag, dtype, meeting.size)
        result: Future[tuple[int, int, int] | None] = Future()
        with meeting.lock:
            meeting.check_open(self._rank)
            if sends:
                assert peer is not None
                if lost := meeting.lost([peer]):
                    raise type(lost)(str(lost))
                message = Sent(self._rank, tag, kind, data.copy())
                first = next((one for one in meeting.wanted[peer] if one.takes(message)), None)
                if first is None:
                    meeting.sent[peer].append(message)
                else:
                    remove(meeting.wanted[peer], first)
                    first.take(message)
                result.set_result(None)
            else:
                wanted = Wanted(peer, tag, kind, data, result)
                found = next((one for one in meeting.sent[self._rank] if wanted.takes(one)), None)
                if found is None:
                    meeting.wanted[self._rank].append(wanted)
                    meeting._fail_what_cannot_be()
                else:
                    remove(meeting.sent[self._rank], found)
                    wanted.take(found)
        return result

    def done(self, operation: Future[Any], /) -> bool:
        return operation.done()

    def wait(self, operation: Future[Any], timeout: float | None) -> tuple[int, int, int] | None:
        limit = self._timeout if timeout is None else timeout
        if not wait(operation, limit):
            raise CollectiveTimeout(
                f"recv: rank {self._rank} got no message within {limit:g} s ({self._meeting.label})"
            )
        return operation.result()  # type: ignore[no-any-return]
