"""Other devices of a group: with `cpu:allfold,cuda:nccl`, nccl handles CUDA tensors, and is set up on first use.

Where CUDA tensors are allfold's own, they are handled in cuda.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..errors import UsageError


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """The backend of every device type, as requested for the group."""
    config = c10d._world.pg_backend_config.get(group, "cpu:allfold,cuda:allfold")
    return dict(pair.split(":", 1) for pair in str(config).split(","))


def make_backend(
    group: dist.ProcessGroup, device: torch.device, store: dist.Store, timeout: timedelta, ranks: list[int]
) -> Any:
    """The backend of another device. All ranks take part in the call, as in the first use of a device."""
    name = backends_of(group).get(device.type, "allfold")
    if name == "allfold":
        raise UsageError(
            f"the tensor is on {device}, and allfold serves CPU and CUDA tensors; move it there with .cpu(), or name a backend "
            f'for it too: init_process_group("cpu:allfold,{device.type}:…")'
        )
    rank, size = group.rank(), group.size()
    store = dist.PrefixStore(f"{device.type}/", store)
    if name == "gloo":
        made = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        # A rank that leaves at once would close connections that others have not found to be made yet.
        c10d._store_based_barrier(rank, store, "made", size, timeout)
        return made
    if name == "nccl":
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group = ranks
        options.group_name = group.group_name
        return c10d.ProcessGroupNCCL(store, rank, size, options)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None:
        raise UsageError(
            f"this group was asked to serve {device.type} with {name}, which allfold does not know how to make"
        )
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    asked = c10d._DistributedBackendOptions()
    asked.store, asked.group_rank, asked.group_size = store, rank, size
    asked.timeout, asked.group_id, asked.global_ranks_in_group = timeout, group.group_name, ranks
    return plugin.creator_fn(asked, None)
