"""Tensors of a GPU in torch's backend: with a device that is made of NumPy, so that no GPU is needed.

Its memory is main memory, so its tensors are those of the CPU. What torch itself computes in a stream is done at once.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from numpy_device import NumpyDevice
from torch_ranks import full, run_ranks

from allfold.dtypes import find_dtype
from allfold.engines.buffer import Buffer
from allfold.engines.stream import engine, ways
from allfold.torch import cuda
from allfold.torch.group import Group


@contextlib.contextmanager
def on_a_device(way: str) -> Iterator[tuple[NumpyDevice, int]]:
    """The group's tensors are taken for those of a device; the device, and the stream in which calls are made."""
    device, group = NumpyDevice(), dist.group.WORLD
    assert isinstance(group, Group)
    own, host = device.new_stream(), group._host
    current = [own]

    @contextlib.contextmanager
    def on_stream(stream: int, _: Any) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    def buffer(_: str, tensor: Any, written: bool) -> Buffer | None:
        if tensor is None:
            return None
        return Buffer(find_dtype(tensor.dtype), tensor.numel(), None, tensor.data_ptr(), current[-1])

    class Gpu(cuda.Gpu):
        def enter(self, *call: Any) -> Any:
            ticket = super().enter(*call)
            if current[-1] != own:  # what torch computes next comes after it
                device.synchronize(current[-1])
            return ticket

    patched: Any = (engine, ways, cuda, torch._C, torch.cuda, Group)
    patched[0].driver = lambda: device
    patched[1]._takes_turns, patched[1].STAGED_UP_TO = lambda *_: True, {"staged": 1 << 60, "on the device": -1}[way]
    patched[2]._on_stream, patched[2]._buffer = on_stream, buffer
    patched[3]._cuda_getCurrentRawStream = lambda _: current[-1]
    patched[4].current_stream = lambda _: types.SimpleNamespace(cuda_stream=current[-1])
    patched[4].device = lambda _: contextlib.nullcontext()
    patched[4].is_current_stream_capturing = lambda: False
    patched[5]._host = property(lambda _: host)
    gpu = Gpu(host)
    group._devices["cpu"] = gpu
    yield device, own
    group._devices.update(cpu=host, cuda=gpu)


def every_kind_of_call(rank: int, size: int, way: str) -> list[str]:
    """Make every kind of call, those of the engine and those made of several or of copies. Returns a line per error."""
    wrong = []
    with on_a_device(way) as (device, stream):

        def expect(what: str, found: Any, wanted: Any) -> None:
            device.synchronize(stream)
            if not torch.equal(found, torch.as_tensor(wanted, dtype=found.dtype)):
                wrong.append(f"{what}: {found} instead of {wanted}")

        total = sum(range(1, size + 1))
        x = full(rank + 1.0, 5)
        for times in range(3):  # remembered, from the second time on
            dist.all_reduce(x)
            expect("all_reduce", x, full(total * size**times, 5))
        x = full(rank + 1.0, 3, 4).t()
        dist.all_reduce(x)
        expect("all_reduce of what is not contiguous", x, full(total, 4, 3))
        x = full(rank + 1.0, 3)
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
        expect("all_reduce with a factor", x, full(2 * total, 3))
        x = full(rank + 1.0, 3)
        dist.reduce(x, 0)
        expect("reduce", x, full(1.0 + rank if rank else total, 3))
        x = torch.tensor([rank, 7], dtype=torch.bool)
        dist.broadcast(x, size - 1)
        expect("broadcast of bytes", x, [size > 1, True])
        x = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            dist.broadcast(x, 0)
        whole, part = torch.zeros(2 * size), full(rank, 2)
        dist.all_gather_into_tensor(whole, part)
        expect("all_gather_into_tensor", whole, [one for one in range(size) for _ in range(2)])
        dist.reduce_scatter_tensor(part, whole)
        expect("reduce_scatter_tensor", part, full(rank * size, 2))
        parts = [torch.zeros(one + 1) for one in range(size)]
        dist.all_gather(parts, full(rank, rank + 1))
        expect("all_gather of parts", torch.cat(parts), [one for one in range(size) for _ in range(one + 1)])
        sent, got = torch.arange(sum(range(size + 1))) + 100 * rank, torch.zeros(size * (rank + 1), dtype=torch.int64)
        dist.all_to_all_single(got, sent, [rank + 1] * size, [one + 1 for one in range(size)])
        first = sum(range(rank + 1))
        expect("all_to_all", got, [100 * one + first + place for one in range(size) for place in range(rank + 1)])
        x, y = full(1.0, 3), full(1.0, 2, 2).t()
        for work in [dist.all_reduce(one, async_op=True) for one in (x, y)]:
            work.wait()
        expect("async all_reduce", x, full(size, 3))
        expect("async all_reduce of what is not contiguous", y, full(size, 2, 2))
        dist.barrier()
        if type(dist.group.WORLD.communicator.engine_for("cuda")) is not engine.Stream:  # type: ignore[union-attr]
            wrong.append("the communicator has another engine for GPUs")
    return wrong


@pytest.mark.parametrize("way", ["staged", "on the device"])
def test_every_kind_of_call_in_a_stream(way: str) -> None:
    assert run_ranks(every_kind_of_call, 2, 2, way) == [[], []]


def async_behind_a_gate(rank: int) -> list[bool]:
    """A call waits in the stream and its tensors are dropped; then the stream goes on."""
    with on_a_device("staged") as (device, stream):
        x, gate = torch.ones(4), threading.Event()
        dist.all_reduce(x)
        device.later(stream, lambda: gate.wait() and None)
        given, target = torch.ones(4), torch.zeros(8)
        alive = [weakref.ref(one) for one in (given, target)]
        work = dist.all_gather_into_tensor(target, given, async_op=True)
        del given, target
        gc.collect()
        seen = [work.is_completed(), *(one() is not None for one in alive)]
        gate.set()
        work.wait()
        device.synchronize(stream)
        del work
        dist.all_reduce(x, async_op=True).wait()  # lets go of what is over
        gc.collect()
        return [*seen, *(one() is None for one in alive)]


def test_an_async_call_keeps_its_tensors_until_the_stream_has_come_to_its_end() -> None:
    assert run_ranks(async_behind_a_gate, 2) == [[False, True, True, True, True]] * 2
