"""What the first ranks of the islands tell each other in every call: which call it is, and the data if they are few.

A front has a fixed length, and the receives of the next ones are always posted: whatever calls the ranks make, a front is
met by a front, and a small call crosses in one message.
"""

from __future__ import annotations

from collections import deque
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
# gloo sends when it knows that the receive is posted. So the receives of the next calls are posted well before them.
_AHEAD = 2


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
        self._posted: dict[int, deque[tuple[Transfer, Bytes]]] = {peer: deque() for peer in self.peers}
        self._read: dict[int, Bytes] = {}  # what came last, and may still be read
        self._sent: list[Transfer] = []
        self._front = _room()
        for peer in self.peers:
            for _ in range(_AHEAD):
                self._post(peer, _room())

    def _post(self, peer: int, room: Bytes) -> None:
        self._posted[peer].append((self._links.fabric.receive(peer, room, _TAG), room))

    def send(self, digest: bytes, text: str, within: float, data: Bytes | None = None) -> None:
        for transfer in self._sent:  # of the last call: nobody had to wait for them until now
            transfer.wait(within)
        head = (digest + text.encode()[:TEXT_BYTES]).ljust(_HEAD_BYTES, b"\0")
        self._front[:_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        if data is not None:
            self._front[_HEAD_BYTES : _HEAD_BYTES + data.size] = data
        self._sent = [self._links.send(peer, self._front, _TAG) for peer in self.peers]

    def receive(self, peer: int, within: float) -> Front:
        """What a peer says of this call; valid until the next one."""
        (transfer, room), recorder = self._posted[peer].popleft(), self._links.recorder
        if recorder is not None:
            transfer = recorder.awaits(transfer, peer, room.size)
        transfer.wait(within)
        read, self._read[peer] = self._read.get(peer), room
        self._post(peer, _room() if read is None else read)
        return Front(room[:DIGEST_BYTES].tobytes(), room)


def _room() -> Bytes:
    return np.zeros(_HEAD_BYTES + MOST_DATA, np.uint8)
