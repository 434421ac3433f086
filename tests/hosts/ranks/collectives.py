"""Every collective of torch.distributed on every rank, for many types and sizes, against NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from oracle import Pairs, Tally, Values, kept, tensor, values, zeros

TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "complex64")
SIZES = (0, 1, 7, 1023)
LARGE = (65_537, 300_001)  # of float32 only
HUGE = 3_000_001  # of float32, and only all_reduce
OPERATIONS: dict[str, Callable[[list[Values]], Values]] = {
    "SUM": lambda all_of_them: np.sum(all_of_them, axis=0),
    "PRODUCT": lambda all_of_them: np.prod(all_of_them, axis=0),
    "MIN": lambda all_of_them: np.min(all_of_them, axis=0),
    "MAX": lambda all_of_them: np.max(all_of_them, axis=0),
    "AVG": lambda all_of_them: np.mean(all_of_them, axis=0),
    "BAND": lambda all_of_them: np.bitwise_and.reduce(all_of_them),
    "BOR": lambda all_of_them: np.bitwise_or.reduce(all_of_them),
    "BXOR": lambda all_of_them: np.bitwise_xor.reduce(all_of_them),
}


def check(tally: Tally) -> None:
    for dtype in TYPES:
        for count in (*SIZES, *(LARGE if dtype == "float32" else ())):
            _moving(tally, dtype, count)
            if dtype != "bool":
                _reducing(tally, dtype, count, "SUM")
    _reducing(tally, "float32", HUGE, "SUM")
    for dtype, operations in (
        ("float32", ("PRODUCT", "MIN", "MAX", "AVG")),
        ("int32", ("PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")),
    ):
        for operation in operations:
            _reducing(tally, dtype, 1023, operation)
    _splits(tally)
    _together(tally)
    _objects(tally)
    tally.run("barrier", lambda: [dist.barrier() or (torch.ones(1), np.ones(1))])
    tally.run("monitored_barrier", lambda: [dist.monitored_barrier() or (torch.ones(1), np.ones(1))])


def _roots(count: int) -> Sequence[int]:
    size = dist.get_world_size()
    return sorted({0, size // 2, size - 1}) if count == 7 else [size - 1]


def _moving(tally: Tally, dtype: str, count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    about = f"{dtype}[{count}]"
    every = [values(count, other, count) for other in range(size)]
    all_of_them = kept(np.concatenate(every), dtype)

    def all_gather() -> Pairs:
        parts = [zeros(count, dtype) for _ in range(size)]
        dist.all_gather(parts, tensor(every[rank], dtype))
        return [(torch.cat(parts), all_of_them)]

    def all_gather_into_tensor() -> Pairs:
        whole = zeros(count * size, dtype)
        dist.all_gather_into_tensor(whole, tensor(every[rank], dtype))
        return [(whole, all_of_them)]

    def broadcast(root: int) -> Pairs:
        mine = tensor(every[rank], dtype)
        dist.broadcast(mine, root)
        return [(mine, kept(every[root], dtype))]

    def gather(root: int) -> Pairs:
        parts = [zeros(count, dtype) for _ in range(size)] if rank == root else None
        dist.gather(tensor(every[rank], dtype), parts, root)
        return [(torch.cat(parts), all_of_them)] if parts is not None else []

    def scatter(root: int) -> Pairs:
        mine = zeros(count, dtype)
        dist.scatter(mine, [tensor(one, dtype) for one in every] if rank == root else None, root)
        return [(mine, kept(every[rank], dtype))]

    sent = [[values(1000 * giver + taker, count, count) for taker in range(size)] for giver in range(size)]
    wanted = kept(np.concatenate([sent[giver][rank] for giver in range(size)]), dtype)

    def all_to_all() -> Pairs:
        parts = [zeros(count, dtype) for _ in range(size)]
        dist.all_to_all(parts, [tensor(one, dtype) for one in sent[rank]])
        return [(torch.cat(parts), wanted)]

    def all_to_all_single() -> Pairs:
        whole = zeros(count * size, dtype)
        dist.all_to_all_single(whole, tensor(np.concatenate(sent[rank]), dtype))
        return [(whole, wanted)]

    for function in (all_gather, all_gather_into_tensor, all_to_all, all_to_all_single):
        tally.run(f"{function.__name__} {about}", function)
    for rooted in (broadcast, gather, scatter):
        for root in _roots(count):
            tally.run(f"{rooted.__name__} {about} from rank {root}", partial(rooted, root))


def _reducing(tally: Tally, dtype: str, count: int, operation: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    about = f"{operation} {dtype}[{count}]"
    op, folded = getattr(dist.ReduceOp, operation), OPERATIONS[operation]
    every = [values(count, other, count) for other in range(size)]
    wanted = kept(folded(every), dtype)
    longer = [values(count + 1, other, count * size) for other in range(size)]
    own_part = kept(folded(longer)[rank * count : (rank + 1) * count], dtype)

    def all_reduce() -> Pairs:
        mine = tensor(every[rank], dtype)
        dist.all_reduce(mine, op)
        return [(mine, wanted)]

    def all_reduce_of_a_view() -> Pairs:
        room = zeros(count + 3, dtype)
        room[1 : count + 1] = tensor(every[rank], dtype)
        dist.all_reduce(room[1 : count + 1], op)
        return [(room, np.concatenate([[0], wanted, [0, 0]]))]

    def all_reduce_async() -> Pairs:
        mine = [tensor(every[rank], dtype) for _ in range(3)]
        works = [dist.all_reduce(one, op, async_op=True) for one in mine]
        for work in reversed(works):
            work.wait()
        return [(one, wanted) for one in mine]

    def reduce(root: int) -> Pairs:
        mine = tensor(every[rank], dtype)
        dist.reduce(mine, root, op)
        return [(mine, wanted)] if rank == root else []

    def reduce_scatter() -> Pairs:
        mine = zeros(count, dtype)
        dist.reduce_scatter(mine, [tensor(one, dtype) for one in np.split(longer[rank], size)], op)
        return [(mine, own_part)]

    def reduce_scatter_tensor() -> Pairs:
        mine = zeros(count, dtype)
        dist.reduce_scatter_tensor(mine, tensor(longer[rank], dtype), op)
        return [(mine, own_part)]

    functions = [all_reduce]
    if count < HUGE:
        functions += [reduce_scatter, reduce_scatter_tensor]
    if count < LARGE[0]:
        functions += [all_reduce_of_a_view, all_reduce_async]
    for function in functions:
        tally.run(f"{function.__name__} {about}", function)
    for root in _roots(count):
        tally.run(f"reduce {about} to rank {root}", partial(reduce, root))


def _splits(tally: Tally) -> None:
    """all_to_all_single with parts of different sizes, some of them empty."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def length(giver: int, taker: int) -> int:
        return (giver * 3 + taker * 5) % 7 * 11

    def uneven() -> Pairs:
        lengths_out = [length(rank, taker) for taker in range(size)]
        lengths_in = [length(giver, rank) for giver in range(size)]
        given = [values(giver, rank, length(giver, rank)) for giver in range(size)]
        mine = tensor(np.concatenate([values(rank, taker, length(rank, taker)) for taker in range(size)]), "int64")
        whole = zeros(sum(lengths_in), "int64")
        dist.all_to_all_single(whole, mine, lengths_in, lengths_out)
        return [(whole, np.concatenate(given))]

    tally.run("all_to_all_single with uneven parts", uneven)


