"""The fabric interface, for transports between hosts: send bytes, receive bytes, and report lost ranks.

Messages of two ranks with the same tag arrive in the order in which they were sent. A receive has room for at least
what is sent, and a shorter message leaves the rest of it as it was: that is the caller's duty, since a fabric may not
survive a longer one. Both begin at once and
go on by themselves; their memory belongs to them until `wait` returns. A send may end only after its receive was
posted. Every transfer is waited for, or kept: a transfer that is dropped may lose its message.

`wait` releases the GIL. Whoever gives up calls `cut` in another thread, which ends waits; it may leave the wait for a
message that was cut off in the middle to the limit of that wait. After `cut`, or a limit, the fabric is of no use.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import UsageError

if TYPE_CHECKING:
    from .. import _native

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

FOREVER = 1e7  # seconds


def host_seconds() -> float:
    """Seconds of silence after which a host is lost."""
    text = os.environ.get("ALLFOLD_HOST_SECONDS", "8")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UsageError(f"ALLFOLD_HOST_SECONDS is {text!r}; expected seconds from 1 to 86400")
    return seconds


class Disconnected(Exception):
    """A transfer failed: its peer is gone, or cannot be reached. The text is the fabric's own."""

    def __init__(self, why: str, peer: int | None) -> None:
        super().__init__(why)
        self.peer = peer


class Transfer(Protocol):
    def wait(self, within: float = FOREVER) -> int:
        """Wait until it is done; returns the other rank. Raises `Disconnected`, also after this many seconds."""
        ...


class Fabric(ABC):
    """One rank's end of the connections between the ranks of a group."""

    name: str
    rank: int
    size: int
    address: str | None = None  # of this host, at which the connections end, where it is known
    wire: _native.Wire  # carries the bytes

    @abstractmethod
    def send(self, peer: int, data: Bytes, tag: int) -> Transfer: ...

    @abstractmethod
    def receive(self, peer: int, data: Bytes, tag: int) -> Transfer: ...

    @abstractmethod
    def receive_any(self, data: Bytes, tag: int) -> Transfer:
        """Receive from the first rank that sends."""

    @abstractmethod
    def cut(self) -> None:
        """Give up all transfers of this fabric, from any thread: their waits raise `Disconnected`, and so do new ones.

        Transfers of other ranks with this one may fail as well.
        """

    def lost(self) -> list[int]:
        """The ranks whose connections are known to be gone, where a fabric knows it without a transfer."""
        return []

    def barrier(self, tag: int, within: float) -> None:
        """Wait until every rank has called it; each message may take this many seconds. `tag`: used for nothing else."""
        distance, byte = 1, np.zeros(1, np.uint8)
        while distance < self.size:
            coming = self.receive((self.rank - distance) % self.size, np.empty(1, np.uint8), tag)
            going = self.send((self.rank + distance) % self.size, byte, tag)
            going.wait(within)
            coming.wait(within)
            distance *= 2

    @abstractmethod
    def another(self, name: str, ranks: Sequence[int]) -> Fabric:
        """Separate connections for some of the ranks; every one of them calls it with the same name."""
