"""Statuses and requests."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

from . import constants as c
from .data.datatypes import Datatype
from .data.predefined import BYTE
from .failures import Exception as MPIException
from .failures import error
from .handles import MPIHandle

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.00002, 0.001
_LOOKS = 200  # without a pause


class Arrived(NamedTuple):
    """The facts of a message, as a status has them."""

    source: int = c.ANY_SOURCE
    tag: int = c.ANY_TAG
    bytes: int = 0
    cancelled: bool = False
    error: int = 0


EMPTY = Arrived()
NO_PROCESS = Arrived(c.PROC_NULL)


class Status:
    """The facts of a message that was received."""

    _facts: Any

    def __new__(cls, status: Status | None = None) -> Self:
        if status is not None and not isinstance(status, Status):
            raise TypeError(f"expected a Status, not {type(status).__name__}")
        self = object.__new__(cls)
        self._facts = _memory(EMPTY)
        if status is not None:
            self._facts[:] = status._facts
        return self

    def _set(self, arrived: Arrived) -> None:
        self._facts[:] = _memory(arrived)

    def __eq__(self, other: object) -> bool:
        return list(self._facts) == list(other._facts) if isinstance(other, Status) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, Status) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "tag": self.tag, "error": self.error, "facts": list(self._facts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._facts[:] = _array(state["facts"])

    def __reduce__(self) -> Any:
        return type(self), (), self.__getstate__()

    def Get_source(self) -> int:
        return int(self._facts[0])

    def Set_source(self, source: int) -> None:
        self._facts[0] = source

    def Get_tag(self) -> int:
        return int(self._facts[1])

    def Set_tag(self, tag: int) -> None:
        self._facts[1] = tag

    def Get_error(self) -> int:
        return int(self._facts[2])

    def Set_error(self, error: int) -> None:
        self._facts[2] = error

    @property
    def _bytes(self) -> int:
        return int(self._facts[4]) | int(self._facts[5]) << 31

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        size = datatype.layout.size
        if size == 0:
            return 0
        return self._bytes // size if self._bytes % size == 0 else c.UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        found = datatype.layout.elements_in(self._bytes)
        return c.UNDEFINED if found is None else found

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        bytes = datatype.layout.bytes_in(count)
        self._facts[4], self._facts[5] = bytes & 0x7FFFFFFF, bytes >> 31

    def Is_cancelled(self) -> bool:
        return bool(self._facts[3])

    def Set_cancelled(self, flag: bool) -> None:
        self._facts[3] = int(bool(flag))

    def tomemory(self) -> memoryview:
        return memoryview(self._facts)

    def py2f(self) -> list[int]:
        return [int(one) for one in self._facts]

    @classmethod
    def f2py(cls, arg: list[int]) -> Self:
        self = cls()
        self._facts[:] = _array(arg)
        return self

    source = property(Get_source, Set_source)
    tag = property(Get_tag, Set_tag)
    error = property(Get_error, Set_error)
    cancelled = property(Is_cancelled, Set_cancelled)

    @property
    def count(self) -> int:
        return self.Get_count(BYTE)

    @count.setter
    def count(self, value: int) -> None:
        self.Set_elements(BYTE, value)


def _array(values: Iterable[int]) -> Any:
    return array("i", values)


def _memory(arrived: Arrived) -> Any:
    bytes = arrived.bytes
    facts = [arrived.source, arrived.tag, arrived.error, arrived.cancelled, bytes & 0x7FFFFFFF, bytes >> 31, 0, 0]
    return _array(facts)


class PendingRequest(ABC):
    """Something under way. `wait` may be called again: it returns or raises the same."""

    is_persistent = False
    is_active = True

    @abstractmethod
    def done(self) -> bool:
        """True once `wait` would return or raise at once."""

    @abstractmethod
    def wait(self) -> tuple[Arrived, Any]:
        """The status, and the received object, if any."""

    def cancel(self) -> None:
        """Withdraw it if nothing has happened yet."""
        return

    def freed(self) -> None:
        """Called when the program frees the request."""
        return


class Done(PendingRequest):
    """An operation that has ended already."""

    def __init__(self, arrived: Arrived = EMPTY, value: Any = None) -> None:
        self._result = arrived, value

    def done(self) -> bool:
        return True

    def wait(self) -> tuple[Arrived, Any]:
        return self._result


class Repeated(PendingRequest):
    """A persistent request: inactive until it is started, and again when it is done."""

    is_persistent = True

    def __init__(self, start: Callable[[], PendingRequest]) -> None:
        self.start_one = start
        self.active: PendingRequest | None = None

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        return self.active is not None

    def start(self) -> None:
        if self.active is not None:
            raise error("ERR_REQUEST", "this persistent request was already started: wait for it first")
        self.active = self.start_one()

    def done(self) -> bool:
        return self.active is None or self.active.done()

    def wait(self) -> tuple[Arrived, Any]:
        return (EMPTY, None) if self.active is None else self.active.wait()

    def cancel(self) -> None:
        if self.active is not None:
            self.active.cancel()


class Generalized(PendingRequest):
    """A request whose work the program does itself."""

    def __init__(self, query: Any, free: Any, cancel: Any, args: Any, keywords: Any) -> None:
        self.query, self.free, self.on_cancel = query, free, cancel
        self.args, self.keywords = args or (), keywords or {}
        self.complete, self.value = False, None

    def done(self) -> bool:
        return self.complete

    def wait(self) -> tuple[Arrived, Any]:
        await_all([self], None)
        status = Status()
        self._call(self.query, status)
        arrived = Arrived(status.source, status.tag, status._bytes, status.cancelled, status.error)
        return arrived, self.value

    def cancel(self) -> None:
        self._call(self.on_cancel, self.complete)

    def freed(self) -> None:
        self._call(self.free)

    def _call(self, function: Any, *first: Any) -> None:
        """Call a function of the program. Its exceptions are printed, and become errors of MPI."""
        if function is None:
            return
        try:
            function(*first, *self.args, **self.keywords)
        except Exception as problem:
            traceback.print_exc()
            if isinstance(problem, MPIException):
                raise
            raise error("ERR_OTHER", f"{type(problem).__name__}: {problem}") from problem


def await_all(pending: Sequence[PendingRequest], limit: float | None) -> None:
    _await(lambda: all(one.done() for one in pending), limit)


def _await(happened: Callable[[], bool], limit: float | None = None) -> None:
    looks, pause = 0, _SHORTEST_PAUSE
    deadline = None if limit is None else time.monotonic() + limit
    while not happened():
        looks += 1
        if looks < _LOOKS:
            time.sleep(0)
            continue
        if deadline is not None and time.monotonic() > deadline:
            raise error("ERR_PENDING", f"not all of these requests were done within {limit:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class Request(MPIHandle):
    """A call that is under way."""

    _null_error = "ERR_REQUEST"
    _ob: PendingRequest | None

    def __new__(cls, request: Request | None = None) -> Self:
        self = cls._made(request)
        self._buf = None if request is None else request._buf
        return self

    _buf: Any = None

    # One -------------------------------------------------------------------------------------------------------------

    def _finish(self, status: Status | None) -> Any:
        """Wait for its end; returns what was received."""
        check_status(status)
        pending = self._ob
        if pending is None or not pending.is_active:
            if status is not None:
                status._set(EMPTY)
            return None
        try:
            arrived, value = pending.wait()
        finally:
            self._end(pending)
        if status is not None:
            status._set(arrived)
        return value

    def _end(self, pending: PendingRequest) -> None:
        if isinstance(pending, Repeated):
            pending.active = None
        else:
            self._ob = None
            pending.freed()

    def Wait(self, status: Status | None = None) -> bool:
        self._finish(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        if self._ob is not None and not self._ob.done():
            return False
        self._finish(status)
        return True

    def Get_status(self, status: Status | None = None) -> bool:
        pending = self._ob
        if pending is not None and not pending.done():
            return False
        if status is not None:
            status._set(EMPTY if pending is None else pending.wait()[0])
        return True

    def wait(self, status: Status | None = None) -> Any:
        return self._finish(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        if self._ob is not None and not self._ob.done():
            return False, None
        return True, self._finish(status)

    def get_status(self, status: Status | None = None) -> bool:
        return self.Get_status(status)

    def Cancel(self) -> None:
        self._need().cancel()

    def cancel(self) -> None:
        self.Cancel()

    def Free(self) -> None:
        pending: PendingRequest = self._need()
        self._ob = None
        if not isinstance(pending, Repeated):
            pending.freed()

    # Several ---------------------------------------------------------------------------------------------------------

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        active = _active(requests)
        if not active:
            if status is not None:
                status._set(EMPTY)
            return c.UNDEFINED, None
        _await(lambda: any(_done(requests[one]) for one in active))
        first = next(one for one in active if _done(requests[one]))
        return first, requests[first]._finish(status)

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        return cls.waitany(requests, status)[0]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        active = _active(requests)
        if not active:
            if status is not None:
                status._set(EMPTY)
            return c.UNDEFINED, True, None
        first = next((one for one in active if _done(requests[one])), None)
        return (c.UNDEFINED, False, None) if first is None else (first, True, requests[first]._finish(status))

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        return cls.testany(requests, status)[:2]

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        made = [None if statuses is None else Status() for _ in _checked(requests)]
        values: list[Any] = []
        failed: BaseException | None = None
        for request, status in zip(requests, made, strict=True):
            try:
                values.append(request._finish(status))
            except RuntimeError as problem:
                values.append(None)
                failed = failed or problem
        _fill(statuses, made)
        if failed is not None:
            raise failed
        return values

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        if not all(_done(one) for one in _checked(requests)):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        return cls.testall(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        active = _active(requests)
        if not active:
            return None, None
        _await(lambda: any(_done(requests[one]) for one in active))
        return cls.testsome(requests, statuses)

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        active = _active(requests)
        if not active:
            return None, None
        ready = [one for one in active if _done(requests[one])]
        return ready, cls.waitall([requests[one] for one in ready], statuses)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        active = _active(requests)
        if not active:
            if status is not None:
                status._set(EMPTY)
            return c.UNDEFINED, True
        first = next((one for one in active if _done(requests[one])), None)
        if first is None:
            return c.UNDEFINED, False
        return first, requests[first].Get_status(status)

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        if not all(_done(one) for one in requests):
            return False
        made = [Status() for _ in requests]
        for request, status in zip(requests, made, strict=True):
            request.Get_status(status)
        _fill(statuses, made)
        return True

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        active = _active(requests)
        if not active:
            return None
        ready = [one for one in active if _done(requests[one])]
        cls.Get_status_all([requests[one] for one in ready], statuses)
        return ready

    get_status_any, get_status_all, get_status_some = Get_status_any, Get_status_all, Get_status_some


class Prequest(Request):
    """A persistent request."""

    @classmethod
    def _fits(cls, what: Any) -> bool:
        return what is None or isinstance(what, Repeated)

    def Start(self) -> None:
        pending = self._need()
        if not isinstance(pending, Repeated):
            raise error("ERR_REQUEST", "this request is not persistent")
        pending.start()

    @classmethod
    def Startall(cls, requests: list[Prequest]) -> None:
        for one in requests:
            if not isinstance(one, Prequest):
                raise TypeError(f"Startall: expected persistent requests, not {type(one).__name__}")
            one.Start()

    def Pready(self, partition: int) -> None:
        raise _without_parts()

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        raise _without_parts()

    def Pready_list(self, partitions: Sequence[int]) -> None:
        raise _without_parts()

    def Parrived(self, partition: int) -> bool:
        raise _without_parts()


class Grequest(Request):
    """A request whose work the program does itself."""

    @classmethod
    def _fits(cls, what: Any) -> bool:
        return what is None or isinstance(what, Generalized)

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Grequest:
        made = cls._of(Generalized(query_fn, free_fn, cancel_fn, args, kwargs))
        made._general = made._ob
        return made

    _general: Any = None

    def Complete(self) -> None:
        self.complete()

    def complete(self, obj: Any = None) -> None:
        general = self._ob if self._ob is not None else self._general
        if not isinstance(general, Generalized):
            raise error("ERR_REQUEST", "this request is null or was freed")
        general.value, general.complete = obj, True


def _without_parts() -> NotImplementedError:
    from .refused import refuse

    return refuse("partitioned messages", "send each part as a message of its own")


def check_status(status: object) -> None:
    if status is not None and not isinstance(status, Status):
        raise TypeError(f"expected a Status, not {type(status).__name__}")


def _checked(requests: Sequence[Request]) -> Sequence[Request]:
    for one in requests:
        if not isinstance(one, Request):
            raise TypeError(f"expected requests, not {type(one).__name__}")
    return requests


def _active(requests: Sequence[Request]) -> list[int]:
    _checked(requests)
    return [one for one, request in enumerate(requests) if request._ob is not None and request._ob.is_active]


def _done(request: Request) -> bool:
    return request._ob is None or request._ob.done()


def _fill(statuses: list[Status] | None, made: Sequence[Status | None]) -> None:
    if statuses is None:
        return
    for place, status in enumerate(made):
        assert status is not None
        if place < len(statuses):
            statuses[place]._facts[:] = status._facts
        elif isinstance(statuses, list):
            statuses.append(status)


REQUEST_NULL = Request._of(None)
REQUEST_NULL._predefined = True
