"""Ranks for tests of the torch backend: real processes, forked from a server that has imported torch once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 150.0

_server = multiprocessing.get_context("forkserver")
# What takes seconds to import is imported once, before any rank is forked.
_server.set_forkserver_preload(
    [
        "allfold.torch.bootstrap",
        "torch._dynamo",
        "torch._functorch.aot_autograd",
        "torch.distributed._functional_collectives",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "allfold.algorithms.table",
        "allfold.torch.patches",
        "pytest",
    ]
)


def run_ranks(
    work: Callable[..., Any],
    ranks: int,
    *args: Any,
    backend: str = "allfold",
    timeout: float = 100.0,
    init: bool = True,
    hosts: int = 1,
) -> list[Any]:
    """Run `work(rank, *args)` on as many ranks of one group; the results, by rank. A rank that raises fails the test.

    `work` must be a function of a module. Without `init` the ranks make their group themselves, in the file store whose
    path comes as the first argument. `hosts`: the number of simulated hosts.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        if not init:
            args = (store, *args)
        ends = [_server.Pipe(duplex=False) for _ in range(ranks)]
        group = (backend, store, ranks, timeout) if init else None
        processes = [
            _server.Process(target=_rank, args=(sending, work, rank, group, args, rank * hosts // ranks), daemon=True)
            for rank, (_, sending) in enumerate(ends)
        ]
        try:
            for process, (_, sending) in zip(processes, ends, strict=True):
                process.start()
                sending.close()
            results = [_result(rank, receiving) for rank, (receiving, _) in enumerate(ends)]
            for rank, process in enumerate(processes):
                process.join(LIMIT_SECONDS)
                assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
            return results
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()


def _result(rank: int, receiving: Connection) -> Any:
    assert wait([receiving], LIMIT_SECONDS), f"rank {rank} said nothing for {LIMIT_SECONDS:g} s"
    try:
        good, what = receiving.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert good, f"rank {rank} raised:\n{what}"
    return what


def _rank(
    sending: Connection,
    work: Callable[..., Any],
    rank: int,
    group: tuple[str, str, int, float] | None,
    args: Any,
    host: int,
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["ALLFOLD_HOSTID"] = str(host)
    try:
        with _group(rank, *group) if group is not None else contextlib.nullcontext():
            result = work(rank, *args)
        sending.send((True, result))
    except BaseException:
        sending.send((False, traceback.format_exc()))
        raise


@contextlib.contextmanager
def _group(rank: int, backend: str, store: str, size: int, timeout: float) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    yield
    dist.destroy_process_group()


def full(value: float, *shape: int, dtype: Any = None) -> Any:
    """A tensor of one value, of float32 unless told otherwise."""
    import torch

    return torch.full(shape, value, dtype=dtype or torch.float32)
