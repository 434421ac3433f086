"""Messages: upper-case calls on buffers, lower-case calls on objects."""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from ..engines.engine import ACKNOWLEDGEMENTS
from ..engines.engine import ANY_TAG as ENGINES_ANY_TAG
from ..errors import AllfoldError, CollectiveTimeout, MismatchError
from . import constants as c
from .data.layout import Bytes
from .data.pickling import loaded, packed
from .data.specs import BufferSpec, simple
from .failures import error
from .handles import MPIHandle
from .records import CommunicatorState
from .requests import (
    EMPTY,
    NO_PROCESS,
    Arrived,
    Done,
    PendingRequest,
    Prequest,
    Repeated,
    Request,
    Status,
    check_status,
)


class Moving(PendingRequest):
    """A message that is being sent or received by the engine."""

    def __init__(self, comm: MessageCalls, shared: CommunicatorState, operation: Any) -> None:
        self.comm, self.shared, self.operation = comm, shared, operation
        self.result: tuple[Arrived, Any] | None = None

    def done(self) -> bool:
        return self.result is not None or self.shared.messages.done(self.operation)

    def wait(self) -> tuple[Arrived, Any]:
        if self.result is None:
            try:
                self.result = self.ended(self.shared.messages.wait(self.operation, None))
            except AllfoldError as problem:
                self.comm._fail(problem)
        return self.result

    def ended(self, received: Any) -> tuple[Arrived, Any]:
        return (Arrived(cancelled=True) if received is None and self.is_withdrawn else EMPTY), None

    is_withdrawn = False

    def cancel(self) -> None:
        if self.result is None and self.shared.messages.withdraw(self.operation):
            self.is_withdrawn = True


class Acknowledged(Moving):
    """A synchronous send: done once a receive has taken the message."""

    def __init__(
        self, comm: MessageCalls, shared: CommunicatorState, operation: Any, answer: Any, to: tuple[int, int]
    ) -> None:
        super().__init__(comm, shared, operation)
        self.answer, self.to = answer, to

    def done(self) -> bool:
        messages = self.shared.messages
        return self.result is not None or (messages.done(self.operation) and messages.done(self.answer))

    def ended(self, received: Any) -> tuple[Arrived, Any]:
        if not self.is_withdrawn:
            try:
                self.shared.messages.wait(self.answer, None)
            except CollectiveTimeout:
                dest, tag = self.to
                raise CollectiveTimeout(
                    f"Ssend: rank {dest} has not received the message of rank {self.shared.rank} with tag {tag} within "
                    f"{self.shared.communicator.timeout:g} s"
                ) from None
        return super().ended(received)

    def cancel(self) -> None:
        super().cancel()
        if self.is_withdrawn:
            self.shared.messages.withdraw(self.answer)


class Filling(Moving):
    """A receive into a buffer."""

    def __init__(
        self, comm: MessageCalls, shared: CommunicatorState, operation: Any, block: BufferSpec, into: Bytes
    ) -> None:
        super().__init__(comm, shared, operation)
        self.block, self.into = block, into

    def ended(self, received: Any) -> tuple[Arrived, Any]:
        if received is None:
            return super().ended(received)
        source, tag, bytes = received
        if not self.block.is_plain:
            self.block.write(self.into[:bytes])
        return Arrived(source, tag, bytes), None


class Taking(Moving):
    """A receive of an object."""

    def ended(self, received: Any) -> tuple[Arrived, Any]:
        if received is None:
            return super().ended(received)
        source, tag, _, data = received
        return Arrived(source, tag, data.size), loaded(data)


class Both(PendingRequest):
    """A send and a receive, as one request."""

    def __init__(self, sending: PendingRequest, receiving: PendingRequest) -> None:
        self.sending, self.receiving = sending, receiving

    def done(self) -> bool:
        return self.sending.done() and self.receiving.done()

    def wait(self) -> tuple[Arrived, Any]:
        result = self.receiving.wait()
        self.sending.wait()
        return result


