"""A device made of NumPy and threads: its memory is main memory, each of its streams is a thread with a queue."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from allfold.cuda.batch import COPY, FOLD, WRITE, Batch, Fold
from allfold.cuda.kernels import can_fold
from allfold.dtypes import find_dtype
from allfold.ops import OPS


class NumpyDevice:
    """Does what a GPU does for staging, in the order of streams, and remembers what was registered."""

    def __init__(self) -> None:
        self._streams: dict[int, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._events: dict[int, threading.Event] = {}
        self._numbers = count(1)
        self.registered: dict[int, int] = {}
        self.captured: set[int] = set()
        self.copied: list[int] = []
        self.memory: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}
        self.name = b"the only one"
        self.folds = 0

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
        pinned = [(start, start + length) for start, length in self.registered.items()]
        if any(start <= one and one + bytes <= end for start, end in pinned for one in (target, source)):
            self.copied.append(bytes)  # between main memory and the device
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

    # Programs on the device ------------------------------------------------------------------------------------------

    def reached_at(self, address: int) -> int:
        return address

    def identity(self) -> bytes:
        return self.name.ljust(16, b"\0")

    def allocate(self, bytes: int) -> int:
        descriptor = os.memfd_create("numpy-device", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, bytes)
        return self._mapped(descriptor)

    def _mapped(self, descriptor: int) -> int:
        memory = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        self.memory[memory.ctypes.data] = (descriptor, memory)
        return memory.ctypes.data

    def free(self, pointer: int) -> None:
        descriptor, memory = self.memory.pop(pointer)
        os.close(descriptor)
        memory[:] = 0xEE  # whoever still reads it will notice

    def handle_of(self, pointer: int) -> bytes:
        return f"/proc/{os.getpid()}/fd/{self.memory[pointer][0]}".encode().ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        return self._mapped(os.open(handle.rstrip(b"\0").decode(), os.O_RDWR))

    def close(self, pointer: int) -> None:
        os.close(self.memory.pop(pointer)[0])

    def can_fold(self, op: str, dtype: str) -> bool:
        return can_fold(op, dtype)

    def submit(self, stream: int, batch: Batch, base: int) -> None:
        for kind, first, second, third in batch.rows:
            if kind == COPY:
                self.copy(first, second, third, stream)
            elif kind == FOLD:
                self.folds += 1
                self._streams[stream].put(partial(_fold, batch.folds[first]))
            else:
                word, value = ctypes.c_uint32.from_address(first), (second + base) & 0xFFFFFFFF
                self._streams[stream].put(partial(_write if kind == WRITE else _wait, word, value))

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


def _write(word: ctypes.c_uint32, value: int) -> None:
    word.value = value


def _wait(word: ctypes.c_uint32, value: int) -> None:
    while (word.value - value) & 0xFFFFFFFF >= 1 << 31:
        time.sleep(0.0002)


def _fold(one: Fold) -> None:
    kind = find_dtype(one.dtype)

    def at(pointer: int) -> np.ndarray[Any, Any]:
        size = one.elements * kind.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(pointer), kind.carrier)

    result = OPS["sum" if one.op == "avg" else one.op].fold([at(pointer) for pointer in one.sources], kind)
    for pointer in one.destinations:
        at(pointer)[...] = result / one.divisor if one.divisor > 1 else result
