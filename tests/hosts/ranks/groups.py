"""Groups inside a host, across hosts, and in other orders."""

from __future__ import annotations

import socket
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist
from oracle import Pairs, Tally, tensor, values, zeros


def check(tally: Tally) -> None:
    size = dist.get_world_size()
    told: list[Any] = [None] * size
    dist.all_gather_object(told, socket.gethostname())
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(told):
        by_host[host].append(rank)
    hosts = list(by_host.values())
    widest = max(map(len, hosts))
    across = [[members[local] for members in hosts if local < len(members)] for local in range(widest)]
    named = {
        **{f"inside host {number}": members for number, members in enumerate(hosts)},
        **{f"across hosts, number {number} of each": members for number, members in enumerate(across)},
        "all but rank 0": list(range(1, size)),
        "backwards": list(reversed(range(size))),
        "the last alone": [size - 1],
    }
    groups = {name: dist.new_group(members) for name, members in named.items()}
    for name, members in named.items():
        if dist.get_rank() in members:
            _one(tally, name, groups[name])
    tally.run("two levels at once", lambda: _two_levels(hosts, across, groups))
    for group in groups.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()


def _one(tally: Tally, name: str, group: Any) -> None:
    members, rank = dist.get_process_group_ranks(group), dist.get_rank()
    root = members[-1]

    def all_reduce(count: int) -> Pairs:
        mine = tensor(values(count, rank, count), "float32")
        dist.all_reduce(mine, group=group)
        return [(mine, np.sum([values(count, other, count) for other in members], axis=0))]

    def all_gather() -> Pairs:
        whole = zeros(101 * len(members), "int32")
        dist.all_gather_into_tensor(whole, tensor(values(1, rank, 101), "int32"), group=group)
        return [(whole, np.concatenate([values(1, other, 101) for other in members]))]

    def broadcast() -> Pairs:
        mine = tensor(values(2, rank, 55), "float64")
        dist.broadcast(mine, root, group=group)
        return [(mine, values(2, root, 55))]

    def message() -> Pairs:
        if len(members) < 2 or rank not in (members[0], root):
            return []
        mine = tensor(values(3, members[0], 77), "float32")
        if rank == members[0]:
            dist.send(mine, root, group=group)
            return []
        taken = zeros(77, "float32")
        dist.recv(taken, members[0], group=group)
        return [(taken, values(3, members[0], 77))]

    for count in (0, 1, 1023, 300_001):
        tally.run(f"{name}: all_reduce float32[{count}]", partial(all_reduce, count))
    for function in (all_gather, broadcast, message):
        tally.run(f"{name}: {function.__name__}", function)
    dist.barrier(group=group)


def _two_levels(hosts: list[list[int]], across: list[list[int]], groups: dict[str, Any]) -> Pairs:
    """Calls of two overlapping groups that are under way at the same time, and one of the world with them."""
    rank = dist.get_rank()
    host = next(number for number, members in enumerate(hosts) if rank in members)
    column = next(number for number, members in enumerate(across) if rank in members)
    mine = [tensor(values(number, rank, 20_000), "float32") for number in range(3)]
    works = [
        dist.all_reduce(mine[0], group=groups[f"inside host {host}"], async_op=True),
        dist.all_reduce(mine[1], group=groups[f"across hosts, number {column} of each"], async_op=True),
        dist.all_reduce(mine[2], async_op=True),
    ]
    for work in works:
        work.wait()
    sets = (hosts[host], across[column], range(dist.get_world_size()))
    return [
        (got, np.sum([values(number, other, 20_000) for other in members], axis=0))
        for number, (got, members) in enumerate(zip(mine, sets, strict=True))
    ]
