"""Messages between ranks, for engines written in Python: sent messages, pending receives, and their matching."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np

from ..dtypes import Dtype, describe
from ..errors import AllfoldError, MismatchError, UsageError
from .buffer import Buffer, Flat
from .engine import ANY_TAG

_HIGHEST_TAG = 2**31 - 1


def taken(sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None, size: int) -> tuple[Dtype, Flat]:
    """The array of a message, after checking the arguments of a send or a receive."""
    name = "send" if sends else "recv"
    check_address(name, sends, peer, tag, size)
    buffer = Buffer.of(name, array, dtype, written=not sends)
    return buffer.dtype, buffer.in_main_memory(name)


def check_address(name: str, sends: bool, peer: int | None, tag: int, size: int) -> None:
    """Refuse a rank or a tag that does not exist."""
    if isinstance(peer, bool) or not ((isinstance(peer, int) and 0 <= peer < size) or (peer is None and not sends)):
        what, none = ("destination", "") if sends else ("source", " or None")
        raise UsageError(f"{name}: {what} must be a rank from 0 to {size - 1}{none}, not {peer}")
    if not isinstance(tag, SupportsIndex):
        raise UsageError(f"{name}: tag must be a whole number, not {tag!r}")
    if not 0 <= tag <= _HIGHEST_TAG and (sends or tag != ANY_TAG):
        any = "" if sends else " or ANY_TAG"
        raise UsageError(f"{name}: tag must be from 0 to {_HIGHEST_TAG}{any}, not {tag}")


def has_ended(result: Future[Any], timeout: float | None) -> bool:
    """Wait until there is a result or an error; False if there is none in time."""
    try:
        result.exception(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
    except TimeoutError:
        return False
    return True


def wait(result: Future[Any], timeout: float | None) -> bool:
    """True if it has ended in time; raises its error."""
    if not has_ended(result, timeout):
        return False
    if (error := result.exception()) is not None:
        raise_separately(error)
    return True


def raise_separately(error: BaseException) -> NoReturn:
    """Raise an error that several ranks get, as an object of its own for this one."""
    try:
        own = type(error)(*error.args)
    except Exception:  # a user's class, which takes other arguments than it keeps
        raise error from None
    raise own from None if isinstance(error, AllfoldError) else error


class Sent(NamedTuple):
    source: int
    tag: int
    dtype: Dtype
    data: Flat
    context: int = 0
    asks: bool = False  # for an acknowledgement

    @property
    def facts(self) -> tuple[int, int, int]:
        return self.source, self.tag, self.data.size


class Wanted(NamedTuple):
    """A receive; of a message of any type and length if it has no array, and a probe if it leaves the message there."""

    source: int | None
    tag: int
    dtype: Dtype | None
    array: Flat | None
    result: Future[Any]
    context: int = 0
    probes: bool = False

    def takes(self, message: Sent) -> bool:
        is_from = self.source in (None, message.source)
        return is_from and self.tag in (ANY_TAG, message.tag) and self.context == message.context

    def take(self, message: Sent) -> None:
        if self.probes:
            self.result.set_result(message.facts)
        elif self.array is None or self.dtype is None:
            self.result.set_result((*message.facts, message.data.copy().view(np.uint8)))
        elif message.dtype != self.dtype or message.data.size > self.array.size:
            sent, room = describe(message.dtype, (message.data.size,)), describe(self.dtype, (self.array.size,))
            self.result.set_exception(
                MismatchError(f"recv: rank {message.source} sent {sent} with tag {message.tag}, the array is {room}")
            )
        else:
            self.array[: message.data.size] = message.data
            self.result.set_result(message.facts)


def remove(items: list[Any], item: Any) -> None:
    items[:] = [one for one in items if one is not item]  # by identity, since == compares arrays element by element
