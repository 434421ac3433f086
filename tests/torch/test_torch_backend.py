"""The torch backend: every function of torch.distributed, between real processes, against expected results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d
from torch_ranks import full, run_ranks

import allfold.torch
from allfold.errors import MismatchError, UsageError
from allfold.torch.work import GroupDestroyed

INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


# Every function, as what one rank does; each checks its own results ---------------------------------------------------


def all_reduce_every_operation(rank: int, size: int) -> None:
    contributions = [r + 1 for r in range(size)]
    product, bits_or, bits_xor, bits_and = 1, 0, 0, contributions[0]
    for one in contributions:
        product, bits_or, bits_xor, bits_and = product * one, bits_or | one, bits_xor ^ one, bits_and & one
    table: dict[Any, float] = {
        ReduceOp.SUM: sum(contributions),
        ReduceOp.PRODUCT: product,
        ReduceOp.MIN: 1,
        ReduceOp.MAX: size,
    }
    for name in (*INTEGERS, *FLOATS):
        extra: dict[Any, float] = {ReduceOp.AVG: sum(contributions) / size}
        if name in INTEGERS:
            extra = {ReduceOp.BAND: bits_and, ReduceOp.BOR: bits_or, ReduceOp.BXOR: bits_xor}
        for operation, wanted in (table | extra).items():
            tensor = torch.full((7,), rank + 1).to(getattr(torch, name))
            dist.all_reduce(tensor, operation)
            assert torch.equal(tensor, torch.full((7,), wanted).to(tensor.dtype)), (name, operation, tensor)
    for name in COMPLEX:
        tensor = torch.full((3,), complex(rank, 1)).to(getattr(torch, name))
        dist.all_reduce(tensor)
        assert tensor[0] == complex(sum(range(size)), size)
    flags = torch.tensor([True, rank == 0, False])
    dist.all_reduce(flags, ReduceOp.BOR)
    assert flags.tolist() == [True, True, False]


def all_reduce_multiplied_before(rank: int, size: int) -> None:
    for factor in (0.5, torch.tensor([0.5])):
        tensor = full(rank + 1, 4)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert torch.equal(tensor, full(sum(range(1, size + 1)) / 2, 4))
    whole, part = full(rank + 1, 2 * size), full(0, 2)
    dist.reduce_scatter_tensor(part, whole, dist._make_nccl_premul_sum(2.0))
    assert torch.equal(part, full(2 * sum(range(1, size + 1)), 2)) and torch.equal(whole, full(rank + 1, 2 * size))


def all_reduce_every_shape(rank: int, size: int) -> None:
    for make in (
        lambda: torch.ones(()),
        lambda: torch.ones(0, 3),
        lambda: torch.ones(1),
        lambda: torch.ones(4, 6)[:, ::2],
        lambda: torch.ones(4, 6).t(),
        lambda: torch.ones(2, 3, 4).permute(2, 0, 1),
        lambda: torch.ones(5, dtype=torch.bfloat16)[::2],
        lambda: torch.ones(3).expand(2, 3).clone().requires_grad_(),
        lambda: torch.ones(300_000),
    ):
        for asynchronous in (False, True):
            tensor = make()
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert torch.equal(tensor.detach(), torch.full_like(tensor, size))
    scattered = torch.full((3,), 1j).conj().imag
    for negative in (scattered, torch._neg_view(torch.ones(3))):  # −1, as a bit and not in memory
        assert negative.is_neg() and negative.is_contiguous() == (negative is not scattered)
        mixed = negative if rank == 0 else torch.ones(3)  # if all were negated, a sum would not show it
        dist.all_reduce(mixed)
        assert mixed.tolist() == [size - 2] * 3
    with torch.inference_mode():
        inferred = torch.ones(3)
        dist.all_reduce(inferred)
        dist.all_reduce(inferred, async_op=True).wait()
        assert inferred.tolist() == [size * size] * 3


def all_reduce_seen_by_a_mode(rank: int, size: int) -> None:
    """The function is torch's own, so modes see it called."""
    seen = []
    assert "allfold" not in dist.all_reduce.__code__.co_filename

    class Watching(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    tensor = torch.ones(3)
    with Watching():
        dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3 and "all_reduce" in seen


def all_reduce_of_tensors_in_shared_memory(rank: int, size: int) -> None:
    engine = dist.group.WORLD.communicator.engine.native  # type: ignore[union-attr]
    for shape, dtype in (((), None), ((3,), torch.bfloat16), ((2, 0), torch.int8), ((50, 400), torch.float64)):
        tensor = allfold.torch.empty(shape, dtype=dtype).fill_(1)
        assert tensor.shape == shape and tensor.dtype == (dtype or torch.get_default_dtype())
        assert tensor.numel() == 0 or engine.in_shared_memory(tensor)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full(shape, size, dtype=tensor.dtype))
    for arguments, message in ((("a",), "non-negative lengths"), ((-1,), "non-negative lengths")):
        with pytest.raises(UsageError, match=message):
            allfold.torch.empty(*arguments)
    with pytest.raises(UsageError, match="float8_e4m3fn"):
        allfold.torch.empty(3, dtype=torch.float8_e4m3fn)
    with pytest.raises(UsageError, match="empty: expected a communicator of allfold or a process group"):
        allfold.torch.empty(3, group="world")


