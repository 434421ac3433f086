"""Tensors in memory that the ranks share: collectives on them, and on their views and slices, copy nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..communicator.communicator import Communicator
from ..errors import UsageError


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: Any = None,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """`torch.empty` in memory that the ranks of this host share, or with `device="cuda"` in memory of a GPU.

    An all_reduce of such a tensor costs less than a copy of it. `group` is a process group of the backend "allfold" or,
    for main memory, a communicator of allfold; None is torch's default group. The memory is freed with the last view
    of it. On a GPU the function is collective: all ranks of the group call it, with the same size. The memory is reused
    once all of them have dropped the tensor, and in a call all of them must pass the same part of the same tensor.

    >>> x = allfold.torch.empty(2, 2)
    >>> x[:] = 1
    >>> dist.all_reduce(x)  # copies nothing
    >>> x
    tensor([[2., 2.],
            [2., 2.]])
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise UsageError(f"empty: expected non-negative lengths, not {shape}")
    wanted = torch.get_default_dtype() if dtype is None else dtype
    where = torch.device("cpu" if device is None else device)
    if where.type == "cuda":
        return _on_gpu(group, prod(shape) * wanted.itemsize, where).view(wanted).view(shape)  # type: ignore[arg-type]
    if where.type != "cpu":
        raise UsageError(f'empty: there is no shared memory on {where}; expected device="cpu" or "cuda"')
    array = communicator_of("empty", group).empty(prod(shape), str(wanted).removeprefix("torch."))  # type: ignore[arg-type]
    return torch.from_numpy(array).view(wanted).view(shape)  # type: ignore[arg-type]


def _on_gpu(group: Any, bytes: int, device: torch.device) -> torch.Tensor:
    from .cuda import Gpu
    from .group import Group

    if isinstance(group, Communicator):
        raise UsageError('empty: with device="cuda", pass a process group of torch, not a communicator')
    communicator_of("empty", group)
    found = torch.distributed.group.WORLD if group is None else group
    assert isinstance(found, Group)
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    served = found.serving(device)
    if not isinstance(served, Gpu):
        raise UsageError("empty: another backend serves CUDA tensors in this group, not allfold")
    return served.empty(bytes, device)


def communicator_of(caller: str, given: Any) -> Communicator:
    """The given communicator, or that of the given process group; None: that of torch's default group."""
    found = given
    if found is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise UsageError(
                f"{caller}: no communicator; pass one (from allfold.init() or allfold.spawn), or call "
                'torch.distributed.init_process_group("allfold") first'
            )
        found = torch.distributed.group.WORLD
    found = getattr(found, "communicator", found)
    if not isinstance(found, Communicator):
        raise UsageError(
            f"{caller}: expected a communicator of allfold or a process group of its backend, not {found!r}; start "
            'torch with torch.distributed.init_process_group("allfold")'
        )
    return found
