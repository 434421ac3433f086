"""Messages between ranks, for engines that are written in Python: what was sent, what is wanted, and who gets what."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple, SupportsIndex

from ..dtypes import Dtype, describe
from ..errors import MismatchError, UsageError
from .buffer import Buffer, Flat
from .engine import ANY_TAG

_HIGHEST_TAG = 2**31 - 1


def taken(sends: bool, array: Any, peer: int | None, tag: int, dtype: str | None, size: int) -> tuple[Dtype, Flat]:
    """The array of a message, after checking the arguments of a send or a receive."""
    name = "send" if sends else "recv"
    if isinstance(peer, bool) or not ((isinstance(peer, int) and 0 <= peer < size) or (peer is None and not sends)):
        what, none = ("destination", "") if sends else ("source", " or None")
        raise UsageError(f"{name}: {what} must be a rank from 0 to {size - 1}{none}, not {peer}")
    if not isinstance(tag, SupportsIndex):
        raise UsageError(f"{name}: tag must be a whole number, not {tag!r}")
    if not 0 <= tag <= _HIGHEST_TAG and (sends or tag != ANY_TAG):
        any = "" if sends else " or ANY_TAG"
        raise UsageError(f"{name}: tag must be from 0 to {_HIGHEST_TAG}{any}, not {tag}")
    buffer = Buffer.of(name, array, dtype, written=not sends)
    return buffer.dtype, buffer.in_main_memory(name)


def wait(result: Future[Any], timeout: float | None) -> bool:
    """Whether it was over in time; raises what went wrong, as a separate error object for the waiting rank."""
    try:
        error = result.exception(timeout)
    except TimeoutError:
        return False
    if error is not None:
        raise type(error)(*error.args) from error
    return True


class Sent(NamedTuple):
    source: int
    tag: int
    dtype: Dtype
    data: Flat


class Wanted(NamedTuple):
    source: int | None
    tag: int
    dtype: Dtype
    array: Flat
    result: Future[tuple[int, int, int] | None]

    def takes(self, message: Sent) -> bool:
        return self.source in (None, message.source) and self.tag in (ANY_TAG, message.tag)

    def take(self, message: Sent) -> None:
        if message.dtype != self.dtype or message.data.size > self.array.size:
            sent, room = (
                describe(one.dtype, (many.size,)) for one, many in ((message, message.data), (self, self.array))
            )
            self.result.set_exception(
                MismatchError(f"recv: rank {message.source} sent {sent} with tag {message.tag}, the array is {room}")
            )
        else:
            self.array[: message.data.size] = message.data
            self.result.set_result((message.source, message.tag, message.data.size))


def remove(items: list[Any], item: Any) -> None:
    items[:] = [one for one in items if one is not item]  # by identity, since == compares arrays element by element
