"""Several tensors in one call: the small ones travel together, the large ones by themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from .device import Device, Reduction
from .tensors import in_a_row, plain

_SMALL_BYTES = 256 * 1024  # of one tensor: up to here a copy costs less than another call


def all_reduce(device: Device, tensors: list[Tensor], reduction: Reduction, timeout: float | None) -> None:
    together: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() <= _SMALL_BYTES:
            together.setdefault(tensor.dtype, []).append(tensor)
        else:
            device.all_reduce(tensor, reduction, timeout)
    for small in together.values():
        whole = in_a_row([plain(tensor).view(-1) for tensor in small])
        device.all_reduce(whole, reduction, timeout)
        start = 0
        for tensor in small:
            tensor.detach().copy_(whole[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()
