"""Arrays, as calls have them: the one place in Python that knows NumPy, DLPack, torch and CUDA arrays.

The extension takes the arrays of most calls itself, without any Python (`native/bindings/arrays.hpp`), by the same rules.
torch is never imported here: whoever has a tensor has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..dtypes import Dtype, find_dtype
from ..errors import UsageError, raised_by_handler
from .engine import CUDA, MAIN, Array, UnfitArray

Flat = np.ndarray[Any, np.dtype[Any]]


class Buffer(NamedTuple):
    """A contiguous array: its elements, and where they are. Whoever has made it keeps the array alive."""

    dtype: Dtype
    elements: int
    flat: Flat | None  # in main memory: the elements, in the type that carries them
    address: int = 0  # in a GPU's memory
    stream: int = 0  # of the GPU: what it holds comes before a call, and what is put into it later comes after the call

    @staticmethod
    def of(call: str, array: Array, dtype: str | None, written: bool) -> Buffer:
        """Take an array; `dtype` is the element type where the array does not say it, as for bfloat16 in uint16."""
        if isinstance(array, np.ndarray):
            return _of_numpy(call, array, dtype, written)
        if array is None:
            raise UsageError(f"{call}: expected an array that speaks the buffer protocol or DLPack, got NoneType")
        if memory_of(array) == CUDA:
            return _of_cuda(call, array, dtype, written)
        if str(getattr(array, "dtype", "")).startswith("torch."):
            return _of_torch(call, array, dtype, written)
        if _native.MISSING is not None:
            return _of_other(call, array, dtype, written)
        name, seen = _native.view(call, array, written, dtype)
        kind = find_dtype(name)
        flat = seen.view(kind.carrier)  # from bytes
        return Buffer(kind, flat.size, flat)

    @property
    def pointer(self) -> int:
        return self.address if self.flat is None else self.flat.ctypes.data

    @property
    def place(self) -> tuple[str, int, int]:
        """The facts that distinguish it from every other array that exists at the same time."""
        return self.dtype.name, self.elements, self.pointer

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def in_main_memory(self, call: str) -> Flat:
        if self.flat is None:
            raise UsageError(
                f"{call}: the array is not in this machine's memory; move it there first (torch: tensor.cpu())"
            )
        return self.flat

    def part(self, start: int, stop: int) -> Buffer:
        """Some of the elements, of an array in a GPU's memory."""
        return self._replace(elements=stop - start, address=self.address + start * self.dtype.itemsize)

    def overlaps(self, other: Buffer) -> bool:
        """True if the two have a byte in common."""
        return self.pointer < other.pointer + other.bytes and other.pointer < self.pointer + self.bytes


def memory_of(array: Array) -> str:
    """The kind of memory that an array is in. A torch tensor says so; others have CUDA's interface only there."""
    says_so = getattr(array, "is_cuda", None)
    is_on_gpu = hasattr(type(array), "__cuda_array_interface__") if says_so is None else says_so
    return CUDA if is_on_gpu else MAIN


def mark_as_changed(array: Array) -> None:
    """Make torch's backward reject earlier saved values of a tensor, as after any other in-place operation."""
    if getattr(array, "requires_grad", False):
        sys.modules["torch"].autograd.graph.increment_version(array)


def refuse_masked(call: str, array: Any) -> None:
    # Not np.ma, which is imported when it is first named: 20 ms in every rank, for an array that none can have made.
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise UsageError(
            f"{call}: a masked array's mask would be ignored; pass x.filled(…), or x.data for all elements"
        )


def _of_numpy(call: str, array: Any, dtype: str | None, written: bool) -> Buffer:
    refuse_masked(call, array)
    return _seen(call, np.asarray(array), find_dtype(array.dtype), dtype, written)


def _of_torch(call: str, array: Any, dtype: str | None, written: bool) -> Buffer:
    kind, detached = find_dtype(array.dtype), array.detach()
    if detached.is_nested:
        raise UsageError(f"{call}: the tensor is nested; pass tensor.values(), its elements in one tensor")
    if str(detached.layout) != "torch.strided":
        raise UsageError(f"{call}: the tensor is sparse ({detached.layout}); pass tensor.to_dense()")
    if detached.is_meta:
        raise UsageError(f"{call}: the tensor is on the meta device and has no data")
    try:
        if not detached.is_contiguous():
            raise UnfitArray("the tensor is not contiguous")
        if detached.is_conj() or detached.is_neg():
            raise UnfitArray("the tensor is a lazily conjugated or negated view")
        # NumPy has no bfloat16.
        seen = (detached.view(sys.modules["torch"].uint16) if kind.name == "bfloat16" else detached).numpy()
    except (TypeError, RuntimeError) as error:  # on a device that is neither main memory nor CUDA's
        raise UsageError(f"{call}: {error}") from None
    if written:
        mark_as_changed(array)
    return _seen(call, seen, kind, dtype, written)


def _of_other(call: str, array: Any, dtype: str | None, written: bool) -> Buffer:
    """Without the extension: whatever NumPy can read."""
    try:
        seen = np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(memoryview(array))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        what = f"expected an array that speaks the buffer protocol or DLPack, got {type(array).__name__}"
        raise UsageError(f"{call}: {what}: {error}") from None
    return _seen(call, seen, find_dtype(seen.dtype), dtype, written)