def all_reduce_of_sparse_tensors(rank: int, size: int) -> None:
    indices = torch.tensor([[0, rank + 1], [2, 0]])
    for operation, share in ((ReduceOp.SUM, 1.0), (ReduceOp.AVG, 1 / size)):
        tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, rank + 10.0]), (size + 1, 3))
        dist.all_reduce(tensor, operation)
        wanted = torch.zeros(size + 1, 3)
        wanted[0, 2] = size * share
        for r in range(size):
            wanted[r + 1, 0] = (r + 10.0) * share
        assert tensor.is_sparse and torch.equal(tensor.to_dense(), wanted)
    empty = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty((0, 2)), (4, 2))
    dist.all_reduce(empty)
    assert empty._nnz() == 0


def reduce_to_a_root(rank: int, size: int) -> None:
    for root in range(size):
        for operation, wanted in ((ReduceOp.SUM, size * 2), (ReduceOp.AVG, 2), (ReduceOp.MAX, 2)):
            tensor = full(2, 5)
            dist.reduce(tensor, root, operation)
            assert torch.equal(tensor, full(wanted if rank == root else 2, 5))  # the others' stay as they are


def broadcast_of_everything(rank: int, size: int) -> None:
    for root in range(size):
        for name in ("bool", *INTEGERS, *FLOATS, *COMPLEX, "float8_e4m3fn", "complex32"):
            dtype = getattr(torch, name)
            tensor = torch.full((3,), float(rank == root)).to(dtype)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.to(torch.complex64), torch.ones(3, dtype=torch.complex64)), name
        strided = torch.zeros(4, 4)[:, 1]
        strided += rank
        dist.broadcast(strided, root)
        assert torch.equal(strided, full(root, 4))


