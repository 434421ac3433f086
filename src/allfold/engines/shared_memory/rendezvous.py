"""The rendezvous of the ranks on one machine: each contributes bytes and descriptors, and gets those of all ranks.

Rank 0 listens on a Unix socket in the abstract namespace, which leaves nothing in the file system and vanishes with the
process. A conversation, with the kinds of packets in capitals:

    another rank                                  rank 0
    HELLO   who I am, how much comes  ──────────►  checks it against what it knows itself
    PIECE, DESCRIPTORS …   my part    ──────────►  collects, until every part is there
                                      ◄──────────  ENTRY, PIECE, DESCRIPTORS …   the part of every rank in turn
    RECEIVED                          ──────────►  waits until everyone has everything
                                      ◄──────────  DONE, and both return

At any point either side may say FAILED, a rank may say GAVE_UP, and a connection that ends means that its rank is lost.
Packets and not a stream of bytes (SOCK_SEQPACKET): the kernel keeps descriptors and the bytes beside them together.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hashlib
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from allfold import _native
from allfold.errors import AllfoldError, CollectiveTimeout, MismatchError, RankLost, UsageError
from allfold.files import explain_open_files
from allfold.version import __version__

from ...wording import name_ranks

_MAGIC = b"allfold\0"
_VERSION = 2
_HELLO, _PIECE, _DESCRIPTORS, _ENTRY, _RECEIVED, _DONE, _FAILED, _GAVE_UP = range(8)
_GREETING = struct.Struct("!B8sH")  # kind, magic, version: what every version of this protocol begins with
# The greeting, then rank, size, bytes and descriptors to come, the layout of shared memory, and allfold's version.
_HELLO_FORMAT = struct.Struct("!B8sHIIQIQ32s")
_ENTRY_FORMAT = struct.Struct("!BQI")  # kind, bytes to come, descriptors to come
_GAVE_UP_FORMAT = struct.Struct("!Bd")  # kind, the timeout that ran out
_FAILURES: tuple[type[AllfoldError], ...] = (AllfoldError, MismatchError, RankLost, CollectiveTimeout)

_PIECE_BYTES = 32 * 1024  # a packet must fit the send buffer of a Unix socket, some 200 KiB by default
_DESCRIPTORS_A_PACKET = 253  # the kernel's SCM_MAX_FD
_LARGEST_COUNT = 2**31

# How long rank 0 stays after a failure, to report it to ranks that are still on their way; and how long a rank that has
# run out of time waits for rank 0 to say who is missing.
_LAST_WORDS_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0005, 0.02
# If the name is taken and nobody listens: how long rank 0 assumes that another rank 0 holds it and is about to listen.
_NAME_SECONDS = 0.5


def exchange(
    rank: int, size: int, key: str, payload: bytes, descriptors: Sequence[int], timeout: float
) -> list[tuple[bytes, list[int]]]:
    """The contributions of all ranks, by rank. The caller must close the returned descriptors, its own included.

    Every rank must call it with the same key and size within the timeout. If it fails for one rank, it fails for all.
    """
    if not 1 <= size < _LARGEST_COUNT:
        raise UsageError(f"rendezvous: expected at least one rank, size is {size}")
    # A rank beyond the size is reported to rank 0 instead, so that all ranks learn of it; a single rank has no peer.
    if not 0 <= rank < (1 if size == 1 else _LARGEST_COUNT):
        raise UsageError(f"rendezvous: expected a rank from 0 to {size - 1}, rank is {rank}")
    own = _Part(len(payload), len(descriptors), bytearray(payload), [])
    try:
        own.descriptors.extend(os.dup(descriptor) for descriptor in descriptors)
        if size == 1:
            return [own.take()]
        meeting = _Meeting(rank, size, key, timeout, time.monotonic() + timeout)
        with _open(meeting) as opened:
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return _Host(meeting, opened, own).gather()
            return _join(meeting, opened, own)
    except OSError as error:
        explained = explain_open_files(error, size)
        if explained is None:
            raise
        raise AllfoldError(f"rendezvous: rank {rank}: {explained}") from None
    finally:
        own.close()


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a connection, according to the kernel."""

    process: int  # 0: of a PID namespace that this process cannot see
    user: int


