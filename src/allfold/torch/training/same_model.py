"""Before anything is shared: is the module fit to be trained by all ranks, and is it the same on all of them?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...communicator.communicator import Communicator
from ...errors import MismatchError, UsageError


def check_module(module: torch.nn.Module, bucket_bytes: int, compress: str | None) -> None:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"DataParallel: expected a torch.nn.Module, got {module!r}")
    if compress not in (None, "bfloat16"):
        raise UsageError(f'DataParallel: compress is None or "bfloat16", not {compress!r}')
    if bucket_bytes < 1:
        raise UsageError(f"DataParallel: bucket_bytes must be at least 1, not {bucket_bytes}")
    for kind, name, tensor in _tensors_of(module):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise UsageError(f"DataParallel: {kind} {name} has no shape yet; run the module once, then wrap it")
        if tensor.device.type != "cpu":
            raise UsageError(
                f"DataParallel: {kind} {name} is on {tensor.device}, and allfold reduces in main memory; put the module "
                "there with .cpu(), or use torch's DistributedDataParallel with nccl"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError("DataParallel: no parameter of the module requires a gradient, so there is nothing to reduce")


def check_same(communicator: Communicator, module: torch.nn.Module, **options: Any) -> None:
    """All ranks raise the same error, about the first rank whose model differs from that of rank 0."""
    own = [f"{name}={value!r}" for name, value in options.items()]
    for kind, name, tensor in _tensors_of(module):
        frozen = " (frozen)" if kind == "parameter" and not tensor.requires_grad else ""
        own.append(f"{kind} {name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{frozen}")
    first, *others = (json.loads(text) for text in everybodys(communicator, json.dumps(own)))
    for rank, other in enumerate(others, start=1):
        for there, here in zip_longest(other, first, fillvalue="nothing more"):
            if here != there:
                raise MismatchError(
                    f"DataParallel: rank {rank} has {there}, where rank 0 has {here}; all ranks must wrap the same model in "
                    "the same way"
                )


def everybodys(communicator: Communicator, own: str) -> list[str]:
    """The texts of all ranks, by rank."""
    text = np.frombuffer(own.encode(), np.uint8)
    lengths = np.zeros(communicator.size, np.int64)
    communicator.all_gather(np.array([len(text)], np.int64), lengths)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(text)] = text
    table = np.zeros((communicator.size, len(padded)), np.uint8)
    communicator.all_gather(padded, table)
    return [row[:length].tobytes().decode() for row, length in zip(table, lengths, strict=True)]


def _tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers():
        yield "buffer", name, buffer
