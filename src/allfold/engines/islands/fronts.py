"""What the first ranks of the islands tell each other in every call: which call it is, and the data if they are few.

The receives of the next ones are always posted, and long enough for the longest: whatever calls the ranks make, a front
is met by a front, and a small call crosses in one message. Longer data follow in a message of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...fabrics import tags
from ...fabrics.fabric import Bytes, Transfer
from ..signature import PACKED_BYTES, Signature
from .wire import PeerLinks

DIGEST_BYTES = 16
_SAID_BYTES = DIGEST_BYTES + PACKED_BYTES
_HEAD_BYTES = -(-_SAID_BYTES // 64) * 64  # whole cache lines: the data behind it are folded where they arrive
# gloo sends when it knows that the receive is posted. So the receives of the next calls are posted well before them.
_AHEAD = 2
ALONG_BYTES = 1 << 16  # the most data that travel with a front
LONG_BYTES = 4 << 20  # the most that follow it
_ALL_BYTES = 16 << 20  # the most that a leader receives in one call from all others


_Posted = tuple[Transfer, Bytes]


class Front(NamedTuple):
    digest: bytes
    room: Bytes

    @property
    def signature(self) -> Signature:
        return Signature.unpacked(self.room[DIGEST_BYTES:_SAID_BYTES].tobytes())


class Fronts:
    """One leader's end."""

    def __init__(self, links: PeerLinks, peers: Sequence[int]) -> None:
        self._links, self.peers = links, list(peers)
        self._along = min(ALONG_BYTES, most_bytes(len(self.peers) + 1))
        self._posted: dict[int, deque[_Posted]] = {peer: deque() for peer in self.peers}
        self._long: dict[int, _Posted] = {}
        self._used: list[tuple[int, Bytes]] = []  # what came in this call, and may still be read
        self._sent: list[Transfer] = []
        self._long_sent: list[Transfer] = []
        self._front = self._room()
        for peer in self.peers:
            for _ in range(_AHEAD):
                self._post(peer, self._room())

    def _room(self) -> Bytes:
        return np.zeros(_HEAD_BYTES + self._along, np.uint8)

    def _post(self, peer: int, room: Bytes) -> None:
        self._posted[peer].append((self._links.fabric.receive(peer, room, tags.FRONT), room))

    def _post_long(self, peer: int, room: Bytes) -> None:
        self._long[peer] = self._links.fabric.receive(peer, room, tags.LONG), room

    def send(self, digest: bytes, signature: bytes, within: float, data: Bytes | None = None) -> None:
        for transfer in self._sent:  # of the last call: nobody had to wait for them until now
            transfer.wait(within)
        self._front[:_SAID_BYTES] = np.frombuffer(digest + signature, np.uint8)
        follows = data is not None and data.size > self._along
        size = _HEAD_BYTES
        if data is not None and not follows:
            size += data.size
            self._front[_HEAD_BYTES:size] = data
        self._sent = [self._links.send(peer, self._front[:size], tags.FRONT) for peer in self.peers]
        if data is not None and follows:
            for peer in self.peers:
                if peer not in self._long:
                    self._post_long(peer, np.zeros(LONG_BYTES, np.uint8))
                self._long_sent.append(self._links.send(peer, data, tags.LONG))

    def receive(self, peer: int, bytes: int, within: float) -> Front:
        """What a peer says of this call, perhaps with this many bytes of data; valid until `refill`."""
        posted = self._posted[peer]
        if not posted:
            self._post(peer, self._room())
        transfer, room = posted.popleft()
        self._wait(transfer, peer, _HEAD_BYTES + (bytes if bytes <= self._along else 0), within)
        self._used.append((peer, room))
        return Front(room[:DIGEST_BYTES].tobytes(), room)

    def data(self, front: Front, peer: int, bytes: int, within: float) -> Bytes:
        """The data in a front, or sent after it; valid until `refill`."""
        if bytes <= self._along:
            return front.room[_HEAD_BYTES : _HEAD_BYTES + bytes]
        transfer, room = self._long[peer]
        self._wait(transfer, peer, bytes, within)
        del self._long[peer]
        self._used.append((peer, room))
        return room[:bytes]

    def _wait(self, transfer: Transfer, peer: int, bytes: int, within: float) -> None:
        if (recorder := self._links.recorder) is not None:
            transfer = recorder.awaits(transfer, peer, bytes)
        transfer.wait(within)

    def sent(self, within: float) -> None:
        """Wait until the data of this call may be overwritten."""
        while self._long_sent:
            self._long_sent.pop().wait(within)

    def refill(self) -> None:
        """At the end of a call: post receives for those that come."""
        while self._used:
            peer, room = self._used.pop()
            (self._post_long if room.size == LONG_BYTES else self._post)(peer, room)


def most_bytes(islands: int) -> int:
    """The longest data that the leaders of this many islands exchange with their fronts."""
    return min(LONG_BYTES, _ALL_BYTES // max(1, islands - 1))