def _together(tally: Tally) -> None:
    """Several at once, and the same bits on every rank and every time."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def different_ones() -> Pairs:
        mine, whole, told = tensor(values(1, rank, 5000), "float32"), zeros(100 * size, "int32"), zeros(9, "float64")
        if rank == 1:
            told = tensor(values(3, 1, 9), "float64")
        works = [
            dist.all_reduce(mine, async_op=True),
            dist.all_gather_into_tensor(whole, tensor(values(2, rank, 100), "int32"), async_op=True),
            dist.broadcast(told, 1, async_op=True),
        ]
        for work in works:
            work.wait()
        return [
            (mine, np.sum([values(1, other, 5000) for other in range(size)], axis=0)),
            (whole, np.concatenate([values(2, other, 100) for other in range(size)])),
            (told, values(3, 1, 9)),
        ]

    def same_bits(count: int) -> Pairs:
        sums = []
        for _ in range(3):
            mine = torch.from_numpy(np.random.default_rng(rank).standard_normal(count, np.float32))
            dist.all_reduce(mine)
            sums.append(zlib.crc32(mine.numpy().tobytes()))
        everybody: list[Any] = [None] * size
        dist.all_gather_object(everybody, sums)
        return [(torch.tensor(everybody), np.full((size, 3), sums[0]))]

    tally.run("three collectives at once", different_ones)
    for count in (5, 1000, 100_003, 3_000_001):
        tally.run(f"the same bits everywhere, float32[{count}]", partial(same_bits, count))


def _objects(tally: Tally) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    root = size - 1
    good = np.ones(1)

    def equal(got: object, wanted: object) -> Pairs:
        return [(torch.tensor([float(got == wanted)]), good)]

    def all_gather_object() -> Pairs:
        everybody: list[Any] = [None] * size
        dist.all_gather_object(everybody, {"rank": rank, "text": "é" * rank})
        return equal(everybody, [{"rank": other, "text": "é" * other} for other in range(size)])

    def broadcast_object_list() -> Pairs:
        told: list[Any] = [{"from": rank}, rank]
        dist.broadcast_object_list(told, root)
        return equal(told, [{"from": root}, root])

    def gather_object() -> Pairs:
        everybody: list[Any] | None = [None] * size if rank == root else None
        dist.gather_object((rank, "x"), everybody, root)
        return equal(everybody, [(other, "x") for other in range(size)] if rank == root else None)

    def scatter_object_list() -> Pairs:
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == root else None, root)
        return equal(mine, [f"for {rank}"])

    for function in (all_gather_object, broadcast_object_list, gather_object, scatter_object_list):
        tally.run(function.__name__, function)
