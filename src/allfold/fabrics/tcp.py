"""The built-in TCP fabric: Python makes and authenticates the connections, C++ moves the bytes (native/wire/tcp.cpp)."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import AllfoldError
from ..wording import name_ranks
from .addresses import choose_address, listen
from .fabric import FOREVER, Bytes, Disconnected, Fabric, host_seconds
from .greeting import FABRIC_BYTES, Listener, dial_all
from .secret import Secret

if TYPE_CHECKING:
    from .board import Board

_CONNECTING = 120.0
_ANY = -1


class _Moving:
    """One transfer, in either direction."""

    __slots__ = ("_peer", "_transfer")

    def __init__(self, transfer: _native.WireSend | _native.WireReceive, peer: int | None) -> None:
        self._transfer, self._peer = transfer, peer

    def wait(self, within: float = FOREVER) -> int:
        source = self._transfer.wait(within)
        if source is None:
            raise Disconnected(self._transfer.why or f"it was not done within {within:g} s", self._peer)
        return source


class Hub:
    """The shared part of a process's fabrics: its listener, the addresses of all ranks, and the key of their greetings.

    A subclass can exchange more: `first` of all ranks is gathered before the addresses are known, and `second` makes this
    rank's offer from that and this host's address. `offers` has the offers of all ranks.
    """

    def __init__(
        self,
        board: Board,
        host: str,
        timeout: float,
        first: object = None,
        second: Callable[[list[Any], str], object] = lambda facts, address: None,
    ) -> None:
        cards = board.gather_all("host", {"host": host, "first": first}, timeout)
        self.rank = board.rank
        is_one_host = len({one["host"] for one in cards}) == 1
        self.address = "127.0.0.1" if is_one_host else choose_address(board, host, timeout)
        offer = second([one["first"] for one in cards], self.address)
        try:
            listening = listen(self.address)
        except OSError as error:
            ports = f" (ALLFOLD_PORTS={named})" if (named := os.environ.get("ALLFOLD_PORTS")) else ""
            raise AllfoldError(f"tcp: cannot listen at {self.address}: {error.strerror}{ports}") from None
        self.listener = Listener(listening, board.rank, board.size)
        _listeners.add(self.listener)
        weakref.finalize(self, self.listener.close)
        card = {"address": self.address, "port": self.listener.port, "nonce": secrets.token_hex(32), "offer": offer}
        cards = board.gather_all("tcp", card, timeout)
        self.offers: list[Any] = [one["offer"] for one in cards]
        self.places = [(one["address"], one["port"]) for one in cards]
        self.key = (board.secret or Secret(b"no secret")).within("tcp", *(one["nonce"] for one in cards))
        self.listener.start(self.key)

    def connect(self, path: str, ranks: Sequence[int], timeout: float) -> list[socket.socket | None]:
        """Connections between these ranks, in this order; none to this rank. The higher rank of a pair dials."""
        fabric = sha256(json.dumps([path, list(ranks)]).encode()).digest()[:FABRIC_BYTES]
        deadline = time.monotonic() + timeout
        lower = {rank: self.places[rank] for rank in ranks if rank < self.rank}
        higher = [rank for rank in ranks if rank > self.rank]
        found = dial_all(self.key, fabric, self.rank, lower, deadline)
        found |= self.listener.take(fabric, higher, deadline)
        missing = [rank for rank in ranks if rank != self.rank and rank not in found]
        if missing:
            for connection in found.values():
                connection.close()
            raise AllfoldError(f"tcp: {name_ranks(missing)} did not connect to rank {self.rank} within {timeout:g} s")
        return [found.get(rank) for rank in ranks]


def detached(connections: Sequence[socket.socket | None]) -> list[int]:
    """Detach these sockets: their descriptors, which the caller owns from now on; -1 where there is none."""
    return [-1 if one is None else one.detach() for one in connections]


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forked() -> None:
    for one in list(_listeners):
        one.forget()


os.register_at_fork(after_in_child=_forked)


class Tcp(Fabric):
    """Connections between the ranks of a group."""

    name = "tcp"
    wire: _native.Wire

    def __init__(self, hub: Hub, path: str, ranks: Sequence[int], timeout: float = _CONNECTING) -> None:
        """`ranks`: as numbered in the hub. `path`: distinguishes the fabrics of the same ranks."""
        self._hub, self._path, self._ranks = hub, path, list(ranks)
        self._made: dict[str, int] = {}  # how often a fabric with this name and these ranks was made from this one
        self.rank, self.size, self.address = self._ranks.index(hub.rank), len(self._ranks), hub.address
        self.wire = self._wire_over(hub.connect(path, self._ranks, timeout), timeout)

    @classmethod
    def connect(cls, board: Board, host: str, timeout: float) -> Tcp:
        """Connections between all ranks of a board; every one of them calls it."""
        return cls(Hub(board, host, timeout), "", range(board.size), timeout)

    def _wire_over(self, connections: Sequence[socket.socket | None], timeout: float) -> _native.Wire:
        return _native.tcp_wire(self.rank, detached(connections), host_seconds())

    def send(self, peer: int, data: Bytes, tag: int) -> _Moving:
        return _Moving(self.wire.send(peer, data, tag), peer)

    def receive(self, peer: int, data: Bytes, tag: int) -> _Moving:
        return _Moving(self.wire.receive(peer, data, tag), peer)

    def receive_any(self, data: Bytes, tag: int) -> _Moving:
        return _Moving(self.wire.receive(_ANY, data, tag), None)

    def cut(self) -> None:
        self.wire.cut()

    def lost(self) -> list[int]:
        return self.wire.lost()

    def another(self, name: str, ranks: Sequence[int]) -> Tcp:
        chosen = [self._ranks[rank] for rank in ranks]
        what = json.dumps([name, chosen])
        number = self._made[what] = self._made.get(what, 0) + 1
        return type(self)(self._hub, f"{self._path}/{name} {number}", chosen)