def peer_of(connection: socket.socket) -> Peer:
    process, user, _group = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(process, user)


def is_trusted(peer: Peer, user: int) -> bool:
    """Only the same user may take part. Root is no exception: it has no business in another user's run."""
    return peer.user == user


def socket_name(key: str, user: int) -> bytes:
    """The name that every rank works out by itself; the zero byte in front is what makes it abstract.

    If somebody else holds it (keys of torchrun and Slurm can be guessed), rank 0 listens at this name with a random
    suffix, and the others find it in the kernel's list of names.
    """
    # Keys may come from environment variables, which need not be valid text.
    return b"\0allfold-" + hashlib.sha256(f"{user} {key}".encode(errors="surrogateescape")).hexdigest().encode()


@dataclass(frozen=True)
class _Meeting:
    """The facts that a rank knows before it has connected."""

    rank: int
    size: int
    key: str
    timeout: float
    deadline: float

    def remaining(self) -> float:
        # The kernel accepts no endless waits; for a longer one, the caller asks again after a day.
        return min(max(0.0, self.deadline - time.monotonic()), 86400.0)

    def sentence(self, what: str) -> str:
        key = self.key if len(self.key) <= 60 else self.key[:59] + "…"
        return f"rendezvous: {what} (key {key.encode(errors='backslashreplace').decode()})"


@dataclass
class _Part:
    """One rank's contribution, complete or still arriving."""

    bytes_expected: int
    descriptors_expected: int
    payload: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.payload) == self.bytes_expected and len(self.descriptors) == self.descriptors_expected

    def add(self, packet: bytes, descriptors: list[int]) -> bool:
        """Add a packet; False if it does not belong here. The descriptors belong to this part from now on."""
        self.descriptors += descriptors
        if packet[0] == _PIECE and not descriptors:
            self.payload += packet[1:]
            return len(self.payload) <= self.bytes_expected
        return packet[0] == _DESCRIPTORS and len(self.descriptors) <= self.descriptors_expected

    def packets(self) -> list[tuple[bytes, list[int]]]:
        pieces = range(0, len(self.payload), _PIECE_BYTES)
        groups = range(0, len(self.descriptors), _DESCRIPTORS_A_PACKET)
        return [
            *((bytes([_PIECE]) + self.payload[start : start + _PIECE_BYTES], []) for start in pieces),
            *((bytes([_DESCRIPTORS]), self.descriptors[start : start + _DESCRIPTORS_A_PACKET]) for start in groups),
        ]

    def take(self) -> tuple[bytes, list[int]]:
        taken, self.descriptors = self.descriptors, []
        return bytes(self.payload), taken

    def close(self) -> None:
        _close_all(self.take()[1])


