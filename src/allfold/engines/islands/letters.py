"""Messages with tags between the ranks of a group that spans islands.

Inside an island they go through shared memory. Between islands a message is a letter: a frame with what it is, and the
data in it or beside it. The receiver takes letters in as they come and keeps them until somebody asks.
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
from ..engine import ANY_TAG
from ..mailbox import Sent, Wanted, remove, taken, wait
from .membership import Membership
from .post import Frame, News, Post
from .roster import Roster

_DTYPES = list(DTYPES.values())
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.00005, 0.002

Received = tuple[int, int, int]


class Letters:
    """One rank's end."""

    def __init__(
        self,
        roster: Roster,
        post: Post,
        channel: _native.Channel,
        membership: Membership,
        check_open: Callable[[str, Iterable[int]], None],
    ) -> None:
        """`channel`: the messages of its island. `check_open` raises an error unless a message with these ranks may begin."""
        self._roster, self._post, self._channel = roster, post, channel
        self._membership, self._check_open = membership, check_open
        self._lock = threading.RLock()
        self._come: list[Sent] = []  # what nobody has asked for yet, oldest first
        self._wanted: list[Wanted] = []
        self._long: dict[int, deque[Frame]] = {}  # by source: letters whose data are on their way, oldest first
        self._closed = False

    # What a communicator asks for ------------------------------------------------------------------------------------

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
            came = self.wait(wanted.result, timeout)
        finally:
            self._forget(wanted)
        assert came is not None
        return came

    def start(self, sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None) -> Any:
        roster = self._roster
        kind, data = taken(sends, array, peer, tag, dtype, roster.size)
        if peer is not None and peer in roster.local:
            self._check(sends, peer, tag)
            start = self._channel.start
            return (
                sends,
                peer,
                self._guarded(lambda: start(sends, data, roster.local[peer], tag, kind.name), sends, peer),
            )
        result: Future[Received | None] = Future()
        if sends:
            assert peer is not None
            self._check(sends, peer, tag)
            frame = Frame(News.LETTER, roster.number, _DTYPES.index(kind), (tag, data.size, 0))
            self._post.send_letter(roster.ranks[peer], frame, data.copy().view("u1"))
            result.set_result(None)
            return result
        wanted = Wanted(peer, tag, kind, data, result)
        try:
            self._ask_for(wanted)
        except BaseException:
            self._forget(wanted)
            raise
        return result

    def _check(self, sends: bool, peer: int | None, tag: int) -> None:
        """Raise an error unless such a message may begin. A rank that has left may have sent before."""
        needed = () if peer is None or (not sends and self._may_have_come(peer, tag)) else (peer,)
        self._check_open("send" if sends else "recv", needed)

    def _ask_for(self, wanted: Wanted) -> None:
        self._check(False, wanted.source, wanted.tag)
        with self._lock:
            found = next((one for one in self._come if wanted.takes(one)), None)
            if found is not None:
                remove(self._come, found)
                wanted.take(found)
            else:
                self._wanted.append(wanted)
        # The rank may have left, or the group failed, after they were asked above.
        self.fail_what_cannot_come()
        if wanted.source is None and not wanted.result.done():
            threading.Thread(target=self._look_inside, args=(wanted,), daemon=True).start()

    def _forget(self, wanted: Wanted) -> None:
        """A receive that nobody waits for any more must not take a message."""
        with self._lock:
            remove(self._wanted, wanted)

    def _may_have_come(self, source: int, tag: int) -> bool:
        """Whether such a message is there, or may be among those whose data are on their way."""
        with self._lock:
            is_there = any(one.source == source and tag in (ANY_TAG, one.tag) for one in self._come)
            return is_there or bool(self._long.get(source))

    def done(self, operation: Any, /) -> bool:
        return operation.done() if isinstance(operation, Future) else self._channel.done(operation[2])

    def wait(self, operation: Any, timeout: float | None) -> Received | None:
        if not isinstance(operation, Future):
            sends, peer, inside = operation
            came = self._guarded(lambda: self._channel.wait(inside, timeout), sends, peer, timeout)
            return None if came is None else (peer, *came[1:])
        limit = self._roster.timeout if timeout is None else timeout
        if not wait(operation, limit):
            with self._lock:
                source = next((one.source for one in self._wanted if one.result is operation), None)
            raise self._late(False, source, limit)
        return operation.result()  # type: ignore[no-any-return]

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    # What comes from other islands -----------------------------------------------------------------------------------

    def arrived(self, source: int, frame: Frame) -> None:
        """A letter has come; called by the thread that takes in the post."""
        with self._lock:
            queue = self._long.setdefault(source, deque())
            queue.append(frame)
            if len(queue) > 1:
                return  # a thread is at it: see `_take_in`
        if frame.detail & 128:
            threading.Thread(target=self._take_in, args=(source,), name="allfold letter", daemon=True).start()
        else:
            self._take_in(source)

    def fail(self, error: AllfoldError) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, []
        for one in wanted:
            _end(one.result, error)

    def fail_what_cannot_come(self) -> None:
        """End receives from ranks that have left, once all that they sent was taken in.

        Those from any rank are ended by who looks for them in shared memory: a message may be there.
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
        """Deliver the letters of a rank, oldest first, until there are no more.

        One thread at a time does this: the one that found the queue empty when it put a letter in. It removes its last
        letter and finds the queue empty under the lock, so the next letter either is seen here or gets a new thread.
        """
        queue = self._long[source]
        while True:
            frame = queue[0]
            tag, elements, number = frame.numbers
            dtype = _DTYPES[frame.detail & 127]
            if frame.detail & 128:
                transfer, data = self._post.data_of(self._roster.ranks[source], number, elements * dtype.itemsize)
                try:
                    transfer.wait()
                except Disconnected:  # the rank is gone; the watch says so, or has said so
                    with self._lock:
                        queue.clear()
                        self.fail_what_cannot_come()
                    return
                message = Sent(source, tag, dtype, data.view(dtype.carrier))
            else:
                message = Sent(source, tag, dtype, np.frombuffer(frame.text, dtype.carrier))
            with self._lock:
                first = next((one for one in self._wanted if one.takes(message)), None)
                if first is None:
                    self._come.append(message)
                else:
                    remove(self._wanted, first)
                    first.take(message)
                queue.popleft()
                if not queue:
                    self.fail_what_cannot_come()  # the rank may have left, and this was its last letter
                    return

    def _look_inside(self, wanted: Wanted) -> None:
        """For a receive from anybody: look for messages in shared memory as well, until something has come."""
        pause, ranks = _SHORTEST_PAUSE, {number: rank for rank, number in self._roster.local.items()}
        while not wanted.result.done() and not self._closed:
            has_ended = self._membership.ended(None) is not None  # before this look, which then is the last
            try:
                with self._lock:
                    if any(one is wanted for one in self._wanted) and self._channel.probe(None, wanted.tag):
                        number, tag, elements = self._channel.receive(
                            wanted.array, None, wanted.tag, 0.0, wanted.dtype.name
                        )
                        remove(self._wanted, wanted)
                        wanted.result.set_result((ranks[number], tag, elements))
                    elif has_ended and any(one is wanted for one in self._wanted):
                        self._fail_if_ended(wanted)
            except CollectiveTimeout:
                continue  # another receive has taken it meanwhile
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
        """What the island's messages raise is told in the numbers of this group; after a loss elsewhere, as that loss."""
        try:
            return action()
        except CollectiveTimeout:
            raise self._late(sends, peer, self._roster.timeout if timeout is None else timeout) from None
        except AllfoldError as error:
            raise self._membership.better(error) from None


def _end(result: Future[Any], error: AllfoldError) -> None:
    if not result.done():
        result.set_exception(error)
