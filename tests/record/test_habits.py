"""Habits of programs that differ from run to run without a difference in what the programs compute."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from worlds import record, replay

from allfold.explain.findings import findings
from allfold.record.diverge import compare_runs
from allfold.record.facts import facts_of_files
from allfold.record.read import read_run


def _leave_something_in_memory() -> None:
    """Different bytes in each run, in memory that the next allocations of such a size get."""
    left = [torch.full((300,), time.time_ns() % 251, dtype=torch.uint8) for _ in range(50)]
    del left


def _gathers_objects(rank: int, _: int) -> Any:
    """Pickles of different lengths, which torch pads."""
    _leave_something_in_memory()
    everything: list[Any] = [None] * 2
    dist.all_gather_object(everything, "y" * 250 * rank)
    one: list[Any] = [None] * 2
    _leave_something_in_memory()
    dist.gather_object(rank * 10**500, one if rank == 1 else None, dst=1)
    received: list[Any] = [None]
    _leave_something_in_memory()
    dist.scatter_object_list(received, ["x" * 250, "x"] if rank == 0 else None, src=0)
    return everything, one, received


def _waits_with_a_limit(rank: int, _: int) -> Any:
    x = torch.ones(4) * rank
    dist.all_reduce(x, async_op=True).wait(timedelta(seconds=60))
    return x.tolist()


def _calls_in_threads(rank: int, first: int) -> Any:
    """Two threads with a group each. The thread that calls first is another one in each run."""
    groups = [dist.new_group() for _ in range(2)]
    begins = [threading.Event() for _ in range(2)]
    found: list[Any] = [None, None]

    def work(number: int) -> None:
        begins[number].wait(60)
        x = torch.ones(4) * (rank + number)
        dist.all_reduce(x, group=groups[number])
        found[number] = x.tolist()
        begins[1 - number].set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    begins[first].set()
    for thread in threads:
        thread.join()
    return found


def _gathers_uneven_parts(rank: int, _: int) -> Any:
    parts = [torch.empty(count + 1) for count in range(2)]
    dist.all_gather(parts, torch.ones(rank + 1) * (rank + 3))
    dist.monitored_barrier()
    return [part.tolist() for part in parts]


def test_what_allfold_adds_to_gloo(tmp_path: Path) -> None:
    """Parts of different lengths are no mistake, and a monitored barrier can be replayed."""
    found = record(tmp_path, 2, "allfold", "all", _gathers_uneven_parts, 0)
    assert found == [[[3.0], [4.0, 4.0]]] * 2
    assert not findings(facts_of_files(sorted(tmp_path.iterdir())))
    assert (
        replay(tmp_path, 2, "allfold", _gathers_uneven_parts, 0)
        == [(found[0], "all 2 calls were made as recorded")] * 2
    )


@pytest.mark.parametrize("work", [_gathers_objects, _waits_with_a_limit, _calls_in_threads])
def test_two_runs_do_not_differ_and_a_replay_is_complete(work: Any, tmp_path: Path) -> None:
    results = [record(tmp_path / name, 2, "gloo", "all", work, n) for n, name in enumerate(("first", "second"))]
    assert results[0] == results[1]
    assert not compare_runs(*(read_run(tmp_path / name) for name in ("first", "second"))).found
    for rank, (again, outcome) in enumerate(replay(tmp_path / "first", 2, "gloo", work, 1)):
        assert outcome.startswith("all "), outcome
        assert again == results[0][rank]
