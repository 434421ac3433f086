"""torch.distributed on CUDA tensors, several ranks on one GPU: `make test-gpu`. Without a GPU everything is skipped.

The reference is the CPU: every function runs on CPU tensors in the same group, and must give the same bits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("make test-gpu needs a GPU, and there is none", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

RANKS = [1, 2, 4]
LENGTHS = [0, 1, 1001, 300_007, 9_000_001]  # without MPS, the longer ones go on the GPU


def filled(rank: int, length: int, dtype: Any) -> Any:
    values = torch.arange(length) % 97 + rank
    return values.to(dtype) if dtype.is_floating_point or dtype.is_complex else (values % 50).to(dtype)


def functions(rank: int, size: int, length: int, dtype: Any, device: str) -> dict[str, Any]:
    """The results of every function on tensors of a device."""
    mine = filled(rank, length, dtype).to(device)
    many = filled(rank, length * size, dtype).to(device)
    can_reduce = dtype not in (torch.bool, torch.float8_e4m3fn)
    results: dict[str, Any] = {}
    if can_reduce:
        for name, op in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX)):
            if not (dtype.is_complex and name == "max"):
                results[f"all_reduce {name}"] = mine.clone()
                dist.all_reduce(results[f"all_reduce {name}"], op)
        if dtype.is_floating_point:
            results["all_reduce avg"] = mine.clone()
            dist.all_reduce(results["all_reduce avg"], dist.ReduceOp.AVG)
        results["reduce"] = mine.clone()
        dist.reduce(results["reduce"], size - 1)
        results["reduce_scatter_tensor"] = torch.zeros_like(mine)
        dist.reduce_scatter_tensor(results["reduce_scatter_tensor"], many)
        results["reduce_scatter"] = torch.zeros_like(mine)
        dist.reduce_scatter(results["reduce_scatter"], list(many.chunk(size)) if length else [mine.clone()] * size)
    results["broadcast"] = mine.clone()
    dist.broadcast(results["broadcast"], size - 1)
    results["all_gather_into_tensor"] = torch.zeros_like(many)
    dist.all_gather_into_tensor(results["all_gather_into_tensor"], mine)
    results["all_gather"] = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(results["all_gather"], mine)
    results["all_to_all_single"] = torch.zeros_like(many)
    dist.all_to_all_single(results["all_to_all_single"], many)
    results["gather"] = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else []
    dist.gather(mine, results["gather"] or None, 0)
    results["scatter"] = torch.zeros_like(mine)
    dist.scatter(results["scatter"], [one.contiguous() for one in many.view(size, -1)] if rank == 0 else None, 0)
    # Uneven parts: rank r sends r + 1 elements to everybody.
    uneven = torch.zeros(sum(other + 1 for other in range(size)), dtype=dtype, device=device)
    dist.all_to_all_single(
        uneven,
        filled(rank, (rank + 1) * size, dtype).to(device),
        [other + 1 for other in range(size)],
        [rank + 1] * size,
    )
    results["all_to_all_single uneven"] = uneven
    return results


def flat(results: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.cat(value).cpu() if isinstance(value, list) and value else value for name, value in results.items()
    }


def compare(rank: int, size: int, lengths: list[int], dtype_name: str) -> list[str]:
    torch.cuda.set_device(0)
    dtype, wrong = getattr(torch, dtype_name), []
    for length in lengths:
        there, here = (flat(functions(rank, size, length, dtype, device)) for device in ("cuda", "cpu"))
        for name, value in here.items():
            got = there[name] if isinstance(there[name], list) else there[name].cpu()
            same = (
                got == value if isinstance(value, list) else torch.equal(got.view(torch.uint8), value.view(torch.uint8))
            )
            if not same:
                wrong.append(f"{name} of {length} {dtype_name}")
    return wrong


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8", "complex64"])
def test_every_function_gives_the_bits_of_the_cpu(ranks: int, dtype: str) -> None:
    lengths = LENGTHS if dtype == "float32" else LENGTHS[:-1]
    assert run_ranks(compare, ranks, ranks, lengths, dtype) == [[]] * ranks


@pytest.mark.parametrize("ranks", [8, 16])
def test_many_ranks(ranks: int) -> None:
    assert run_ranks(compare, ranks, ranks, [1001], "float32") == [[]] * ranks


def streams(rank: int) -> list[str]:
    """Order, not blocking, several streams, async calls, futures."""
    torch.cuda.set_device(0)
    wrong = []
    tensor = torch.zeros(1 << 20, device="cuda")
    dist.all_reduce(tensor)  # makes what the first call makes
    torch.cuda.synchronize()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            # Some tenths of a second of the GPU's time, then the value; the call must come after it.
            torch.cuda._sleep(400_000_000)
            tensor.fill_(rank + 1.0)
            began = time.monotonic()
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            took, is_early = time.monotonic() - began, work.is_completed()
            result = tensor * 1
            if is_early:
                wrong.append("the call was over before the work before it")
            stream.synchronize()
            if result[0] != 3 or result[-1] != 3:
                wrong.append(f"{result[0]} instead of 3")
            if took > 0.1:
                wrong.append(f"the host was blocked for {took:.2f} s")
            if not work.is_completed() or work.exception() is not None:
                wrong.append("the work does not say that it is over")
    # The tensors of a call are kept until they were used.
    works = []
    for _ in range(50):
        one = torch.full((1 << 18,), 1.0, device="cuda")
        works.append(dist.all_reduce(one, async_op=True))
        del one
    for work in works:
        work.wait()
    total = torch.full((1000,), float(rank), device="cuda")
    future = dist.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    if future.wait()[0] != 2:
        wrong.append("the future has another value")
    # A tensor that is not contiguous, and one with history.
    table = torch.full((64, 64), rank + 1.0, device="cuda").t()[::2]
    dist.all_reduce(table)
    weight = torch.full((5,), rank + 1.0, device="cuda", requires_grad=True)
    dist.all_reduce(weight.detach())
    torch.cuda.synchronize()
    if not (table == 3).all() or not (weight == 3).all():
        wrong.append("a tensor that is not contiguous")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            dist.all_reduce(total)
    except Exception as error:
        if "CUDA graph" not in str(error):
            wrong.append(str(error))
    else:
        wrong.append("a capture was not refused")
    return wrong


def test_streams_as_users_know_them() -> None:
    assert run_ranks(streams, 2) == [[], []]


def messages(rank: int, size: int) -> list[str]:
    torch.cuda.set_device(0)
    wrong = []
    right, left = (rank + 1) % size, (rank - 1) % size
    mine, theirs = torch.full((1000,), float(rank), device="cuda"), torch.zeros(1000, device="cuda")
    ops = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if not (theirs == left).all():
        wrong.append("batch_isend_irecv")
    if rank == 0:
        dist.send(mine + 5, 1, tag=3)
    elif rank == 1:
        dist.recv(theirs, tag=3)
        if not (theirs == 5).all():
            wrong.append("send and recv")
    group = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        both = torch.full((77,), rank + 1.0, device="cuda")
        dist.all_reduce(both, group=group)
        if not (both == 1 + size).all():
            wrong.append("a group")
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "tensor": torch.full((2,), rank, device="cuda")})
    if [one["rank"] for one in objects] != list(range(size)) or objects[-1]["tensor"].device.type != "cuda":
        wrong.append("objects")
    several = [torch.full((n,), rank + 1.0, device="cuda") for n in (3, 100_000, 5)]
    dist.all_reduce_coalesced(several)
    if not all((one == size * (size + 1) / 2).all() for one in several):
        wrong.append("all_reduce_coalesced")
    dist.barrier()
    return wrong


def test_messages_groups_and_objects() -> None:
    assert run_ranks(messages, 4, 4) == [[]] * 4


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def batch(rank: int, size: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8 * size, 64, generator=generator), torch.randint(0, 10, (8 * size,), generator=generator)
    return x.chunk(size)[rank].cuda(), y.chunk(size)[rank].cuda()


def five_steps(trained: Any, x: Any, y: Any) -> list[Any]:
    """Train for five steps; the losses, as tensors."""
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(trained(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def train(rank: int, size: int, how: str) -> tuple[list[float], list[float]]:
    """The mean losses of five steps with several ranks, and those of one process with the whole batch."""
    torch.cuda.set_device(0)
    trained = model().cuda()
    if how == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(trained, device_ids=[0])
    elif how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(trained, mesh=dist.init_device_mesh("cuda", (size,)))
    losses = five_steps(trained, *batch(rank, size))
    for loss in losses:
        dist.all_reduce(loss, dist.ReduceOp.AVG)
    whole = (torch.cat(parts) for parts in zip(*(batch(one, size) for one in range(size)), strict=True))
    alone = five_steps(model().cuda(), *whole)
    return [loss.item() for loss in losses], [loss.item() for loss in alone]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_training_is_the_same_as_alone(how: str) -> None:
    for losses, expected in run_ranks(train, 4, 4, how):
        assert losses == pytest.approx(expected, rel=1e-3) and losses[-1] < losses[0]


def tensor_parallel(rank: int, size: int) -> bool:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.cuda.set_device(0)
    whole, cut = model().cuda(), model().cuda()
    mesh = dist.init_device_mesh("cuda", (size,))
    parallelize_module(cut, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.ones(4, 64, device="cuda")
    return bool(torch.allclose(whole(x), cut(x), atol=1e-5))


def test_tensor_parallel() -> None:
    assert run_ranks(tensor_parallel, 4, 4) == [True] * 4


def pipeline(rank: int, size: int) -> float:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.cuda.set_device(0)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(size)]
    stage = PipelineStage(layers[rank].cuda(), rank, size, torch.device("cuda:0"))
    schedule = ScheduleGPipe(stage, 4)
    x = torch.ones(8, 16, device="cuda")
    output = schedule.step(x) if rank == 0 else schedule.step()
    if rank < size - 1:
        return 0.0
    expected = x
    for layer in layers:
        expected = layer.cuda()(expected)
    return float((output - expected).abs().max())


def test_a_pipeline() -> None:
    assert max(run_ranks(pipeline, 4, 4)) < 1e-5


def mismatched(rank: int) -> str:
    torch.cuda.set_device(0)
    dist.all_reduce(torch.ones(5, device="cuda"))
    try:
        for _ in range(100):  # the first says nothing: it is in the stream
            dist.all_reduce(torch.ones(5 + rank, device="cuda"))
            torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_different_calls_are_named() -> None:
    for said in run_ranks(mismatched, 2):
        assert "MismatchError" in said and "float32[5]" in said and "float32[6]" in said


def killed(rank: int, victim: int, folder: str) -> None:
    torch.cuda.set_device(0)
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
    except Exception as error:
        said = f"{time.monotonic() - began} {type(error).__name__}: {error}"
    (Path(folder) / str(rank)).write_text(said)


def test_a_killed_rank_is_named_and_the_gpu_is_free_afterwards(tmp_path: Path) -> None:
    free = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        with pytest.raises(Exception, match="rank 1"):
            run_ranks(killed, 3, 1, str(tmp_path), timeout=20.0)
        for rank in (0, 2):
            path = tmp_path / str(rank)
            wait_until(path.exists)
            seconds, _, said = path.read_text().partition(" ")
            assert said.startswith("RankLost: ") and "rank 1" in said and float(seconds) < 1.0
            path.unlink()
    wait_until(lambda: torch.cuda.mem_get_info()[0] >= free - (64 << 20))
    assert run_ranks(compare, 3, 3, [1001], "float32") == [[]] * 3


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds()


def late(rank: int) -> tuple[str, float]:
    torch.cuda.set_device(0)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    tensor = torch.ones(5, device="cuda")
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    began = time.monotonic()
    if rank == 0:
        try:
            for _ in range(2):
                dist.all_reduce(tensor, group=group)
                torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - began
    time.sleep(3)
    return "", 0.0


def test_a_rank_that_does_not_come_is_named() -> None:
    said, seconds = run_ranks(late, 2)[0]
    assert "Timeout" in said and "rank 1" in said and seconds < 5


def direct_arrays(rank: int, size: int) -> list[str]:
    """Without torch's process group: a communicator takes CUDA tensors, and CuPy's arrays where there is CuPy."""
    import allfold as af

    torch.cuda.set_device(0)
    wrong = []
    communicator = dist.group.WORLD.communicator
    tensor = torch.full((1000,), rank + 1.0, device="cuda")
    communicator.all_reduce(tensor)
    if not (tensor == size * (size + 1) / 2).all():
        wrong.append("a tensor")
    handle = communicator.all_reduce(tensor, async_op=True)
    handle.wait()
    halves = torch.full((9,), rank + 1.0, device="cuda", dtype=torch.bfloat16)
    communicator.all_reduce(halves)
    if not (halves == size * (size + 1) / 2).all():
        wrong.append("bfloat16")
    try:
        import cupy
    except ImportError:
        pass
    else:
        array = cupy.full(1000, rank + 1.0)
        communicator.all_reduce(array)
        if not (array == size * (size + 1) / 2).all():
            wrong.append("a CuPy array")
    try:
        communicator.all_gather(tensor, torch.zeros(1000 * size))
    except af.UsageError as error:
        if "GPU" not in str(error):
            wrong.append(str(error))
    return wrong


def test_a_communicator_takes_cuda_arrays() -> None:
    assert run_ranks(direct_arrays, 2, 2) == [[], []]


def shared_tensors(rank: int, size: int) -> list[str]:
    """Tensors in memory that all ranks reach: the same bits, views of them, and what is let go is used again."""
    import allfold.torch as at

    torch.cuda.set_device(0)
    wrong = []
    free = 0
    for length in (1, 1001, 300_007, 9_000_001):
        for dtype in (torch.float32, torch.bfloat16):
            there = at.empty(length, dtype=dtype, device="cuda")
            here = filled(rank, length, dtype)
            there.copy_(here)
            dist.all_reduce(there)
            dist.all_reduce(there[length // 2 :], dist.ReduceOp.MAX)
            dist.all_reduce(here)
            dist.all_reduce(here[length // 2 :], dist.ReduceOp.MAX)
            if not torch.equal(there.cpu().view(torch.uint8), here.view(torch.uint8)):
                wrong.append(f"all_reduce of {length} {dtype}")
            part, whole = (
                at.empty(length, dtype=dtype, device="cuda"),
                at.empty(size, length, dtype=dtype, device="cuda"),
            )
            part.copy_(here + rank)
            dist.all_gather_into_tensor(whole, part)
            if not all(torch.equal(whole[one].cpu(), here + one) for one in range(size)):
                wrong.append(f"all_gather of {length} {dtype}")
            del there, part, whole
    for turn in range(4):
        torch.cuda.synchronize()
        dist.barrier()
        big = at.empty(256 << 20, dtype=torch.uint8, device="cuda")
        now = torch.cuda.mem_get_info()[0]
        if turn > 1 and now < free - (128 << 20):
            wrong.append("memory that was let go is not used again")
        free = now
        del big
    return wrong


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensors_in_memory_that_all_ranks_reach(ranks: int) -> None:
    assert run_ranks(shared_tensors, ranks, ranks) == [[]] * ranks


def test_the_benchmark_checks_its_results() -> None:
    command = [
        sys.executable,
        "-m",
        "allfold",
        "bench",
        "-n",
        "2",
        "-b",
        "4K",
        "-e",
        "4M",
        "-f",
        "32",
        "--seconds",
        "0.01",
    ]
    done = subprocess.run(
        [*command, "--device", "cuda", "--both", "--json", "-"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    assert table["points"] and "gloo" in done.stdout and "Duplicate GPU" in done.stdout


def sits(rank: int, folder: str) -> None:
    torch.cuda.set_device(0)
    dist.all_reduce(torch.ones(5, device="cuda"))
    if rank == 0:
        said = subprocess.run(
            [sys.executable, "-m", "allfold", "doctor", str(os.getpid())], capture_output=True, text=True, timeout=60
        )
        Path(folder, "said").write_text(said.stdout)
    dist.barrier()


def test_the_doctor_says_who_uses_the_gpu(tmp_path: Path) -> None:
    run_ranks(sits, 2, str(tmp_path))
    assert "ranks 0 and 1 use GPU 0; MPS" in (tmp_path / "said").read_text()
