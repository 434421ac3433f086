"""Tests on gloo: calls are compared before they are made, so that a mistake is an error at once and not a hang."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import allfold as af
from allfold.testing import run

pytest.importorskip("torch")


def differ(_: Any) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    if dist.get_rank() == 1:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)


@pytest.mark.parametrize("keep", [False, True])
def test_all_ranks_raise_the_same_sentence(keep: bool) -> None:
    begin = time.monotonic()
    with pytest.raises(af.RankFailed) as failure:
        run(differ, ranks=4, backend="gloo", timeout=300, keep=keep)
    assert time.monotonic() - begin < 200, "not at the timeout"
    here = r"test_checked_ranks\.py"
    sentence = (
        rf"raised MismatchError: rank 1 made all_reduce\(float32\[4\], sum\) at {here}:\d+ \(call 1 of the default group\), "
        rf"where ranks 0, 2 and 3 made broadcast\(float32\[4\], root 0\) at {here}:\d+: different operation\n"
    )
    assert re.match(r"rank \d of 4 " + sentence, str(failure.value)), str(failure.value)
    assert str(failure.value).endswith(" raised the same error") and len(failure.value.ranks) == 4


def in_a_circle(_: Any) -> None:
    import torch
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if dist.get_rank() else reversed(groups):
        dist.all_reduce(torch.ones(2), group=group)


def test_a_deadlock_is_named() -> None:
    with pytest.raises(
        af.RankFailed, match=r"circular wait between groups: rank 0 is in call 1 of group .*; each waits for the"
    ):
        run(in_a_circle, ranks=2, backend="gloo", timeout=300)


def one_leaves(_: Any, raises: bool) -> None:
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 1:
        if raises:
            raise ValueError("the cause")
        return
    dist.barrier()


def test_a_rank_that_ends_early_is_named() -> None:
    with pytest.raises(
        af.RankFailed, match=r"rank [02] of 3 raised RankLost: rank 1 ended and never made barrier at test_c"
    ):
        run(one_leaves, ranks=3, backend="gloo", args=(False,), timeout=300)
    with pytest.raises(af.RankFailed, match=r"rank 1 of 3 raised ValueError: the cause\n") as failure:
        run(one_leaves, ranks=3, backend="gloo", args=(True,), timeout=300)
    assert "raised RankLost: rank 1 ended after ValueError: the cause and never made barrier" in str(failure.value)


def send_after_a_gather(_: Any) -> list[float]:
    """gloo lets a rank go on when the root of a gather has its part. The check has it wait for all ranks."""
    import torch
    import torch.distributed as dist

    rank, x = dist.get_rank(), torch.full((1,), float(dist.get_rank()))
    if rank == 2:
        dist.recv(x, 1)
    parts = [torch.zeros(1) for _ in range(3)]
    dist.gather(x, parts if rank == 0 else None, 0)
    if rank == 1:
        dist.send(x + 6, 2)
    return [float(part) for part in parts]


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_check_can_be_switched_off(by_variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_variable:
        monkeypatch.setenv("ALLFOLD_CHECK", "0")
    found = run(send_after_a_gather, ranks=3, backend="gloo", keep=True, check=by_variable)
    assert found[0] == [0.0, 1.0, 7.0]


def test_options_that_make_no_sense() -> None:
    with pytest.raises(af.UsageError, match="check must be True or False, not 'no'"):
        run(differ, ranks=2, backend="gloo", check="no")  # type: ignore[arg-type]
