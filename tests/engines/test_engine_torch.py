"""torch tensors in the native engine's collectives, through DLPack; allfold itself never imports torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from engine_grid import bits

import allfold
from allfold.communicator.communicator import Communicator
from allfold.errors import UsageError
from allfold.launch.threads import run_threads

WIDTHS = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", *WIDTHS, "complex64", "complex128")


def test_allfold_does_not_import_torch() -> None:
    code = "import sys, allfold; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_type(dtype: str) -> None:
    def make(rank: int) -> torch.Tensor:
        return (torch.arange(101) % 7 + rank).to(getattr(torch, dtype))

    def work(comm: Communicator) -> torch.Tensor:
        tensor = make(comm.rank)
        address = tensor.data_ptr()
        comm.all_reduce(tensor, algorithm="ring")
        assert tensor.data_ptr() == address
        table = torch.zeros(3 * 101, dtype=tensor.dtype)
        comm.all_gather(make(comm.rank), table)
        assert torch.equal(table, torch.cat([make(rank) for rank in range(3)]))
        return tensor

    carried = [_carried(make(rank)) for rank in range(3)]
    wanted = allfold.replay(allfold.schedule("all_reduce", "ring", 3), carried, dtype=dtype)
    for tensor, one in zip(run_threads(work, 3), wanted, strict=True):
        assert bits(_carried(tensor), dtype) == bits(one, dtype)


def _carried(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def test_tensors_of_every_shape() -> None:
    def work(comm: Communicator) -> None:
        nothing_d = torch.tensor(3.0)
        comm.all_reduce(nothing_d)
        assert nothing_d.shape == () and nothing_d == 6
        for make in (
            lambda: torch.ones(4, 6)[:, ::2],
            lambda: torch.ones(4, 6).t(),
            lambda: torch.ones(2, 3, 4).permute(2, 0, 1),
            lambda: torch.ones(0, 5),
            lambda: torch.ones(5, dtype=torch.bfloat16)[::2],
        ):
            tensor = make()
            comm.all_reduce(tensor)
            assert (tensor == 2).all()
            handle = comm.all_reduce(tensor, async_op=True)
            assert handle is not None
            handle.wait()
            assert (tensor == 4).all()

    run_threads(work, 2)


def test_tensors_that_require_gradients() -> None:
    def work(comm: Communicator) -> None:
        weight = torch.full((3, 3), float(comm.rank), requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        comm.all_reduce(weight.grad, op="avg")
        assert (weight.grad == 2).all()
        comm.broadcast(weight, root=1)  # as is done with the parameters of a model
        assert (weight == 1).all() and weight.requires_grad and weight.is_leaf

    run_threads(work, 2)


def test_tensors_in_shared_memory() -> None:
    def work(comm: Communicator) -> None:
        array = comm.empty(1000)
        array[:] = comm.rank + 1
        for tensor in (torch.from_numpy(array), torch.from_dlpack(array)):
            assert comm.engine.native.in_shared_memory(tensor) and comm.engine.native.in_shared_memory(tensor[10:20])
            assert not comm.engine.native.in_shared_memory(tensor.clone())
        with comm.trace() as trace:
            comm.all_reduce(tensor[100:200], algorithm="ring")
        assert {event.memory for event in trace.events} == {"shared"}
        assert (array[100:200] == 3).all() and (array[:100] == comm.rank + 1).all()

    run_threads(work, 2)


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: torch.ones(3, device="meta"), "the tensor is on the meta device and has no data"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "the tensor is nested; pass tensor.values()",
        ),
        (lambda: torch.ones(3).to_sparse(), "the tensor is sparse (torch.sparse_coo); pass tensor.to_dense()"),
    ],
)
@pytest.mark.parametrize("engine", ["shared_memory", "islands"])
def test_tensors_that_cannot_be_used(make: Any, fact: str, engine: str) -> None:
    def work(comm: Communicator) -> str:
        with pytest.raises(UsageError) as caught:
            comm.all_reduce(make())
        comm.barrier()
        return str(caught.value)

    for error in run_threads(work, 2, engine=engine):
        assert error.startswith("all_reduce: ") and fact in error


def test_tensors_between_processes() -> None:
    def work(comm: Communicator) -> float:
        import torch

        tensor = torch.full((100_000,), comm.rank + 1.0, dtype=torch.bfloat16)
        comm.all_reduce(tensor)
        return float(tensor[-1])

    assert allfold.spawn(work, 2, timeout=120) == [3.0, 3.0]


def test_arrays_and_tensors_meet() -> None:
    def work(comm: Communicator) -> float:
        one: Any = torch.ones(10) if comm.rank else np.ones(10, np.float32)
        comm.all_reduce(one)
        return float(one[0])

    assert run_threads(work, 2) == [2.0, 2.0]


def test_backward_refuses_what_a_collective_has_changed() -> None:
    """As after any operation in place: without it, gradients would silently be those of other numbers."""

    def work(comm: Communicator) -> None:
        weight = torch.ones(4, requires_grad=True)
        into_output = comm.all_gather, comm.reduce_scatter
        for call in (comm.all_reduce, comm.broadcast, comm.reduce, *into_output):
            scattered = torch.ones(8 if call == comm.reduce_scatter else 2)
            for strided in (False, True):
                changed = (torch.ones(8)[::2] if strided else torch.ones(4)) * weight
                if strided:
                    changed = torch.stack([changed, changed], 1)[:, 0]
                loss = (changed**2).sum()
                call(*((scattered, changed) if call in into_output else (changed,)))
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()

    run_threads(work, 2)


def test_results_of_tensors_are_tensors() -> None:
    def work(comm: Communicator) -> None:
        whole = comm.all_gather(torch.full((1, 2), comm.rank, dtype=torch.bfloat16))
        assert whole.dtype is torch.bfloat16 and whole.tolist() == [[0, 0], [1, 1]]
        part = comm.scatter(array=torch.arange(4, dtype=torch.int16) if comm.rank == 0 else None)
        assert part.dtype is torch.int16 and part.tolist() == [2 * comm.rank, 2 * comm.rank + 1]
        assert comm.reduce_scatter(torch.ones(2, requires_grad=True)).tolist() == [2.0]

    run_threads(work, 2)
