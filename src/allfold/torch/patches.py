"""Replaces two functions of torch.distributed that reject our groups.

`monitored_barrier` rejects every backend but gloo, and `split_group` every group without an accelerator. The replacements
call a method of our groups; for all others they call torch's own function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .group import Group
from .host import Host
from .work import WORKS

_MARK = "_allfold_entrance"


def open_entrances() -> None:
    """Called when the first group is created, so that torch is unchanged in programs that never use allfold."""
    _open("monitored_barrier", _monitored_barrier)
    _open("split_group", _split_group)
    _keep_the_compiler_out()


def _keep_the_compiler_out() -> None:
    """Exclude our methods from torch.compile: at a graph break it also compiles what the call calls, and fails on groups.

    This is set in the frame evaluator itself, so that programs that compile nothing need not import the compiler.
    """
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    leave_alone = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for kind in (Group, Host, *WORKS):
        for _, function in inspect.getmembers(kind, inspect.isfunction):
            frames.set_code_exec_strategy(function.__code__, leave_alone)


def _open(name: str, ours: Callable[..., Any]) -> None:
    """Replace one of torch's functions, once, by one that calls `ours` for our groups."""
    theirs = getattr(c10d, name, None)
    if theirs is None or hasattr(theirs, _MARK):
        return
    entrance = functools.wraps(theirs)(_for_groups(ours, theirs))
    setattr(entrance, _MARK, True)
    for module in (c10d, dist):
        if getattr(module, name, None) is theirs:
            setattr(module, name, entrance)


def _for_groups(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def entrance(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        # The first parameter has different names in the two functions.
        if group is None:
            group = kwargs.pop("parent_pg", None)
        asked = group if group is not None else c10d._world.default_pg
        return ours(asked, *args, **kwargs) if isinstance(asked, Group) else theirs(group, *args, **kwargs)

    return entrance


def _monitored_barrier(group: Group, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
    group.monitored_barrier(timeout, wait_all_ranks)


def _split_group(
    group: Group,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> dist.ProcessGroup | None:
    if not split_ranks or not all(split_ranks):
        raise ValueError("split_group: split_ranks must be a list of lists of ranks, none of them empty")
    return next(
        (
            group.split_group(sorted(ranks), timeout, pg_options, None, group_desc)
            for ranks in split_ranks
            if group.rank() in ranks
        ),
        None,
    )
