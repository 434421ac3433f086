"""What the first ranks of the islands tell each other in every call: which call it is, and the data if they are few.

A front has a fixed length, and the receive of the next one is always posted: whatever calls the ranks make, a front is
met by a front, and a small call crosses in one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...fabrics.fabric import Bytes, Transfer
from .wire import Links

DIGEST_BYTES = 16
TEXT_BYTES = 496
_HEAD_BYTES = DIGEST_BYTES + TEXT_BYTES
MOST_DATA = 4096 - _HEAD_BYTES
_TAG = 2**31 - 1


class Front(NamedTuple):
    digest: bytes
    room: Bytes

    @property
    def text(self) -> str:
        return self.room[DIGEST_BYTES:_HEAD_BYTES].tobytes().rstrip(b"\0").decode(errors="replace")

    @property
    def data(self) -> Bytes:
        return self.room[_HEAD_BYTES:]


class Fronts:
    """One leader's end."""

    def __init__(self, links: Links, peers: Sequence[int]) -> None:
        self._links, self.peers = links, list(peers)
        self._rooms = {peer: np.zeros(_HEAD_BYTES + MOST_DATA, np.uint8) for peer in self.peers}
        self._posted: dict[int, Transfer] = {}
        self._sent: list[Transfer] = []
        self._front = np.zeros(_HEAD_BYTES + MOST_DATA, np.uint8)
        self.expect()

    def expect(self) -> None:
        """Post the receives of the next call; what came in the last one is no longer needed."""
        self._posted = {peer: self._links.fabric.receive(peer, room, _TAG) for peer, room in self._rooms.items()}

    def send(self, digest: bytes, text: str, within: float, data: Bytes | None = None) -> None:
        for transfer in self._sent:  # of the last call: nobody had to wait for them until now
            transfer.wait(within)
        head = (digest + text.encode()[:TEXT_BYTES]).ljust(_HEAD_BYTES, b"\0")
        self._front[:_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        if data is not None:
            self._front[_HEAD_BYTES : _HEAD_BYTES + data.size] = data
        self._sent = [self._links.send(peer, self._front, _TAG) for peer in self.peers]

    def receive(self, peer: int, within: float) -> Front:
        """What a peer says of this call; valid until `expect`."""
        transfer, room, recorder = self._posted.pop(peer), self._rooms[peer], self._links.recorder
        if recorder is not None:
            transfer = recorder.awaits(transfer, peer, room.size)
        transfer.wait(within)
        return Front(room[:DIGEST_BYTES].tobytes(), room)
