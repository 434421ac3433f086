"""all_reduce of sparse tensors: every rank gathers the entries of all ranks and adds them up."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import MismatchError, UsageError
from .device import Device, Reduction
from .tensors import concatenated


def all_reduce(device: Device, tensor: Tensor, reduction: Reduction, timeout: float | None) -> None:
    if reduction.name not in ("sum", "avg") or reduction.factor is not None:
        raise UsageError(f"all_reduce: sparse tensors can be reduced with sum and avg, not with {reduction.name}")
    local = tensor.detach().coalesce()
    shape = [local.sparse_dim(), local.dense_dim(), *local.shape]
    facts = device.gather_numbers([local._nnz(), *shape], timeout)
    for rank in range(device.size):
        if facts[rank, 1:].tolist() != shape:
            sparse, dense, *lengths = (int(value) for value in facts[rank, 1:])
            raise MismatchError(
                f"all_reduce: rank {device.rank} called it with a sparse tensor of shape {list(local.shape)} "
                f"({shape[0]} sparse and {shape[1]} dense dimensions), rank {rank} with {lengths} ({sparse} and {dense})"
            )
    counts = [int(count) for count in facts[:, 0]]
    indices = _gather_columns(device, local.indices(), counts, timeout)
    values = _gather_columns(device, local.values().movedim(0, -1), counts, timeout).movedim(-1, 0)
    total = torch.sparse_coo_tensor(indices, values, local.shape).coalesce()
    if reduction.name == "avg":
        total = total / device.size
    with torch.no_grad():  # not on a detached tensor: that would keep its old number of entries
        tensor.copy_(total)


def _gather_columns(device: Device, columns: Tensor, counts: list[int], timeout: float | None) -> Tensor:
    """All ranks' columns, one rank after the other. They are sent as rows, padded to the longest rank's number."""
    longest = max(counts)
    rows = columns.movedim(-1, 0).contiguous()
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: len(rows)] = rows
    table = padded.new_empty((device.size, *padded.shape))
    device.collective("all_gather", padded, table, timeout=timeout)
    return concatenated([table[rank, :count] for rank, count in enumerate(counts)]).movedim(0, -1)
