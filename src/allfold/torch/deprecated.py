"""Names that still work but will be removed; each warns and says what to use instead."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ..communicator.communicator import Communicator
from ..errors import UsageError
from .group import Group
from .shared import communicator_of


class DataParallel(DistributedDataParallel):
    """Deprecated: torch's DistributedDataParallel, which runs on the backend "allfold" and does the same.

    >>> model = allfold.torch.DataParallel(torch.nn.Linear(3, 1, bias=False), comm)
    >>> model(torch.full((1, 3), comm.rank + 1.0)).sum().backward()
    >>> model.module.weight.grad  # the average of 1 and 2
    tensor([[1.5000, 1.5000, 1.5000]])
    """

    def __init__(
        self,
        module: torch.nn.Module,
        communicator: Any = None,
        *,
        bucket_bytes: int = 2**23,
        compress: str | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        """`communicator`: a process group of the backend, torch's default group (None), or a communicator of allfold."""
        warnings.warn(
            "allfold.torch.DataParallel is deprecated; use torch.nn.parallel.DistributedDataParallel after "
            'torch.distributed.init_process_group("allfold")',
            DeprecationWarning,
            stacklevel=2,
        )
        if compress not in (None, "bfloat16"):
            raise UsageError(f'DataParallel: compress must be None or "bfloat16", not {compress!r}')
        group = _group_of(communicator)
        super().__init__(
            module,
            process_group=group,
            bucket_cap_mb=bucket_bytes / 2**20,
            broadcast_buffers=broadcast_buffers,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
        if compress is not None:
            # Wrapped, because torch allows a hook of this name with NCCL only.
            self.register_comm_hook(group, lambda state, bucket: bf16_compress_hook(state, bucket))


def _group_of(given: Any) -> dist.ProcessGroup:
    communicator = communicator_of("DataParallel", given)
    if not isinstance(given, Communicator):
        found: dist.ProcessGroup = dist.group.WORLD if given is None else given
        return found
    own = communicator.group(range(communicator.size))
    assert own is not None  # every rank is in it
    return Group(own, dist.HashStore(), timedelta(seconds=own.timeout), list(range(own.size)))
