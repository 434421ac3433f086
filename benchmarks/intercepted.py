"""The workloads of the benchmarks of check and record: small calls and DDP steps, with and without the watcher, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

CALLS, STEPS = 300, 5


def workloads() -> Iterator[tuple[str, Callable[[], None], int]]:
    """Each with its name and its number of calls or steps. The default group must exist."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    small = torch.ones(8)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 10)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    data = torch.randn(256, 256)

    def calls() -> None:
        for _ in range(CALLS):
            dist.all_reduce(small)

    def steps() -> None:
        for _ in range(STEPS):
            model.zero_grad()
            model(data).sum().backward()

    yield "all_reduce of 8 floats", calls, CALLS
    yield "step of DDP", steps, STEPS


def in_turns(
    name: str, work: Callable[[], None], count: int, rounds: int, names: list[str], own_wait: Callable[..., object]
) -> dict[str, list[float]]:
    """Microseconds per call or step by name: the first name is without the watcher `name`, a second one is with it.

    `own_wait` is torch's own `Work.wait`, which a watcher may have replaced when the first group was created.
    """
    import torch.distributed as dist

    from allfold.intercept import dispatch

    watcher, wait = dispatch._watchers.get(name), dist.Work.wait
    times: dict[str, list[float]] = {one: [] for one in names}
    timed(work)
    for number in range(rounds):
        for one in names[:: -1 if number % 2 else 1]:
            dispatch.watch(name, None if one == names[0] else watcher)
            dist.Work.wait = own_wait if one == names[0] else wait
            times[one].append(timed(work) / count * 1e6)
    dispatch.watch(name, watcher)
    dist.Work.wait = wait
    return times


def timed(work: Callable[[], None]) -> float:
    """The seconds that a function takes; all ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
