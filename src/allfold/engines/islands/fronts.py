"""What the first ranks of the islands tell each other in every call: which call it is, and the data if they are few.

A front has a fixed length, and the receive of the next one is always posted: whatever calls the ranks make, a front is
met by a front, and a small call crosses in one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...fabrics.fabric import Bytes, Fabric, Transfer

DIGEST_BYTES = 16
TEXT_BYTES = 496
_HEAD_BYTES = DIGEST_BYTES + TEXT_BYTES
MOST_DATA = 4096 - _HEAD_BYTES
_TAG = 2**31 - 1


class Front(NamedTuple):
    digest: bytes
    text: str
    data: Bytes


class Fronts:
    """One leader's end."""

    def __init__(self, fabric: Fabric, peers: Sequence[int]) -> None:
        self._fabric, self.peers = fabric, list(peers)
        self._posted: dict[int, tuple[Transfer, Bytes]] = {}
        # Two for each peer: one is read while the next front may come into the other.
        self._rooms = {peer: [np.zeros(_HEAD_BYTES + MOST_DATA, np.uint8) for _ in range(2)] for peer in self.peers}
        self._sent: list[Transfer] = []
        self._front = np.zeros(_HEAD_BYTES + MOST_DATA, np.uint8)
        for peer in self.peers:
            self._post(peer)

    def _post(self, peer: int) -> None:
        rooms = self._rooms[peer]
        rooms.reverse()
        self._posted[peer] = self._fabric.receive(peer, rooms[0], _TAG), rooms[0]

    def send(self, digest: bytes, text: str, within: float, data: Bytes | None = None) -> None:
        for transfer in self._sent:  # of the last call: nobody had to wait for them until now
            transfer.wait(within)
        head = (digest + text.encode()[:TEXT_BYTES]).ljust(_HEAD_BYTES, b"\0")
        self._front[:_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        if data is not None:
            self._front[_HEAD_BYTES : _HEAD_BYTES + data.size] = data
        self._sent = [self._fabric.send(peer, self._front, _TAG) for peer in self.peers]

    def receive(self, peer: int, within: float) -> Front:
        """What a peer says of this call; valid until the next one."""
        transfer, room = self._posted[peer]
        transfer.wait(within)
        self._post(peer)
        text = room[DIGEST_BYTES:_HEAD_BYTES].tobytes().rstrip(b"\0").decode(errors="replace")
        return Front(room[:DIGEST_BYTES].tobytes(), text, room[_HEAD_BYTES:])
