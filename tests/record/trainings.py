"""Small trainings, as their users write them. Each returns the bytes of its parameters and losses, on every rank."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _bytes(tensors: Any) -> list[bytes]:
    return [one.detach().contiguous().numpy().tobytes() for one in tensors]


def _train(model: nn.Module, parameters: Any, steps: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8) + random.random()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_parallel(rank: int) -> Any:
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)), bucket_cap_mb=0.0005
    )
    return _train(model, model.parameters()), _bytes([*model.parameters(), *model.buffers()])


def fully_sharded(rank: int) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = _layers()
    for one in model:
        if isinstance(one, nn.Linear):
            fully_shard(one)
    fully_shard(model)
    losses = _train(model, model.parameters())
    return losses, _bytes(one.to_local() for one in model.parameters())  # type: ignore[attr-defined]


def tensor_parallel(rank: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(7)  # all ranks have the same input
    model = _layers()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})  # type: ignore[assignment]
    losses = _train(model, model.parameters())
    return losses, _bytes(getattr(one, "to_local", lambda one=one: one)() for one in model.parameters())


def pipeline(rank: int) -> Any:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(7)
    layers = _layers()
    size = dist.get_world_size()
    cut = [0, 2, 5] if size == 2 else [0, 2, 4, 5]
    stage_module = layers[cut[rank] : cut[rank + 1]]
    stage = PipelineStage(stage_module, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.05)
    losses: list[Any] = []
    for _ in range(2):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.randn(4, 8))
        elif rank == size - 1:
            schedule.step(target=torch.randn(4, 4), losses=losses)
        else:
            schedule.step()
        optimizer.step()
    return [one.item() for one in losses], _bytes(stage_module.parameters())


TRAININGS = (data_parallel, fully_sharded, tensor_parallel, pipeline)
