"""torch.distributed in ranks that are threads: each has groups of its own, and the process has its own again afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as saved
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import allfold as af
from allfold.communicator.communicator import Communicator
from allfold.errors import CollectiveTimeout, RankFailed, UsageError
from allfold.testing import run
from allfold.torch.group import _groups as groups

ALLFOLD = [sys.executable, "-m", "allfold"]


def in_threads(work: Callable[..., Any], ranks: int = 4, timeout: float = 60.0) -> list[Any]:
    return run(work, ranks, backend="allfold", threads=True, timeout=timeout)


def state_of_torch() -> list[Any]:
    rendezvous = sys.modules["torch.distributed.rendezvous"]
    mesh = sys.modules["torch.distributed.device_mesh"].DeviceMesh
    names = ("_world", "_backend", "_default_pg_init_method")
    of_c10d = [getattr(c10d, name) for name in names]
    return [*of_c10d, sys.excepthook, rendezvous._rendezvous_handlers["env"], mesh.__init__]  # type: ignore[misc, attr-defined]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = state_of_torch()
    yield
    assert state_of_torch() == before and not dist.is_initialized()
    assert not [group for group in groups if group.size() > 1]
    for thread in threading.enumerate():
        if thread.name.startswith(("rank ", "allfold group")):
            thread.join(10)  # it has been told to end
            assert not thread.is_alive(), thread


def test_collectives_groups_and_messages() -> None:
    def work(group: Any) -> None:
        rank = dist.get_rank()
        assert group is dist.group.WORLD and (dist.get_world_size(), dist.get_backend()) == (4, "allfold")
        x = torch.full((3,), float(rank))
        dist.all_reduce(x)
        handle = dist.all_reduce(x, async_op=True)
        assert handle is not None
        handle.wait()
        assert x.tolist() == [24.0] * 3
        parts = [torch.empty(1) for _ in range(4)]
        dist.all_gather(parts, torch.ones(1) * rank)
        assert [int(one) for one in parts] == [0, 1, 2, 3]
        some = dist.new_group([2, 0])
        both = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        y = torch.ones(1) * rank
        dist.all_reduce(y, group=both)
        assert y.item() == [1, 1, 5, 5][rank]
        if rank in (0, 2):
            assert dist.get_group_rank(some, rank) == [0, None, 1][rank]
            dist.broadcast(y, 2, group=some)
            assert y.item() == 5
        objects: list[Any] = [None] * 4
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": one} for one in range(4)]
        received = torch.empty(1)
        calls = [
            dist.P2POp(dist.isend, torch.ones(1) * rank, (rank + 1) % 4),
            dist.P2POp(dist.irecv, received, (rank - 1) % 4),
        ]
        for one in dist.batch_isend_irecv(calls):
            one.wait()
        assert received.item() == (rank - 1) % 4
        dist.monitored_barrier()

    in_threads(work)


def test_groups_are_made_again_under_their_names() -> None:
    def work(group: Any) -> None:
        del group
        for _ in range(3):
            some = dist.new_group([0, 1])
            for each, size in [(some, 2)] * (dist.get_rank() < 2) + [(None, 3)]:
                x = torch.ones(1)
                dist.all_reduce(x, group=each)
                assert x.item() == size
            dist.destroy_process_group()
            dist.init_process_group("allfold")

    in_threads(work, 3)


def test_meshes_tensors_and_functional_collectives() -> None:
    full = torch.arange(16.0).reshape(4, 4)

    def work(_: Any) -> None:
        rank = dist.get_rank()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        assert list(mesh.get_coordinate() or ()) == [rank // 2, rank % 2]
        summed = functional.all_reduce(torch.ones(2) * rank, "sum", mesh["model"])
        assert (summed + 0).tolist() == [[1, 1], [5, 5]][rank // 2]
        tensor = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
        row, column = 2 * (rank // 2), 2 * (rank % 2)
        assert torch.equal(tensor.to_local(), full[row : row + 2, column : column + 2])
        product = tensor @ tensor
        assert isinstance(product, DTensor) and torch.equal(product.full_tensor(), full @ full)
        # What torch does here depends on the rank, and it keeps that in a cache of the process.
        uneven = distribute_tensor(torch.arange(5.0), mesh, [Shard(0), Shard(0)])
        half = uneven.redistribute(mesh, [Shard(0), Replicate()]).to_local()
        assert half.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0]][rank // 2]
        assert torch.equal(tensor.redistribute(mesh, [Replicate(), Shard(0)]).to_local(), full[column : column + 2])

    for _ in range(3):  # torch's caches must not find the meshes of earlier threads
        in_threads(work)


@pytest.mark.parametrize("way", ["DDP", "FSDP2"])
def test_training_is_that_of_one_process(way: str) -> None:
    batch = torch.arange(24.0).reshape(8, 3) / 10
    weights = [torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(1, -1, 8).reshape(2, 4)]

    def trained(rows: torch.Tensor, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> list[torch.Tensor]:
        model = torch.nn.Sequential(*(torch.nn.Linear(one.shape[1], len(one), bias=False) for one in weights))
        with torch.no_grad():
            for parameter, one in zip(model.parameters(), weights, strict=True):
                parameter.copy_(one)
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(rows).tanh().square().mean().backward()
            optimizer.step()
        return [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]

    def work(_: Any) -> list[torch.Tensor]:
        rank = dist.get_rank()
        wrap = torch.nn.parallel.DistributedDataParallel if way == "DDP" else fully_shard
        return [one.detach() for one in trained(batch[2 * rank : 2 * rank + 2], wrap)]  # type: ignore[arg-type]

    wanted = trained(batch, lambda model: model)
    for found in in_threads(work):
        torch.testing.assert_close(found, [one.detach() for one in wanted])


def test_tensor_parallel_pipelines_and_checkpoints(tmp_path: Path) -> None:
    rows, weights = torch.ones(4, 8), [torch.linspace(-1, 1, 128), torch.linspace(1, -1, 64)]

    def filled(model: torch.nn.Module) -> Any:
        with torch.no_grad():
            for parameter, one in zip(model.parameters(), weights, strict=False):
                parameter.copy_(one[: parameter.numel()].reshape(parameter.shape))
        return model

    def layers() -> Any:
        first, second = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False)
        return filled(torch.nn.Sequential(first, torch.nn.ReLU(), second))

    alone = layers()
    alone(rows).sum().backward()

    def work(_: Any) -> None:
        rank, mesh = dist.get_rank(), init_device_mesh("cpu", (4,))
        model = parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for reentrant in (True, False):
            model.zero_grad()
            given = rows.clone().requires_grad_()
            checkpoint(model, given, use_reentrant=reentrant).sum().backward()
            for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(found.grad.full_tensor(), wanted.grad)
        state = {"model": fully_shard(filled(torch.nn.Linear(4, 4, bias=False))).state_dict()}
        kept = state["model"]["weight"].full_tensor()
        saved.save(state, checkpoint_id=tmp_path / "saved")
        with torch.no_grad():
            state["model"]["weight"].zero_()
        saved.load(state, checkpoint_id=tmp_path / "saved")
        assert torch.equal(state["model"]["weight"].full_tensor(), kept) and kept.any()
        last: list[torch.Tensor] = []
        stage = PipelineStage(filled(torch.nn.Linear(8, 8, bias=False)), rank, 4, torch.device("cpu"))
        step = ScheduleGPipe(stage, 2, loss_fn=lambda found, wanted: (found - wanted).square().mean()).step
        if rank == 0:
            step(rows)
        else:
            step(**({"target": torch.zeros(4, 8), "losses": last} if rank == 3 else {}))
        layer = filled(torch.nn.Linear(8, 8, bias=False))
        wanted = layer(layer(layer(layer(rows)))).square().mean()
        assert rank != 3 or torch.stack(last).mean().item() == pytest.approx(wanted.item(), rel=1e-5)

    in_threads(work)


def test_the_group_of_the_process_is_there_during_and_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((c10d, "_backend"), (c10d, "_default_pg_init_method"), (sys, "excepthook")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # torch itself does not set them back
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        own = dist.group.WORLD

        def of_a_thread_that_is_no_rank(found: list[Any]) -> None:
            found += [dist.get_world_size(), dist.group.WORLD]

        def work(group: Any) -> list[Any]:
            assert group is not own
            found: list[Any] = []
            thread = threading.Thread(target=of_a_thread_that_is_no_rank, args=(found,))
            thread.start()
            thread.join()
            return found

        assert in_threads(work, 2) == [[1, own]] * 2
        with pytest.raises(RankFailed):
            in_threads(lambda group: 1 / 0, 2)
        assert dist.group.WORLD is own
        with ThreadPoolExecutor() as other:  # C++ finds the group by its name, in all threads
            assert other.submit(functional.all_reduce, torch.ones(1), "sum", own).result().item() == 1
    finally:
        dist.destroy_process_group()


def test_a_failure_ends_the_calls_of_others_in_all_groups() -> None:
    def work(_: Any) -> None:
        rank = dist.get_rank()
        some = dist.new_group([0, 1])
        if rank == 1:
            raise LookupError("nothing here")
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=some)
        else:
            dist.barrier()

    with pytest.raises(RankFailed) as caught:
        in_threads(work, 3)
    first, *_, zero, two = str(caught.value).splitlines()
    assert first == "rank 1 of 3 raised LookupError: nothing here"
    lost = "rank 1 has left: it is ending after LookupError: nothing here (call 1 of"
    assert zero == f"  rank 0 raised RankLost: all_reduce: {lost} group '1')"
    assert two == f"  rank 2 raised RankLost: barrier: {lost} the default group)"


def test_different_calls_and_hangs_are_explained() -> None:
    with pytest.raises(
        RankFailed, match=r"all_reduce: rank 0 called it with float32\[1\] sum, rank 1 with float32\[2\]"
    ):
        in_threads(lambda _: dist.all_reduce(torch.ones(1 + dist.get_rank())), 2)

    def hangs(_: Any) -> None:
        if dist.get_rank() == 0:
            dist.barrier()
        else:
            dist.recv(torch.ones(1), 0)

    with pytest.raises(CollectiveTimeout) as caught:
        in_threads(hangs, 2, timeout=0.5)
    assert "in hangs: dist.barrier()" in str(caught.value) and "in hangs: dist.recv(" in str(caught.value)


def test_ranks_of_spawn_join_by_themselves() -> None:
    def work(comm: Communicator, **given: Any) -> Any:
        dist.init_process_group("allfold", timeout=timedelta(seconds=30), **given)
        x = torch.ones(1) * comm.rank
        dist.all_reduce(x)
        assert dist.get_rank() == comm.rank and comm.all_reduce(1) == 3  # both can be used
        dist.all_gather([torch.empty(1) for _ in range(3)], x, async_op=True)
        return x.item()  # the call is in flight, and nothing is destroyed

    assert af.spawn(work, 3, ranks_are="threads") == [3.0] * 3
    assert af.spawn(lambda comm: work(comm, rank=comm.rank, world_size=3), 3, ranks_are="threads") == [3.0] * 3
    store = dist.HashStore()
    given = {"world_size": 3, "store": store}
    assert af.spawn(lambda comm: work(comm, rank=comm.rank, **given), 3, ranks_are="threads") == [3.0] * 3


def test_what_cannot_be_is_refused() -> None:
    def other_rank(comm: Communicator) -> None:
        dist.init_process_group("allfold", rank=1 - comm.rank, world_size=2)

    sentence = "init_process_group: this thread is rank 0 of 2, not rank 1 of 2; leave out rank and world_size"
    with pytest.raises(RankFailed) as caught:
        af.spawn(other_rank, 2, ranks_are="threads")
    assert sentence.replace("rank 0", f"rank {caught.value.rank}").replace(
        "not rank 1", f"not rank {1 - caught.value.rank}"
    ) in (str(caught.value))
    with pytest.raises(RankFailed, match="cannot make torch's groups in threads"):
        af.spawn(lambda comm: dist.init_process_group("allfold"), 2, ranks_are="threads", engine="shared_memory")
    for options, why in (
        ({"backend": "gloo"}, "have the backend 'allfold' only"),
        ({"device": "cuda:0"}, "have no GPU"),
    ):
        with pytest.raises(UsageError, match=why):
            run(print, 2, threads=True, **{"backend": "allfold", **options})  # type: ignore[arg-type]


def test_a_rank_that_fails_before_it_joins_does_not_keep_the_others_waiting() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise LookupError("nothing here")
        dist.init_process_group("allfold")
        dist.barrier()

    with pytest.raises(RankFailed, match="rank 1 raised LookupError; then ranks 0 and 2 raised RankLost"):
        af.spawn(work, 3, ranks_are="threads")


def test_a_script_that_imports_torch_in_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('allfold')\n"
        "x = torch.ones(1) * dist.get_rank()\n"
        "dist.all_reduce(x)\n"
        "print(f'rank {dist.get_rank()} of {dist.get_world_size()}: {x.item():g}\\n', end='')\n"
        "dist.destroy_process_group()\n"
    )
    done = subprocess.run(
        [*ALLFOLD, "run", "-n", "3", "--threads", str(script)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: 3" for rank in range(3)]


WITHOUT_ENGINE = """
import sys
sys.modules["allfold._native._engine"] = None  # nobody finds it
import torch
import torch.distributed as dist
import allfold as af
from allfold import _native

