"""What staging needs of a GPU: copies, events and host functions in the order of streams. Here, of NVIDIA's driver.

The driver is loaded when it is first needed and called through ctypes, so nothing of CUDA is needed to install or to
import allfold. Streams, events and contexts are the driver's own handles, as numbers: those that torch and CuPy give.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .. import _native
from ..dtypes import find_dtype
from ..errors import DeviceError
from . import kernels
from .batch import FOLD, Batch

_NOT_READY, _OUT_OF_MEMORY = 600, 2
_POINTER_CONTEXT = 1
_NON_BLOCKING, _NO_TIMING = 1, 2
_PORTABLE_MAPPED = 3
_SUBMITTED = ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuMemcpyAsync", "cuLaunchKernel")
_OPEN_LAZILY = 1
_PROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # attributes of a device
_GONE = {4: "the process is ending", 46: "other processes have the GPU to themselves", 100: "there is no GPU"}


class Device(Protocol):
    """A GPU, as staging uses it. Tests have one that is made of NumPy and threads."""

    def context_of(self, pointer: int) -> int:
        """The context to which an address belongs; without an address, the current one."""
        ...

    def within(self, context: int) -> AbstractContextManager[None]:
        """Make a context current; all other functions need one."""
        ...

    def new_stream(self) -> int: ...
    def synchronize(self, stream: int) -> None: ...
    def is_capturing(self, stream: int) -> bool: ...

    def register(self, address: int, bytes: int) -> None:
        """Let the GPU copy from and to this part of main memory by itself."""
        ...

    def unregister(self, address: int) -> None: ...

    def reached_at(self, address: int) -> int:
        """Where the GPU sees registered memory."""
        ...

    def copy(self, target: int, source: int, bytes: int, stream: int) -> None: ...

    def call(self, stream: int, function: int, argument: int) -> None:
        """Call a C function on a thread of the driver; the stream goes on when it returns."""
        ...

    def new_event(self, stream: int) -> int:
        """An event that is over when the stream has come this far."""
        ...

    def await_event(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""
        ...

    def is_over(self, event: int) -> bool: ...
    def drop_event(self, event: int) -> None: ...

    # What programs on the GPU need besides (runner.py)

    def identity(self) -> bytes:
        """Sixteen bytes that tell this GPU from all others."""
        ...

    def allocate(self, bytes: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def handle_of(self, pointer: int) -> bytes:
        """What another process needs to `open` this memory; at most 64 bytes."""
        ...

    def open(self, handle: bytes) -> int: ...
    def close(self, pointer: int) -> None: ...

    def can_fold(self, op: str, dtype: str) -> bool: ...

    def submit(self, stream: int, batch: Batch, base: int) -> None:
        """Put a batch into a stream; `base` is added to its values, which are numbers of 32 bits that go round.

        A write comes when all that the stream wrote before is visible; a wait lasts until the word is at least its value.
        """
        ...


@lru_cache(maxsize=1)
def driver() -> Device:
    """NVIDIA's driver on this machine."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the array is in a GPU's memory, and NVIDIA's driver cannot be loaded: {error}") from None
    return Driver(library)


