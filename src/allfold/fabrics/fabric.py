"""What allfold asks of whoever carries bytes between hosts: bytes to a rank, bytes from a rank, and who is gone.

Messages of two ranks with the same tag arrive in the order in which they were sent. A receive has room for at least
what is sent, and a shorter message leaves the rest of it as it was: that is the caller's duty, since a fabric may not
survive a longer one. Both begin at once and
go on by themselves; their memory belongs to them until `wait` returns. A send may end only after its receive was
posted. Every transfer is waited for, or kept: a transfer that is dropped may lose its message.

`wait` releases the GIL. Whoever gives up calls `cut` in another thread, which ends waits; it may leave the wait for a
message that was cut off in the middle to the limit of that wait. After `cut`, or a limit, the fabric is of no use.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import CollectiveTimeout
from ..wording import name_ranks

if TYPE_CHECKING:
    from .secret import Secret

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

FOREVER = 1e7  # seconds


class Disconnected(Exception):
    """A transfer failed: its peer is gone, or cannot be reached. The text is the fabric's own."""

    def __init__(self, why: str, peer: int | None) -> None:
        super().__init__(why)
        self.peer = peer


class Transfer(Protocol):
    def wait(self, within: float = FOREVER) -> int:
        """Wait until it is done; the rank it came from, or went to. Raises `Disconnected`, also after so many seconds."""
        ...


class Board(ABC):
    """Where ranks that cannot talk to each other yet put something up for all to see."""

    rank: int
    size: int
    secret: Secret | None
    """Who does not know it is kept out."""

    @property
    def has_secret(self) -> bool:
        return self.secret is not None

    def of_this_run(self, timeout: float) -> Board:
        """The same board, on which only this run's entries count; every rank calls it, before anything is put up.

        An earlier run may have had the same secret, and whoever keeps the board may put up its entries again. So every
        rank names a number that nobody can guess, and from then on the key depends on all of them.
        """
        if self.secret is None:
            self.put("nonce", b'""')  # those who have a secret shall not wait for this rank
            return self
        nonces = self.gather_all("nonce", secrets.token_hex(32), timeout)
        # A rank without a secret: what it says of itself on the board is the better place to refuse it.
        return self.with_secret(self.secret.within(*nonces)) if all(nonces) else self

    @abstractmethod
    def with_secret(self, secret: Secret) -> Board:
        """The same board, with a key of its own."""

    @abstractmethod
    def gather(self, what: str, own: bytes, timeout: float) -> list[bytes | None]:
        """What every rank put up under this name, by rank; None for ranks that have not come within the timeout."""

    def gather_all(self, what: str, own: Any, timeout: float) -> list[Any]:
        """What every rank put up, as JSON. Raises `CollectiveTimeout` if a rank has not come in time."""
        came = self.gather(what, json.dumps(own).encode(), timeout)
        missing = [rank for rank, one in enumerate(came) if one is None]
        if missing:
            raise CollectiveTimeout(f"init: {name_ranks(missing)} of {self.size} did not come within {timeout:g} s")
        return [json.loads(one) for one in came if one is not None]

    @abstractmethod
    def some(self, name: str, ranks: Sequence[int]) -> Board:
        """A board for some of the ranks, in this order; every one of them calls it with the same name."""

    @abstractmethod
    def connect(self, host: str, timeout: float) -> Fabric:
        """Connections between all ranks; every one of them calls it. `host`: what the ranks of one host have in common."""

    @abstractmethod
    def decide(self, what: str, proposal: bytes) -> bytes:
        """The first proposal that any rank made under this name."""

    @abstractmethod
    def present(self, what: str) -> list[int]:
        """The ranks that have put up something under this name so far."""

    @abstractmethod
    def put(self, what: str, own: bytes) -> None:
        """Put up something, and wait for nobody."""


class Fabric(ABC):
    """One rank's end of the connections between the ranks of a group."""

    name: str
    rank: int
    size: int
    address: str | None = None  # of this host, at which the connections end, where it is known

    @abstractmethod
    def send(self, peer: int, data: Bytes, tag: int) -> Transfer: ...

    @abstractmethod
    def receive(self, peer: int, data: Bytes, tag: int) -> Transfer: ...

    @abstractmethod
    def receive_any(self, data: Bytes, tag: int) -> Transfer:
        """From whoever sends first."""

    @abstractmethod
    def cut(self) -> None:
        """Give up all transfers of this fabric, from any thread: their waits raise `Disconnected`, and so do new ones.

        Transfers of other ranks with this one may fail as well.
        """

    def barrier(self, tag: int, within: float) -> None:
        """Wait until every rank has called it, for so many seconds at a time. `tag`: one that is used for nothing else."""
        distance, byte = 1, np.zeros(1, np.uint8)
        while distance < self.size:
            coming = self.receive((self.rank - distance) % self.size, np.empty(1, np.uint8), tag)
            going = self.send((self.rank + distance) % self.size, byte, tag)
            going.wait(within)
            coming.wait(within)
            distance *= 2

    @abstractmethod
    def another(self, name: str, ranks: Sequence[int]) -> Fabric:
        """Connections of their own for some of the ranks; every one of them calls it with the same name."""
