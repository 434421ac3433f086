"""Control messages between the ranks of all islands: users' messages, failures, questions and heartbeats, in frames.

Every rank has a thread that receives frames from all ranks, whatever its other threads do. So a rank that computes still
answers how many calls it has made, and learns at once that another rank is lost.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ...fabrics import tags
from ...fabrics.fabric import Bytes, Disconnected, Fabric, Transfer

FRAME_BYTES = 1024
_HEAD = struct.Struct("!BBHQqqq")  # kind, detail, bytes of text, group, three numbers
MOST_TEXT = FRAME_BYTES - _HEAD.size


class News(IntEnum):
    BEAT, FAILED, MESSAGE, ASKED, ANSWER, LEFT, HEARD = range(7)


class Progress(IntEnum):
    """The progress of a rank with a call, or with an earlier one that must be done first."""

    NOT_MADE, MADE, IN_OPERATION, DONE = range(4)


class Frame(NamedTuple):
    """A control message of fixed length."""

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
    """The frames that were sent to one rank and have not arrived yet. Their memory must live until then.

    Each destination has a thread, because a fabric reports the end of a transfer only to a thread that waits for it. So a
    rank that receives nothing holds up no other rank.
    """

    def __init__(self, broke: Callable[[], None]) -> None:
        """`broke` is called when the connection has ended."""
        self._broke = broke
        self._sent: deque[tuple[Transfer, Bytes]] = deque()
        self._something = threading.Condition()
        self._closed = False
        self.thread = threading.Thread(target=self._keep, name="allfold frames", daemon=True)
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


class Frames:
    """One rank's end. `send` never blocks. `handle(source, frame)` is called for every frame until it returns False; then
    no more frames are received. `broke(peer)` is called when a send fails because the connection has ended. Nothing else
    reports that, since a receive from any rank keeps waiting for the others.

    Frames have connections of their own, so that news and heartbeats never wait behind long messages.
    """

    def __init__(
        self,
        fabric: Fabric,
        data: Fabric,
        handle: Callable[[int, Frame], bool],
        broke: Callable[[int], None],
    ) -> None:
        """`fabric`: for frames. `data`: for data that do not fit into a frame."""
        self.fabric, self._data = fabric, data
        self._handle, self._broke = handle, broke
        self._kept: dict[tuple[Fabric, int], _Kept] = {}  # by connection
        self._lock = threading.Lock()
        self._long_messages = [0] * fabric.size  # the number of long messages sent, by destination
        self._numbering = threading.Lock()  # their frames are sent in the order of their numbers
        self.closed = False
        self._reader = threading.Thread(target=self._read, name="allfold news", daemon=True)
        self._reader.start()

    def send(self, peer: int, frame: Frame) -> None:
        self._begin(self.fabric, peer, frame.pack(), tags.FRAME)

    def send_all(self, peers: Iterable[int], frame: Frame) -> None:
        for peer in peers:
            self.send(peer, frame)

    def send_message(self, peer: int, frame: Frame, data: Bytes) -> None:
        """Send a user's message: its data in a frame, or after it if they are too long. The caller gives up `data`."""
        if data.size <= MOST_TEXT:
            self.send(peer, frame._replace(text=data.tobytes()))
            return
        with self._numbering:
            number, self._long_messages[peer] = self._long_messages[peer], self._long_messages[peer] + 1
            tag, elements, _ = frame.numbers
            self.send(peer, frame._replace(detail=frame.detail | 128, numbers=(tag, elements, number)))
        self._begin(self._data, peer, data, tags.of_message(number))

    def data_of(self, source: int, number: int, bytes: int) -> tuple[Transfer, Bytes]:
        """The receive of the data of a rank's long message, by its number; and the memory it receives into."""
        data = np.empty(bytes, np.uint8)
        return self._data.receive(source, data, tags.of_message(number)), data

    def pending(self, peer: int | None = None) -> int:
        """The number of frames that a rank has not received yet; None: frames and long messages, of all ranks together."""
        if peer is None:
            return sum(map(len, list(self._kept.values())))
        return len(self._kept.get((self.fabric, peer), ()))

    def send_all_now(self, peers: Iterable[int], frames: Sequence[Frame], seconds: float) -> None:
        """Send frames, and wait until they have been received, except by ranks that have earlier ones pending."""
        taking = []
        for peer in peers:
            if not self.pending(peer):
                taking.append(peer)
            for frame in frames:
                self.send(peer, frame)
        deadline = time.monotonic() + seconds
        while any(self.pending(peer) for peer in taking) and time.monotonic() < deadline:
            time.sleep(0.001)

    def await_messages(self, peers: Callable[[], Iterable[int]], seconds: float) -> None:
        """Wait until these ranks have received the long messages that this one has sent them."""
        deadline = time.monotonic() + seconds
        while any(self._kept.get((self._data, peer)) for peer in peers()) and time.monotonic() < deadline:
            time.sleep(0.001)

    def threads(self) -> list[threading.Thread]:
        return [self._reader, *(one.thread for one in list(self._kept.values()))]

    def close(self, seconds: float) -> None:
        """Close, after waiting this long for everything to be sent and for the last frames to be received."""
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
                time.sleep(0.05)  # a rank is lost; others may still send
                continue
            with contextlib.suppress(ValueError):  # a kind of frame that this version does not know
                if not self._handle(source, Frame.unpack(data)):
                    return