class Message(MPIHandle):
    """A message that a matched probe has found. No other receive can get it."""

    _null_error = "ERR_REQUEST"
    _buf: Any = None

    @classmethod
    def Probe(
        cls, comm: MessageCalls, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Message:
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: MessageCalls, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Message | None:
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe

    def _taken(self) -> tuple[Arrived, Any, Any]:
        found: _Found = self._need()
        if self is not MESSAGE_NO_PROC:
            self._ob = None
        return found.arrived, found.data, found.comm

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        pending = self._received(buf)
        if status is not None:
            status._set(pending.wait()[0])

    def Irecv(self, buf: Any) -> Request:
        return Request._of(self._received(buf))

    def _received(self, buf: Any) -> Done:
        found: _Found = self._need()
        if found.comm is None:
            self._taken()
            return Done(NO_PROCESS)
        block = simple(buf, True)
        arrived, data, comm = self._taken()
        if data.size > block.bytes:
            comm._fail(_too_long(arrived, block.bytes))
        block.write(data)
        return Done(arrived)

    def recv(self, status: Status | None = None) -> Any:
        arrived, data, _ = self._taken()
        if status is not None:
            status._set(arrived)
        return None if data is None else loaded(data)

    def irecv(self) -> Request:
        arrived, data, _ = self._taken()
        return Request._of(Done(arrived, None if data is None else loaded(data)))


class _Found:
    def __init__(self, arrived: Arrived, data: Any = None, comm: Any = None) -> None:
        self.arrived, self.data, self.comm = arrived, data, comm


MESSAGE_NULL, MESSAGE_NO_PROC = Message._of(None), Message._of(_Found(NO_PROCESS))
MESSAGE_NULL._predefined = MESSAGE_NO_PROC._predefined = True


class MessageCalls(MPIHandle, ABC):
    """The part of a communicator that sends and receives."""

    _ob: Any

    @abstractmethod
    def _fail(self, problem: BaseException) -> NoReturn:
        """Raise an error as MPI's exception."""

    # Buffers ---------------------------------------------------------------------------------------------------------

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        shared = self._to(dest, tag)
        if dest == c.PROC_NULL:
            return
        data = simple(buf, False).read()
        try:
            shared.messages.send(data, dest, tag, None, None)
        except AllfoldError as problem:
            self._fail(problem)

    Rsend = Send

    def Recv(self, buf: Any, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> None:
        shared = self._from(source, tag, status)
        if source == c.PROC_NULL:
            return _fill_status(status, NO_PROCESS)
        block = simple(buf, True)
        into = block.read()
        try:
            received = shared.messages.receive(into, *_engines(source, tag), None, None)
        except AllfoldError as problem:
            self._fail(problem)
        if not block.is_plain:
            block.write(into[: received[2]])
        if status is not None:
            status._set(Arrived(*received))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._issend(self._to(dest, tag), buf, dest, tag).wait()

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._ibsend(self._to(dest, tag), buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._isend(self._to(dest, tag), buf, dest, tag))

    Irsend = Isend

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._issend(self._to(dest, tag), buf, dest, tag))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._ibsend(self._to(dest, tag), buf, dest, tag))

    def Irecv(self, buf: Any, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG) -> Request:
        return Request._of(self._irecv(self._from(source, tag), buf, source, tag))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        _fill_status(status, self._both(sendbuf, dest, sendtag, recvbuf, source, recvtag).wait()[0])

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
    ) -> Request:
        return Request._of(self._both(sendbuf, dest, sendtag, recvbuf, source, recvtag))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        _fill_status(status, self._replaced(buf, dest, sendtag, source, recvtag).wait()[0])

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = c.ANY_SOURCE, recvtag: int = c.ANY_TAG
    ) -> Request:
        return Request._of(self._replaced(buf, dest, sendtag, source, recvtag))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        shared = self._to(dest, tag)
        return Prequest._of(Repeated(lambda: self._isend(shared, buf, dest, tag)))

    Rsend_init = Send_init

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        shared = self._to(dest, tag)
        return Prequest._of(Repeated(lambda: self._issend(shared, buf, dest, tag)))

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        shared = self._to(dest, tag)
        return Prequest._of(Repeated(lambda: self._ibsend(shared, buf, dest, tag)))

    def Recv_init(self, buf: Any, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG) -> Prequest:
        shared = self._from(source, tag)
        return Prequest._of(Repeated(lambda: self._irecv(shared, buf, source, tag)))

    def Psend_init(self, buf: Any, partitions: int, dest: int, tag: int = 0, info: Any = None) -> Prequest:
        from .requests import _without_parts

        raise _without_parts()

    def Precv_init(
        self, buf: Any, partitions: int, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, info: Any = None
    ) -> Prequest:
        from .requests import _without_parts

        raise _without_parts()

    # Probes ----------------------------------------------------------------------------------------------------------

    def Probe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        shared = self._from(source, tag, status)
        if source == c.PROC_NULL:
            _fill_status(status, NO_PROCESS)
            return True
        try:
            found = shared.messages.await_message(*_engines(source, tag), None)
        except AllfoldError as problem:
            self._fail(problem)
        _fill_status(status, Arrived(*found))
        return True

    def Iprobe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        shared = self._from(source, tag, status)
        if source == c.PROC_NULL:
            _fill_status(status, NO_PROCESS)
            return True
        found = self._found(shared, source, tag)
        if found is not None:
            _fill_status(status, Arrived(*found))
        return found is not None

    def Mprobe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message:
        shared = self._from(source, tag, status)
        if source == c.PROC_NULL:
            _fill_status(status, NO_PROCESS)
            return MESSAGE_NO_PROC
        return self._matched(shared, source, tag, status)

    def Improbe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message | None:
        shared = self._from(source, tag, status)
        if source == c.PROC_NULL:
            _fill_status(status, NO_PROCESS)
            return MESSAGE_NO_PROC
        found = self._found(shared, source, tag)
        return None if found is None else self._matched(shared, found[0], found[1], status)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    def _found(self, shared: CommunicatorState, source: int, tag: int) -> Any:
        try:
            return shared.messages.probe(*_engines(source, tag))
        except AllfoldError as problem:
            self._fail(problem)

    def _matched(self, shared: CommunicatorState, source: int, tag: int, status: Status | None) -> Message:
        arrived, data = self._take(shared, source, tag)
        _fill_status(status, arrived)
        return Message._of(_Found(arrived, data, self))

    # Objects ---------------------------------------------------------------------------------------------------------

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.Send(packed(obj) if dest != c.PROC_NULL else None, dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.Ssend(packed(obj), dest, tag)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.Bsend(packed(obj), dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self.Isend(packed(obj), dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self.Issend(packed(obj), dest, tag)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self.Ibsend(packed(obj), dest, tag)

    def recv(
        self, buf: Any = None, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Any:
        shared = self._from(source, tag, status)
        if buf is not None:
            warnings.warn("the buffer is not needed: messages of any length are received", UserWarning, stacklevel=2)
        if source == c.PROC_NULL:
            return _fill_status(status, NO_PROCESS)
        arrived, data = self._take(shared, source, tag)
        _fill_status(status, arrived)
        return loaded(data)

    def irecv(self, buf: Any = None, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG) -> Request:
        shared = self._from(source, tag)
        if source == c.PROC_NULL:
            return Request._of(Done(NO_PROCESS))
        try:
            operation = shared.messages.start_taking(*_engines(source, tag))
        except AllfoldError as problem:
            self._fail(problem)
        return Request._of(Taking(self, shared, operation))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        self._from(source, recvtag, status)
        sending = self.isend(sendobj, dest, sendtag)
        value = self.recv(None, source, recvtag, status)
        sending.wait()
        return value

    # Below -----------------------------------------------------------------------------------------------------------

    def _usable(self) -> CommunicatorState:
        shared: CommunicatorState = self._need()
        if shared.is_revoked:
            self._fail(error("ERR_REVOKED", "this communicator was revoked"))
        return shared

    def _to(self, dest: int, tag: int) -> CommunicatorState:
        if type(dest) is not int or type(tag) is not int:
            dest, tag = whole("dest", dest), whole("tag", tag)
        shared = self._usable()
        if not 0 <= dest < shared.size and dest != c.PROC_NULL:
            self._fail(error("ERR_RANK", f"Send: dest must be a rank from 0 to {shared.size - 1}, not {dest}"))
        if not 0 <= tag <= c.TAG_UB_VALUE:
            self._fail(error("ERR_TAG", f"Send: tag must be from 0 to {c.TAG_UB_VALUE}, not {tag}"))
        return shared

    def _from(self, source: int, tag: int, status: Status | None = None) -> CommunicatorState:
        if type(source) is not int or type(tag) is not int:
            source, tag = whole("source", source), whole("tag", tag)
        if status is not None:
            check_status(status)
        shared = self._usable()
        if not 0 <= source < shared.size and source not in (c.PROC_NULL, c.ANY_SOURCE):
            last = shared.size - 1
            self._fail(error("ERR_RANK", f"Recv: source must be a rank from 0 to {last} or ANY_SOURCE, not {source}"))
        if not 0 <= tag <= c.TAG_UB_VALUE and tag != c.ANY_TAG:
            self._fail(error("ERR_TAG", f"Recv: tag must be from 0 to {c.TAG_UB_VALUE} or ANY_TAG, not {tag}"))
        return shared

    def _isend(self, shared: CommunicatorState, buf: Any, dest: int, tag: int, copied: bool = False) -> PendingRequest:
        if dest == c.PROC_NULL:
            return Done()
        data = simple(buf, False).read()
        return self._moving(shared, data.copy() if copied else data, dest, tag)

    def _moving(self, shared: CommunicatorState, data: Bytes, dest: int, tag: int) -> Moving:
        try:
            return Moving(self, shared, shared.messages.start(True, data, dest, tag, None))
        except AllfoldError as problem:
            self._fail(problem)

    def _issend(self, shared: CommunicatorState, buf: Any, dest: int, tag: int) -> PendingRequest:
        if dest == c.PROC_NULL:
            return Done()
        data = simple(buf, False).read()
        messages = shared.messages
        try:
            answer = messages.start(False, np.empty(0, np.uint8), dest, tag, None, ACKNOWLEDGEMENTS, False)
            operation = messages.start(True, data, dest, tag, None, 0, True)
        except AllfoldError as problem:
            self._fail(problem)
        return Acknowledged(self, shared, operation, answer, (dest, tag))

    def _ibsend(self, shared: CommunicatorState, buf: Any, dest: int, tag: int) -> PendingRequest:
        pending = self._isend(shared, buf, dest, tag, copied=True)
        shared.buffered = [*(one for one in shared.buffered if not one.done()), pending]
        return Done()

    def _irecv(self, shared: CommunicatorState, buf: Any, source: int, tag: int) -> PendingRequest:
        if source == c.PROC_NULL:
            return Done(NO_PROCESS)
        block = simple(buf, True)
        into = block.read()
        try:
            operation = shared.messages.start(False, into, *_engines(source, tag), None)
        except AllfoldError as problem:
            self._fail(problem)
        return Filling(self, shared, operation, block, into)

    def _both(self, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int) -> Both:
        shared = self._from(source, recvtag)
        self._to(dest, sendtag)
        # Check the send first: after an error, a receive that was begun would take the next message.
        data = None if dest == c.PROC_NULL else simple(sendbuf, False).read()
        receiving = self._irecv(shared, recvbuf, source, recvtag)
        return Both(Done() if data is None else self._moving(shared, data, dest, sendtag), receiving)

    def _replaced(self, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> Both:
        shared = self._from(source, recvtag)
        self._to(dest, sendtag)
        sending = self._isend(shared, buf, dest, sendtag, copied=True)
        return Both(sending, self._irecv(shared, buf, source, recvtag))

    def _take(self, shared: CommunicatorState, source: int, tag: int) -> tuple[Arrived, Bytes]:
        try:
            sender, tag, _, data = shared.messages.take(*_engines(source, tag), None)
        except AllfoldError as problem:
            self._fail(problem)
        return Arrived(sender, tag, data.size), data


def _engines(source: int, tag: int) -> tuple[int | None, int]:
    """A source and a tag, as the engine has them."""
    return None if source == c.ANY_SOURCE else source, ENGINES_ANY_TAG if tag == c.ANY_TAG else tag


def whole(name: str, value: Any) -> int:
    """A number of a rank or a tag."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r:.40}") from None


def _fill_status(status: Status | None, arrived: Arrived) -> None:
    check_status(status)
    if status is not None:
        status._set(arrived)


def _too_long(arrived: Arrived, room: int) -> BaseException:
    return error(
        "ERR_TRUNCATE", f"Recv: rank {arrived.source} sent {arrived.bytes} bytes with tag {arrived.tag}, room is {room}"
    )


def kind_of(problem: AllfoldError) -> str | None:
    """The error class for a message, if it differs from that for a collective."""
    return "ERR_TRUNCATE" if isinstance(problem, MismatchError) and "has room for" in str(problem) else None
