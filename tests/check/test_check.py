"""`allfold run --check`: faults of every kind are named with the rank and the line, on every rank, in the same words."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from launched import launched
from ranks import run_seeds
from seeded import FAULTS, names_it, trial

import allfold


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
@pytest.mark.parametrize("hosts", [None, [1, 2]], ids=["one host", "two hosts"])
def test_every_kind_of_fault_is_named(backend: str, hosts: list[int] | None) -> None:
    seeds = list(range(len(FAULTS)))
    for seed, sentences in run_seeds(seeds, backend, hosts=hosts).items():
        one = trial(seed)
        said = [sentence for sentence in sentences if sentence]
        expected = 1 if one.fault == "late" else one.ranks - (one.fault == "dead")
        assert len(said) == expected, (one, sentences)
        assert len(set(said)) == 1, (one, sentences)
        assert names_it(one, said[0].partition(": ")[2]), (one, said[0], one.source)


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_a_circular_wait_with_a_background_call(backend: str) -> None:
    """Rank 0 leaves a call out, and waits for a background call in another group."""
    ((seed, sentences),) = run_seeds([207], backend).items()
    assert len(set(sentences)) == 1 and len(sentences) == 3, sentences
    assert names_it(trial(seed), sentences[0].partition(": ")[2]), sentences


def _messages(_: Any, backend: str) -> list[float]:
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    install()
    dist.init_process_group(backend)
    rank = dist.get_rank()
    sent, received = torch.full((4,), float(rank)), torch.empty(4)
    if rank == 0:
        dist.send(sent, 1)
    else:
        dist.recv(received, 0)
    for works in (
        [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)],
        dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]),
    ):
        for work in works:
            work.wait()
    background = dist.all_reduce(sent, async_op=True)
    background.wait()
    dist.all_reduce(sent)
    dist.destroy_process_group()
    return [*received.tolist(), *sent.tolist()]


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_messages_arrive_between_checked_calls(backend: str) -> None:
    assert launched(_messages, 2, backend) == [[1.0] * 4 + [2.0] * 4, [0.0] * 4 + [2.0] * 4]


def _scattered(_: Any, backend: str, size: int, background: bool) -> tuple[list[float], str]:
    """A reduce_scatter, then one in which rank 1 has `size` elements more."""
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    install()
    dist.init_process_group(backend)
    rank, output = dist.get_rank(), torch.empty(2)
    said = ""
    for more in (0, size if rank == 1 else 0):
        source = torch.ones(4 + 2 * more)
        try:
            work = dist.reduce_scatter_single(torch.empty(2 + more), source, async_op=background)
            if background:
                work.wait()
            if not more:
                work = dist.reduce_scatter(output, list(source.split(2)), async_op=background)
                if background:
                    work.wait()
        except allfold.MismatchError as error:
            said = str(error)
    if not said:
        dist.barrier()
    dist.destroy_process_group()
    return output.tolist(), said


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
@pytest.mark.parametrize("background", [False, True])
def test_results_that_gloo_computes_in_the_wait(backend: str, background: bool) -> None:
    """gloo's reduce_scatter is never complete before it is waited for."""
    assert launched(_scattered, 2, backend, 0, background) == [([2.0, 2.0], "")] * 2
    (_, said), (_, other) = launched(_scattered, 2, backend, 1, background)
    assert said == other and "different size" in said, (said, other)


def _functional(_: Any, backend: str) -> tuple[float, str]:
    """A functional collective, then one in which rank 1 has an element more. Its results are waited for in C++."""
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    install()
    dist.init_process_group(backend)
    import torch.distributed._functional_collectives as functional

    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum().item()
    if rank == 1:
        store.wait(["begun"])  # the other one waits already
    try:
        result = functional.all_reduce(torch.ones(4 + rank), "sum", dist.group.WORLD)
        store.set("begun", "1")
        said = str(result.sum())
    except allfold.MismatchError as error:
        said = str(error)
    store.set(f"over {rank}", "1")
    store.wait(["over 0", "over 1"])  # gloo would raise an error if the other rank ended
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return total, said


@pytest.mark.parametrize("backend", ["gloo", "allfold"])
def test_waits_for_functional_collectives_end_with_the_same_error(backend: str) -> None:
    (total, said), other = launched(_functional, 2, backend)
    assert total == 8.0 and "different size" in said and other == (total, said)


def _leaves_a_call(_: Any) -> tuple[str, str]:
    """A signal's handler raises while rank 1 waits for rank 0, and the program goes on."""
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    def handler(*_: Any) -> None:
        raise ValueError("enough")

    install()
    dist.init_process_group("gloo")
    rank, said = dist.get_rank(), []
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        store.wait(["left"])
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(2))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        store.set("left", "1")
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return said[0], said[1]


def test_a_rank_that_leaves_a_call_is_named() -> None:
    zero, one = launched(_leaves_a_call, 2)
    assert one[0] == "ValueError: enough" and {*zero, one[1]} == {one[1]}
    assert re.fullmatch(
        r"MismatchError: rank 1 left all_reduce\(float32\[2\], sum\) at test_check.py:\d+.* \(call 1 of the default group\) "
        r"without making it, because a signal's handler raised ValueError: enough",
        one[1],
    ), one


def _gathers_uneven_parts(_: Any) -> tuple[list[list[float]], str]:
    """An all_gather of one element of rank 0 and two of rank 1; then one in which rank 1 expects three of itself."""
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    install()
    dist.init_process_group("allfold")
    rank = dist.get_rank()
    parts = [torch.empty(1), torch.empty(2)]
    dist.all_gather(parts, torch.ones(rank + 1) * (rank + 3))
    try:
        dist.all_gather([torch.empty(1), torch.empty(2 + rank)], torch.ones(1 + 2 * rank))
        said = ""
    except allfold.MismatchError as error:
        said = str(error)
    dist.destroy_process_group()
    return [part.tolist() for part in parts], said


def test_parts_of_different_lengths_are_no_mistake_if_all_ranks_expect_them() -> None:
    (found, said), other = launched(_gathers_uneven_parts, 2)
    assert found == [[3.0], [4.0, 4.0]] and "different size" in said and other == (found, said)


def _late(_: Any, folder: str, background: bool) -> str:
    os.environ["ALLFOLD_CHECK"] = "1"
    from allfold.check.install import install

    install()
    dist.init_process_group("gloo", timeout=timedelta(seconds=2))
    rank, x, said = dist.get_rank(), torch.ones(4), ""
    dist.all_reduce(x)
    if rank == 1:
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
    try:
        work = dist.all_reduce(x, async_op=background)
        if background:
            work.wait()
    except allfold.CollectiveTimeout as error:
        said = str(error)
    Path(folder, str(rank)).touch()
    while len(os.listdir(folder)) < 3:  # the first rank holds the store
        time.sleep(0.01)
    with contextlib.suppress(RuntimeError):  # gloo's threads may have failed
        dist.destroy_process_group()
    return said


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("hosts", [None, [1, 2]], ids=["one host", "two hosts"])
def test_a_rank_that_is_too_late_is_named_on_all_hosts(
    tmp_path: Path, hosts: list[int] | None, background: bool
) -> None:
    said = launched(_late, 3, str(tmp_path), background, hosts=hosts)
    assert len(set(said)) == 1, said
    assert said[0].startswith("after 2 s, rank 1 is late: it is at test_check.py:"), said
