"""The greeting (handshake) that begins every connection of the tcp fabric: both ends prove that they know the run's key.

The accepting rank sends a random number. The connecting rank replies with the purpose of the connection (a fabric and two
ranks), a random number of its own, and a keyed hash of all of these. The accepting rank checks the hash and replies with
one of its own. So a stranger who connects learns nothing, and no data is trusted before the greeting is complete. Without
a secret, the key is derived from random numbers that the ranks publish on their board.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence

from ..errors import AllfoldError
from ..wording import name_ranks
from .addresses import address_family
from .secret import Secret

_MAGIC = b"allfold\1"
_NONCE = _PROOF = 32
FABRIC_BYTES = 16
_HELLO = struct.Struct(f"!{FABRIC_BYTES}sII{_NONCE}s")
_MOST_GREETINGS = 128  # at a time; if there are more, the oldest has to start again
_GREETING_SECONDS = 10.0
_PAUSE = 0.05  # before a rank that could not connect tries again

Talk = Generator[bytes | int, bytes, tuple[bytes, int]]
"""One end of a greeting: yields bytes to send, or the number of bytes to read; returns the fabric and the peer."""


class Refused(Exception):
    """The other end does not know the key, or does not speak this protocol."""


def dial(key: Secret, fabric: bytes, own: int, peer: int) -> Talk:
    """The end that connects."""
    asked = yield len(_MAGIC) + _NONCE
    if not asked.startswith(_MAGIC):
        raise Refused
    question, nonce = asked[len(_MAGIC) :], secrets.token_bytes(_NONCE)
    said = _HELLO.pack(fabric, own, peer, nonce)
    yield said + key.proof(b"dial", said + question)
    if not hmac.compare_digest((yield _PROOF), key.proof(b"accept", said + question)):
        raise Refused
    return fabric, peer


def accept(key: Secret, own: int, size: int) -> Talk:
    """The end that accepts, which does not know yet who connects."""
    question = secrets.token_bytes(_NONCE)
    yield _MAGIC + question
    hello = yield _HELLO.size + _PROOF
    said, proof = hello[: _HELLO.size], hello[_HELLO.size :]
    if not hmac.compare_digest(proof, key.proof(b"dial", said + question)):
        raise Refused
    fabric, peer, wanted, _ = _HELLO.unpack(said)
    if wanted != own or not 0 <= peer < size or peer == own:
        raise Refused
    yield key.proof(b"accept", said + question)
    return fabric, peer


class _Greeting:
    """A socket in the middle of a greeting."""

    def __init__(self, connection: socket.socket, talk: Talk, deadline: float) -> None:
        self.socket, self.deadline = connection, deadline
        self._talk, self._out, self._wanted, self._received = talk, b"", 0, b""
        self.result: tuple[bytes, int] | None = None
        self._next(None)

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def events(self) -> int:
        return selectors.EVENT_WRITE if self._out else selectors.EVENT_READ

    def step(self) -> bool:
        """Proceed as far as possible without waiting; True once done. Raises `Refused` or `OSError` if it has failed."""
        while self.result is None:
            try:
                if self._out:
                    self._out = self._out[self.socket.send(self._out) :]
                    if not self._out:
                        self._next(None)
                    continue
                # Read no further than the greeting: what follows belongs to the fabric.
                more = self.socket.recv(self._wanted - len(self._received))
            except BlockingIOError:
                return False
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            self._received += more
            if len(self._received) == self._wanted:
                self._next(self._received)
        return True

    def _next(self, received: bytes | None) -> None:
        try:
            wants = next(self._talk) if received is None else self._talk.send(received)
        except StopIteration as end:
            self.result = end.value
            return
        self._out, self._wanted = (wants, 0) if isinstance(wants, bytes) else (b"", wants)
        self._received = b""


class Listener:
    """Accepts connections for all fabrics of a process, in a thread of its own, and hands them out on request.

    A stranger occupies a socket for a few seconds, and delays no rank.
    """

    def __init__(self, listening: socket.socket, rank: int, size: int) -> None:
        self._listening, self._rank, self._size = listening, rank, size
        listening.setblocking(False)
        self.port: int = listening.getsockname()[1]
        self._established: dict[tuple[bytes, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._bell, self._rings = socket.socketpair()
        self._key: Secret | None = None
        self._thread = threading.Thread(target=self._run, name="allfold listen", daemon=True)

    def start(self, key: Secret) -> None:
        self._key = key
        self._thread.start()

    def take(self, fabric: bytes, peers: Sequence[int], deadline: float) -> dict[int, socket.socket]:
        """The connections of these ranks for a fabric that were established in time."""
        with self._changed:
            wanted = [(fabric, peer) for peer in peers]
            self._changed.wait_for(
                lambda: all(one in self._established for one in wanted), max(0.0, deadline - time.monotonic())
            )
            found = self._established
            return {peer: found.pop((fabric, peer)) for peer in peers if (fabric, peer) in found}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._rings.send(b"\0")

    def forget(self) -> None:
        """Close everything in a forked child, which would otherwise keep the port open."""
        for one in (self._listening, self._bell, self._rings, *self._established.values()):
            one.close()

    def _run(self) -> None:
        assert self._key is not None
        greetings: dict[_Greeting, None] = {}  # oldest first
        with selectors.DefaultSelector() as selector, self._listening, self._bell:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)

            def end(one: _Greeting) -> None:
                selector.unregister(one)
                del greetings[one]

            while True:
                now = time.monotonic()
                for one in [one for one in greetings if one.deadline <= now]:
                    end(one)
                    one.socket.close()
                oldest = next(iter(greetings), None)
                for event, _ in selector.select(None if oldest is None else oldest.deadline - now):
                    if event.fileobj is self._bell:
                        for one in greetings:
                            one.socket.close()
                        return
                    if event.fileobj is self._listening:
                        self._accept(selector, greetings, end)
                        continue
                    one = event.fileobj  # type: ignore[assignment]
                    if one not in greetings:  # dropped to make room for another
                        continue
                    try:
                        if not one.step():
                            selector.modify(one, one.events)
                            continue
                        end(one)
                        assert one.result is not None
                        self._arrived(one.result, one.socket)
                    except (Refused, OSError):
                        end(one)
                        one.socket.close()

    def _accept(
        self,
        selector: selectors.BaseSelector,
        greetings: dict[_Greeting, None],
        end: Callable[[_Greeting], None],
    ) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:  # the peer is gone again; or this process has no descriptors left, and some may be closed soon
            time.sleep(_PAUSE)
            return
        connection.setblocking(False)
        assert self._key is not None
        one = _Greeting(connection, accept(self._key, self._rank, self._size), time.monotonic() + _GREETING_SECONDS)
        if len(greetings) >= _MOST_GREETINGS:
            oldest = next(iter(greetings))
            end(oldest)
            oldest.socket.close()
        greetings[one] = None
        selector.register(one, one.events)

    def _arrived(self, what: tuple[bytes, int], connection: socket.socket) -> None:
        with self._changed:
            # The peer may have given up on its first connection and made another: the last one is the one it uses.
            if (earlier := self._established.pop(what, None)) is not None:
                earlier.close()
            self._established[what] = connection
            self._changed.notify_all()


def dial_all(
    key: Secret, fabric: bytes, own: int, places: Mapping[int, tuple[str, int]], deadline: float
) -> dict[int, socket.socket]:
    """Connections to these ranks, which listen at these addresses and ports. Retries until the deadline."""
    done: dict[int, socket.socket] = {}
    errors: dict[int, str] = {}
    later: dict[int, float] = dict.fromkeys(places, 0.0)  # when to try these again
    ranks: dict[_Greeting, int] = {}
    try:
        with selectors.DefaultSelector() as selector:
            while len(done) < len(places):
                now = time.monotonic()
                if now >= deadline:
                    missing = [rank for rank in places if rank not in done]
                    address, port = places[missing[0]]
                    raise AllfoldError(
                        f"tcp: rank {own} could not connect to {name_ranks(missing)} in time; the last attempt, at "
                        f"{address} port {port}: {errors.get(missing[0], 'no answer')}"
                    )
                for rank, when in list(later.items()):
                    if when <= now:
                        del later[rank]
                        one = _dialing(key, fabric, own, rank, places[rank], min(deadline, now + _GREETING_SECONDS))
                        ranks[one] = rank
                        selector.register(one, selectors.EVENT_WRITE)
                until = min([deadline, *later.values(), *(one.deadline for one in ranks)])
                ready = {key.fileobj for key, _ in selector.select(max(0.0, until - now))}
                for one, rank in list(ranks.items()):
                    try:
                        if one in ready:
                            if not one.step():
                                selector.modify(one, one.events)
                                continue
                            done[rank] = one.socket
                        elif one.deadline > time.monotonic():
                            continue
                        else:
                            raise TimeoutError("no answer")
                    except Refused:
                        raise AllfoldError(
                            f"rank {own} refuses rank {rank}: the process at {places[rank][0]} port {places[rank][1]} "
                            f"does not know the secret of this run (ALLFOLD_SECRET), or is not a rank of it"
                        ) from None
                    except OSError as error:
                        one.socket.close()
                        errors[rank] = error.strerror or str(error)
                        later[rank] = time.monotonic() + _PAUSE
                    selector.unregister(one)
                    del ranks[one]
    except BaseException:
        for connection in [*done.values(), *(one.socket for one in ranks)]:
            connection.close()
        raise
    return done


def _dialing(key: Secret, fabric: bytes, own: int, peer: int, place: tuple[str, int], deadline: float) -> _Greeting:
    connection = socket.socket(address_family(place[0]), socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.connect_ex(place)  # the result shows when the greeting reads
    return _Greeting(connection, dial(key, fabric, own, peer), deadline)
