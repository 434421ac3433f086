"""A device made of NumPy and threads: its memory is main memory, each of its streams is a thread with a queue."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np


class NumpyDevice:
    """Does what a GPU does for staging, in the order of streams, and remembers what was registered."""

    def __init__(self) -> None:
        self._streams: dict[int, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._events: dict[int, threading.Event] = {}
        self._numbers = count(1)
        self.registered: dict[int, int] = {}
        self.captured: set[int] = set()
        self.copied: list[int] = []

    def context_of(self, pointer: int) -> int:
        return 7

    @contextlib.contextmanager
    def within(self, context: int) -> Iterator[None]:
        assert context == 7
        yield

    def new_stream(self) -> int:
        number = next(self._numbers)
        work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams[number] = work

        def run() -> None:
            while (action := work.get()) is not None:
                action()

        threading.Thread(target=run, daemon=True).start()
        return number

    def synchronize(self, stream: int) -> None:
        self._events[self.new_event(stream)].wait()

    def is_capturing(self, stream: int) -> bool:
        return stream in self.captured

    def register(self, address: int, bytes: int) -> None:
        assert address not in self.registered
        self.registered[address] = bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def copy(self, target: int, source: int, bytes: int, stream: int) -> None:
        self.copied.append(bytes)
        assert any(
            start <= one and one + bytes <= start + length
            for start, length in self.registered.items()
            for one in (target, source)
        )
        self._streams[stream].put(lambda: ctypes.memmove(target, source, bytes) and None)

    def call(self, stream: int, function: int, argument: int) -> None:
        self._streams[stream].put(lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(argument))

    def new_event(self, stream: int) -> int:
        number, event = next(self._numbers), threading.Event()
        self._events[number] = event
        self._streams[stream].put(event.set)
        return number

    def await_event(self, stream: int, event: int) -> None:
        self._streams[stream].put(lambda event=self._events[event]: event.wait() and None)  # type: ignore[misc]

    def is_over(self, event: int) -> bool:
        return self._events[event].is_set()

    def drop_event(self, event: int) -> None:
        del self._events[event]

    # For tests -------------------------------------------------------------------------------------------------------

    def later(self, stream: int, action: Callable[[], None]) -> None:
        """Put work of the user's own into a stream."""
        self._streams[stream].put(action)

    def array(self, values: Any, stream: int) -> DeviceArray:
        return DeviceArray(np.array(values), stream)

    def end(self) -> None:
        for work in self._streams.values():
            work.put(None)


class DeviceArray:
    """An array in this device's memory, as CuPy's arrays present themselves."""

    def __init__(self, memory: np.ndarray[Any, Any], stream: int) -> None:
        self.memory, self.stream = memory, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.memory.__array_interface__ | {"version": 3, "stream": self.stream}
