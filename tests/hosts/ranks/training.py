"""A small model, trained by torch's DistributedDataParallel on all ranks, and by one process with all the data."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from oracle import Pairs, Tally
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 4, 6, 64


def check(tally: Tally) -> None:
    tally.run("DDP and a single process", _train)


def _train() -> Pairs:
    rank, size = dist.get_rank(), dist.get_world_size()
    data = [
        (torch.randn(BATCH * size, WIDTH, generator=made), torch.randn(BATCH * size, 1, generator=made))
        for made in (torch.Generator().manual_seed(step) for step in range(STEPS))
    ]
    alone = _model(0)
    _steps(alone, alone, data)
    # Other ranks begin with other parameters: DDP has to send those of rank 0.
    ours = _model(rank)
    share = slice(rank * BATCH, (rank + 1) * BATCH)
    _steps(
        DistributedDataParallel(ours, bucket_cap_mb=0.02),
        ours,
        [(inputs[share], targets[share]) for inputs, targets in data],
    )
    flat, wanted = (torch.cat([one.detach().flatten() for one in model.parameters()]) for model in (ours, alone))
    sums: list[Any] = [None] * size
    dist.all_gather_object(sums, zlib.crc32(flat.numpy().tobytes()))
    apart = float((flat - wanted).abs().max())
    return [(torch.tensor(sums), np.full(size, sums[0])), (torch.tensor([float(apart < 1e-4)]), np.ones(1))]


def _model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)
    )


def _steps(forward: Any, model: torch.nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in data:
        optimizer.zero_grad()
        (forward(inputs) - targets).square().mean().backward()
        optimizer.step()
