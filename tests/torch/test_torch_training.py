"""torch's own ways to train, on the backend: they give the same small model as gloo, or as one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch_ranks import run_ranks

from allfold.errors import MismatchError
from allfold.testing import run

RANKS, STEPS, ROWS = 2, 3, 8


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(11)
    return [(torch.randn(RANKS * ROWS, 6), torch.randn(RANKS * ROWS, 4)) for _ in range(STEPS)]


def train(model: nn.Module, rank: int | None) -> list[float]:
    """Train on the rank's part of every batch, or on all of it; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches():
        if rank is not None:
            inputs, targets = inputs[rank * ROWS : (rank + 1) * ROWS], targets[rank * ROWS : (rank + 1) * ROWS]
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(model: nn.Module) -> list[list[float]]:
    return [value.detach().flatten().tolist() for value in model.state_dict().values()]


def alone() -> list[list[float]]:
    model = make_model()
    train(model, None)
    return weights(model)


# What a rank does; each gives the weights of the whole model ----------------------------------------------------------


def ddp(rank: int, **how: Any) -> list[list[float]]:
    model = nn.parallel.DistributedDataParallel(make_model(), **how)
    train(model, rank)
    return weights(model.module)


def ddp_in_small_buckets(rank: int) -> list[list[float]]:
    return ddp(rank, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)


def ddp_with_unused_parameters(rank: int) -> list[list[float]]:
    model = make_model()
    model.unused = nn.Parameter(torch.ones(3))
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    train(wrapped, rank)
    assert torch.equal(model.unused.detach(), torch.ones(3))
    del model.unused
    return weights(model)


def ddp_with_a_hook(rank: int) -> list[list[float]]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = nn.parallel.DistributedDataParallel(make_model())
    model.register_comm_hook(None, allreduce_hook)
    train(model, rank)
    return weights(model.module)


def deprecated_data_parallel(rank: int) -> list[list[float]]:
    """It takes a group of torch or a communicator of allfold, and compresses if it is asked to."""
    from allfold.torch import DataParallel

    model = make_model()
    with pytest.warns(DeprecationWarning, match="use torch.nn.parallel.DistributedDataParallel"):
        train(DataParallel(make_model(), compress="bfloat16"), rank)
    for given in (None, dist.group.WORLD.communicator):  # type: ignore[union-attr]
        with pytest.warns(DeprecationWarning, match="allfold.torch.DataParallel"):
            wrapped = DataParallel(model := make_model(), given, bucket_bytes=1000)
        train(wrapped, rank)
    return weights(model)


def ddp_in_detail(rank: int) -> list[list[float]]:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # what TORCH_DISTRIBUTED_DEBUG=DETAIL sets
    return ddp(rank, process_group=dist.new_group())


def fsdp(rank: int) -> list[list[float]]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, rank)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank != 0:
        return []
    return [whole[name].flatten().tolist() for name in make_model().state_dict()]


def tensor_parallel(rank: int) -> list[list[float]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (RANKS,))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, None)
    whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.state_dict().values()]
    return [value.flatten().tolist() for value in whole]


AS_ALONE = (
    ddp,
    ddp_in_small_buckets,
    ddp_with_unused_parameters,
    ddp_with_a_hook,
    deprecated_data_parallel,
    ddp_in_detail,
    fsdp,
    tensor_parallel,
)


def in_every_way(rank: int) -> dict[str, list[list[float]]]:
    return {way.__name__: way(rank) for way in AS_ALONE}


@functools.cache
def trained(hosts: int) -> list[dict[str, list[list[float]]]]:
    return run_ranks(in_every_way, RANKS, hosts=hosts)


