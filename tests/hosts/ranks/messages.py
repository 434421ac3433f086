"""Point to point between ranks of one host and of different hosts: tags, orders, sizes, any source."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from oracle import Pairs, Tally, kept, tensor, values, zeros


def check(tally: Tally) -> None:
    for count in (1, 7, 1023, 65_537, 1_000_003):
        tally.run(f"to everybody and from everybody, float32[{count}]", partial(_everybody, count))
    for dtype in ("float64", "bfloat16", "int8", "int64", "bool", "complex64"):
        tally.run(f"around the ring, {dtype}[1000]", partial(_ring, dtype, 1000))
    tally.run("around the ring, int32[0]", lambda: _ring("int32", 0))
    tally.run("tags, received in another order", _tags)
    tally.run("the messages of a tag, in their order", _order)
    tally.run("batch_isend_irecv", _batch)
    tally.run("from any source", _any_source)
    tally.run("send_object_list", _objects)
    dist.barrier()


def _everybody(count: int) -> Pairs:
    """Receives posted before sends, with everybody at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    taken = {other: zeros(count, "float32") for other in others}
    given = {other: tensor(values(rank, other, count), "float32") for other in others}
    works = [dist.irecv(taken[other], other) for other in others]
    works += [dist.isend(given[other], other) for other in others]
    for work in works:
        assert work is not None
        work.wait()
    return [(taken[other], values(other, rank, count)) for other in others]


def _ring(dtype: str, count: int) -> Pairs:
    """Blocking calls: even ranks send first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    mine, taken = tensor(values(rank, 0, count), dtype), zeros(count, dtype)
    if rank % 2 == 0:
        dist.send(mine, after, tag=3)
        dist.recv(taken, before, tag=3)
    else:
        dist.recv(taken, before, tag=3)
        dist.send(mine, after, tag=3)
    return [(taken, kept(values(before, 0, count), dtype))]


def _pair() -> tuple[bool, int] | None:
    """Rank 0 and the last one, which is on another host: whether this one sends, and to or from whom."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    return (rank == 0, last if rank == 0 else 0) if rank in (0, last) else None


def _tags() -> Pairs:
    if (pair := _pair()) is None:
        return []
    sends, other = pair
    tags = (5, 1, 2**31 - 1, 0)
    if sends:
        works = [
            dist.isend(tensor(values(7, tag % 97, 100 + number), "int64"), other, tag=tag)
            for number, tag in enumerate(tags)
        ]
        for work in works:
            assert work is not None
            work.wait()
        return []
    results = []
    for number, tag in reversed(list(enumerate(tags))):
        taken = zeros(100 + number, "int64")
        dist.recv(taken, other, tag=tag)
        results.append((taken, values(7, tag % 97, 100 + number)))
    return results


def _order() -> Pairs:
    if (pair := _pair()) is None:
        return []
    sends, other = pair
    if sends:
        for number in range(20):
            dist.send(torch.full((50,), number), other, tag=9)
        return []
    taken = [torch.zeros(50, dtype=torch.int64) for _ in range(20)]
    for one in taken:
        dist.recv(one, other, tag=9)
    return [(one, np.full(50, number)) for number, one in enumerate(taken)]


def _batch() -> Pairs:
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    taken = [zeros(333, "float32") for _ in range(2)]
    operations = [
        dist.P2POp(dist.isend, tensor(values(rank, 1, 333), "float32"), after),
        dist.P2POp(dist.irecv, taken[0], before),
        dist.P2POp(dist.isend, tensor(values(rank, 2, 333), "float32"), before),
        dist.P2POp(dist.irecv, taken[1], after),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [(taken[0], values(before, 1, 333)), (taken[1], values(after, 2, 333))]


def _any_source() -> Pairs:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=4)
        return []
    told = []
    for _ in range(size - 1):
        taken = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(taken, tag=4)
        told.append((source, int(taken)))
    return [(torch.tensor(sorted(told)), np.array([(other, other) for other in range(1, size)]))]


def _objects() -> Pairs:
    if (pair := _pair()) is None:
        return []
    sends, other = pair
    told: list[object] = [{"a": 1}, "two"] if sends else [None, None]
    if sends:
        dist.send_object_list(told, other)
    else:
        dist.recv_object_list(told, other)
    return [(torch.tensor([float(told == [{"a": 1}, "two"])]), np.ones(1))]