def _open(meeting: _Meeting) -> socket.socket:
    """Rank 0 gets a listening socket, everybody else a connection to it.

    A second rank 0 finds the name taken and gets a connection as well: that is how everyone learns that there are two.
    """
    name, began, pause = socket_name(meeting.key, os.geteuid()), time.monotonic(), _SHORTEST_PAUSE_SECONDS
    while True:
        listener = _listening(name, meeting.size) if meeting.rank == 0 else None
        connection, stranger = (None, "") if listener else _connected(name)
        if pause == _LONGEST_PAUSE_SECONDS or stranger:
            for other in _names_that_begin_with(name + b"-") if connection is None else ():
                connection = connection or _connected(other)[0]
            if meeting.rank == 0 and connection is None and (stranger or time.monotonic() > began + _NAME_SECONDS):
                listener = _listening(name + b"-" + secrets.token_hex(8).encode(), meeting.size)
        opened = listener or connection
        if opened is not None:
            return opened
        if meeting.remaining() == 0:
            held = f"; {stranger} holds the name of this run, and was not heard" if stranger else ""
            raise CollectiveTimeout(
                meeting.sentence(f"rank 0 of {meeting.size} did not arrive within {meeting.timeout:g} s{held}")
            )
        time.sleep(min(pause, meeting.remaining()))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _listening(name: bytes, size: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
        listener.listen(max(128, size))
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise


def _connected(name: bytes) -> tuple[socket.socket | None, str]:
    """A connection to this user's process that listens at that name, or the identity of another listener."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(name)
        # The kernel tells who called listen(): nobody can pose as rank 0 of another user.
        host = peer_of(connection)
        if is_trusted(host, os.geteuid()):
            return connection, ""
        connection.close()
        return None, f"process {host.process} of user {host.user}"
    except (BlockingIOError, ConnectionError):  # too many in the queue just now; not there yet
        connection.close()
        return None, ""
    except OSError as error:
        connection.close()
        if error.errno == errno.EPROTOTYPE:
            return None, "another program"
        raise
    except BaseException:
        connection.close()
        raise


def _names_that_begin_with(prefix: bytes) -> list[bytes]:
    """The abstract names with this prefix that the kernel knows, each with the zero byte in front."""
    shown = b"@" + prefix[1:]
    with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as names:
        found = (line.split()[-1] for line in names if shown in line)
        return [b"\0" + name[1:] for name in found if name.startswith(shown)]
    return []


# Rank 0 ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Visitor:
    """One accepted connection: a stranger until it has said a proper hello."""

    connection: socket.socket
    process: int
    rank: int | None = None
    size: int = 0
    part: _Part = field(default_factory=lambda: _Part(0, 0))
    packets_sent: int = 0
    has_everything: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process})"


class _Host:
    """One loop over all connections: a slow, silent or foreign peer delays no other."""

    def __init__(self, meeting: _Meeting, listener: socket.socket, own: _Part) -> None:
        self.meeting = meeting
        self.listener = listener
        self.own = own
        self.visitors: list[_Visitor] = []
        self.ranks: dict[int, _Visitor] = {}
        self.lost: set[int] = set()
        self.answer: list[tuple[bytes, list[int]]] = []
        self.selector = selectors.DefaultSelector()

    def gather(self) -> list[tuple[bytes, list[int]]]:
        try:
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ)
            self._until(self._all_parts_are_here)
            # From here on nobody new belongs to this run. The name is free again before any rank can return, so that
            # the same ranks may meet under the same key again.
            self._close_listener()
            parts = [self.own, *(self.ranks[rank].part for rank in range(1, self.meeting.size))]
            for part in parts:
                header = _ENTRY_FORMAT.pack(_ENTRY, part.bytes_expected, part.descriptors_expected)
                self.answer += [(header, []), *part.packets()]
            for visitor in [visitor for visitor in self.visitors if visitor.rank is None]:
                self._drop(visitor)
            for visitor in self.ranks.values():
                self.selector.modify(visitor.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, visitor)
            self._until(lambda: all(visitor.has_everything for visitor in self.ranks.values()))
            for visitor in self.ranks.values():
                # If a rank died after it had received everything, the first collective will notice.
                with contextlib.suppress(OSError):
                    visitor.connection.send(bytes([_DONE]))
            return [part.take() for part in parts]
        except AllfoldError as error:
            self._tell(error)
            raise
        except OSError as error:
            explained = explain_open_files(error, self.meeting.size)
            failure = AllfoldError(
                self.meeting.sentence(f"rank 0 (process {os.getpid()}) failed: {explained or error}")
            )
            self._tell(failure)
            raise failure from (None if explained else error)
        finally:
            for visitor in list(self.visitors):
                self._drop(visitor)
            self.selector.close()

    def _all_parts_are_here(self) -> bool:
        arrived = sum(visitor.part.is_complete for visitor in self.ranks.values())
        return arrived == self.meeting.size - 1

    def _until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            remaining = self.meeting.remaining()
            if remaining == 0:
                raise CollectiveTimeout(self._who_is_missing(self.meeting.timeout))
            for selected, events in self.selector.select(remaining):
                if selected.data is None:
                    self._accept()
                    continue
                if events & selectors.EVENT_WRITE:
                    self._write(selected.data)
                if events & selectors.EVENT_READ:
                    self._read(selected.data)

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except (BlockingIOError, ConnectionError):  # it went away again
            return
        peer = peer_of(connection)
        if not is_trusted(peer, os.geteuid()):
            connection.close()
            return
        connection.setblocking(False)
        visitor = _Visitor(connection, peer.process)
        self.visitors.append(visitor)
        self.selector.register(connection, selectors.EVENT_READ, visitor)

    def _read(self, visitor: _Visitor) -> None:
        try:
            packet, descriptors = _receive(visitor.connection)
        except BlockingIOError:
            return
        except ConnectionError:
            packet, descriptors = b"", []
        if visitor.rank is None:
            _close_all(descriptors)
            self._greet(visitor, packet)
        elif not packet:
            self.lost.add(visitor.rank)
            self._drop(visitor)
            raise RankLost(self.meeting.sentence(f"{visitor} was lost: its connection ended"))
        elif packet[0] == _GAVE_UP and len(packet) == _GAVE_UP_FORMAT.size and not descriptors:
            raise CollectiveTimeout(self._who_is_missing(_GAVE_UP_FORMAT.unpack(packet)[1]))
        elif packet[0] == _FAILED and not descriptors:
            raise RankLost(self.meeting.sentence(f"{visitor} failed: {packet[2:].decode(errors='replace')}"))
        elif packet[0] == _RECEIVED and not descriptors and visitor.packets_sent == len(self.answer) > 0:
            visitor.has_everything = True
        elif not visitor.part.add(packet, descriptors):
            raise AllfoldError(self.meeting.sentence(f"{visitor} sent a packet that is not of this protocol"))

    def _greet(self, visitor: _Visitor, packet: bytes) -> None:
        if len(packet) < _GREETING.size or _GREETING.unpack_from(packet)[:2] != (_HELLO, _MAGIC):
            self._drop(visitor)
            return
        version = _GREETING.unpack_from(packet)[2]
        if version != _VERSION:
            visitor.rank = -1  # unknown, since its hello cannot be read; but one of ours, to be told what is wrong
            raise MismatchError(
                self.meeting.sentence(
                    f"process {visitor.process} speaks version {version} of the protocol, rank 0 (process {os.getpid()}) "
                    f"version {_VERSION}: all ranks must run the same allfold"
                )
            )
        if len(packet) != _HELLO_FORMAT.size:
            self._drop(visitor)
            return
        _, _, _, rank, size, bytes_expected, descriptors_expected, layout, named = _HELLO_FORMAT.unpack(packet)
        visitor.rank, visitor.size = rank, size
        if (layout, named) != _build():
            builds = [
                f"{who} allfold {one[1].rstrip(bytes(1)).decode(errors='replace')} with the layout {one[0]:016x}"
                for who, one in ((visitor, (layout, named)), (f"rank 0 (process {os.getpid()})", _build()))
            ]
            raise MismatchError(
                self.meeting.sentence(f"{', '.join(builds)}: all ranks must run the same build of allfold")
            )
        visitor.part = _Part(bytes_expected, descriptors_expected)
        if size != self.meeting.size:
            wrong = "the ranks disagree about how many they are"
        elif rank >= size:
            wrong = f"there is no rank {rank} of {size}"
        elif rank == 0 or rank in self.ranks:
            wrong = f"rank {rank} came twice"
        else:
            self.ranks[rank] = visitor
            return
        came = [f"rank 0 of {self.meeting.size} (process {os.getpid()})"]
        for other in [*(self.ranks[known] for known in sorted(self.ranks)), visitor]:
            came.append(f"rank {other.rank} of {other.size} (process {other.process})")
        raise MismatchError(self.meeting.sentence(f"{wrong}: {', '.join(came)}"))

    def _write(self, visitor: _Visitor) -> None:
        try:
            while visitor.packets_sent < len(self.answer):
                _send(visitor.connection, *self.answer[visitor.packets_sent])
                visitor.packets_sent += 1
        except BlockingIOError:
            return
        except ConnectionError:
            pass  # reading will show it, and more: the rank may have said why
        self.selector.modify(visitor.connection, selectors.EVENT_READ, visitor)

    def _who_is_missing(self, timeout: float) -> str:
        size = self.meeting.size
        missing = [rank for rank in range(1, size) if rank not in self.ranks]
        if missing:
            return self.meeting.sentence(f"{name_ranks(missing)} of {size} did not arrive within {timeout:g} s")
        stuck = [
            rank
            for rank, visitor in sorted(self.ranks.items())
            if not (visitor.has_everything if self.answer else visitor.part.is_complete)
        ]
        return self.meeting.sentence(f"{name_ranks(stuck)} of {size} came but did not finish within {timeout:g} s")

    def _tell(self, error: AllfoldError) -> None:
        """Report it to all remaining connections; a failure here must not hide the first one."""
        kind = max(index for index, failure in enumerate(_FAILURES) if isinstance(error, failure))
        packet = bytes([_FAILED, kind]) + str(error).encode(errors="replace")[: _PIECE_BYTES - 1]
        # Some may still be on their way. After a timeout they had their chance; once the answer began, all are here.
        expected = set(range(1, self.meeting.size)) - self.lost
        if isinstance(error, CollectiveTimeout) or self.answer:
            expected &= set(self.ranks)
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        with contextlib.suppress(OSError):
            for visitor in self.visitors:
                if visitor.rank is not None:
                    self.selector.modify(visitor.connection, selectors.EVENT_WRITE, visitor)
            while expected or any(visitor.rank is not None for visitor in self.visitors):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                for selected, _ in self.selector.select(remaining):
                    visitor = selected.data
                    if visitor is None:
                        with contextlib.suppress(OSError):  # too many open files: every rank that was told leaves one
                            self._accept()
                        continue
                    if visitor.rank is None:
                        with contextlib.suppress(AllfoldError):
                            self._read(visitor)
                    if visitor.rank is not None:
                        with contextlib.suppress(OSError):
                            visitor.connection.send(packet)
                        expected.discard(visitor.rank)
                        self._drop(visitor)

    def _close_listener(self) -> None:
        self.selector.unregister(self.listener)
        self.listener.close()

    def _drop(self, visitor: _Visitor) -> None:
        if visitor in self.visitors:
            self.visitors.remove(visitor)
            self.selector.unregister(visitor.connection)
        visitor.connection.close()
        visitor.part.close()


# The others -----------------------------------------------------------------------------------------------------------


def _join(meeting: _Meeting, connection: socket.socket, own: _Part) -> list[tuple[bytes, list[int]]]:
    host = f"rank 0 (process {peer_of(connection).process})"
    parts: list[_Part] = []

    def send(packet: bytes, descriptors: Sequence[int] = ()) -> None:
        while True:
            connection.settimeout(max(meeting.remaining(), _SHORTEST_PAUSE_SECONDS))
            try:
                return _send(connection, packet, descriptors)
            except BlockingIOError:
                if meeting.remaining() == 0:
                    raise TimeoutError from None

    def receive() -> tuple[bytes, list[int]]:
        connection.settimeout(max(meeting.remaining(), _SHORTEST_PAUSE_SECONDS))
        packet, descriptors = _receive(connection)
        if not packet:
            raise ConnectionResetError(f"{host} closed the connection")
        if packet[0] == _FAILED:
            raise _failure(packet)
        return packet, descriptors

    try:
        sizes = (own.bytes_expected, own.descriptors_expected)
        send(_HELLO_FORMAT.pack(_HELLO, _MAGIC, _VERSION, meeting.rank, meeting.size, *sizes, *_build()))
        for packet in own.packets():
            send(*packet)
        for _ in range(meeting.size):
            header, _ = receive()
            if header[0] != _ENTRY or len(header) != _ENTRY_FORMAT.size:
                raise AllfoldError(meeting.sentence(f"{host} sent a packet that is not of this protocol"))
            parts.append(_Part(*_ENTRY_FORMAT.unpack(header)[1:]))
            while not parts[-1].is_complete:
                if not parts[-1].add(*receive()):
                    raise AllfoldError(meeting.sentence(f"{host} sent a packet that is not of this protocol"))
        send(bytes([_RECEIVED]))
        receive()
        return [part.take() for part in parts]
    except AllfoldError:
        raise
    except TimeoutError as error:
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(_GAVE_UP_FORMAT.pack(_GAVE_UP, meeting.timeout))
        raise _last_words(connection) or CollectiveTimeout(
            meeting.sentence(f"{host} came but stopped answering within {meeting.timeout:g} s")
        ) from error
    except ConnectionError as error:
        raise _last_words(connection) or RankLost(
            meeting.sentence(f"{host} was lost: its connection ended before the rendezvous was over")
        ) from error
    except OSError as error:
        explained = explain_open_files(error, meeting.size)
        with contextlib.suppress(OSError):
            connection.send(bytes([_FAILED, 0]) + (explained or str(error)).encode(errors="replace"))
        raise AllfoldError(
            meeting.sentence(f"rank {meeting.rank} (process {os.getpid()}) failed: {explained or error}")
        ) from (None if explained else error)
    finally:
        for part in parts:
            part.close()


def _build() -> tuple[int, bytes]:
    """The build facts that two ranks must share to use each other's memory."""
    return _native.LAYOUT, __version__.encode()[:32].ljust(32, bytes(1))


def _last_words(connection: socket.socket) -> AllfoldError | None:
    """The last message from rank 0, after something went wrong."""
    deadline = time.monotonic() + _LAST_WORDS_SECONDS
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            connection.settimeout(remaining)
            packet, descriptors = _receive(connection)
        except OSError:
            return None
        _close_all(descriptors)
        if not packet:
            return None
        if packet[0] == _FAILED:
            return _failure(packet)
    return None


def _failure(packet: bytes) -> AllfoldError:
    failure = _FAILURES[packet[1]] if len(packet) > 1 and packet[1] < len(_FAILURES) else AllfoldError
    return failure(packet[2:].decode(errors="replace"))


# Packets --------------------------------------------------------------------------------------------------------------


def _send(connection: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> None:
    try:
        if descriptors:
            socket.send_fds(connection, [packet], list(descriptors))
        else:
            connection.send(packet)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        # This user has so many descriptors in flight (over all its processes) that some must arrive first.
        time.sleep(_SHORTEST_PAUSE_SECONDS)
        raise BlockingIOError from error


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and the descriptors sent with it; an empty packet if the connection has ended."""
    # Not socket.recv_fds: Python 3.11 ignores its flags, and then the descriptors would be inherited by every child.
    space = socket.CMSG_SPACE(_DESCRIPTORS_A_PACKET * array.array("i").itemsize)
    try:
        packet, ancillary, flags, _ = connection.recvmsg(_PIECE_BYTES + 1, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # If a peer ended without reading everything, the kernel reports that first, once; what it sent is still here.
        packet, ancillary, flags, _ = connection.recvmsg(_PIECE_BYTES + 1, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & socket.MSG_CTRUNC:
        # There was room for the most that the kernel carries, so it was the process that had no room.
        _close_all(descriptors)
        raise OSError(errno.EMFILE, "too many open files to take in the descriptors of all ranks; raise `ulimit -n`")
    return packet, list(descriptors)


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
