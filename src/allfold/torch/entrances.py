"""Two functions of torch.distributed that ask for other backends by name: they get a second entrance for ours.

`monitored_barrier` refuses every backend but gloo, and `split_group` every group without an accelerator. For groups of
ours the call goes to the group; for all others it stays torch's own, untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .backend import Group

_MARK = "_allfold_entrance"


def open_entrances() -> None:
    """Called where the first group is made, so that whoever never uses allfold has torch as it is."""
    _open("monitored_barrier", _monitored_barrier)
    _open("split_group", _split_group)


def _open(name: str, ours: Callable[..., Any]) -> None:
    theirs = getattr(c10d, name, None)
    if theirs is None or hasattr(theirs, _MARK):
        return

    @functools.wraps(theirs)
    def entrance(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        # The first parameter has different names in the two functions.
        if group is None:
            group = kwargs.pop("parent_pg", None)
        asked = group if group is not None else c10d._world.default_pg
        return ours(asked, *args, **kwargs) if isinstance(asked, Group) else theirs(group, *args, **kwargs)

    setattr(entrance, _MARK, True)
    for module in (c10d, dist):
        if getattr(module, name, None) is theirs:
            setattr(module, name, entrance)


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
