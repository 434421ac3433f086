"""Devices that another backend serves: with `cpu:allfold,cuda:nccl`, NCCL takes CUDA tensors. It is created on first use.

Where allfold serves CUDA tensors, see cuda.py.
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
    """Create the backend that serves another device. Collective."""
    name = backends_of(group).get(device.type, "allfold")
    if name == "allfold":
        raise UsageError(
            f"the tensor is on {device}, but allfold takes only CPU and CUDA tensors; move it with .cpu(), or name a backend "
            f'for {device.type}: init_process_group("cpu:allfold,{device.type}:…")'
        )
    rank, size = group.rank(), group.size()
    store = dist.PrefixStore(f"{device.type}/", store)
    if name == "gloo":
        made = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        # Otherwise a rank that leaves at once would close connections that other ranks are still opening.
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
            f"this group uses the backend {name} for {device.type} tensors, and allfold cannot create that backend"
        )
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    asked = c10d._DistributedBackendOptions()
    asked.store, asked.group_rank, asked.group_size = store, rank, size
    asked.timeout, asked.group_id, asked.global_ranks_in_group = timeout, group.group_name, ranks
    return plugin.creator_fn(asked, None)
