"""Faults that tests ask for: ranks that they kill, delay or slow down, and random delays."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.testing import ranks, run


def sizes_after_kill(comm: af.Communicator) -> int:
    comm.barrier()
    ranks.kill(2)
    with pytest.raises(af.RankLost, match="rank 2"):
        comm.barrier()
    return comm.shrink().size


@pytest.mark.parametrize("keep", [False, True])
def test_the_others_go_on_without_a_rank_that_the_test_kills(keep: bool) -> None:
    for _ in range(2):  # kept ranks are not used again after a rank was killed
        assert run(sizes_after_kill, ranks=4, keep=keep) == [3, 3, None, 3]


def die_otherwise(comm: af.Communicator) -> None:
    ranks.kill(1)
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_a_rank_that_dies_by_itself_still_fails_the_test() -> None:
    with pytest.raises(af.RankFailed, match="rank 2 of 3 was killed by SIGKILL") as failure:
        run(die_otherwise, ranks=3)
    assert failure.value.ranks == [2] and "rank 1" not in str(failure.value)


def seconds_of_barriers(comm: af.Communicator, count: int, late: float, slow: float) -> float:
    comm.barrier()
    begin = time.monotonic()
    ranks.slow(1, slow)
    ranks.delay(0, late)
    for _ in range(count):
        comm.barrier()
    return time.monotonic() - begin


@pytest.mark.parametrize("threads", [False, True])
def test_late_and_slow_ranks(threads: bool) -> None:
    late, slow = run(seconds_of_barriers, ranks=2, args=(4, 0.1, 0.05), threads=threads)
    assert late >= 0.25  # a delay of 0.1 s, then three calls of 0.05 s that it does not cover
    assert slow >= 0.2  # rank 0 may have begun its delay before rank 1 began to measure


def order_of_arrival(comm: af.Communicator) -> list[int]:
    arrived = []
    for _ in range(20):
        if comm.rank == 0:
            for _ in range(comm.size - 1):
                x = np.zeros(1, np.int64)
                arrived.append(comm.recv(x)[0])
        else:
            comm.send(np.ones(1, np.int64), 0)
        comm.barrier()
    return arrived


def test_random_delays_change_the_order_of_ranks() -> None:
    arrived = run(order_of_arrival, ranks=3, delays=5)[0]
    assert len({*map(tuple, np.reshape(arrived, (-1, 2)))}) == 2


def calls_of_a_group(group: Any) -> list[float]:
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    for _ in range(40):
        dist.all_reduce(torch.ones(2))
    first = time.monotonic()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(20):
        model(torch.ones(1, 2)).sum().backward()  # the reducer in C++ makes the calls
    return [first - began, time.monotonic() - first]


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_random_delays_of_groups(backend: str) -> None:
    pytest.importorskip("torch")
    for seconds in run(calls_of_a_group, ranks=2, backend=backend, delays=5):
        assert min(seconds) > 0.04, seconds  # 20 and 10 delays of 5 ms on average, on each rank


def wrong(_: af.Communicator) -> None:
    raise ValueError("wrong")


def test_a_failure_has_the_seed_of_its_delays() -> None:
    with pytest.raises(af.RankFailed, match=r"\n  calls were delayed at random: delays=17$"):
        run(wrong, ranks=2, delays=17)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "cuda:0"}, "device='cuda:0' is for torch's process groups: name a backend, too"),
        ({"device": "gpu", "backend": "gloo"}, "device must be 'cpu', 'cuda' or a GPU such as 'cuda:0', not 'gpu'"),
        ({"backend": "nccl"}, "nccl needs GPUs: device='cuda' gives each rank one of its own"),
    ],
)
def test_devices_that_make_no_sense(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(af.UsageError) as error:
        run(wrong, ranks=2, **options)
    assert str(error.value) == sentence


def test_a_gpu_that_is_not_there() -> None:
    pytest.importorskip("torch")
    with pytest.raises(
        af.RankFailed, match=r"device='cuda:99': rank \d would use GPU 99, and torch finds (no|\d+) GPUs? here"
    ):
        run(wrong, ranks=2, backend="allfold", device="cuda:99")


def misuse(comm: af.Communicator, name: str, arguments: tuple[Any, ...]) -> str:
    with pytest.raises(af.UsageError) as error:
        getattr(ranks, name)(*arguments)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("kill", (2,), "ranks.kill: expected a rank from 0 to 1, not 2"),
        ("kill", (0, 1), "ranks.kill: none of 2 ranks would be left"),
        ("slow", (1.0, 1), "ranks.slow: expected a rank from 0 to 1, not 1.0"),
        ("delay", (0, -1), "ranks.delay: expected a number of seconds, not -1"),
    ],
)
def test_misuse(name: str, arguments: tuple[Any, ...], sentence: str) -> None:
    assert run(misuse, ranks=2, args=(name, arguments), keep=True) == [sentence] * 2


def test_threads_cannot_be_killed() -> None:
    said = run(misuse, ranks=2, args=("kill", (1,)), threads=True)
    assert said == ["ranks.kill: threads cannot be killed; run the test in processes, without threads=True"] * 2


def test_outside_of_ranks() -> None:
    with pytest.raises(af.UsageError, match=r"ranks\.kill works in the ranks of @pytest\.mark\.ranks and of"):
        ranks.kill(1)
    with pytest.raises(af.UsageError, match="delays must be a whole number, the seed of random delays, not '3'"):
        run(wrong, ranks=2, delays="3")  # type: ignore[arg-type]
