"""Stores where ranks meet without torch or MPI: a folder, a server on rank 0, or the memory of one process."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from ..errors import AllfoldError, UsageError
from .addresses import listen, place_in_words

_MAGIC = b"allfold store 1\n"
_MOST_REQUEST = 16 << 20  # bytes; a rank publishes a few hundred
_MOST_KEPT = 256 << 20
_MOST_STRANGERS = 64  # connections that have not yet said which rank they belong to
_GREETING_SECONDS = 10.0
_ANSWER_SECONDS = 60.0  # the longest wait for an answer from rank 0
_TURN_SECONDS = 0.1  # the longest that rank 0 holds a question for missing values; then the rank asks again
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02


class Store(ABC):
    """Named values that all ranks see."""

    @abstractmethod
    def put(self, name: str, value: bytes) -> None: ...

    @abstractmethod
    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        """The values of these names, as soon as all exist; after this many seconds, None for those that do not."""

    @abstractmethod
    def decide(self, name: str, proposal: bytes) -> bytes:
        """The first proposal that was made under this name."""


class MemoryStore(Store):
    """A store in the memory of one process, for its threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._changed = threading.Condition()

    def put(self, name: str, value: bytes) -> None:
        with self._changed:
            self._keep(name, value)

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        with self._changed:
            self._changed.wait_for(lambda: all(name in self._values for name in names), min(timeout, 1e6))
            return [self._values.get(name) for name in names]

    def decide(self, name: str, proposal: bytes) -> bytes:
        with self._changed:
            if name not in self._values:
                self._keep(name, proposal)
            return self._values[name]

    def _keep(self, name: str, value: bytes) -> None:
        added = len(name) + len(value)
        if self._bytes + added > _MOST_KEPT:
            raise AllfoldError(
                f"the store where the ranks meet is limited to {_MOST_KEPT >> 20} MiB, and has no room for {name!r}"
            )
        self._bytes += added
        self._values[name] = value
        self._changed.notify_all()


def polled(read: Callable[[str], bytes | None], names: Sequence[str], timeout: float) -> list[bytes | None]:
    """`Store.find` for a store that cannot wait: polls it until all values exist."""
    deadline, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
    found: dict[str, bytes] = {}
    while True:
        for name in names:
            if name not in found and (value := read(name)) is not None:
                found[name] = value
        remaining = deadline - time.monotonic()
        if remaining <= 0 or all(name in found for name in names):
            return [found.get(name) for name in names]
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _LONGEST_PAUSE)


class FolderStore(Store):
    """A store in a folder that all ranks can write to, one file per entry."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._named():
            folder.mkdir(0o700, exist_ok=True)

    def put(self, name: str, value: bytes) -> None:
        self._written(value).replace(self._path(name))

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        return polled(self._read, names, timeout)

    def decide(self, name: str, proposal: bytes) -> bytes:
        written = self._written(proposal)
        with contextlib.suppress(FileExistsError):
            os.link(written, self._path(name))
        written.unlink()
        return self._path(name).read_bytes()

    def _read(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._path(name).read_bytes()
        return None

    def _path(self, name: str) -> Path:
        return self._folder / sha256(name.encode()).hexdigest()

    def _written(self, value: bytes) -> Path:
        """A file with this value and a unique name, so that no rank ever sees half of an entry."""
        path = self._folder / f"new {secrets.token_hex(16)}"
        with self._named():
            path.write_bytes(value)
        return path

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"the ranks cannot meet in the folder {self._folder}: {error.strerror}") from None


class StoreServer:
    """Rank 0's end of a store at a port: one thread per connection, and one that accepts until all ranks have connected."""

    def __init__(self, listening: socket.socket, store: MemoryStore, size: int, token: str = "") -> None:
        """`token`: only processes that know it are served."""
        self._listening, self._store, self._greeting = listening, store, _greeting(token)
        self._missing = set(range(1, size))
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        if self._missing:
            threading.Thread(target=self._accept, name="allfold store", daemon=True).start()
        else:
            listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if not self._missing:  # closed: the port is free for others, torch's own store perhaps
                    return
                time.sleep(_LONGEST_PAUSE)  # no more descriptors; some may be closed soon
                continue
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > _MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    with contextlib.suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._serve, args=(connection,), name="allfold store", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, struct.error, UnicodeDecodeError):
            connection.settimeout(_GREETING_SECONDS)
            if not hmac.compare_digest(receive_exactly(connection, len(self._greeting)), self._greeting):
                return
            (rank,) = struct.unpack("!I", receive_exactly(connection, 4))
            with self._lock:
                self._strangers.pop(connection, None)
                self._missing.discard(rank)
                if not self._missing:
                    # close() alone would not end the accept of the other thread.
                    with contextlib.suppress(OSError):
                        self._listening.shutdown(socket.SHUT_RDWR)
                    self._listening.close()
            connection.sendall(_MAGIC)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            while True:
                kind, *words = _receive_words(connection)
                connection.sendall(_packed(self._answer(bytes(kind or b""), [word or b"" for word in words])))
        with self._lock:
            self._strangers.pop(connection, None)

    def _answer(self, kind: bytes, words: list[bytes]) -> list[bytes | None]:
        try:
            if kind == b"find":
                (seconds,) = struct.unpack("!d", words[0])
                return [*self._store.find([word.decode() for word in words[1:]], min(seconds, _TURN_SECONDS))]
            name, value = words
            if kind == b"put":
                self._store.put(name.decode(), value)
                return []
            if kind == b"decide":
                return [self._store.decide(name.decode(), value)]
        except AllfoldError as error:
            return [b"error", None, str(error).encode()]
        raise ValueError


