"""Memory that streams or other ranks may still use after its owner has dropped it: kept until unused, then freed."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ... import _native
from ...errors import DeviceError


class Retired(Protocol):
    """Something that must outlive its owner."""

    def give_back(self) -> bool:
        """Free what is no longer used; True once everything is freed. Any thread may call it."""
        ...


_retired: list[Retired] = []
_sweeping = threading.Lock()


@contextlib.contextmanager
def standstill(lane: _native.Lane) -> Iterator[bool]:
    """Yields True if the lane is idle, and keeps it idle. The driver frees memory only when no stream waits."""
    is_idle = lane.stop_if_idle()
    try:
        yield is_idle
    finally:
        if is_idle:
            lane.go_on()


def retire(one: Retired) -> None:
    """Keep it until it can be freed. Finalizers call this, on any thread, so it takes no lock."""
    _retired.append(one)


def sweep() -> bool:
    """Free what can be freed by now; True if something is left."""
    with _sweeping:
        for one in _retired[:]:
            is_left = False
            with contextlib.suppress(DeviceError):  # then the driver has lost it, or is ending
                is_left = not one.give_back()
            if not is_left:
                _retired.remove(one)
        return bool(_retired)


class InStream(Protocol):
    """A call in a stream, with the arrays that it needs."""

    def is_over(self) -> bool: ...


class Kept(NamedTuple):
    """Calls of one stream, in order: each is kept until it has ended, whoever drops it."""

    calls: deque[InStream]

    def give_back(self) -> bool:
        """See `Retired`."""
        return forget_past(self.calls)


def forget_past(calls: deque[Any]) -> bool:
    """Drop the calls that are over, first ones first; True if that is all of them."""
    while calls:
        first = calls[0]
        if not first.is_over():
            return False
        with contextlib.suppress(ValueError):  # another thread has dropped it meanwhile
            calls.remove(first)
    return True


class Needed(NamedTuple):
    """The arrays and memory that a call in a stream needs."""

    over: _native.Mark
    what: Any

    def is_over(self) -> bool:
        return self.over.is_over()
