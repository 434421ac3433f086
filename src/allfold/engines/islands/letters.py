"""Messages with tags between the ranks of a group that spans islands.

Inside an island they go through shared memory. Between islands a message is a letter: a frame with what it is, and the
data in it or beside it. The receiver takes letters in as they come and keeps them until somebody asks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _native
from ...dtypes import DTYPES
from ...errors import AllfoldError, CollectiveTimeout
from ...fabrics.fabric import Disconnected
from ..mailbox import Sent, Wanted, remove, taken, wait
from .post import Frame, News

if TYPE_CHECKING:
    from .engine import Islands

_DTYPES = list(DTYPES.values())
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.00005, 0.002

Received = tuple[int, int, int]


class Letters:
    """One rank's end. `channel`: the messages of its island."""

    def __init__(self, engine: Islands, channel: _native.Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._lock = threading.RLock()
        self._come: list[Sent] = []  # what nobody has asked for yet, oldest first
        self._wanted: list[Wanted] = []
        self._long: dict[int, deque[Frame]] = {}  # by source: letters whose data are on their way, oldest first
        self._closed = False

    # What a communicator asks for ------------------------------------------------------------------------------------

    def send(self, array: Any, destination: int, tag: int, timeout: float | None, dtype: str | None) -> None:
        self.wait(self.start(True, array, destination, tag, dtype), timeout)

    def receive(self, array: Any, source: int | None, tag: int, timeout: float | None, dtype: str | None) -> Received:
        local = self._engine.local.get(source, -1) if source is not None else -1
        if local >= 0:
            assert source is not None
            receive = self._channel.receive
            _, tag, elements = self._guarded(lambda: receive(array, local, tag, timeout, dtype), source, timeout)
            return source, tag, elements
        operation = self.start(False, array, source, tag, dtype)
        try:
            came = self.wait(operation, timeout)
        finally:
            with self._lock:  # a receive that nobody waits for any more must not take a message
                self._wanted[:] = [one for one in self._wanted if one.result is not operation]
        assert came is not None
        return came

    def start(self, sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None) -> Any:
        engine = self._engine
        kind, data = taken(sends, array, peer, tag, dtype, engine.size)
        # Who has left may have sent before.
        needed = (
            () if peer is None or (not sends and self._has_come(Wanted(peer, tag, kind, data, Future()))) else (peer,)
        )
        engine.check_open("send" if sends else "recv", needed)
        if peer is not None and peer in engine.local:
            operation = self._guarded(lambda: self._channel.start(sends, data, engine.local[peer], tag, kind.name))
            return peer, operation
        result: Future[Received | None] = Future()
        if sends:
            assert peer is not None
            frame = Frame(News.LETTER, engine.number, _DTYPES.index(kind), (tag, data.size, 0))
            engine.world.post.send_letter(engine.ranks[peer], frame, data.copy().view("u1"))
            result.set_result(None)
            return result
        wanted = Wanted(peer, tag, kind, data, result)
        with self._lock:
            found = next((one for one in self._come if wanted.takes(one)), None)
            if found is not None:
                remove(self._come, found)
                wanted.take(found)
            else:
                self._wanted.append(wanted)
        if peer is None and not result.done():
            threading.Thread(target=self._look_inside, args=(wanted,), daemon=True).start()
        return result

    def _has_come(self, wanted: Wanted) -> bool:
        with self._lock:
            return any(wanted.takes(one) for one in self._come)

    def done(self, operation: Any, /) -> bool:
        return operation.done() if isinstance(operation, Future) else self._channel.done(operation[1])

    def wait(self, operation: Any, timeout: float | None) -> Received | None:
        engine = self._engine
        if not isinstance(operation, Future):
            peer, inside = operation
            came = self._guarded(lambda: self._channel.wait(inside, timeout), peer, timeout)
            return None if came is None else (peer, *came[1:])
        limit = engine.timeout if timeout is None else timeout
        if not wait(operation, limit):
            raise CollectiveTimeout(f"recv: rank {engine.rank} got no message within {limit:g} s ({engine.label})")
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

    def fail_what_cannot_come(self, gone: Callable[[int], AllfoldError | None]) -> None:
        """End receives from ranks that have left, once all that they sent was taken in."""
        with self._lock:
            for one in list(self._wanted):
                error = gone(one.source) if one.source is not None and not self._long.get(one.source) else None
                if error is not None:
                    remove(self._wanted, one)
                    _end(one.result, error)

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
            post = self._engine.world.post
            if frame.detail & 128:
                transfer, data = post.data_of(self._engine.ranks[source], number, elements * dtype.itemsize)
                try:
                    transfer.wait()
                except Disconnected:  # the rank is gone; the watch says so, or has said so
                    with self._lock:
                        queue.clear()
                    self.fail_what_cannot_come(self._engine.gone_from)
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
                    return

    def _look_inside(self, wanted: Wanted) -> None:
        """For a receive from anybody: look for messages in shared memory as well, until something has come."""
        pause, ranks = _SHORTEST_PAUSE, {number: rank for rank, number in self._engine.local.items()}
        while not wanted.result.done() and not self._closed:
            try:
                with self._lock:
                    if any(one is wanted for one in self._wanted) and self._channel.probe(None, wanted.tag):
                        number, tag, elements = self._channel.receive(
                            wanted.array, None, wanted.tag, 0.0, wanted.dtype.name
                        )
                        remove(self._wanted, wanted)
                        wanted.result.set_result((ranks[number], tag, elements))
            except CollectiveTimeout:
                continue  # another receive has taken it meanwhile
            except AllfoldError as error:
                with self._lock:
                    remove(self._wanted, wanted)
                _end(wanted.result, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _guarded(self, action: Callable[[], Any], peer: int = 0, timeout: float | None = None) -> Any:
        """What the island's messages raise is told in the numbers of this group; after a loss elsewhere, as that loss."""
        engine = self._engine
        try:
            return action()
        except CollectiveTimeout:
            limit = engine.timeout if timeout is None else timeout
            raise CollectiveTimeout(
                f"a message between rank {engine.rank} and rank {peer} was not there within {limit:g} s ({engine.label})"
            ) from None
        except AllfoldError as error:
            raise engine.better(error) from None


def _end(result: Future[Any], error: AllfoldError) -> None:
    if not result.done():
        result.set_exception(error)