class Driver:
    """The functions of `libcuda.so`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kernels: dict[tuple[object, ...], int] = {}
        self._functions = np.array(
            [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _SUBMITTED], np.uint64
        )
        self._attributes: dict[tuple[int, int], int] = {}
        self._call("cuInit", ctypes.c_uint(0))

    def context_of(self, pointer: int) -> int:
        context = ctypes.c_void_p()
        if not pointer:
            self._call("cuCtxGetCurrent", ctypes.byref(context))
        else:
            attribute = ctypes.c_int(_POINTER_CONTEXT)
            self._call("cuPointerGetAttribute", ctypes.byref(context), attribute, _address(pointer))
        if context.value is None:
            raise DeviceError(f"the address {pointer:#x} is not in the memory of a GPU of this process")
        return context.value

    @contextlib.contextmanager
    def within(self, context: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", _address(context))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", _address(stream))

    def is_capturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        self._call("cuStreamIsCapturing", _address(stream), ctypes.byref(status))
        return status.value != 0

    def register(self, address: int, bytes: int) -> None:
        self._call("cuMemHostRegister_v2", _address(address), ctypes.c_size_t(bytes), ctypes.c_uint(_PORTABLE_MAPPED))

    def unregister(self, address: int) -> None:
        self._call("cuMemHostUnregister", _address(address))

    def reached_at(self, address: int) -> int:
        pointer = ctypes.c_void_p()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), _address(address), ctypes.c_uint(0))
        return pointer.value or 0

    def copy(self, target: int, source: int, bytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", _address(target), _address(source), ctypes.c_size_t(bytes), _address(stream))

    def call(self, stream: int, function: int, argument: int) -> None:
        self._call("cuLaunchHostFunc", _address(stream), _address(function), _address(argument))

    def new_event(self, stream: int) -> int:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
        self._call("cuEventRecord", event, _address(stream))
        return event.value or 0

    def await_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", _address(stream), _address(event), ctypes.c_uint(0))

    def is_over(self, event: int) -> bool:
        status = self._library.cuEventQuery(_address(event))
        if status == _NOT_READY:
            return False
        self._check("cuEventQuery", status)
        return True

    def drop_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", _address(event))

    def identity(self) -> bytes:
        device, uuid = ctypes.c_int(), (ctypes.c_char * 16)()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
        return bytes(uuid)

    def allocate(self, bytes: int) -> int:
        pointer = ctypes.c_void_p()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(bytes))
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        self._call("cuMemFree_v2", _address(pointer))

    def handle_of(self, pointer: int) -> bytes:
        handle = _IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), _address(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        pointer = ctypes.c_void_p()
        given = _IpcHandle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, ctypes.c_uint(_OPEN_LAZILY))
        return pointer.value or 0

    def close(self, pointer: int) -> None:
        self._call("cuIpcCloseMemHandle", _address(pointer))

    def can_fold(self, op: str, dtype: str) -> bool:
        return kernels.can_fold(op, dtype) and kernels.compiler() is not None

    def submit(self, stream: int, batch: Batch, base: int) -> None:
        if batch.prepared is None:
            batch.prepared = self._prepared(batch)
        rows, arguments = batch.prepared
        done, status = _native.submit(self._functions, stream, rows, arguments, kernels.THREADS, base & 0xFFFFFFFF)
        if status:
            self._check(_SUBMITTED[int(rows[done, 0])], status)

    def _prepared(self, batch: Batch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The rows as the extension takes them, and the arguments of the kernels."""
        rows = np.array(batch.rows, np.int64).reshape(-1, 4)
        size = ctypes.sizeof(kernels.Arguments)
        arguments = bytearray(size * len(batch.folds))
        for number, (row, one) in enumerate(zip(np.flatnonzero(rows[:, 0] == FOLD), batch.folds, strict=True)):
            given = kernels.Arguments.of(one.sources, one.destinations, one.elements, one.divisor)
            arguments[number * size : (number + 1) * size] = bytes(given)
            packs = -(-one.elements * find_dtype(one.dtype).itemsize // 16)
            blocks = max(1, min(-(-packs // kernels.THREADS), self._most_blocks()))
            rows[row, 1:] = self._kernel(one.op, one.dtype, len(one.sources)), blocks, number * size
        return rows, np.frombuffer(arguments or b"\0", np.uint8)

    def _most_blocks(self) -> int:
        """As many as run at once: each thread then does several pieces of the arrays."""
        return 8 * self._attribute(_PROCESSORS)

    def _attribute(self, number: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        key = (device.value, number)
        if key not in self._attributes:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
            self._attributes[key] = value.value
        return self._attributes[key]

    def _kernel(self, op: str, dtype: str, sources: int) -> int:
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        key = (context.value, op, dtype, sources)
        if key not in self._kernels:
            architecture = f"sm_{self._attribute(_MAJOR)}{self._attribute(_MINOR)}"
            code = kernels.compiled(op, dtype, sources, architecture)
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
            self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"fold"))
            self._kernels[key] = function.value or 0
        return self._kernels[key]

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            self._check(name, status)

    def _check(self, name: str, status: int) -> None:
        if status == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        said = (text.value or b"unknown error").decode()
        if status == _OUT_OF_MEMORY:
            said += "; the GPU, or the memory that it may reach (ulimit -l), is full"
        elif status in _GONE:
            said += f" ({_GONE[status]})"
        raise DeviceError(f"the GPU's driver refused {name}: {said} (error {status})")


class _IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def _address(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)
