"""UCX, the host's own library, for networks with RDMA (native/wire/ucx.cpp).

UCX does not authenticate peers, and does not always notice that one has ended. So every UCX connection is paired with a
connection of the tcp fabric: that one is authenticated, UCX addresses are exchanged over it, and the kernel closes it when
a rank ends. Heartbeats and other control messages go over TCP alone.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..errors import AllfoldError, UsageError
from ..wording import name_ranks
from . import tags
from .addresses import own_addresses
from .stores import receive_exactly
from .table import named_fabric
from .tcp import Hub, Tcp, detached

if TYPE_CHECKING:
    from .board import Board

_LENGTH = struct.Struct("!I")
_MOST_ADDRESS = 1 << 20
_SEGMENT_TCP = 128 << 10
_EAGER_TCP = 96 << 10  # with UCX's header, less than a segment; a call's header with its data is a little over 64 KiB
_EAGER_RDMA = 8 << 10  # a segment of InfiniBand's transports in UCX


def has_rdma_device(folder: str = "/sys/class/infiniband") -> bool:
    """True if the kernel has an RDMA device (InfiniBand, RoCE or iWARP)."""
    try:
        return any(Path(folder).iterdir())
    except OSError:
        return False


def settings(address: str, over_rdma: bool, environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Settings of UCX for a host with this address, by the names of its variables without UCX_."""
    if over_rdma:
        return [("TLS", "ib,self")]
    found = [
        ("TLS", "tcp,self"),
        # One segment holds an eager message and its header.
        ("TCP_TX_SEG_SIZE", str(_SEGMENT_TCP)),
        ("TCP_RX_SEG_SIZE", str(_SEGMENT_TCP)),
    ]
    # UCX does not probe addresses, so it gets the interface that probing found.
    found += [("NET_DEVICES", one.interface) for one in own_addresses(environ) if one.address == address]
    if ports := environ.get("ALLFOLD_PORTS"):
        found.append(("TCP_PORT_RANGE", ports))
    return found


class _UcxHub(Hub):
    """A hub whose ranks also agree on whether they use UCX, and whether all of them can."""

    def __init__(self, board: Board, host: str, timeout: float) -> None:
        self.context: _native.UcxContext | None = None
        self.is_asked_for = self.over_rdma = False
        self.wrong: str | None = None  # the error in ALLFOLD_FABRIC on the first rank that has one
        facts = {"named": os.environ.get("ALLFOLD_FABRIC"), "rdma": has_rdma_device(), "wrong": None}
        try:
            named_fabric(os.environ)
        except UsageError as error:
            facts["wrong"] = str(error)
        super().__init__(board, host, timeout, facts, self._offer)
        self.refused: dict[int, str] = {rank: why for rank, why in enumerate(self.offers) if why}

    def _offer(self, facts: list[Any], address: str) -> str:
        """Open UCX if it was asked for. Returns the reason why this rank cannot use it, or ""."""
        self.wrong = next((one["wrong"] for one in facts if one["wrong"]), None)
        named = {one["named"] for one in facts}
        self.is_asked_for = "ucx" in named
        self.over_rdma = all(one["rdma"] for one in facts)
        if not self.is_asked_for:
            return ""
        if len(named) > 1:
            other = next(rank for rank, one in enumerate(facts) if one["named"] != "ucx")
            return f"ALLFOLD_FABRIC is not the same on all ranks; rank {other} has {facts[other]['named'] or 'none'}"
        try:
            self.context = _native.UcxContext(settings(address, self.over_rdma))
        except AllfoldError as error:
            return str(error)
        return ""


def connect(board: Board, host: str, timeout: float) -> Tcp:
    """Connections between all ranks of a board, UCX's if ALLFOLD_FABRIC asks for it; every one of them calls it."""
    hub = _UcxHub(board, host, timeout)
    if hub.wrong is not None:
        raise UsageError(hub.wrong)
    if hub.refused:
        (rank, why), *others = hub.refused.items()
        more = f" and {name_ranks([rank for rank, _ in others])}" if others else ""
        raise UsageError(f"ALLFOLD_FABRIC=ucx cannot be used by rank {rank}{more}: {why}")
    return (Ucx if hub.is_asked_for else Tcp)(hub, "", range(board.size), timeout)


class Ucx(Tcp):
    """Connections between the ranks of a group over UCX. A hub's first ones are for control messages, and stay on TCP."""

    name = "ucx"

    def _wire_over(self, connections: Sequence[socket.socket | None], timeout: float) -> _native.Wire:
        if not self._path:
            return super()._wire_over(connections, timeout)
        hub, deadline = self._hub, time.monotonic() + timeout
        assert isinstance(hub, _UcxHub)
        assert hub.context is not None
        try:
            worker = _native.UcxWorker(hub.context)
            addresses = _exchanged(connections, worker.address, deadline)
        except BaseException as error:
            for one in connections:
                if one is not None:
                    one.close()
            if isinstance(error, OSError):
                raise AllfoldError(f"ucx: the ranks could not exchange their addresses: {error}") from None
            raise
        # A transport that the user has chosen may have small segments.
        small = hub.over_rdma or "UCX_TLS" in os.environ
        longest_eager = _EAGER_RDMA if small else _EAGER_TCP
        wire = _native.ucx_wire(worker, self.rank, detached(connections), addresses, longest_eager)
        del worker  # the wire ends it
        self._greet(wire, deadline)
        return wire

    def _greet(self, wire: _native.Wire, deadline: float) -> None:
        """Exchange an empty message with every rank: UCX connects when the first one is sent, which may fail."""
        nothing = np.empty(0, np.uint8)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        moving: list[tuple[int, _native.WireSend | _native.WireReceive]] = []
        moving += [(peer, wire.send(peer, nothing, tags.HELLO)) for peer in peers]
        moving += [(peer, wire.receive(peer, nothing, tags.HELLO)) for peer in peers]
        for peer, one in moving:
            if one.wait(max(0.0, deadline - time.monotonic())) is None:
                wire.cut()
                raise AllfoldError(
                    f"ucx: no connection to rank {self._ranks[peer]}: {one.why or 'no answer in time'}; UCX_NET_DEVICES and "
                    "UCX_TLS choose the network that UCX uses, and ALLFOLD_FABRIC=tcp avoids UCX"
                )


def _exchanged(connections: Sequence[socket.socket | None], own: bytes, deadline: float) -> list[bytes]:
    """The addresses of all workers, by rank; every rank calls it. They are short, so no send waits for the other end."""
    for one in connections:
        if one is not None:
            one.settimeout(max(0.001, deadline - time.monotonic()))
            one.sendall(_LENGTH.pack(len(own)) + own)
    return [own if one is None else _received(one) for one in connections]


def _received(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if length > _MOST_ADDRESS:
        raise AllfoldError("ucx: a rank sent something that is not a UCX address")
    return receive_exactly(connection, length)