def _seen(call: str, seen: Flat, kind: Dtype, dtype: str | None, written: bool) -> Buffer:
    if dtype is not None and (wanted := find_dtype(dtype)) != kind:
        if (wanted.name, kind.name) != ("bfloat16", "uint16"):
            raise UsageError(f"{call}: the array is {kind}, not {wanted}")
        kind = wanted
    if written and not seen.flags.writeable:
        raise UsageError(f"{call}: the array for the result is read-only")
    if not seen.flags.c_contiguous:
        raise UnfitArray("the array is not contiguous")
    flat = seen if seen.ndim == 1 and seen.dtype == kind.carrier else seen.reshape(-1).view(kind.carrier)
    return Buffer(kind, flat.size, flat)


def _of_cuda(call: str, array: Any, dtype: str | None, written: bool) -> Buffer:
    if getattr(array, "is_cuda", False):
        stream = sys.modules["torch"]._C._cuda_getCurrentRawStream(array.get_device())
        is_contiguous, address, elements, kind = array.is_contiguous(), array.data_ptr(), array.numel(), array.dtype
    else:
        facts = array.__cuda_array_interface__
        kind, strides = np.dtype(facts["typestr"]), facts.get("strides")
        address, elements = facts["data"][0], int(np.prod(facts["shape"], dtype=np.int64))
        dense = np.empty(facts["shape"], np.void(kind.itemsize).dtype).strides if strides is not None else None
        is_contiguous, stream = strides is None or elements == 0 or tuple(strides) == dense, facts.get("stream") or 0
        if written and facts["data"][1]:
            raise UsageError(f"{call}: the array for the result cannot be written")
    if not is_contiguous:
        raise UsageError(f"{call}: the array in a GPU's memory is not contiguous; make a contiguous copy of it first")
    found = find_dtype(kind if dtype is None else dtype)
    if found.itemsize != (kind.itemsize if hasattr(kind, "itemsize") else found.itemsize):
        raise UsageError(f"{call}: the array's elements are {kind}, which cannot be read as {found}")
    if written:
        mark_as_changed(array)
    return Buffer(found, elements, None, address, stream)


# Copies, and new arrays -----------------------------------------------------------------------------------------------


def contiguous(call: str, array: Array) -> Any:
    """The array itself, without gradient tracking, if it is contiguous; otherwise a contiguous copy."""
    if array is None:
        return None
    if type(array).__name__ == "PyCapsule":  # of DLPack
        raise UsageError(f"{call}: this needs a copy, but a capsule can be read only once; pass the array itself")
    if hasattr(array, "detach") and hasattr(array, "contiguous"):  # a torch tensor
        return array.detach().resolve_conj().resolve_neg().contiguous()
    try:
        return np.ascontiguousarray(array)
    except Exception as error:
        if raised_by_handler(error):
            raise
        raise UsageError(f"{call}: {type(array).__name__} cannot be used as an array: {error}") from None


def copied(array: Array) -> Any:
    """A contiguous copy of a contiguous array."""
    return array.clone() if hasattr(array, "detach") and hasattr(array, "clone") else np.array(array)


def overlap(one: Array, other: Array) -> bool:
    """True if two contiguous arrays have a byte in common."""
    return Buffer.of("overlap", one, None, False).overlaps(Buffer.of("overlap", other, None, False))


def check_writable(call: str, array: Array) -> None:
    """Raise for an array that cannot hold a result: a read-only one, or one with several elements at one address."""
    flags = getattr(array, "flags", None)
    if isinstance(array, bytes) or getattr(array, "readonly", not getattr(flags, "writeable", True)):
        raise UsageError(f"{call}: the array for the result is read-only")
    strides = array.stride() if callable(getattr(array, "stride", None)) else getattr(array, "strides", None) or ()
    lengths = getattr(array, "shape", ())
    if any(stride == 0 and length > 1 for stride, length in zip(strides, lengths, strict=False)):
        raise UsageError(
            f"{call}: the array for the result has several elements at the same address (expanded, or broadcast)"
        )


def put_back(target: Array, result: Array) -> None:
    """Copy a result to where it was asked for, unless it is there already: both may share their memory."""
    if hasattr(target, "detach") and target.data_ptr() == result.data_ptr():
        mark_as_changed(target)
    elif hasattr(target, "detach"):
        target.detach().copy_(result)
    else:
        target[...] = result.reshape(np.shape(target))


def shape_of(array: Array) -> tuple[int, ...]:
    return tuple(array.shape) if hasattr(array, "shape") else np.shape(array)


def new_like(call: str, array: Array, shape: Sequence[int]) -> Any:
    """A new array of another one's kind, type and device."""
    if hasattr(array, "new_empty"):
        return array.detach().new_empty(shape)
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    if memory_of(array) != MAIN:
        raise UsageError(f"{call}: pass an output; none of this array's kind can be created here")
    try:
        return np.empty(shape, np.asarray(memoryview(array)).dtype)
    except (TypeError, ValueError):
        raise UsageError(f"{call}: pass an output; none can be created for a {type(array).__name__}") from None


class Kind(NamedTuple):
    """The kind of an array in main memory, as ranks tell each other: it is torch's or NumPy's, and its type."""

    is_torch: bool
    dtype: str

    @staticmethod
    def of(array: Array) -> Kind | None:
        """None if ranks cannot make such arrays."""
        dtype = getattr(array, "dtype", None)
        if dtype is None or memory_of(array) != MAIN:
            return None
        return Kind(hasattr(array, "new_empty"), str(dtype).removeprefix("torch."))

    def new(self, shape: Sequence[int]) -> Any:
        if not self.is_torch:
            return np.empty(tuple(shape), self.dtype)
        import torch

        return torch.empty(tuple(shape), dtype=getattr(torch, self.dtype))
