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

from allfold import _native
from allfold.communicator.communicator import Communicator
from allfold.dtypes import find_dtype
from allfold.engines.stream import engine, ways
from allfold.engines.stream.batch import Fold
from allfold.engines.stream.driver import FUNCTIONS, refuse_capture
from allfold.engines.stream.kernels import Arguments, can_fold
from allfold.engines.stream.ways import Ways
from allfold.errors import DeviceError
from allfold.ops import OPS

CONTEXT, _NOT_READY, _CAPTURE_UNSUPPORTED, _RELAXED = 7, 600, 900, 2


def _written(descriptor: int) -> Iterator[tuple[int, int]]:
    """The parts of a file in memory that somebody has written: of an arena of 128 MiB hardly any."""
    end = 0
    with contextlib.suppress(OSError):  # nothing from there on
        while True:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            yield start, end


class NumpyDevice:
    """Does what a GPU does for staging, in the order of streams, and remembers what was registered."""

    def __init__(self) -> None:
        self._streams: dict[int, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._events: dict[int, threading.Event] = {}
        self._numbers = count(1)
        self.registered: dict[int, int] = {}
        self.captured: set[int] = set()  # streams that are captured into a graph, in the global mode
        self.invalidated = False
        self.queries = 0
        self._modes = threading.local()
        self.copied: list[int] = []  # bytes of each copy between main memory and the device
        self.memory: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}
        self.folds = 0
        self.is_apart = False
        self._kernels: list[tuple[str, str, int]] = []
        self._lane: _native.Lane | None = None
        number, whole, place = ctypes.c_size_t, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)
        self._functions = [
            _c_function(self._wait_and_write, number, whole, ctypes.POINTER(ValueOperation), whole),
            _c_function(self._copy, number, number, number, number),
            _c_function(self._copy_rows, ctypes.POINTER(CopyOfRows), number),
            _c_function(self._launch, number, *[whole] * 7, number, number, number),
            _c_function(self._call_host, number, number, number),
            _c_function(self._create_event, ctypes.POINTER(number), whole),
            _c_function(self._destroy_event, number),
            _c_function(self._record_event, number, number),
            _c_function(self._query_event, number),
            _c_function(self._query_stream, number),
            _c_function(self._await_event, number, number, whole),
            _c_function(self._is_capturing, number, place),
            _c_function(self._push, number),
            _c_function(self._pop, number),
            _c_function(self._exchange_capture_mode, place),
        ]
        assert len(self._functions) == len(FUNCTIONS)
        self._word = ctypes.c_uint32(0)  # of the lane

    def context_of(self, pointer: int) -> int:
        return CONTEXT

    @contextlib.contextmanager
    def within(self, context: int) -> Iterator[None]:
        assert context == CONTEXT
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
        over = threading.Event()
        self._streams[stream].put(over.set)
        over.wait()

    def register(self, address: int, bytes: int) -> None:
        assert address not in self.registered
        self.registered[address] = bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    # What a lane calls -----------------------------------------------------------------------------------------------

    def lane(self, context: int) -> _native.Lane:
        if self._lane is None:
            addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
            functions = np.array(addresses, np.uint64)
            word = ctypes.addressof(self._word)
            streams = self.new_stream(), self.new_stream()
            self._lane = _native.Lane(functions, context, *streams, word, _refused, refuse_capture)
        return self._lane

    def _wait_and_write(self, stream: int, count: int, operations: Any, _: int) -> None:
        for one in operations[:count]:
            word, action = ctypes.c_uint32.from_address(one.address), {1: _wait, 2: _write}[one.kind]
            self._streams[stream].put(partial(action, word, one.value))

    def _copy(self, target: int, source: int, bytes: int, stream: int) -> None:
        pinned = [(start, start + length) for start, length in self.registered.items()]
        is_staged = any(start <= one and one + bytes <= end for start, end in pinned for one in (target, source))

        def copy() -> None:
            ctypes.memmove(target, source, bytes)
            if is_staged:
                self.copied.append(bytes)

        self._streams[stream].put(copy)

    def _copy_rows(self, rows: Any, stream: int) -> None:
        """Only what lanes ask for: two rows from main memory, without a gap between them."""
        one = rows[0]
        assert (one.source_kind, one.target_kind, one.height) == (1, 2, 2)
        assert one.source_pitch == one.target_pitch == one.width
        self._copy(one.target_device, one.source_host, 2 * one.width, stream)

    def _launch(self, kernel: int, *how: int) -> None:
        stream, given = how[7], ctypes.cast(how[8], ctypes.POINTER(ctypes.POINTER(Arguments)))
        arguments = Arguments.from_buffer_copy(given[0][0])
        op, dtype, sources = self._kernels[kernel - 1]
        self.folds += 1
        fold = Fold(
            op,
            dtype,
            tuple(arguments.sources[:sources]),
            tuple(arguments.destinations[: arguments.copies]),
            arguments.elements,
            arguments.divisor,
        )
        self._streams[stream].put(partial(_fold, fold))

    def _call_host(self, stream: int, function: int, argument: int) -> None:
        self._streams[stream].put(lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(argument))

    def _create_event(self, place: Any, _: int) -> None:
        number = next(self._numbers)
        self._events[number] = threading.Event()
        place[0] = number

    def _destroy_event(self, event: int) -> None:
        del self._events[event]

    def _record_event(self, event: int, stream: int) -> None:
        # Who waits for an event waits for the latest record of it.
        over = self._events[event] = threading.Event()
        self._streams[stream].put(over.set)

    def _query_event(self, event: int) -> int:
        self.queries += 1
        if self.captured and getattr(self._modes, "mode", 0) != _RELAXED:
            self.invalidated = True
            return _CAPTURE_UNSUPPORTED
        return 0 if self._events[event].is_set() else _NOT_READY

    def _query_stream(self, stream: int) -> int:
        over = threading.Event()
        self._streams[stream].put(over.set)
        return 0 if over.wait(0.02) else _NOT_READY

    def _await_event(self, stream: int, event: int, _: int) -> None:
        self._streams[stream].put(lambda event=self._events[event]: event.wait() and None)  # type: ignore[misc]

    def _is_capturing(self, stream: int, place: Any) -> None:
        place[0] = stream in self.captured

    def _exchange_capture_mode(self, place: Any) -> None:
        place[0], self._modes.mode = getattr(self._modes, "mode", 0), place[0]

    def _push(self, context: int) -> None:
        assert context == CONTEXT

    def _pop(self, _: Any) -> None:
        pass

    # Programs on the device ------------------------------------------------------------------------------------------

    def reached_at(self, address: int) -> int:
        return address

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
        for start, end in _written(descriptor):
            memory[start:end] = 0xEE  # whoever still reads it will notice
        os.close(descriptor)

    def handle_of(self, pointer: int) -> bytes:
        return f"/proc/{os.getpid()}/fd/{self.memory[pointer][0]}".encode().ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        if self.is_apart:
            raise DeviceError("this GPU and that of the other process do not reach each other's memory")
        return self._mapped(os.open(handle.rstrip(b"\0").decode(), os.O_RDWR))

    def close(self, pointer: int) -> None:
        os.close(self.memory.pop(pointer)[0])

    def can_fold(self, op: str, dtype: str) -> bool:
        return can_fold(op, dtype)

    def kernel(self, fold: Fold) -> tuple[int, int]:
        key = (fold.op, fold.dtype, len(fold.sources))
        if key not in self._kernels:
            self._kernels.append(key)
        return 1 + self._kernels.index(key), 1

    # For tests -------------------------------------------------------------------------------------------------------

    def later(self, stream: int, action: Callable[[], None]) -> None:
        """Put work of the user's own into a stream."""
        self._streams[stream].put(action)

    def array(self, values: Any, stream: int) -> DeviceArray:
        return DeviceArray(np.array(values), stream)

    def end(self) -> None:
        for work in self._streams.values():
            work.put(None)


