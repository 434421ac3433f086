"""Tests with ranks that share one GPU, as `allfold.testing` runs them: `make test-gpu`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("make test-gpu needs a GPU, and there is none", allow_module_level=True)

from allfold.errors import RankFailed  # noqa: E402
from allfold.testing import run  # noqa: E402

RANKS = 4


def model_and_data() -> tuple[Any, Any]:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    return layers.cuda(), torch.randn(RANKS * 8, 16).cuda()


def step(model: Any, data: Any) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
    return float(model(data).detach().square().mean())


def train(group: Any, how: str) -> float:
    import torch.distributed as dist

    assert torch.cuda.current_device() == 0
    model, data = model_and_data()
    mine = data.chunk(RANKS)[group.rank()]
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    loss = torch.tensor(step(model, mine), device="cuda")
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return float(loss)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_training_on_one_gpu(how: str, keep: bool) -> None:
    expected = step(*model_and_data())
    losses = run(train, RANKS, args=(how,), backend="allfold", device="cuda:0", timeout=120, keep=keep)
    assert losses == pytest.approx([expected] * RANKS, rel=1e-4)


def uneven_batches(group: Any, extra: int) -> tuple[str, str]:
    import torch.distributed as dist

    # Calls on the GPU are not compared with a barrier, so the timeout ends them.
    brief = dist.new_group(timeout=timedelta(seconds=5))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).cuda(), process_group=brief)
    try:
        for _ in range(1 + extra * (group.rank() == 0)):
            model(torch.ones(1, 1, device="cuda")).sum().backward()
        dist.barrier(brief)
        torch.cuda.synchronize()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "no error"


@pytest.mark.parametrize("extra", [1, 2])
def test_a_rank_with_more_batches_gets_an_error_in_backward(extra: int) -> None:
    results = run(uneven_batches, ranks=2, args=(extra,), backend="allfold", device="cuda:0", timeout=120)
    for rank, (kind, text) in enumerate(results):
        assert kind and f"rank {1 - rank}" in text, results


def keep_a_tensor(group: Any) -> None:
    if group.rank() == 1:
        torch.kept_by_a_test = torch.ones(1 << 18, device="cuda")


@pytest.mark.parametrize("keep", [False, True])
def test_a_tensor_that_is_kept_on_the_gpu_fails_the_test(keep: bool) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 2 left behind: 1,048,576 bytes of GPU memory"):
        run(keep_a_tensor, 2, backend="allfold", device="cuda:0", timeout=120, keep=keep)


def test_every_rank_with_a_gpu_of_its_own() -> None:
    """As nccl needs it; on a machine with too few, the message says which rank found none."""
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(
        RankFailed, match=rf"device='cuda': rank {ranks - 1} would use GPU {ranks - 1}, and torch finds"
    ):
        run(train, ranks, args=("ddp",), backend="nccl", device="cuda", timeout=60)


def alone(group: Any) -> float:
    import torch.distributed as dist

    x = torch.ones(3, device="cuda")
    dist.all_reduce(x)
    return float(x.sum())


def test_nccl() -> None:
    assert run(alone, 1, backend="nccl", device="cuda", timeout=60) == [3.0]
