"""Names and values that all ranks of a communicator of MPI's can see. Rank 0 keeps them, and its thread answers.

Whoever asks sends one message and waits for its answer, which has a tag of its own. So a rank that asks needs nobody
but rank 0, and rank 0 answers whatever else it may be doing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import AllfoldError, CollectiveTimeout, UsageError
from .fabric import Disconnected
from .mpi_progress import Moving, MpiProgress, progress

T = TypeVar("T")

# How long rank 0 may be busy with other things: its interpreter may be, for seconds.
_PATIENCE = 120.0
_LONGEST_PAUSE = 1e-3
# The tag of all questions. Answers have the others.
_QUESTIONS = 0


class Store:
    """One rank's access to the names and values. All ranks of the communicator make theirs."""

    def __init__(self, comm: Any = None) -> None:
        """`comm`: a communicator of mpi4py's; by default all ranks that were started together."""
        self.progress = progress()
        mpi = self.progress.mpi
        comm = mpi.COMM_WORLD if comm is None else comm
        if comm.Is_inter():
            raise UsageError("the ranks of an intercommunicator are two groups; merge them first (Intercomm.Merge)")
        # Groups are made with a communicator of their own: Open MPI makes them with messages that could be taken for ours.
        self._comm, self.base = (self._duplicate(comm) for _ in range(2))
        self.rank, self.size = comm.rank, comm.size
        self.most_tag: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
        self._asked = itertools.count()
        self._keeper = _Keeper(self.progress, self._comm) if self.rank == 0 else None
        if self._keeper:
            self.progress.add_chore(self._keeper.serve)
        self.progress.add_farewell(self._leave, self._stay)

    def put(self, name: str, value: bytes) -> None:
        self._ask(b"set", name.encode(), value)

    def decide(self, name: str, proposal: bytes) -> bytes:
        """The value of a name; this proposal, if it had none."""
        return self._ask(b"decide", name.encode(), proposal)[0] or b""

    def find(self, names: Sequence[str], timeout: float) -> list[bytes | None]:
        """The values of these names once all have one, or when the time is up: None where there is none."""
        asked = [name.encode() for name in names]
        return self._ask(b"find", struct.pack("<d", timeout), *asked, patience=timeout + _PATIENCE)

    def lost(self) -> set[int]:
        """The ranks of which this one knows that they are gone."""
        try:
            gone = self.base.Get_failed()
            return set(gone.Translate_ranks(list(range(gone.size)), self.base.Get_group()))
        except (self.progress.mpi.Exception, NotImplementedError, AttributeError):
            return set()  # mpi4py raises these where an MPI cannot say, since it does not survive a rank's death

    def _leave(self) -> None:
        if not self._keeper:
            with contextlib.suppress(AllfoldError):  # rank 0 is gone already
                self._ask(b"leave")

    def _stay(self) -> None:
        """Nobody shall find rank 0 gone who still has a question."""
        if keeper := self._keeper:
            _poll(lambda: len(keeper.left | self.lost()) >= self.size - 1, _PATIENCE)

    def _duplicate(self, comm: Any) -> Any:
        own, request = comm.Idup()
        if not _poll(request.Test, _PATIENCE):
            raise CollectiveTimeout(f"not all {comm.size} ranks of MPI's communicator came within {_PATIENCE:g} s")
        own.Set_errhandler(self.progress.mpi.ERRORS_RETURN)
        return own

    def _ask(self, *words: bytes, patience: float = _PATIENCE) -> list[bytes | None]:
        tag = 1 + next(self._asked) % self.most_tag
        try:
            self.progress.require_open()
            asking = _send(self.progress, self._comm, 0, _pack([struct.pack("<i", tag), *words]), _QUESTIONS)
            found = _poll(lambda: _take(self.progress, self._comm, 0, tag), patience)
            if found is None:
                raise CollectiveTimeout(f"rank 0 keeps what the ranks put up, and did not answer within {patience:g} s")
            answer, receiving = found
            receiving.wait()
            asking.wait()
        except (self.progress.mpi.Exception, Disconnected) as error:
            raise AllfoldError(f"rank 0 kept what the ranks put up, and cannot be reached any more: {error}") from None
        return _unpack(answer)


