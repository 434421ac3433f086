"""Messages from one rank to another, with tags.

`send` returns when the array may be used again, not when the message was received; a message to a busy rank waits at
that rank. Messages between the same two ranks with the same tag arrive in the order in which they were sent. Two ranks
may send to each other at once, and a rank may send to itself. The receiver's array must have the type of the sender's
and at least its length; a message of the wrong type or length is an error on the receiver, and is lost.

`isend` and `irecv` go on without anybody waiting for them, even while their rank computes or is in a collective. No
wait lasts longer than its timeout; after a `wait` has timed out, the message still goes on. `close` ends what is not
done yet, so wait for what was sent before leaving.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..engines.buffer import check_writable, contiguous, put_back
from ..engines.engine import FAILURES, Engine, UnfitArray
from ..errors import UsageError


class Message(NamedTuple):
    """A received message: its source, its tag, and the number of elements that it filled.

    >>> def work(comm):
    ...     if comm.rank == 0:
    ...         return comm.recv(np.empty(100), tag=5)
    ...     comm.send(np.ones(3), destination=0, tag=5)
    >>> af.spawn(work, ranks=2)[0]
    Message(source=1, tag=5, elements=3)
    """

    source: int
    tag: int
    elements: int


class Pending:
    """A message that is being sent or received. Its array belongs to it until it is done."""

    def __init__(self, engine: Engine, operation: Any, timeout: float | None) -> None:
        self._engine = engine
        self._operation = operation
        self._timeout = timeout
        self._scattered: tuple[Any, Any] | None = None  # the array that was given, and the contiguous copy of it

    def done(self) -> bool:
        """True once the message has been sent or received, or has failed; `wait` then returns or raises at once."""
        return self._engine.messages.done(self._operation)

    def wait(self, timeout: float | None = None) -> Message | None:
        """Return when it has ended (for a receive: what arrived), and raise what went wrong.

        Without a timeout, the one that was given to `isend` or `irecv` applies, or else the communicator's.
        """
        try:
            came = self._engine.messages.wait(self._operation, self._timeout if timeout is None else timeout)
        except FAILURES as error:
            self._engine.failed(error)
            raise
        if self._scattered is not None:
            put_back(*self._scattered)
            self._scattered = None
        return None if came is None else Message._make(came)


class PointToPoint:
    """The part of a communicator that sends and receives."""

    engine: Engine

    def send(
        self, array: Any, destination: int, tag: int = 0, timeout: float | None = None, dtype: str | None = None
    ) -> None:
        """Send an array. Returns when it may be changed again.

        >>> if comm.rank == 1:
        ...     comm.send(np.arange(3.0), destination=0, tag=4)
        ... else:
        ...     x = np.empty(3)
        ...     print(comm.recv(x, source=1, tag=4), x)
        Message(source=1, tag=4, elements=3) [0. 1. 2.]
        """
        try:
            self.engine.messages.send(array, destination, tag, timeout, dtype)
        except FAILURES as error:
            self.engine.failed(error)
            raise
        except UnfitArray as error:
            self.send(_copied("send", array, error), destination, tag, timeout, dtype)

    def recv(
        self,
        array: Any,
        source: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Message:
        """Receive into an array: from a rank or, without a source, from any; with a tag or `allfold.ANY_TAG`.

        >>> x = np.array([5, 6])
        >>> if comm.rank == 1:
        ...     comm.send(x * 2, destination=0)
        ... else:
        ...     comm.recv(x).source  # from any rank
        1
        >>> x
        array([10, 12])
        """
        try:
            return Message._make(self.engine.messages.receive(array, source, tag, timeout, dtype))
        except FAILURES as error:
            self.engine.failed(error)
            raise
        except UnfitArray as error:
            plain = _copied("recv", array, error, written=True)
            came = self.recv(plain, source, tag, timeout, dtype)
            put_back(array, plain)
            return came

    def isend(
        self, array: Any, destination: int, tag: int = 0, timeout: float | None = None, dtype: str | None = None
    ) -> Pending:
        """Send an array in the background; it must not be changed before that is done.

        >>> sending = comm.isend(np.full(2, comm.rank), destination=1 - comm.rank)
        >>> x = np.empty(2, np.int64)
        >>> message = comm.recv(x)
        >>> sending.wait()
        >>> x
        array([1, 1])
        """
        try:
            operation = self.engine.messages.start(True, array, destination, tag, dtype)
            return Pending(self.engine, operation, timeout)
        except UnfitArray as error:
            return self.isend(_copied("isend", array, error), destination, tag, timeout, dtype)

    def irecv(
        self,
        array: Any,
        source: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> Pending:
        """Receive into an array in the background; it must not be used before that is done.

        An array that is not contiguous is filled by `wait`.

        >>> x = np.empty(2, np.int64)
        >>> receiving = comm.irecv(x, source=1 - comm.rank)
        >>> comm.send(np.full(2, comm.rank), destination=1 - comm.rank)
        >>> receiving.wait().elements, x
        (2, array([1, 1]))
        """
        try:
            operation = self.engine.messages.start(False, array, source, tag, dtype)
            return Pending(self.engine, operation, timeout)
        except UnfitArray as error:
            plain = _copied("irecv", array, error, written=True)
            pending = self.irecv(plain, source, tag, timeout, dtype)
            pending._scattered = (array, plain)
            return pending


def _copied(name: str, array: Any, error: UnfitArray, written: bool = False) -> Any:
    """A contiguous copy of an array that the engine rejected."""
    if written:
        check_writable(name, array)
    plain = contiguous(name, array)
    if plain is array:  # already contiguous: it was refused for another reason
        raise UsageError(f"{name}: {error}") from None
    return plain
