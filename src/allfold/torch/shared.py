"""Tensors in shared memory: collectives of torch.distributed on them, their views and slices copy nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..communicator.communicator import Communicator
from ..errors import UsageError


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """`torch.empty`, in memory that the ranks of this host share.

    An all_reduce of such a tensor costs less than a copy of it. `group` is a process group of the backend "allfold" or
    a communicator of allfold; None takes torch's default group. The memory is freed with the last view of it.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise UsageError(f"empty: expected lengths from 0 up, not {shape}")
    wanted = torch.get_default_dtype() if dtype is None else dtype
    array = communicator_of("empty", group).empty(prod(shape), str(wanted).removeprefix("torch."))  # type: ignore[arg-type]
    return torch.from_numpy(array).view(wanted).view(shape)  # type: ignore[arg-type]


def communicator_of(caller: str, given: Any) -> Communicator:
    """The communicator that is meant: the given one, that of a process group, or that of torch's default group."""
    found = given
    if found is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise UsageError(
                f"{caller}: there is no communicator; give it one (from allfold.init() or allfold.spawn), or call "
                'torch.distributed.init_process_group("allfold") first'
            )
        found = torch.distributed.group.WORLD
    found = getattr(found, "communicator", found)
    if not isinstance(found, Communicator):
        raise UsageError(
            f"{caller}: expected a communicator of allfold or a process group of its backend, not {found!r}; start "
            'torch with torch.distributed.init_process_group("allfold")'
        )
    return found
