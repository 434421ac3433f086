"""Checks of tensors, and their conversion to what the engine takes: dense and contiguous, on the right device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack as to_dlpack  # type: ignore[attr-defined]  # documented, and not exported

from .._native import MISSING
from ..dtypes import DTYPES
from ..engines.buffer import contiguous
from ..errors import UsageError

# The types that the engine can reduce. All others can still be moved, as bytes.
ENGINE_DTYPES = frozenset(getattr(torch, name) for name in DTYPES)
SMALL_BYTES = 256 * 1024  # of one tensor: up to here a copy costs less than another call
_STRIDED = torch.strided
_ORDINARY = frozenset((Tensor, torch.nn.Parameter))  # those that have memory of their own


def for_message(tensor: Tensor) -> Any:
    """A tensor in the form in which the extension takes it fastest; the tensor itself where there is no extension."""
    return to_dlpack(tensor) if MISSING is None else tensor


def is_plain(tensor: Tensor) -> bool:
    """True if the tensor's memory can be used directly."""
    return (
        tensor.__class__ in _ORDINARY
        and tensor.layout is _STRIDED
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )


def is_ready(tensor: Tensor) -> bool:
    """True if the engine can use the tensor directly: plain, and of a type that it knows."""
    return (  # not by `is_plain`: another function takes noticeable time in small calls
        tensor.__class__ in _ORDINARY
        and tensor.dtype in ENGINE_DTYPES
        and tensor.layout is _STRIDED
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )


def plain(tensor: Tensor) -> Tensor:
    """The tensor without its autograd history, contiguous: a view if possible, else a copy."""
    made: Tensor = contiguous("", unwrapped(tensor))
    return made


def as_moved(tensor: Tensor) -> Tensor:
    """A plain tensor, viewed as bytes if the engine does not know its type."""
    return tensor if tensor.dtype in ENGINE_DTYPES else tensor.reshape(-1).view(torch.uint8)


def check(call: str, *tensors: Any) -> None:
    """Raise unless all of these are tensors that this backend supports, on one device."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise UsageError(f"{call}: expected a tensor, got a {type(tensor).__name__}")
        if tensor.device != tensors[0].device:
            raise UsageError(
                f"{call}: a tensor is on {tensor.device}, another one of the same call on {tensors[0].device}; all must be "
                "on the same device"
            )
        if tensor.layout is not _STRIDED:
            raise UsageError(
                f"{call}: the tensor is sparse ({tensor.layout}); only all_reduce on the CPU takes sparse tensors "
                "(torch.sparse_coo). Make it dense with .to_dense()"
            )


def check_times(call: str, what: str, whole: Tensor, size: int, part_name: str, part: Tensor) -> None:
    """Raise unless `whole` has the type of `part`, and `size` times its elements."""
    if whole.numel() != size * part.numel() or whole.dtype != part.dtype:
        raise UsageError(
            f"{call}: the {what} is {describe(whole)} and the {part_name} {describe(part)}; expected the same type, and "
            f"{size} × {part.numel()} = {size * part.numel()} elements in the {what}"
        )


def check_reducible(call: str, tensor: Tensor) -> None:
    if tensor.dtype not in ENGINE_DTYPES:
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in ENGINE_DTYPES))
        raise UsageError(f"{call}: {describe(tensor)} cannot be reduced; convert it to one of {known}")


def check_alike(call: str, what: str, tensors: list[Tensor], like: Tensor) -> None:
    """Raise unless all tensors have the type of `like`."""
    for place, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise UsageError(
                f"{call}: place {place} of the {what} is {describe(tensor)}, expected the type of {describe(like)}"
            )


def check_length(call: str, what: str, tensors: list[Any], size: int) -> None:
    if len(tensors) != size:
        raise UsageError(f"{call}: the {what} has {len(tensors)} tensors, expected one for each of {size} ranks")


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def joined(tensors: list[Tensor]) -> Tensor | None:
    """One flat tensor over all of these, if they are adjacent in memory, as they are after torch splits a tensor."""
    tensors = [tensor for tensor in tensors if tensor.numel()] or tensors  # empty ones have no address
    first = tensors[0]
    if not is_plain(first):
        return None
    place, step = first.data_ptr(), first.element_size()
    for tensor in tensors:
        if not is_plain(tensor) or tensor.data_ptr() != place:
            return None
        place += tensor.numel() * step
    total = sum(tensor.numel() for tensor in tensors)
    storage = first.untyped_storage()
    if total == 0 or place > storage.data_ptr() + storage.nbytes():  # adjacent by chance, in different storages
        return None
    return first.detach().as_strided((total,), (1,), first.storage_offset())


def concatenated(tensors: list[Tensor]) -> Tensor:
    """A copy of all of these, one after the other. Not by torch.cat, which changes or rejects types under autocast."""
    whole = tensors[0].new_empty((sum(len(tensor) for tensor in tensors), *tensors[0].shape[1:]))
    start = 0
    for tensor in tensors:
        whole[start : start + len(tensor)].copy_(tensor)
        start += len(tensor)
    return whole


def unwrapped(tensor: Tensor) -> Tensor:
    """A tensor that has memory: the result of a functional collective is unwrapped, other wrappers are rejected."""
    if tensor.__class__ in _ORDINARY:
        return tensor
    if hasattr(tensor, "trigger_wait"):  # torch's AsyncCollectiveTensor
        inside: Tensor = tensor.trigger_wait()
        return inside
    if hasattr(tensor, "__tensor_flatten__"):
        raise UsageError(
            f"a {type(tensor).__name__} has no memory of its own; pass the tensor inside it (of a DTensor: .to_local())"
        )
    return tensor.as_subclass(Tensor)
