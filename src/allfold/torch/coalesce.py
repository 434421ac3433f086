"""Several tensors in one call: small ones are packed together, large ones are sent one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from .device import Device, Reduction
from .tensors import SMALL_BYTES, concatenated, plain


def all_reduce(device: Device, tensors: list[Tensor], reduction: Reduction, timeout: float | None) -> None:
    together: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() <= SMALL_BYTES:
            together.setdefault(tensor.dtype, []).append(tensor)
        else:
            device.collective("all_reduce", None, tensor, reduction, timeout=timeout)
    for small in together.values():
        whole = concatenated([plain(tensor).view(-1) for tensor in small])
        device.collective("all_reduce", None, whole, reduction, timeout=timeout)
        start = 0
        for tensor in small:
            tensor.detach().copy_(whole[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()


def one_by_one(
    device: Device, name: str, tensors: list[Tensor], outputs: list[Tensor], reduction: Reduction, timeout: float | None
) -> None:
    for tensor, output in zip(tensors, outputs, strict=True):
        device.collective(name, tensor, output, reduction, timeout=timeout)
