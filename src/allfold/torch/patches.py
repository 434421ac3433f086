"""Functions of torch.distributed that are patched with a second entrance for our groups.

`monitored_barrier` refuses every backend but gloo, and `split_group` every group without an accelerator. `all_reduce`
spends three microseconds on what most calls do not need, three times what the engine takes for the smallest. For our
groups the call goes to the group; for all others, and for anything unusual, torch's own function runs, untouched.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from .backend import Group
from .process_group import Member
from .work import WORKS

_MARK = "_allfold_entrance"


def open_entrances() -> None:
    """Called when the first group is made, so that torch stays as it is for programs that never use allfold."""
    _open("monitored_barrier", functools.partial(_for_groups, _monitored_barrier))
    _open("split_group", functools.partial(_for_groups, _split_group))
    _open("all_reduce", _all_reduce)
    _keep_the_compiler_out()


def _keep_the_compiler_out() -> None:
    """At a graph break, torch.compile also looks into what the call calls, and fails on groups: exclude those.

    Set in the frame evaluator itself, so that programs that compile nothing need not import the compiler.
    """
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    leave_alone = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for kind in (Group, Member, *WORKS):
        for _, function in inspect.getmembers(kind, inspect.isfunction):
            frames.set_code_exec_strategy(function.__code__, leave_alone)


def _open(name: str, make: Callable[[Any], Any]) -> None:
    """Replace one of torch's functions with what `make` makes of it, once."""
    theirs = getattr(c10d, name, None)
    if theirs is None or hasattr(theirs, _MARK):
        return
    entrance = functools.wraps(theirs)(make(theirs))
    setattr(entrance, _MARK, True)
    for module in (c10d, dist):
        if getattr(module, name, None) is theirs:
            setattr(module, name, entrance)
    # torch.compile has a table of replacements, keyed by function. If it is not loaded yet, it will be built with ours.
    functional = sys.modules.get("torch.distributed._functional_collectives")
    remaps = getattr(functional, "traceable_collective_remaps", {})
    if theirs in remaps:
        remaps[entrance] = remaps[theirs]


def _for_groups(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def entrance(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        # The first parameter has different names in the two functions.
        if group is None:
            group = kwargs.pop("parent_pg", None)
        asked = group if group is not None else c10d._world.default_pg
        return ours(asked, *args, **kwargs) if isinstance(asked, Group) else theirs(group, *args, **kwargs)

    return entrance


def _all_reduce(theirs: Callable[..., Any]) -> Callable[..., Any]:
    world, total = c10d._world, dist.ReduceOp.SUM
    has_mode, compiler = torch._C._is_torch_function_mode_enabled, torch._C._dynamo.eval_frame.get_eval_frame_callback

    def entrance(tensor: Tensor, op: Any = total, group: Any = None, async_op: bool = False) -> Any:
        # Modes that watch function calls, and the compiler, know torch's function and not ours.
        if has_mode() or compiler() is not None:
            return theirs(tensor, op=op, group=group, async_op=async_op)
        asked = world.default_pg if group is None else group
        is_plain_call = op is total and not async_op and asked.__class__ is Group and not world.pg_coalesce_state
        if is_plain_call and asked.sums_at_once(tensor):
            return None
        return theirs(tensor, op=op, group=group, async_op=async_op)

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