def work(comm):
    dist.init_process_group("allfold")
    some = dist.new_group([0, 2])
    received = torch.empty(1)
    calls = [dist.P2POp(dist.isend, torch.ones(1) * comm.rank, (comm.rank + 1) % 3)]
    calls.append(dist.P2POp(dist.irecv, received, (comm.rank - 1) % 3))
    for one in dist.batch_isend_irecv(calls):
        one.wait()
    assert received.item() == (comm.rank - 1) % 3
    bits = torch.tensor([comm.rank == 1, True])
    dist.broadcast(bits, 1)
    assert bits.tolist() == [True, True]
    numbers = torch.ones(3, dtype=torch.bfloat16) * comm.rank
    dist.all_reduce(numbers, async_op=True).wait()
    if comm.rank != 1:
        dist.all_reduce(numbers, group=some)
    objects = [None] * 3
    dist.all_gather_object(objects, comm.rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2) * comm.rank).sum().backward()
    dist.monitored_barrier()
    dist.destroy_process_group()
    return numbers[0].item(), objects, model.module.weight.grad.tolist()

assert _native.MISSING
print(*af.spawn(work, 3, ranks_are="threads"), sep="\\n")
"""


def test_it_needs_no_engine() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ENGINE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"({sum}, [0, 1, 2], [[1.0, 1.0]])" for sum in (6.0, 3.0, 6.0)]
