"""Users' messages between the ranks of a group that spans islands.

Inside an island they go through shared memory. Between islands a message is a frame with its tag, type and length; its
data are in the frame, or follow it. The receiver accepts messages as they arrive, and keeps them until they are wanted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from ... import _native
from ...dtypes import DTYPES
from ...errors import AllfoldError, CollectiveTimeout
from ...fabrics.fabric import Disconnected
from ..engine import ACKNOWLEDGEMENTS, ANY_TAG
from ..mailbox import Sent, Wanted, check_address, remove, taken, wait
from .frames import Frame, Frames, News
from .membership import Membership
from .roster import Roster

_DTYPES = list(DTYPES.values())
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.00005, 0.002
_CONTEXT, _ASKS = 32, 40  # where a frame's first number has these beside the tag, as bits

Received = tuple[int, int, int]


class GroupMessages:
    """One rank's end."""

    def __init__(
        self,
        roster: Roster,
        frames: Frames,
        channel: _native.Channel,
        membership: Membership,
        check_open: Callable[[str, Iterable[int]], None],
    ) -> None:
        """`channel`: for messages inside the island. `check_open` raises unless a message that needs these ranks may begin."""
        self._roster, self._frames, self._channel = roster, frames, channel
        self._membership, self._check_open = membership, check_open
        self._lock = threading.RLock()
        self._unclaimed: list[Sent] = []  # received before a matching receive began, oldest first
        self._wanted: list[Wanted] = []
        self._long: dict[int, deque[Frame]] = {}  # by source: messages whose data have not arrived yet, oldest first
        self._closed = False

    # For the communicator --------------------------------------------------------------------------------------------

    def send(self, array: Any, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None:
        self.wait(self.start(True, array, destination, tag, dtype), timeout)

    def receive(self, array: Any, source: int | None, tag: int, timeout: float | None, dtype: str | None) -> Received:
        local = self._roster.local.get(source, -1) if source is not None else -1
        if local >= 0:
            assert source is not None
            receive = self._channel.receive
            _, tag, elements = self._guarded(lambda: receive(array, local, tag, timeout, dtype), False, source, timeout)
            return source, tag, elements
        wanted = Wanted(source, tag, *taken(False, array, source, tag, dtype, self._roster.size), Future())
        try:
            self._ask_for(wanted)
            received = self.wait(wanted.result, timeout)
        finally:
            self._forget(wanted)
        assert received is not None
        return received

    def take(self, source: int | None, tag: int, timeout: float | None, context: int = 0) -> Any:
        return self._awaited(Wanted(source, tag, None, None, Future(), context), timeout)

    def start_taking(self, source: int | None, tag: int, context: int = 0) -> Any:
        check_address("recv", False, source, tag, self._roster.size)
        return self._begun(Wanted(source, tag, None, None, Future(), context))

    def await_message(self, source: int | None, tag: int, timeout: float | None, context: int = 0) -> Received:
        came: Received = self._awaited(Wanted(source, tag, None, None, Future(), context, probes=True), timeout)
        return came

    def _awaited(self, wanted: Wanted, timeout: float | None) -> Any:
        check_address("recv", False, wanted.source, wanted.tag, self._roster.size)
        try:
            self._ask_for(wanted)
            return self.wait(wanted.result, timeout)
        finally:
            self._forget(wanted)

    def _begun(self, wanted: Wanted) -> Future[Any]:
        try:
            self._ask_for(wanted)
        except BaseException:
            self._forget(wanted)
            raise
        return wanted.result

    def probe(self, source: int | None, tag: int, context: int = 0) -> Received | None:
        check_address("recv", False, source, tag, self._roster.size)
        self._check_open("recv", ())
        wanted = Wanted(source, tag, None, None, Future(), context, probes=True)
        with self._lock:
            found = next((one for one in self._unclaimed if wanted.takes(one)), None)
        if found is not None:
            return found.facts
        inside = None if source is None else self._roster.local.get(source)
        if source is not None and inside is None:
            return None
        came = self._channel.probe(inside, tag, context)
        return None if came is None else (self._outer(came[0]), *came[1:])

    def withdraw(self, operation: Any, /) -> bool:
        if not isinstance(operation, Future):
            return self._channel.withdraw(operation[2])
        with self._lock:
            if operation.done():
                return False
            self._wanted[:] = [one for one in self._wanted if one.result is not operation]
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
    ) -> Any:
        roster = self._roster
        kind, data = taken(sends, array, peer, tag, dtype, roster.size)
        if peer is not None and peer in roster.local:
            self._check(sends, peer, tag, context)
            start = self._channel.start
            return (
                sends,
                peer,
                self._guarded(
                    lambda: start(sends, data, roster.local[peer], tag, kind.name, context, asks), sends, peer
                ),
            )
        result: Future[Received | None] = Future()
        if sends:
            assert peer is not None
            self._check(sends, peer, tag, context)
            marked = tag | context << _CONTEXT | asks << _ASKS
            frame = Frame(News.MESSAGE, roster.number, _DTYPES.index(kind), (marked, data.size, 0))
            self._frames.send_message(roster.ranks[peer], frame, data.copy().view("u1"))
            result.set_result(None)
            return result
        return self._begun(Wanted(peer, tag, kind, data, result, context))

    def _check(self, sends: bool, peer: int | None, tag: int, context: int) -> None:
        """Raise an error unless such a message may begin. A rank that has left may have sent it before."""
        needed = () if peer is None or (not sends and self._may_have_arrived(peer, tag, context)) else (peer,)
        self._check_open("send" if sends else "recv", needed)

    def _ask_for(self, wanted: Wanted) -> None:
        self._check(False, wanted.source, wanted.tag, wanted.context)
        with self._lock:
            found = next((one for one in self._unclaimed if wanted.takes(one)), None)
            if found is not None:
                if not wanted.probes:
                    remove(self._unclaimed, found)
                self._hand_over(found, wanted)
            else:
                self._wanted.append(wanted)
        # The rank may have left, or the group failed, since the check above.
        self.fail_what_cannot_come()
        if (wanted.source is None or wanted.source in self._roster.local) and not wanted.result.done():
            threading.Thread(target=self._look_inside, args=(wanted,), daemon=True).start()

    def _forget(self, wanted: Wanted) -> None:
        """Withdraw a receive: once nothing waits for it, it must not take a message."""
        with self._lock:
            remove(self._wanted, wanted)

    def _may_have_arrived(self, source: int, tag: int, context: int) -> bool:
        """True if such a message is there, or may be among those whose data are on their way."""
        if (inside := self._roster.local.get(source)) is not None:
            return self._channel.probe(inside, tag, context) is not None
        with self._lock:
            is_there = any(one.source == source and tag in (ANY_TAG, one.tag) for one in self._unclaimed)
            return is_there or bool(self._long.get(source))

    def done(self, operation: Any, /) -> bool:
        return operation.done() if isinstance(operation, Future) else self._channel.done(operation[2])

    def wait(self, operation: Any, timeout: float | None) -> Received | None:
        if not isinstance(operation, Future):
            sends, peer, inside = operation
            received = self._guarded(lambda: self._channel.wait(inside, timeout), sends, peer, timeout)
            return None if received is None else (peer, *received[1:])
        limit = self._roster.timeout if timeout is None else timeout
        if not wait(operation, limit):
            with self._lock:
                source = next((one.source for one in self._wanted if one.result is operation), None)
            raise self._late(False, source, limit)
        return operation.result()  # type: ignore[no-any-return]

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    # For news from other islands -------------------------------------------------------------------------------------

    def arrived(self, source: int, frame: Frame) -> None:
        """Called by the thread that receives frames when a message has arrived."""
        with self._lock:
            queue = self._long.setdefault(source, deque())
            queue.append(frame)
            if len(queue) > 1:
                return  # another thread delivers it: see `_take_in`
        if frame.detail & 128:
            threading.Thread(target=self._take_in, args=(source,), name="allfold message", daemon=True).start()
        else:
            self._take_in(source)

    def fail(self, error: AllfoldError) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, []
        for one in wanted:
            _end(one.result, error)

    def fail_what_cannot_come(self) -> None:
        """End receives from ranks that have left, once everything they sent has been received.

        Receives from any rank are ended by `_look_inside`, because a message for them may be in shared memory.
        """
        with self._lock:
            for one in list(self._wanted):
                if one.source is not None:
                    self._fail_if_ended(one)

    def _fail_if_ended(self, wanted: Wanted) -> None:
        on_their_way = any(self._long.values()) if wanted.source is None else self._long.get(wanted.source)
        error = None if on_their_way else self._membership.ended(wanted.source)
        if error is not None:
            remove(self._wanted, wanted)
            _end(wanted.result, error)

    def _take_in(self, source: int) -> None:
        """Deliver the messages of a rank, oldest first, until there are no more.

        One thread at a time does this: the one that found the queue empty when it added a message. It removes the last
        message and finds the queue empty under the lock, so the next message either is seen here or gets a new thread.
        """
        queue = self._long[source]
        while True:
            frame = queue[0]
            marked, elements, number = frame.numbers
            tag, context, asks = marked & 0x7FFFFFFF, marked >> _CONTEXT & 0xFF, bool(marked >> _ASKS)
            dtype = _DTYPES[frame.detail & 127]
            if frame.detail & 128:
                transfer, data = self._frames.data_of(self._roster.ranks[source], number, elements * dtype.itemsize)
                try:
                    transfer.wait()
                except Disconnected:  # the rank is lost; the watching thread reports it
                    with self._lock:
                        queue.clear()
                        self.fail_what_cannot_come()
                    return
                message = Sent(source, tag, dtype, data.view(dtype.carrier), context, asks)
            else:
                message = Sent(source, tag, dtype, np.frombuffer(frame.text, dtype.carrier), context, asks)
            with self._lock:
                matching = [one for one in self._wanted if one.takes(message)]
                first = next((one for one in matching if not one.probes), None)
                if first is None:
                    self._unclaimed.append(message)
                    for probe in matching:
                        remove(self._wanted, probe)
                        probe.take(message)
                else:
                    remove(self._wanted, first)
                    self._hand_over(message, first)
                queue.popleft()
                if not queue:
                    self.fail_what_cannot_come()  # the rank may have left, and this was its last message
                    return

    def _hand_over(self, message: Sent, wanted: Wanted) -> None:
        wanted.take(message)
        if message.asks and not wanted.probes:
            self.start(True, np.empty(0, np.uint8), message.source, message.tag, None, ACKNOWLEDGEMENTS)

    def _outer(self, number: int) -> int:
        """The rank that has this number inside the island."""
        return next(rank for rank, inside in self._roster.local.items() if inside == number)

    def _receive_inside(self, wanted: Wanted, inside: int | None) -> Any:
        """The message that a receive takes from shared memory, where a probe has found a message for it."""
        channel = self._channel
        if wanted.probes:
            return channel.probe(inside, wanted.tag, wanted.context)
        if wanted.array is None or wanted.dtype is None:
            return channel.take(inside, wanted.tag, 0.0, wanted.context)
        receiving = channel.start(False, wanted.array, inside, wanted.tag, wanted.dtype.name, wanted.context)
        try:
            return channel.wait(receiving, 0.0)
        except CollectiveTimeout:
            if channel.withdraw(receiving):
                raise
            return channel.wait(receiving, self._roster.timeout)

    def _look_inside(self, wanted: Wanted) -> None:
        """For a receive that shared memory may serve: poll that as well, until a message has arrived."""
        pause, inside = _SHORTEST_PAUSE, None if wanted.source is None else self._roster.local[wanted.source]
        while not wanted.result.done() and not self._closed:
            has_ended = self._membership.ended(wanted.source) is not None  # before the poll, which is then the last one
            try:
                with self._lock:
                    is_waiting = any(one is wanted for one in self._wanted)
                    if is_waiting and self._channel.probe(inside, wanted.tag, wanted.context) is not None:
                        number, *rest = self._receive_inside(wanted, inside)
                        remove(self._wanted, wanted)
                        wanted.result.set_result((self._outer(number), *rest))
                    elif has_ended and any(one is wanted for one in self._wanted):
                        self._fail_if_ended(wanted)
            except CollectiveTimeout:
                continue  # another receive took the message meanwhile
            except AllfoldError as error:
                with self._lock:
                    remove(self._wanted, wanted)
                _end(wanted.result, self._membership.better(error))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _late(self, sends: bool, peer: int | None, limit: float) -> CollectiveTimeout:
        roster = self._roster
        what = f"rank {roster.rank} got no message{'' if peer is None else f' from rank {peer}'}"
        if sends:
            what = f"rank {peer} has not taken the message of rank {roster.rank}"
        return CollectiveTimeout(f"{'send' if sends else 'recv'}: {what} within {limit:g} s ({roster.label})")

    def _guarded(self, action: Callable[[], Any], sends: bool, peer: int, timeout: float | None = None) -> Any:
        """Run an action on the island's channel. Its errors are raised with this group's rank numbers; after a loss
        elsewhere, that loss is raised."""
        try:
            return action()
        except CollectiveTimeout:
            raise self._late(sends, peer, self._roster.timeout if timeout is None else timeout) from None
        except AllfoldError as error:
            raise self._membership.better(error) from None


def _end(result: Future[Any], error: AllfoldError) -> None:
    if not result.done():
        result.set_exception(error)