@dataclass(frozen=True)
class _Waiting:
    """A question that is answered when all the names have values, or when its time is up."""

    rank: int
    tag: int
    names: list[str]
    deadline: float


class _Keeper:
    """What rank 0 keeps, and who waits for what."""

    def __init__(self, progress: MpiProgress, comm: Any) -> None:
        self._progress, self._comm = progress, comm
        self._values: dict[str, bytes] = {}
        self._waiting: list[_Waiting] = []
        self.left: set[int] = set()

    def serve(self) -> None:
        """Take what has arrived, and answer what can be answered."""
        mpi = self._progress.mpi
        try:
            while _take(self._progress, self._comm, mpi.ANY_SOURCE, _QUESTIONS, self._answer):
                pass
        except mpi.Exception:  # some rank is gone; the others are answered all the same
            # mpi4py raises NotImplementedError where an MPI has no such call: then the job ends with the rank anyway.
            with contextlib.suppress(mpi.Exception, NotImplementedError):
                self._comm.Ack_failed()
        for one in self._waiting[:]:
            if one.deadline <= time.monotonic() or all(name in self._values for name in one.names):
                self._waiting.remove(one)
                self._reply(one.rank, one.tag, [self._values.get(name) for name in one.names])

    def _answer(self, rank: int, question: bytearray) -> None:
        tag_word, kind, *words = (word or b"" for word in _unpack(question))
        (tag,) = struct.unpack("<i", tag_word)
        if kind == b"find":
            names = [word.decode() for word in words[1:]]
            self._waiting.append(_Waiting(rank, tag, names, time.monotonic() + struct.unpack("<d", words[0])[0]))
            return
        if kind == b"leave":
            self.left.add(rank)
            self._reply(rank, tag, [])
            return
        name, value = words[0].decode(), words[1]
        if kind == b"set":
            self._values[name] = value
        self._reply(rank, tag, [self._values.setdefault(name, value)] if kind == b"decide" else [])

    def _reply(self, rank: int, tag: int, words: Sequence[bytes | None]) -> None:
        with contextlib.suppress(self._progress.mpi.Exception, Disconnected):  # it is gone, or we end
            _send(self._progress, self._comm, rank, _pack(words), tag)


def _send(progress: MpiProgress, comm: Any, rank: int, data: bytes, tag: int) -> Moving:
    return progress.add(Moving(progress, comm.Isend([data, progress.mpi.BYTE], rank, tag), rank, len(data), False))


def _take(
    progress: MpiProgress, comm: Any, rank: int, tag: int, then: Callable[[int, bytearray], None] | None = None
) -> tuple[bytearray, Moving] | None:
    """Begin to receive a message of any length, if one has arrived."""
    status = progress.mpi.Status()
    message = comm.Improbe(rank, tag, status)
    if message is None:
        return None
    source, data = status.Get_source(), bytearray(status.Get_count(progress.mpi.BYTE))
    done = None if then is None else lambda: then(source, data)
    request = message.Irecv([data, progress.mpi.BYTE])
    return data, progress.add(Moving(progress, request, source, len(data), True, then=done))


def _poll(look: Callable[[], T], seconds: float) -> T | None:
    """What it returns as soon as that is something; None when the time is up."""
    began = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - began
        if waited > seconds:
            return None
        time.sleep(min(_LONGEST_PAUSE, waited / 8))
    return found


def _pack(words: Sequence[bytes | None]) -> bytes:
    lengths = [-1 if word is None else len(word) for word in words]
    return b"".join([struct.pack(f"<q{len(words)}q", len(words), *lengths), *(word for word in words if word)])


def _unpack(data: bytes | bytearray) -> list[bytes | None]:
    (count,) = struct.unpack_from("<q", data)
    lengths, at, words = struct.unpack_from(f"<{count}q", data, 8), 8 * (count + 1), list[bytes | None]()
    for length in lengths:
        words.append(None if length < 0 else bytes(data[at : at + length]))
        at += max(0, length)
    return words