class ValueOperation(ctypes.Structure):
    """As the driver's CUstreamBatchMemOpParams."""

    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("alias", ctypes.c_uint64),
        ("unused", ctypes.c_uint64),
    ]


class CopyOfRows(ctypes.Structure):
    """As the driver's CUDA_MEMCPY2D."""

    _fields_ = [
        ("source_x", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_kind", ctypes.c_int),
        ("source_host", ctypes.c_size_t),
        ("source_device", ctypes.c_size_t),
        ("source_array", ctypes.c_size_t),
        ("source_pitch", ctypes.c_size_t),
        ("target_x", ctypes.c_size_t),
        ("target_y", ctypes.c_size_t),
        ("target_kind", ctypes.c_int),
        ("target_host", ctypes.c_size_t),
        ("target_device", ctypes.c_size_t),
        ("target_array", ctypes.c_size_t),
        ("target_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class DeviceArray:
    """An array in this device's memory, as CuPy's arrays present themselves."""

    def __init__(self, memory: np.ndarray[Any, Any], stream: int) -> None:
        self.memory, self.stream = memory, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.memory.__array_interface__ | {"version": 3, "stream": self.stream}


def _c_function(method: Callable[..., int | None], *kinds: Any) -> Any:
    """A C function that returns the driver's status, 0 where the method returns nothing."""
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(lambda *given: method(*given) or 0)


def _refused(function: int, status: int) -> None:
    raise AssertionError(f"{FUNCTIONS[function]} gave {status}")


def _write(word: ctypes.c_uint32, value: int) -> None:
    word.value = value


def _wait(word: ctypes.c_uint32, value: int) -> None:
    while (word.value - value) & 0xFFFFFFFF >= 1 << 31:
        time.sleep(0.001)


def _fold(one: Fold) -> None:
    kind = find_dtype(one.dtype)

    def at(pointer: int) -> np.ndarray[Any, Any]:
        size = one.elements * kind.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(pointer), kind.carrier)

    result = OPS[one.op].fold([at(pointer) for pointer in one.sources], kind, one.divisor)
    for pointer in one.destinations:
        at(pointer)[...] = result


def device_of(way: str = "staged") -> NumpyDevice:
    """The device of this rank, in place of the driver, and the way that all calls go."""
    device = NumpyDevice()
    engine.driver = lambda: device  # type: ignore[assignment]
    ways.STAGED_UP_TO = {"staged": 1 << 60, "on the device": -1}[way]
    ways._takes_turns = lambda *_: True  # type: ignore[assignment]
    return device


def ways_of(comm: Communicator) -> Ways:
    """The calls of a communicator on its only device, after the first one."""
    stream = comm._engines.others["cuda"]
    assert isinstance(stream, engine.Stream)
    (made,) = stream.ways.values()
    return made