def check_training(results: list[list[list[float]]]) -> None:
    wanted = alone()
    assert any(results)
    for result in filter(None, results):
        for came, expected in zip(result, wanted, strict=True):
            assert torch.allclose(torch.tensor(came), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("way", AS_ALONE, ids=lambda way: way.__name__)
def test_training_gives_what_one_process_gives(way: Callable[[int], Any], hosts: int) -> None:
    check_training([results[way.__name__] for results in trained(hosts)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", AS_ALONE, ids=lambda way: way.__name__)
def test_training_by_itself_gives_what_one_process_gives(way: Callable[[int], Any]) -> None:
    check_training(run_ranks(way, RANKS))


# Against gloo, bit by bit where two ranks add two numbers -------------------------------------------------------------


def ddp_with_power_sgd(rank: int) -> list[list[float]]:
    """Its hook makes further calls from callbacks of futures, and waits for them there.

    One bucket: with several, the order depends on the threads, with gloo as well as here; here the ranks notice.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    model = nn.parallel.DistributedDataParallel(make_model())
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, power.powerSGD_hook)
    train(model, rank)
    return weights(model.module)


def ddp_with_halved_gradients(rank: int) -> list[list[float]]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = nn.parallel.DistributedDataParallel(make_model())
    model.register_comm_hook(None, fp16_compress_hook)
    train(model, rank)
    return weights(model.module)


class Branches(nn.Module):
    """Which layers are used depends on the step and on the rank; one is never used, and one has another type."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.ModuleList(nn.Linear(6, 4) for _ in range(4))
        self.wide = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, inputs: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        flat = self.norm(inputs)
        output: torch.Tensor = self.layers[(rank + step) % 3](flat) + self.layers[0](flat)
        return output + self.wide(flat.double()).float()


def ddp_that_accumulates_and_clips(rank: int) -> list[list[float]]:
    module = Branches()
    model = nn.parallel.DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        with model.no_sync():
            F.mse_loss(model(inputs[rank::RANKS] * 0.5, rank, step + 1), targets[rank::RANKS]).backward()
        F.mse_loss(model(inputs[rank::RANKS], rank, step), targets[rank::RANKS]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return weights(module)


def join_with_uneven_inputs(rank: int) -> list[list[float]]:
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for inputs, targets in batches()[: 1 + 2 * rank]:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return weights(model.module)


def sparse_gradients(rank: int) -> list[list[float]]:
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.EmbeddingBag(10, 4, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.tensor([[rank, step + 1, 5]])).sum().backward()
        optimizer.step()
    return weights(model.module)


def functional_collectives(rank: int) -> list[list[float]]:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    tensor = torch.arange(8.0) + rank
    results = [
        functional.all_reduce(tensor, "sum", group),
        functional.all_reduce(tensor, "avg", group),
        functional.all_gather_tensor(tensor, 0, group),
        functional.reduce_scatter_tensor(tensor, "sum", 0, group),
        functional.all_to_all_single(tensor, None, None, group),
        functional.all_to_all_single(tensor[: 3 + 2 * rank], [1 + rank, 2 + rank], [1 + rank, 2 + rank], group),
        functional.broadcast(tensor, 1, group),
        *functional.all_reduce_coalesced([tensor, tensor * 2], "max", group),
        *functional.all_gather_into_tensor_coalesced([tensor, tensor * 2], group),
        *functional.reduce_scatter_tensor_coalesced([tensor, tensor * 2], "sum", [0, 0], group),
    ]
    return [functional.wait_tensor(result).tolist() for result in results]


def compiled(rank: int) -> list[list[float]]:
    import torch.distributed._functional_collectives as functional

    name = dist.group.WORLD.group_name

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x @ w, "sum", name)
        return functional.all_gather_tensor(torch.relu(total), 0, name) + 1

    x, w = torch.ones(3, 4) * (rank + 1), torch.ones(4, 2, requires_grad=True)
    return [step(x, w.detach()).flatten().tolist()]


def compiled_all_reduce(rank: int) -> list[list[float]]:
    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return [step(torch.ones(3) * rank).tolist()]


def all_reduce_that_the_compiler_does_not_know(rank: int) -> list[list[float]]:
    """As if another function had been put in its place: the caller's graph breaks, and the call is made unchanged."""
    import torch.distributed._functional_collectives as functional

    functional.traceable_collective_remaps.pop(dist.all_reduce, None)
    return compiled_all_reduce(rank)


def compiled_calls_that_break_the_graph(rank: int) -> list[list[float]]:
    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        assert work is not None
        work.wait()
        dist.barrier()
        dist.reduce(y, 0)
        everyones = [torch.empty_like(y) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, y)
        return everyones[0] + 1

    return [step(torch.ones(3) * (rank + 1)).tolist()]


def distributed_tensors(rank: int) -> list[list[float]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(5)
    a, b = torch.randn(6, 5), torch.randn(5, 7)  # nothing divides equally
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    rows = product.redistribute(mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    return [one.redistribute(mesh, [Replicate()]).to_local().flatten().tolist() for one in (product, rows, columns)]


LIKE_GLOO = (
    ddp,
    ddp_with_power_sgd,
    ddp_with_halved_gradients,
    ddp_that_accumulates_and_clips,
    join_with_uneven_inputs,
    sparse_gradients,
    functional_collectives,
    compiled,
    compiled_all_reduce,
    all_reduce_that_the_compiler_does_not_know,
    compiled_calls_that_break_the_graph,
    distributed_tensors,
    fsdp,
)


def one_after_the_other(rank: int) -> dict[str, Any]:
    return {way.__name__: way(rank) for way in LIKE_GLOO}


@functools.cache
def results(backend: str) -> list[dict[str, Any]]:
    return run_ranks(one_after_the_other, RANKS, backend=backend)


@pytest.mark.parametrize("way", LIKE_GLOO, ids=lambda way: way.__name__)
def test_everything_gives_what_gloo_gives(way: Callable[[int], Any]) -> None:
    ours, theirs = ([one[way.__name__] for one in results(backend)] for backend in ("allfold", "gloo"))
    assert ours == theirs


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", LIKE_GLOO, ids=lambda way: way.__name__)
def test_everything_by_itself_gives_what_gloo_gives(way: Callable[[int], Any]) -> None:
    assert run_ranks(way, RANKS) == run_ranks(way, RANKS, backend="gloo")


def _uneven_batches(process_group: object, extra: int) -> str:
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    try:
        for _ in range(1 + extra * (dist.get_rank() == 0)):
            model(torch.ones(1, 1)).sum().backward()
        dist.barrier()
    except (MismatchError, RuntimeError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("extra", [1, 2])
def test_a_rank_with_more_batches_gets_an_error_in_backward(extra: int) -> None:
    """The reducer of DDP reads the value of a future whose call has failed; it crashed there."""
    errors = run(_uneven_batches, ranks=2, args=(extra,), backend="allfold", timeout=120)
    assert all(
        "mismatched calls: rank 0 called " in error and "rank 1 called barrier()" in error for error in errors
    ), errors
