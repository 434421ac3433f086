"""The device interface that staging needs (copies, events and host functions in stream order), and NVIDIA's driver.

The driver is loaded when it is first needed and called through ctypes, so nothing of CUDA is needed to install or to
import allfold. Streams, events and contexts are the driver's own handles, as numbers: those that torch and CuPy give.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Protocol

import numpy as np

from ... import _native
from ...dtypes import find_dtype
from ...errors import DeviceError, UsageError
from . import kernels
from .batch import Fold

_OUT_OF_MEMORY = 2
_POINTER_CONTEXT = 1
_NON_BLOCKING = 1
_PORTABLE_MAPPED = 3
_OPEN_LAZILY = 1
_RELAXED_CAPTURE = 2
_PROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # attributes of a device
_GONE = {4: "the process is ending", 46: "other processes have the GPU to themselves", 100: "there is no GPU"}

FUNCTIONS = (
    "cuStreamBatchMemOp_v2",
    "cuMemcpyAsync",
    "cuMemcpy2DAsync_v2",
    "cuLaunchKernel",
    "cuLaunchHostFunc",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
)
"""The functions that a lane calls, in the order of native/cuda/lane.hpp."""


def refuse_capture() -> None:
    raise UsageError(
        "the stream is being captured into a CUDA graph, and a call between processes cannot be part of one; make the call "
        "outside the capture"
    )


class GpuDriver(Protocol):
    """The GPU driver that staging uses. Tests have one made of NumPy and threads."""

    def context_of(self, pointer: int) -> int:
        """The context to which an address belongs; without an address, the current one."""
        ...

    def within(self, context: int) -> AbstractContextManager[None]:
        """Make a context current; all other functions need one."""
        ...

    def new_stream(self) -> int: ...
    def synchronize(self, stream: int) -> None: ...

    def register(self, address: int, bytes: int) -> None:
        """Let the GPU copy from and to this part of main memory by itself."""
        ...

    def unregister(self, address: int) -> None: ...

    def reached_at(self, address: int) -> int:
        """The GPU's address of registered memory."""
        ...

    def lane(self, context: int) -> _native.Lane:
        """The lane of a context. All calls of this process on that GPU keep their order in it."""
        ...

    # What programs on the GPU need besides (runner.py)

    def allocate(self, bytes: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def handle_of(self, pointer: int) -> bytes:
        """The handle with which another process can `open` this memory; at most 64 bytes."""
        ...

    def open(self, handle: bytes) -> int:
        """The memory of another process, on this GPU, or on one whose memory this one reaches."""
        ...

    def close(self, pointer: int) -> None: ...

    def can_fold(self, op: str, dtype: str) -> bool: ...

    def kernel(self, fold: Fold) -> tuple[int, int]:
        """The kernel for it, as the driver's handle, and its number of blocks."""
        ...


@lru_cache(maxsize=1)
def driver() -> GpuDriver:
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
            [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS], np.uint64
        )
        self._attributes: dict[tuple[int, int], int] = {}
        self._lanes: dict[int, _native.Lane] = {}
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
        mode = ctypes.c_int(_RELAXED_CAPTURE)  # see native/cuda/lane.cpp
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", _address(stream))

    def register(self, address: int, bytes: int) -> None:
        self._call("cuMemHostRegister_v2", _address(address), ctypes.c_size_t(bytes), ctypes.c_uint(_PORTABLE_MAPPED))

    def unregister(self, address: int) -> None:
        self._call("cuMemHostUnregister", _address(address))

    def reached_at(self, address: int) -> int:
        pointer = ctypes.c_void_p()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), _address(address), ctypes.c_uint(0))
        return pointer.value or 0

    def lane(self, context: int) -> _native.Lane:
        if context not in self._lanes:
            with self.within(context):
                stream, aside, word = self.new_stream(), self.new_stream(), self.allocate(4)
                self._call("cuMemsetD32_v2", _address(word), ctypes.c_uint(0), ctypes.c_size_t(1))
            self._lanes[context] = _native.Lane(
                self._functions, context, stream, aside, word, self._refused, refuse_capture
            )
        return self._lanes[context]

    def _refused(self, function: int, status: int) -> None:
        self._check(FUNCTIONS[function], status)

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

    def kernel(self, fold: Fold) -> tuple[int, int]:
        packs = -(-fold.elements * find_dtype(fold.dtype).itemsize // 16)
        blocks = max(1, min(-(-packs // kernels.THREADS), self._most_blocks()))
        return self._load_kernel(fold.op, fold.dtype, len(fold.sources)), blocks

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

    def _load_kernel(self, op: str, dtype: str, sources: int) -> int:
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
        raise DeviceError(f"the GPU's driver rejected {name}: {said} (error {status})")


class _IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def _address(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)
