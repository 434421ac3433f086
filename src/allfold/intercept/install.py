"""Starts the watchers of a run as soon as a script has created its first process group.

torch calls `allfold_autoload` while it is imported, and that calls `install` of `allfold.check.install` or
`allfold.record.install` if a variable asks for it. The script is unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .dispatch import watch_class

Begin = Callable[[dist.ProcessGroup, dist.Store], None]
End = Callable[[], None]


def on_world(begin: Begin, end: End) -> None:
    """Call `begin` whenever torch's default group has been created, and `end` before it is destroyed.

    The functions of torch that users call may have been imported by name before, so the one that they call last is replaced.
    """
    original = c10d._update_default_pg
    if (module := sys.modules.get("allfold.torch.group")) is not None:
        watch_class(module.Group)

    def update_default_group(group: Any) -> None:
        if group is None:
            end()
        original(group)
        if isinstance(group, dist.ProcessGroup):
            begin(group, c10d._world.pg_map[group][1])

    c10d._update_default_pg = update_default_group