def all_gather_lists(rank: int, size: int) -> None:
    for length in (1, 3, 200_000):
        own = full(rank, length)
        separate = [full(-1, length) for _ in range(size)]
        views = list(full(-1, size * length).chunk(size))
        scattered = [full(-1, length, 2)[:, 0] for _ in range(size)]
        # At last, in one piece on some ranks only.
        for outputs in (separate, views, scattered, separate if rank else views):
            dist.all_gather(outputs, own)
            assert all(torch.equal(output, full(r, length)) for r, output in enumerate(outputs))
    uneven = [full(-1, r + 1) for r in range(size)]
    dist.all_gather(uneven, full(rank, rank + 1))
    assert all(torch.equal(output, full(r, r + 1)) for r, output in enumerate(uneven))
    lengths = [100_000 * (r % 2) for r in range(size)]  # some are empty
    for kind in (torch.int32, torch.float8_e5m2):
        views = list(torch.ones(sum(lengths)).to(kind).split(lengths))
        for outputs in (views, [view.clone() for view in views]):
            dist.all_gather(outputs, torch.full((lengths[rank],), rank).to(kind), async_op=True).wait()
            for r, output in enumerate(outputs):
                assert torch.equal(output.to(torch.float32), full(r, lengths[r]))
    lists = [[full(-1, 2), full(-1, 3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [full(rank, 2), full(rank + 10, 3)])
    assert all(torch.equal(b, full(r + 10, 3)) and torch.equal(a, full(r, 2)) for r, (a, b) in enumerate(lists))


def all_gather_tensors(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64):
        for shape in ((size * 2, 3), (size, 2, 3)):
            output = torch.zeros(shape).to(dtype)
            dist.all_gather_into_tensor(output, torch.full((2, 3), float(rank)).to(dtype))
            wanted = torch.arange(size).repeat_interleave(6).view(shape).to(torch.float32).to(dtype)
            assert torch.equal(output.to(torch.complex64), wanted.to(torch.complex64)), dtype


def all_gather_in_place(rank: int, size: int) -> None:
    """The input is a part of the output, as with FSDP."""
    for asynchronous in (False, True):
        whole = full(-1, size, 3)
        whole[rank] = rank
        work = dist.all_gather_into_tensor(whole, whole[rank], async_op=asynchronous)
        if asynchronous:
            work.wait()
        assert torch.equal(whole, torch.arange(float(size)).view(size, 1).expand(size, 3))


def reduce_scatter_lists_and_tensors(rank: int, size: int) -> None:
    output = full(0, 3)
    dist.reduce_scatter(output, [full(r, 3) for r in range(size)])
    assert torch.equal(output, full(rank * size, 3))
    inputs = [full(r + 1, r + 1) for r in range(size)]  # of unequal length
    output = full(0, rank + 1)
    dist.reduce_scatter(output, inputs, ReduceOp.AVG)
    assert torch.equal(output, full(rank + 1, rank + 1))
    assert all(torch.equal(one, full(r + 1, r + 1)) for r, one in enumerate(inputs))
    whole = torch.arange(2.0 * size)
    output = full(0, 2)
    dist.reduce_scatter_tensor(output, whole, ReduceOp.SUM)
    assert torch.equal(output, size * torch.arange(2.0) + 2 * size * rank) and torch.equal(
        whole, torch.arange(2.0 * size)
    )


def all_to_all_every_way(rank: int, size: int) -> None:
    output = torch.zeros(2 * size)
    dist.all_to_all_single(output, torch.arange(2.0 * size) + 100 * rank)
    assert output.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    # Rank r sends r + s + 1 rows to rank s, and as many come back.
    splits = [rank + r + 1 for r in range(size)]
    tensor, output = full(rank, sum(splits), 2), full(-1, sum(splits), 2)
    dist.all_to_all_single(output, tensor, splits, splits)
    assert output[:, 1].tolist() == [r for r in range(size) for _ in range(splits[r])]
    # Rank r sends rank s r·s rows of a type that the engine moves as bytes: rank 0 sends nothing, and gets nothing.
    splits_of_bytes = [1000 * rank * r for r in range(size)]
    tensor = full(rank, sum(splits_of_bytes), 2).to(torch.float8_e4m3fn)
    output = torch.empty_like(tensor)
    dist.all_to_all_single(output, tensor, splits_of_bytes, splits_of_bytes, async_op=True).wait()
    assert output[:, 1].to(torch.int64).tolist() == [r for r in range(size) for _ in range(1000 * rank * r)]
    for lengths in (splits, [3] * size, [100_000] * size, [0] * size):
        outputs = [full(-1, length) for length in lengths]
        dist.all_to_all(outputs, [full(10 * rank + r, length) for r, length in enumerate(lengths)])
        assert all(torch.equal(one, full(10 * r + rank, lengths[r])) for r, one in enumerate(outputs))


def gather_and_scatter(rank: int, size: int) -> None:
    for root in range(size):
        outputs = [full(-1, 3) for _ in range(size)] if rank == root else None
        dist.gather(full(rank, 3), outputs, root)
        assert outputs is None or all(torch.equal(output, full(r, 3)) for r, output in enumerate(outputs))
        inputs = [full(r + root, 3) for r in range(size)] if rank == root else None
        output = full(-1, 3)
        dist.scatter(output, inputs, root)
        assert torch.equal(output, full(rank + root, 3))


def messages(rank: int, size: int) -> None:
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    sent, came = full(rank, 4), full(-1, 8)[::2]
    works = [dist.isend(sent, right, tag=7), dist.irecv(came, left, tag=7)]
    for work in works:
        work.wait()
    assert torch.equal(came, full(left, 4)) and works[1].is_completed() and works[1].is_success()
    came = full(-1, 4)
    operations = [dist.P2POp(dist.irecv, came, left), dist.P2POp(dist.isend, sent, right)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(came, full(left, 4))
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            came = full(-1, 4)
            sources.add(source := dist.recv(came))
            assert torch.equal(came, full(source, 4))
        assert sources == set(range(1, size))
        dist.send(full(1, 2), 1, tag=3)
        dist.send(full(2, 2), 1, tag=4)
    else:
        dist.send(sent, 0)
    if rank == 1:
        later, earlier = full(-1, 2), full(-1, 2)
        dist.recv(later, 0, tag=4)
        future = dist.irecv(earlier, 0, tag=3).get_future()
        assert torch.equal(future.wait()[0], full(1, 2)) and torch.equal(later, full(2, 2))


def objects(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": r} for r in range(size)]
    listed = [f"from {rank}", rank]
    dist.broadcast_object_list(listed, src=size - 1)
    assert listed == [f"from {size - 1}", size - 1]
    held: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object("x" * rank, held, dst=0)
    assert held is None or held == ["x" * r for r in range(size)]
    part: list[Any] = [None]
    dist.scatter_object_list(part, [[r, r] for r in range(size)] if rank == 0 else None, src=0)
    assert part == [[rank, rank]]


def several_in_one_call(rank: int, size: int) -> None:
    tensors = [full(rank, 3), full(rank, 200_000), full(rank, 2, 2).t()]
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(tensor, torch.full_like(tensor, sum(range(size)))) for tensor in tensors)
    for asynchronous in (False, True):
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            many = [full(1, 3) for _ in range(4)]
            for tensor in many:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        assert all(torch.equal(tensor, full(size, 3)) for tensor in many)
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            outputs = [full(-1, size) for _ in range(3)]
            for number, output in enumerate(outputs):
                dist.all_gather_into_tensor(output, full(rank + number, 1))
        if asynchronous:
            manager.wait()
        assert all(output.tolist() == [r + number for r in range(size)] for number, output in enumerate(outputs))
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            parts = [full(-1, 1) for _ in range(3)]
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.arange(float(size)))
        if asynchronous:
            manager.wait()
        assert all(part.item() == rank * size for part in parts)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(one := full(rank, 2), 0, async_op=True)
        dist.broadcast(other := full(rank, 2), size - 1, async_op=True)
    manager.wait()
    assert torch.equal(one, full(0, 2)) and torch.equal(other, full(size - 1, 2))


def calls_on_the_group_itself(rank: int, size: int) -> None:
    """The forms that take a tensor instead of a list, and their arguments instead of options."""
    group = dist.group.WORLD
    group.allreduce(one := full(rank, 2), ReduceOp.MAX).wait()
    group.allreduce([other := full(rank, 2)], op=ReduceOp.MAX, timeout=timedelta(seconds=60)).wait()
    assert one.tolist() == other.tolist() == [size - 1] * 2
    group.broadcast(one := full(rank, 2), size - 1).wait()
    group.broadcast(other := full(rank, 2), root=0).wait()
    assert one[0] == size - 1 and other[0] == 0
    group.allgather(outputs := [full(-1, 1) for _ in range(size)], full(rank, 1)).wait()
    assert [output.item() for output in outputs] == list(range(size))
    group._allgather_base(table := full(-1, size), full(rank, 1)).wait()
    group._reduce_scatter_base(part := full(-1, 1), table).wait()
    group.alltoall_base(swapped := full(-1, size), table, [], []).wait()
    assert part.item() == size * rank and swapped.tolist() == [rank] * size
    group.barrier().wait()
    assert group.size() == size and group.rank() == rank and group.name() == dist.get_backend() == "allfold"


class Marked(torch.Tensor):
    """A subclass with its own memory."""


def tensors_that_are_more_than_tensors(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    pending = functional.all_reduce(full(1, 3), "sum", dist.group.WORLD)
    for tensor, wanted in (
        (pending, size * size),
        (torch.nn.Parameter(full(1, 3)), size),
        (full(1, 3).as_subclass(Marked), size),
    ):
        dist.all_reduce(tensor)
        assert tensor.tolist() == [wanted] * 3
        outputs = [full(-1, 3) for _ in range(size)]
        dist.all_gather(outputs, tensor)
        assert all(output.tolist() == [wanted] * 3 for output in outputs)
    spread = distribute_tensor(full(1, 2 * size), init_device_mesh("cpu", (size,)), [Shard(0)])
    with pytest.raises(UsageError, match="to_local"):
        dist.all_reduce(spread)


def backward_after_a_change(rank: int, size: int) -> None:
    """torch refuses to go back through numbers that a collective has replaced."""
    weight = torch.ones(2 * size, requires_grad=True)
    part, whole = full(1, 2), full(1, 2 * size * size)
    for change in (
        dist.all_reduce,
        lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
        lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        lambda tensor: dist.all_gather_into_tensor(tensor, part),
        lambda tensor: dist.reduce_scatter_tensor(tensor, whole),
        lambda tensor: dist.all_gather([*tensor.view(size, 2)], part),
        lambda tensor: [one.wait() for one in (dist.irecv(tensor, rank), dist.isend(full(1, 2 * size), rank))],
    ):
        changed = 2 * weight
        loss = (changed**2).sum()
        change(changed)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


CASES: tuple[Callable[[int, int], None], ...] = (
    all_reduce_every_operation,
    all_reduce_multiplied_before,
    all_reduce_every_shape,
    all_reduce_seen_by_a_mode,
    all_reduce_of_tensors_in_shared_memory,
    all_reduce_of_sparse_tensors,
    reduce_to_a_root,
    broadcast_of_everything,
    all_gather_lists,
    all_gather_tensors,
    all_gather_in_place,
    reduce_scatter_lists_and_tensors,
    all_to_all_every_way,
    gather_and_scatter,
    messages,
    objects,
    several_in_one_call,
    calls_on_the_group_itself,
    tensors_that_are_more_than_tensors,
    backward_after_a_change,
)


def work_through(rank: int, ranks: int, names: list[str]) -> None:
    for name in names:
        globals()[name](rank, ranks)
        dist.barrier()


@pytest.mark.exhaustive  # the same as below with 3 ranks, in a group of its own
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_function_by_itself(case: Callable[[int, int], None]) -> None:
    run_ranks(work_through, 3, 3, [case.__name__])


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_every_function(ranks: int) -> None:
    run_ranks(work_through, ranks, ranks, [case.__name__ for case in CASES])


def test_every_function_on_two_hosts() -> None:
    names = [case.__name__ for case in CASES if case is not all_reduce_of_tensors_in_shared_memory]
    run_ranks(work_through, 4, 4, names, hosts=2)


# Calls that nobody waits for ------------------------------------------------------------------------------------------


def many_at_once(rank: int, size: int) -> None:
    tensors = [full(rank + number, 10) for number in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    waited = full(1, 3)
    dist.all_reduce(waited)  # must not overtake earlier calls
    assert waited[0] == size and all(work.is_completed() for work in works)
    for number, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait() and work.is_success() and work.exception() is None
        assert work.result()[0] is tensor and torch.equal(tensor, full(sum(range(size)) + size * number, 10))


def futures_with_more_calls(rank: int, size: int) -> float:
    """Callbacks of a future may make further calls and wait for them, as torch's PowerSGD hook does."""
    first = dist.all_reduce(full(1, 3), async_op=True)
    queued = dist.all_reduce(full(1, 3), async_op=True)

    def again(future: torch.futures.Future[Any]) -> torch.Tensor:
        queued.wait()
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    return float(first.get_future().then(again).then(lambda future: future.value() + 1).wait()[0])


def from_several_threads(rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(4)]
    results: list[float] = []

    def work(group: dist.ProcessGroup) -> None:
        for _ in range(50):
            dist.all_reduce(tensor := full(1, 100), group=group)
        results.append(float(tensor[0]))

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [size] * 4


@pytest.mark.parametrize("case", [many_at_once, from_several_threads], ids=lambda case: case.__name__)
def test_calls_that_nobody_waits_for(case: Any) -> None:
    run_ranks(case, 3, 3)


def test_futures() -> None:
    assert run_ranks(futures_with_more_calls, 2, 2) == [5.0, 5.0]


def fail_later(rank: int) -> list[str]:
    work = dist.all_reduce(full(1, 3 + rank), async_op=True)
    future = work.get_future()
    sentences = []
    for wait in (work.wait, future.wait):
        with pytest.raises(RuntimeError) as caught:
            wait()
        sentences.append(str(caught.value))
    assert isinstance(work.exception(), MismatchError) and work.is_completed() and not work.is_success()
    return sentences


def test_errors_come_out_of_wait_and_of_the_future() -> None:
    for sentences in run_ranks(fail_later, 2):
        for sentence in sentences:
            assert "rank 0 called it with float32[3] sum, rank 1 with float32[4] sum" in sentence


# What is wrong is said ------------------------------------------------------------------------------------------------


def disagree(rank: int) -> str:
    with pytest.raises(MismatchError) as caught:
        if rank == 1:
            dist.broadcast(full(1, 3), 0)
        else:
            dist.all_reduce(full(1, 3))
    return str(caught.value)


def test_ranks_that_disagree_are_all_told() -> None:
    for sentence in run_ranks(disagree, 3):
        assert "ranks 0 and 2 called" in sentence and "rank 1 called" in sentence


def bad_input(rank: int, size: int) -> dict[str, str]:
    ones = torch.ones(3)
    calls: dict[str, Callable[[], Any]] = {
        "device": lambda: dist.all_reduce(torch.ones(3, device="meta")),
        "device of a message": lambda: dist.send(torch.ones(3, device="meta"), 1 - rank),
        "sparse broadcast": lambda: dist.broadcast(ones.to_sparse(), 0),
        "sparse product": lambda: dist.all_reduce(ones.to_sparse(), ReduceOp.PRODUCT),
        "csr": lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()),
        "dtype": lambda: dist.all_reduce(ones.to(torch.float8_e4m3fn)),
        "operation": lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), ReduceOp.AVG),
        "list length": lambda: dist.all_gather([ones], ones),
        "list shapes": lambda: dist.all_gather([torch.ones(4), torch.ones(4)], ones),
        "gather shapes": lambda: dist.gather(ones, [torch.ones(4)] * size if rank == 0 else None),
        "scatter shapes": lambda: dist.scatter(ones, [torch.ones(4)] * size if rank == 0 else None),
        "gather uneven": lambda: dist.gather(ones, [ones, torch.ones(4)] if rank == 0 else None),
        "scatter uneven": lambda: dist.scatter(ones, [ones, torch.ones(4)] if rank == 0 else None),
        "tensor shape": lambda: dist.all_gather_into_tensor(torch.ones(5), ones),
        "scattered shape": lambda: dist.reduce_scatter_tensor(torch.ones(5), ones),
        "reduced list": lambda: dist.reduce_scatter(torch.ones(5), [ones] * size),
        "splits": lambda: dist.all_to_all_single(torch.ones(3), ones, [1, 1], [2, 1]),
        "no splits": lambda: dist.all_to_all_single(torch.ones(3), ones),
    }
    sentences = {}
    for name, call in calls.items():
        if rank == 1 and name.startswith(("gather", "scatter ")):
            continue  # only the root holds a list
        with pytest.raises(UsageError) as caught:
            call()
        sentences[name] = str(caught.value)
    return sentences


BAD_INPUT = {
    "device": ("on meta", ".cpu()", "cpu:allfold,meta:"),
    "device of a message": ("on meta",),
    "sparse broadcast": ("broadcast: the tensor is sparse", ".to_dense()"),
    "sparse product": ("sum and avg, not with product",),
    "csr": ("torch.sparse_csr", ".to_dense()"),
    "dtype": ("float8_e4m3fn[3] cannot be reduced", "convert it to one of", "float32"),
    "operation": ("avg is not defined for int32",),
    "list length": ("the output list has 1 tensors, expected one for each of 2 ranks",),
    "list shapes": ("is float32[3], but its place in the output list is float32[4]",),
    "gather shapes": ("place 0 of the output list is float32[4], expected 3 elements",),
    "scatter shapes": ("place 0 of the input list is float32[4], expected 3 elements",),
    "gather uneven": ("place 1 of the output list is float32[4], expected 3 elements",),
    "scatter uneven": ("place 1 of the input list is float32[4], expected 3 elements",),
    "tensor shape": ("the output is float32[5] and the input float32[3]", "2 × 3 = 6 elements"),
    "scattered shape": ("the input is float32[3] and the output float32[5]", "2 × 5 = 10 elements"),
    "reduced list": ("output is float32[5], but its place in the input list is float32[3]",),
    "splits": ("output_split_sizes must be one number for each of 2 ranks with the sum 3", "got [1, 1]"),
    "no splits": ("float32[3]; its first dimension does not divide equally by 2 ranks", "give input_split_sizes"),
}


def test_bad_input() -> None:
    for sentences in run_ranks(bad_input, 2, 2):
        for name, sentence in sentences.items():
            for fact in BAD_INPUT[name]:
                assert fact in sentence, (name, sentence)


def unequal_splits(rank: int) -> str:
    splits = [1, 2] if rank == 0 else [1, 1]
    with pytest.raises(MismatchError) as caught:
        dist.all_to_all_single(torch.ones(2), torch.ones(sum(splits)), [1, 1], splits)
    return str(caught.value)


def test_splits_that_do_not_match() -> None:
    sentence = "all_to_all: rank 0 sends 2 elements to rank 1, which expects 1 from it"
    assert run_ranks(unequal_splits, 2) == [sentence] * 2


def use_after_destruction(rank: int) -> list[str]:
    group = dist.new_group()
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    sentences = []
    for call in (
        lambda: group.allreduce([tensor]),
        lambda: group.broadcast([tensor]),
        lambda: group.send([tensor], 1 - rank),
        lambda: group.barrier(),
        lambda: group.monitored_barrier(),
    ):
        with pytest.raises(GroupDestroyed) as caught:
            call()
        sentences.append(str(caught.value))
    with pytest.raises(ValueError, match="destroyed"):  # torch's own sentence, with our name of the group in it
        dist.all_reduce(tensor, group=group)
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("allfold", store=dist.HashStore(), rank=0, world_size=1)
    return sentences


def test_a_destroyed_group_and_a_second_init() -> None:
    for sentences in run_ranks(use_after_destruction, 2):
        assert all("was destroyed" in sentence and "new_group" in sentence for sentence in sentences)


def give_options(rank: int, store: str) -> str:
    with pytest.raises(UsageError) as caught:
        dist.init_process_group(
            "allfold", init_method=f"file://{store}", rank=0, world_size=1, pg_options=c10d.ProcessGroupGloo._Options()
        )
    return str(caught.value)


def test_options_of_other_backends() -> None:
    assert "allfold takes no backend options" in run_ranks(give_options, 1, init=False)[0]


# Inside autocast ------------------------------------------------------------------------------------------------------


def inside_autocast(rank: int, size: int) -> list[Any]:
    """torch's own functions change types there; ours must not, and must not fail on one rank alone."""
    found: list[Any] = []
    with torch.autocast("cpu"):
        for name in FLOATS:
            dtype = getattr(torch, name)
            output = full(0, 5, dtype=dtype)
            dist.scatter(output, [full(one + 1, 5, dtype=dtype) for one in range(size)] if rank == 0 else None, src=0)
            reduced = full(0, rank + 2, dtype=dtype)
            dist.reduce_scatter(reduced, [full(1, one + 2, dtype=dtype) for one in range(size)])
            gathered = [full(0, 3, dtype=dtype) for _ in range(size)]
            dist.all_gather(gathered, full(rank + 1, 3, dtype=dtype))
            several = [full(1, 3, dtype=dtype), full(2, 4, dtype=dtype)]
            dist.all_reduce_coalesced(several)
            exchanged = [full(0, 2, dtype=dtype) for _ in range(size)]
            dist.all_to_all(exchanged, [full(rank, 2, dtype=dtype) for _ in range(size)])
            sparse = torch.sparse_coo_tensor([[rank]], torch.ones(1, dtype=dtype), (size,))
            dist.all_reduce(sparse)
            tensors = (output, reduced, gathered[-1], several[1], exchanged[-1], sparse.to_dense())
            found.append([(str(one.dtype), float(one[0])) for one in tensors])
    return found


def test_lists_and_sparse_tensors_inside_autocast() -> None:
    for rank, found in enumerate(run_ranks(inside_autocast, 3, 3)):
        for name, got in zip(FLOATS, found, strict=True):
            assert got == [(f"torch.{name}", value) for value in (rank + 1.0, 3.0, 3.0, 6.0, 2.0, 1.0)]
