"""The bytes of tensors: their digests, their addresses, and filling them from a record."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from .. import _native


def is_seen(tensor: torch.Tensor) -> bool:
    """True for a tensor whose bytes can be read here: dense, and in main memory."""
    return tensor.is_cpu and tensor.layout is torch.strided


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements without gaps, in the order of their indices."""
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def digest_of(tensor: torch.Tensor) -> int | None:
    """64 bits of its elements, or None if they cannot be read."""
    if not is_seen(tensor):
        return None
    if not tensor.is_contiguous():
        tensor = in_order(tensor)
    return _native.digest(tensor.data_ptr(), tensor.nbytes, 0)


def spans(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """The addresses and the lengths of tensors without gaps."""
    return [(one.data_ptr(), one.nbytes) for one in tensors]


def fill(tensor: torch.Tensor, contents: memoryview) -> None:
    """Write the elements of a tensor as a backend does: autograd does not notice."""
    if tensor.is_contiguous():
        source = (ctypes.c_char * len(contents)).from_buffer(contents)
        ctypes.memmove(tensor.data_ptr(), source, len(contents))
    elif contents.nbytes:
        whole = torch.frombuffer(contents, dtype=tensor.dtype).view(tensor.shape)
        with torch.inference_mode():
            tensor.data.copy_(whole)
