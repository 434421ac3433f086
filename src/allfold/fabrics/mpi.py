"""MPI, through mpi4py: what clusters have, and mpirun as the place where the ranks meet.

Progress is in `mpi_progress`, and what the ranks put up for one another in `mpi_store`. The communicator that a user
brings is duplicated, and never used for messages, nor are its error handlers changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from ..errors import AllfoldError, CollectiveTimeout, UsageError
from .fabric import FOREVER, Board, Bytes, Disconnected, Fabric, Transfer
from .mpi_progress import Moving
from .mpi_store import Store
from .secret import Secret
from .tags import MOST_TAG

# MPI counts with 31 bits. Longer messages travel in pieces, in order.
SEGMENT = 1 << 30
# A library with shorter tags than ours gets several communicators, but no more than these: they are scarce.
MOST_COMMUNICATORS = 8
_CONNECTING = 120.0


class MpiBoard(Board):
    """What the ranks put up in a store that rank 0 of all keeps."""

    def __init__(
        self, store: Store, name: str = "", ranks: Sequence[int] | None = None, secret: Secret | None = None
    ) -> None:
        """`ranks`: those of this board, by their ranks in the store. `secret`: that ranks who connect must know."""
        self.store, self.name, self.secret = store, name, secret
        self.ranks = list(range(store.size) if ranks is None else ranks)
        self.rank, self.size = self.ranks.index(store.rank), len(self.ranks)

    def gather(self, what: str, own: bytes, timeout: float) -> list[bytes | None]:
        self.put(what, own)
        return self.store.find(self._places(what), timeout)

    def some(self, name: str, ranks: Sequence[int]) -> MpiBoard:
        secret = self.secret and self.secret.within(name)
        return MpiBoard(self.store, f"{self.name}{name}/", [self.ranks[rank] for rank in ranks], secret)

    def with_secret(self, secret: Secret) -> MpiBoard:
        return MpiBoard(self.store, self.name, self.ranks, secret)

    def connect(self, host: str, timeout: float) -> Mpi:
        return Mpi(self)

    def decide(self, what: str, proposal: bytes) -> bytes:
        return self.store.decide(self.name + what, proposal)

    def present(self, what: str) -> list[int]:
        found = self.store.find(self._places(what), 0.0)
        return [rank for rank, value in enumerate(found) if value is not None]

    def put(self, what: str, own: bytes) -> None:
        self.store.put(self._places(what)[self.rank], own)

    def _places(self, what: str) -> list[str]:
        return [f"{self.name}{what}/{rank}" for rank in range(self.size)]


_boards = 0  # made by this process from its environment


def board_from_environment(environ: Mapping[str, str], rank: int, size: int, timeout: float) -> MpiBoard:
    """The board of all ranks that mpirun has started."""
    global _boards
    _boards += 1
    store = Store()
    if (store.rank, store.size) != (rank, size):
        raise UsageError(
            f"this process is rank {rank} of {size}, but MPI says rank {store.rank} of {store.size}: mpi4py must be built for "
            "the MPI whose mpirun started it; or set ALLFOLD_FABRIC=gloo"
        )
    return MpiBoard(store, f"{_boards}/", secret=Secret.from_environment(environ))


class Mpi(Fabric):
    """A communicator of its own."""

    name = "mpi"

    def __init__(self, board: MpiBoard) -> None:
        self.rank, self.size, self._board = board.rank, board.size, board
        self._progress, self._is_cut = board.store.progress, False
        self._mpi = self._progress.mpi
        self._tags = min(board.store.most_tag, MOST_TAG) + 1
        try:
            first = self._connect()
            more = min(MOST_TAG // self._tags, MOST_COMMUNICATORS - 1)
            self._comms = [first, *(first.Dup() for _ in range(more))]
            for comm in self._comms:
                comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        except self._mpi.Exception as error:
            raise AllfoldError(
                f"mpi could not connect rank {self.rank} with the other {self.size - 1}: {error.Get_error_string()}"
            ) from None
        if board.secret is not None:
            board.secret.challenge(self, _CONNECTING)

    def _connect(self) -> Any:
        board, base = self._board, self._board.store.base
        # MPI waits without end for ranks that do not come. So all have come before it is asked.
        come = board.gather("mpi", b"lost" if board.store.lost() else b"", _CONNECTING)
        if None in come:
            missing = ", ".join(str(rank) for rank, own in enumerate(come) if own is None)
            raise CollectiveTimeout(f"mpi: of {self.size} ranks these did not come within {_CONNECTING:g} s: {missing}")
        group = base.Get_group().Incl(board.ranks)
        if b"lost" not in come:
            return base.Create_group(group, crc32(board.name.encode()) % self._tags)
        # Open MPI makes no group of a communicator that has lost a rank, but it makes communicators of groups.
        return self._mpi.Intracomm.Create_from_group(group, f"allfold {board.name}")

    def send(self, peer: int, data: Bytes, tag: int) -> Transfer:
        comm, tag = self._way(peer, tag)
        return self._begin(comm.Isend, peer, data, tag, False)

    def receive(self, peer: int, data: Bytes, tag: int) -> Transfer:
        comm, tag = self._way(peer, tag)
        return self._begin(comm.Irecv, peer, data, tag, True)

    def receive_any(self, data: Bytes, tag: int) -> Transfer:
        if data.nbytes > SEGMENT:
            raise UsageError(
                f"receive_any of {data.nbytes} bytes: over MPI a message of more than {SEGMENT} travels in pieces, and "
                "those of two senders would be mixed; receive it from a rank"
            )
        comm, tag = self._way(0, tag)
        self._require_open(None)
        try:
            request = comm.Irecv([data, self._mpi.BYTE], self._mpi.ANY_SOURCE, tag)
        except self._mpi.Exception as error:
            raise self._progress.failure(error, None) from None
        return self._added(Moving(self._progress, request, None, data.nbytes, True, comm.Ack_failed))

    def cut(self) -> None:
        self._is_cut = True
        self._progress.cut(self)

    def another(self, name: str, ranks: Sequence[int]) -> Mpi:
        return Mpi(self._board.some(name, ranks))

    def _way(self, peer: int, tag: int) -> tuple[Any, int]:
        """The communicator for a tag, and the tag there: no two tags share both."""
        which, within = divmod(tag, self._tags)
        if not 0 <= which < len(self._comms) or tag > MOST_TAG:
            most = min(MOST_TAG, self._tags * len(self._comms) - 1)
            raise UsageError(f"tag {tag}: expected 0 to {most}, the most that this MPI has room for")
        if not 0 <= peer < self.size:
            raise UsageError(f"rank {peer}: expected 0 to {self.size - 1}")
        return self._comms[which], within

    def _begin(self, begin: Callable[..., Any], peer: int, data: Bytes, tag: int, receives: bool) -> Transfer:
        if data.nbytes > SEGMENT:
            pieces = [data[at : at + SEGMENT] for at in range(0, data.nbytes, SEGMENT)]
            return _Pieces([self._begin(begin, peer, piece, tag, receives) for piece in pieces])
        progress = self._progress
        self._require_open(peer)
        # MPI cannot be told to leave memory alone: a send is never taken back, and a receive that has begun goes on. The
        # caller's memory is its own again after `cut`, so MPI gets other memory.
        own, status = np.empty_like(data) if receives else data.copy(), self._mpi.Status()

        def deliver(bytes: int) -> None:
            data[:bytes] = own[:bytes]

        try:
            request = begin([own, self._mpi.BYTE], peer, tag)
            # A short message has often left, or arrived, already. Nobody else knows this request yet.
            is_done = request.Test(status)
        except self._mpi.Exception as error:
            raise progress.failure(error, peer) from None
        if is_done:
            if receives:
                deliver(status.Get_count(self._mpi.BYTE))
            return _Done(peer)
        moving = Moving(progress, request, peer, data.nbytes, receives)
        if receives:
            moving.deliver = deliver
        return self._added(moving)

    def _require_open(self, peer: int | None) -> None:
        self._progress.require_open()
        if self._is_cut:
            raise Disconnected("it was given up", peer)

    def _added(self, moving: Moving) -> Moving:
        moving.of = self
        self._progress.add(moving)
        if self._is_cut:  # meanwhile
            self._progress.cut(self)
        return moving


class _Done:
    """A transfer that was done at once."""

    __slots__ = ("_peer",)

    def __init__(self, peer: int) -> None:
        self._peer = peer

    def wait(self, within: float = FOREVER) -> int:
        return self._peer


class _Pieces:
    """A message in several transfers."""

    def __init__(self, pieces: list[Transfer]) -> None:
        self._pieces = pieces

    def wait(self, within: float = FOREVER) -> int:
        return {piece.wait(within) for piece in self._pieces}.pop()
