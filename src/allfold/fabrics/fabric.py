"""The fabric interface, for transports between hosts: send bytes, receive bytes, and report lost ranks.

Messages between two ranks with the same tag arrive in the order in which they were sent. The caller must give a receive
room for the whole message, since a fabric may not survive a longer one; a shorter message leaves the rest unchanged.
Sends and receives start immediately and proceed on their own; their memory belongs to them until `wait` returns. A send
may complete only after its receive was posted. The caller must wait for every transfer or keep it: a transfer that is
dropped may lose its message.

`wait` releases the GIL. To give up, call `cut` in another thread: it ends waits, except that a wait for a message that
was cut off in the middle may last until its own limit. After `cut`, or after a limit has passed, the fabric is unusable.
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
    """Seconds of silence after which a host counts as lost."""
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
        """Wait until it is done; returns the other rank. Raises `Disconnected` if it fails or takes longer than this."""
        ...


class Fabric(ABC):
    """One rank's end of the connections between the ranks of a group."""

    name: str
    rank: int
    size: int
    address: str | None = None  # this host's end of the connections, if known
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
        """The ranks whose connections are known to be gone, if the fabric can tell without a transfer."""
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
