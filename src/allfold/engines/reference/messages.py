"""One rank's messages, for ranks that are threads of one process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from ...dtypes import DTYPES
from ...errors import CollectiveTimeout
from ..engine import ACKNOWLEDGEMENTS, Engine
from ..mailbox import Sent, Wanted, check_address, has_ended, remove, taken
from .meeting import Meeting, raise_named


class Mailbox:
    """One rank's end of the messages. A send is done at once: the message is copied."""

    def __init__(self, engine: Engine, meeting: Meeting) -> None:
        self._engine = engine
        self._rank = engine.rank
        self._meeting = meeting

    def send(self, array: Any, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None:
        self.start(True, array, destination, tag, dtype)

    def receive(
        self, array: Any, source: int | None, tag: int, timeout: float | None, dtype: str | None
    ) -> tuple[int, int, int]:
        came: tuple[int, int, int] = self._awaited(self.start(False, array, source, tag, dtype), timeout)
        return came

    def take(
        self, source: int | None, tag: int, timeout: float | None, context: int = 0
    ) -> tuple[int, int, int, np.ndarray[Any, Any]]:
        came: tuple[int, int, int, np.ndarray[Any, Any]] = self._awaited(
            self.start_taking(source, tag, context), timeout
        )
        return came

    def await_message(
        self, source: int | None, tag: int, timeout: float | None, context: int = 0
    ) -> tuple[int, int, int]:
        check_address("recv", False, source, tag, self._meeting.size)
        wanted = Wanted(source, tag, None, None, Future(), context, probes=True)
        came: tuple[int, int, int] = self._awaited(self._ask_for(wanted), timeout)
        return came

    def probe(self, source: int | None, tag: int, context: int = 0) -> tuple[int, int, int] | None:
        check_address("recv", False, source, tag, self._meeting.size)
        wanted = Wanted(source, tag, None, None, Future(), context, probes=True)
        with self._meeting.lock:
            self._meeting.check_open("recv", self._rank)
            found = next((one for one in self._meeting.sent[self._rank] if wanted.takes(one)), None)
        return None if found is None else found.facts

    def _awaited(self, wanted: Future[Any], timeout: float | None) -> Any:
        try:
            return self.wait(wanted, timeout)
        finally:
            self.withdraw(wanted)  # a receive that nobody waits for any more must not take a message

    def withdraw(self, operation: Future[Any], /) -> bool:
        with self._meeting.lock:
            if operation.done():
                return False
            box = self._meeting.wanted[self._rank]
            box[:] = [one for one in box if one.result is not operation]
            operation.set_result(None)
            return True

    def start(
        self,
        sends: bool,
        array: Any,
        peer: int | None,
        tag: int,
        dtype: str | None,
        context: int = 0,
        asks: bool = False,
    ) -> Future[Any]:
        kind, data = taken(sends, array, peer, tag, dtype, self._meeting.size)
        if not sends:
            return self._ask_for(Wanted(peer, tag, kind, data, Future(), context))
        assert peer is not None
        result: Future[Any] = Future()
        meeting = self._meeting
        with meeting.lock:
            meeting.check_open("send", self._rank)
            if lost := meeting.lost([peer]):
                raise_named(lost, "send", meeting.label)
            self._deliver(peer, Sent(self._rank, tag, kind, data.copy(), context, asks))
            result.set_result(None)
        return result

    def start_taking(self, source: int | None, tag: int, context: int = 0) -> Future[Any]:
        check_address("recv", False, source, tag, self._meeting.size)
        return self._ask_for(Wanted(source, tag, None, None, Future(), context))

    def _ask_for(self, wanted: Wanted) -> Future[Any]:
        meeting = self._meeting
        with meeting.lock:
            meeting.check_open("recv", self._rank)
            found = next((one for one in meeting.sent[self._rank] if wanted.takes(one)), None)
            if found is None:
                meeting.want(self._rank, wanted)
            else:
                if not wanted.probes:
                    remove(meeting.sent[self._rank], found)
                self._hand_over(self._rank, found, wanted)
        return wanted.result

    def _deliver(self, to: int, message: Sent) -> None:
        """Give a message to the first receive that takes it, or keep it; probes see it if it is kept."""
        waiting = self._meeting.wanted[to]
        matching = [one for one in waiting if one.takes(message)]
        first = next((one for one in matching if not one.probes), None)
        if first is not None:
            remove(waiting, first)
            self._hand_over(to, message, first)
            return
        self._meeting.sent[to].append(message)
        for probe in matching:
            remove(waiting, probe)
            probe.take(message)

    def _hand_over(self, rank: int, message: Sent, wanted: Wanted) -> None:
        wanted.take(message)
        if message.asks and not wanted.probes:
            empty = np.empty(0, np.uint8)
            self._deliver(message.source, Sent(rank, message.tag, DTYPES["uint8"], empty, ACKNOWLEDGEMENTS))

    def done(self, operation: Future[Any], /) -> bool:
        return operation.done()

    def wait(self, operation: Future[Any], timeout: float | None) -> Any:
        limit = self._engine.timeout if timeout is None else timeout
        label = self._meeting.label
        if not has_ended(operation, limit):
            raise CollectiveTimeout(f"recv: rank {self._rank} got no message within {limit:g} s ({label})")
        if (error := operation.exception()) is not None:
            raise_named(error, "recv", label)
        return operation.result()