class PortStore(Store):
    """Another rank's connection to the store that rank 0 runs."""

    def __init__(self, connection: socket.socket) -> None:
        self._lock, self._socket = threading.Lock(), connection

    def put(self, name: str, value: bytes) -> None:
        self._ask(b"put", name.encode(), value)

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        deadline = time.monotonic() + timeout
        while True:
            remaining = deadline - time.monotonic()
            found = self._ask(b"find", struct.pack("!d", max(0.0, remaining)), *(name.encode() for name in names))
            if remaining <= 0 or None not in found:
                return found

    def decide(self, name: str, proposal: bytes) -> bytes:
        (decided,) = self._ask(b"decide", name.encode(), proposal)
        assert decided is not None
        return decided

    def _ask(self, *words: bytes) -> list[bytes | None]:
        with self._lock:
            try:
                self._socket.sendall(_packed(words))
                answer = _receive_words(self._socket)
            except (OSError, ValueError, struct.error) as error:
                self._socket.close()  # part of an answer may still arrive
                raise AllfoldError(
                    f"the store where the ranks meet cannot be reached: {error}; it runs in rank 0, which may have ended"
                ) from None
        if len(answer) == 3 and answer[0] == b"error" and answer[1] is None:
            raise AllfoldError((answer[2] or b"").decode())
        return answer


def _greeting(token: str) -> bytes:
    return _MAGIC + token.encode()


def dial_store(address: str, port: int, rank: int, within: float, token: str = "") -> PortStore:
    """Connect to the store at this address. Raises `OSError` or `ValueError` if it does not answer."""
    connection = socket.create_connection((address, port), within)
    try:
        connection.settimeout(_GREETING_SECONDS)  # rank 0's interpreter may be busy
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_greeting(token) + struct.pack("!I", rank))
        if receive_exactly(connection, len(_MAGIC)) != _MAGIC:
            raise ValueError("another program listens there")
        connection.settimeout(_ANSWER_SECONDS)
    except BaseException:
        connection.close()
        raise
    return PortStore(connection)


def dial_first(
    addresses: Sequence[str], port: int, rank: int, timeout: float, within: float = _GREETING_SECONDS, token: str = ""
) -> PortStore:
    """The store at the first of these addresses that answers. Rank 0 may start it after this rank has started.

    `within`: the seconds for one attempt to connect.
    """
    deadline, pause, why = time.monotonic() + timeout, _SHORTEST_PAUSE, dict[str, str]()
    while (remaining := deadline - time.monotonic()) > 0:
        for address in addresses:
            try:
                return dial_store(address, port, rank, min(remaining, within), token)
            except (OSError, ValueError) as error:
                why[address] = getattr(error, "strerror", None) or str(error)
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(2 * pause, 0.2)
    tried = "; ".join(f"{place_in_words(one, port)}: {why.get(one, 'no answer')}" for one in addresses)
    raise AllfoldError(f"init: rank {rank} found no store at {tried}")


_kept: dict[tuple[str, int], Store] = {}  # one per address and port, shared by all runs that this process takes part in
_keeping = threading.Lock()


def store_at(address: str, port: int, rank: int, size: int, timeout: float) -> Store:
    """The store at this address and port, which rank 0 runs. Every rank calls it."""
    with _keeping:
        if (found := _kept.get((address, port))) is not None:
            return found
        if rank == 0:
            memory = MemoryStore()
            try:
                # At all addresses, as torch's store does: the name that others use for this host may mean 127.0.1.1 here.
                listening = listen("", port)
            except OSError as error:
                raise AllfoldError(
                    f"init: rank 0 cannot listen at port {port} (MASTER_PORT): {error.strerror}"
                ) from None
            StoreServer(listening, memory, size)
            store: Store = memory
        else:
            store = dial_first([address], port, rank, timeout)
        _kept[address, port] = store
        return store


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        more = connection.recv(min(count - len(received), 1 << 16))
        if not more:
            raise ConnectionResetError("the connection was closed")
        received += more
    return bytes(received)


def _packed(words: Sequence[bytes | None]) -> bytes:
    body = b"".join(struct.pack("!i", -1 if word is None else len(word)) + (word or b"") for word in words)
    return struct.pack("!I", len(body)) + body


def _receive_words(connection: socket.socket) -> list[bytes | None]:
    (length,) = struct.unpack("!I", receive_exactly(connection, 4))
    if length > _MOST_REQUEST:
        raise ValueError("too long")
    body, at, words = receive_exactly(connection, length), 0, list[bytes | None]()
    while at < length:
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        if size < -1 or size > length - at:
            raise ValueError("lengths that do not fit")
        words.append(None if size < 0 else body[at : at + size])
        at += max(0, size)
    return words
