"""News between the ranks of all islands: letters, bad news, questions and heartbeats, each in a frame of fixed length.

Every rank has a thread that takes in frames from anybody, whatever its other threads do. So a rank that computes still
answers how many calls it has made, and hears at once that another rank is lost.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ...fabrics import tags
from ...fabrics.fabric import Bytes, Disconnected, Fabric, Transfer

FRAME_BYTES = 1024
_HEAD = struct.Struct("!BBHQqqq")  # kind, detail, bytes of text, group, three numbers
MOST_TEXT = FRAME_BYTES - _HEAD.size


class News(IntEnum):
    BEAT, FAILED, LETTER, ASKED, ANSWER, LEFT, HEARD = range(7)


class Progress(IntEnum):
    """How far a rank is with a call; or with one before it, which must be done first."""

    NOT_MADE, MADE, IN_OPERATION, DONE = range(4)


class Frame(NamedTuple):
    news: News
    group: int = 0
    detail: int = 0
    numbers: tuple[int, int, int] = (0, 0, 0)
    text: bytes = b""

    def pack(self) -> Bytes:
        data = np.zeros(FRAME_BYTES, np.uint8)
        head = _HEAD.pack(self.news, self.detail, len(self.text), self.group, *self.numbers)
        data[: len(head) + len(self.text)] = np.frombuffer(head + self.text, np.uint8)
        return data

    @classmethod
    def unpack(cls, data: Bytes) -> Frame:
        news, detail, length, group, *numbers = _HEAD.unpack(data[: _HEAD.size].tobytes())
        text = data[_HEAD.size : _HEAD.size + min(length, MOST_TEXT)].tobytes()
        return cls(News(news), group, detail, (numbers[0], numbers[1], numbers[2]), text)


class _Kept:
    """What was sent to one rank, until it has arrived: dropping it earlier would lose it.

    Each has a thread of its own, since fabrics only say that one transfer is done to whoever waits for it. So a rank that
    takes in nothing holds up nobody else.
    """

    def __init__(self, broke: Callable[[], None]) -> None:
        """`broke` is called when the connection has ended."""
        self._broke = broke
        self._sent: deque[tuple[Transfer, Bytes]] = deque()
        self._something = threading.Condition()
        self._closed = False
        self.thread = threading.Thread(target=self._keep, name="allfold post", daemon=True)
        self.thread.start()

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, transfer: Transfer, data: Bytes) -> None:
        with self._something:
            self._sent.append((transfer, data))
            self._something.notify()

    def close(self) -> None:
        with self._something:
            self._closed = True
            self._something.notify()

    def _keep(self) -> None:
        while True:
            with self._something:
                while not self._sent:
                    if self._closed:
                        return
                    self._something.wait()
                transfer = self._sent[0][0]
            try:
                transfer.wait()
            except Disconnected:
                self._broke()
            del transfer
            with self._something:
                self._sent.popleft()


class Post:
    """One rank's end: `send` never waits; `handle(source, frame)` is called for every frame that comes, until it returns
    False: then nothing more is awaited. `broke(peer)` is called when something cannot be sent to a rank, because the
    connection has ended: nothing else says so, since a receive from anybody goes on waiting for the others.

    Frames have connections of their own, so that news and heartbeats never wait behind long letters.
    """

    def __init__(
        self,
        fabric: Fabric,
        data: Fabric,
        handle: Callable[[int, Frame], bool],
        broke: Callable[[int], None],
    ) -> None:
        """`fabric`: for frames. `data`: for what does not fit into them."""
        self.fabric, self._data = fabric, data
        self._handle, self._broke = handle, broke
        self._kept: dict[tuple[Fabric, int], _Kept] = {}  # by connection
        self._lock = threading.Lock()
        self._letters = [0] * fabric.size  # long letters, by destination
        self._numbering = threading.Lock()  # their frames go in the order of their numbers
        self.closed = False
        self._reader = threading.Thread(target=self._read, name="allfold news", daemon=True)
        self._reader.start()

    def send(self, peer: int, frame: Frame) -> None:
        self._begin(self.fabric, peer, frame.pack(), tags.FRAME)

    def send_all(self, peers: Iterable[int], frame: Frame) -> None:
        for peer in peers:
            self.send(peer, frame)

    def send_letter(self, peer: int, frame: Frame, data: Bytes) -> None:
        """A frame, and the data beside it if they are too long for it. The data are the post's own from now on."""
        if data.size <= MOST_TEXT:
            self.send(peer, frame._replace(text=data.tobytes()))
            return
        with self._numbering:
            number, self._letters[peer] = self._letters[peer], self._letters[peer] + 1
            tag, elements, _ = frame.numbers
            self.send(peer, frame._replace(detail=frame.detail | 128, numbers=(tag, elements, number)))
        self._begin(self._data, peer, data, tags.of_letter(number))

    def data_of(self, source: int, number: int, bytes: int) -> tuple[Transfer, Bytes]:
        """The data of a rank's long letter of that number, on their way."""
        data = np.empty(bytes, np.uint8)
        return self._data.receive(source, data, tags.of_letter(number)), data

    def pending(self, peer: int | None = None) -> int:
        """The number of frames that a rank, or all of them, have not taken in yet; and for all of them, of long letters."""
        if peer is None:
            return sum(map(len, list(self._kept.values())))
        return len(self._kept.get((self.fabric, peer), ()))

    def send_all_now(self, peers: Iterable[int], frame: Frame, seconds: float) -> None:
        """Send a frame, and wait until all have taken it in, except those that take in nothing."""
        taking = []
        for peer in peers:
            if not self.pending(peer):
                taking.append(peer)
            self.send(peer, frame)
        deadline = time.monotonic() + seconds
        while any(self.pending(peer) for peer in taking) and time.monotonic() < deadline:
            time.sleep(0.001)

    def await_letters(self, peers: Callable[[], Iterable[int]], seconds: float) -> None:
        """Wait until these ranks have taken in the long letters that this one has sent them."""
        deadline = time.monotonic() + seconds
        while any(self._kept.get((self._data, peer)) for peer in peers()) and time.monotonic() < deadline:
            time.sleep(0.001)

    def threads(self) -> list[threading.Thread]:
        return [self._reader, *(one.thread for one in list(self._kept.values()))]

    def close(self, seconds: float) -> None:
        """End, after waiting for a moment until everything was sent, and nothing more is awaited."""
        deadline = time.monotonic() + seconds
        while self.pending() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.closed = True
        self._reader.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            kept = list(self._kept.values())
        for one in kept:
            one.close()
        for fabric in (self.fabric, self._data):
            fabric.cut()
        deadline = time.monotonic() + seconds
        for one in kept:
            one.thread.join(max(0.0, deadline - time.monotonic()))

    def _begin(self, fabric: Fabric, peer: int, data: Bytes, tag: int) -> None:
        try:
            transfer = fabric.send(peer, data, tag)
        except Disconnected:
            self._has_broken(peer)
            return
        with self._lock:
            kept = self._kept.get((fabric, peer))
            if kept is None:
                kept = self._kept[fabric, peer] = _Kept(lambda: self._has_broken(peer))
        kept.add(transfer, data)

    def _has_broken(self, peer: int) -> None:
        if not self.closed:
            self._broke(peer)

    def _read(self) -> None:
        while True:
            data = np.empty(FRAME_BYTES, np.uint8)
            try:
                source = self.fabric.receive_any(data, tags.FRAME).wait()
            except Disconnected:
                if self.closed:
                    return
                time.sleep(0.05)  # somebody is gone; the others may still write
                continue
            with contextlib.suppress(ValueError):  # news that this version does not know
                if not self._handle(source, Frame.unpack(data)):
                    return
