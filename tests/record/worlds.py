"""Ranks that are recorded, or replayed, in processes that have imported torch already."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from launched import RankAlone

from allfold.launch.spawn import run_everywhere


def record(folder: Any, ranks: int, backend: str, keep: str, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, *arguments)` returns on ranks that are recorded."""
    return run_everywhere(RankAlone, _recorded, ranks, args=(str(folder), backend, keep, work, arguments), timeout=240)


def _recorded(rank: int, folder: str, backend: str, keep: str, work: Callable[..., Any], arguments: tuple[Any]) -> Any:
    os.environ |= {"ALLFOLD_RECORD": folder, "ALLFOLD_RECORD_KEEP": keep}
    from allfold.record import install

    install.install()
    dist.init_process_group(backend)
    found = work(rank, *arguments)
    dist.destroy_process_group()
    install._leave()
    return found


def replay(folder: Any, ranks: int, backend: str, work: Callable[..., Any], *arguments: Any) -> list[tuple[Any, str]]:
    """What `work(rank, *arguments)` returns on each rank alone, and how its replay ended."""
    return run_everywhere(RankAlone, _replayed, ranks, args=(str(folder), backend, work, arguments), timeout=240)


def _replayed(
    rank: int, folder: str, backend: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, str]:
    os.environ |= {"MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1"}  # nobody is there
    from allfold.record.alone import replay
    from allfold.record.player import ReplayEnded
    from allfold.record.read import path_of, read_rank

    found = None
    player = replay(read_rank(path_of(folder, rank)))
    try:
        dist.init_process_group(backend)
        found = work(rank, *arguments)
        dist.destroy_process_group()
    except (ReplayEnded, RuntimeError) as error:
        found = None if player.ended is not None else str(error)
    return found, player.outcome()
