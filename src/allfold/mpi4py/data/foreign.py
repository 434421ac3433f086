"""Memory of other libraries' arrays, by DLPack or by CUDA's array interface, without a copy.

NumPy's own `from_dlpack` refuses to write to arrays of libraries that use an older DLPack, and refuses every device but
the CPU. Here an array of any device may be in a message, if the CPU can read its memory.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import sys
import warnings
from typing import Any

import numpy as np

from .layout import Bytes

_CPU = 1
_REACHED = (_CPU, 3, 11, 13)  # also host memory of CUDA and of ROCm, and CUDA's managed memory
_CUDA = 2
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_write = ctypes.CDLL(None).write
_write.restype, _write.argtypes = ctypes.c_ssize_t, (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


class _OwnedMemory:
    """Keeps the owner of the memory for as long as there is an array of it."""

    def __init__(self, owner: Any, address: int, length: int, is_read_only: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, is_read_only),
        }


def at_address(address: int, length: int, owner: Any = None, is_read_only: bool = False) -> Bytes:
    """Memory of this process, by its address."""
    if length <= 0:
        return np.empty(0, np.uint8)
    return np.asarray(_OwnedMemory(owner, address, length, is_read_only))


def is_foreign(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def is_of_a_device(value: Any) -> bool:
    """True if a library says that the array is in the memory of a GPU."""
    if hasattr(value, "__dlpack__"):
        return _device(value) not in _REACHED
    return hasattr(value, "__cuda_array_interface__")


def array_of_foreign(value: Any, written: bool) -> np.ndarray[Any, Any]:
    """The elements of the array, in one dimension; as bytes if NumPy does not have their type."""
    return _by_dlpack(value, written) if hasattr(value, "__dlpack__") else _by_interface(value, written)


def _device(value: Any) -> int:
    kind, number = value.__dlpack_device__()
    operator.index(number)
    return operator.index(kind)


def _by_dlpack(value: Any, written: bool) -> np.ndarray[Any, Any]:
    device = _device(value)
    more = {} if device == _CPU else {"stream": -1}
    try:
        capsule, name = value.__dlpack__(**more, max_version=(1, 0), copy=False), b"dltensor_versioned"
    except TypeError:  # a library with an older DLPack
        capsule, name = value.__dlpack__(**more), b"dltensor"
    if not _is_valid(capsule, name):
        raise BufferError("message: __dlpack__ returned no tensor, or one that was already used")
    if name == b"dltensor":
        tensor, is_read_only = _Tensor.from_address(_pointer(capsule, name)), False
    else:
        versioned = _Versioned.from_address(_pointer(capsule, name))
        if versioned.version[0] < 1:
            raise BufferError(f"message: got version {versioned.version[0]} of DLPack, expected 1")
        tensor, is_read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    if tensor.ndim < 0 or (tensor.ndim and not tensor.shape):
        raise BufferError(f"message: a tensor with {tensor.ndim} dimensions and no shape")
    size = (tensor.bits * tensor.lanes + 7) // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(one * size for one in tensor.strides[: tensor.ndim]) if tensor.strides else None
    if min(*shape, *(strides or ()), 0, 0) < 0:
        raise BufferError(f"message: a tensor with negative shape {shape} or strides {strides}")
    kind = _KINDS.get(tensor.code, "")
    if tensor.lanes != 1:  # complex numbers, as libraries wrote them before DLPack had them
        kind = "c" if kind == "f" and tensor.lanes == 2 else ""
    address = (tensor.data or 0) + tensor.byte_offset
    return _array(capsule, device, (address, is_read_only, written), shape, strides, kind, size)


def _by_interface(value: Any, written: bool) -> np.ndarray[Any, Any]:
    interface = value.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__ must be a dict, not {type(interface).__name__}")
    fields = {"data": tuple, "typestr": str, "shape": tuple, "strides": tuple, "descr": list}
    for name in ("data", "typestr", "shape"):
        if not isinstance(interface[name], fields[name]):
            raise _wrong(f"{name} must be a {fields[name].__name__}, not {interface[name]!r}", TypeError)
    for name in ("strides", "descr"):
        if not isinstance(interface.get(name), (fields[name], type(None))):
            raise _wrong(f"{name} must be a {fields[name].__name__}, not {interface[name]!r}", TypeError)
    (address, is_read_only), typestr, shape = (interface[name] for name in ("data", "typestr", "shape"))
    order, kind, size = typestr[:1], typestr[1:2], int(typestr[2:])
    strides, descr = interface.get("strides"), interface.get("descr")
    if order not in ("|", "<" if sys.byteorder == "little" else ">"):
        raise _wrong(f"{typestr!r} does not have the byte order of this machine")
    if interface.get("mask") is not None:
        raise _wrong("an array with a mask cannot be in a message")
    if math.prod(shape) < 0:
        raise _wrong(f"the shape {shape} is negative")
    if descr is not None and descr != [("", typestr)]:
        warnings.warn("__cuda_array_interface__: ignoring 'descr' key", RuntimeWarning, stacklevel=5)
    return _array(value, _CUDA, (address or 0, is_read_only, written), shape, strides, kind, size)


def _wrong(why: str, kind: type[Exception] = BufferError) -> Exception:
    return kind(f"__cuda_array_interface__: {why}")


def _array(
    owner: Any,
    device: int,
    memory: tuple[int, bool, bool],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    kind: str,
    size: int,
) -> np.ndarray[Any, Any]:
    address, is_read_only, written = memory
    if strides is not None and not any(_is_packed(shape, strides, size, step) for step in (1, -1)):
        raise BufferError(f"message: the buffer is not contiguous: shape {shape}, strides {strides}")
    if is_read_only and written:
        raise BufferError("message: the buffer is read-only")
    length = math.prod(shape) * size
    if length and device not in _REACHED and not _is_readable(address):
        raise BufferError(
            "message: this array is in a GPU's memory: copy it to main memory, or use allfold's own calls"
        )
    data = at_address(address, length, owner, is_read_only)
    try:
        return data.view(f"{kind}{size}" if kind and kind in "biufc" else np.uint8)
    except TypeError:  # NumPy has no such type
        return data


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...], size: int, order: int) -> bool:
    """True if the array has no gaps, in C's order (-1) or Fortran's (1)."""
    for length, stride in list(zip(shape, strides, strict=True))[::order]:
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def _is_readable(address: int) -> bool:
    """True if the CPU can read this address. The kernel tries it, because a failed read would end this process."""
    reader, writer = os.pipe()
    try:
        return bool(_write(writer, address, 1) == 1)
    finally:
        os.close(reader)
        os.close(writer)
