"""A bucket: gradients that are reduced together, in shared memory, with a view for every parameter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...communicator.communicator import Communicator
from ..shared import empty

_ALIGNMENT = 64  # bytes: where a parameter's gradient begins, for vector instructions that read it


class Bucket:
    """Gradients of one type, one after the other, then a flag for each: its average is above zero if a rank used it."""

    def __init__(
        self,
        communicator: Communicator,
        members: Sequence[int],
        parameters: Sequence[torch.nn.Parameter],
        compress: str | None,
    ) -> None:
        self.members = list(members)
        dtype = parameters[0].dtype
        step = max(1, _ALIGNMENT // dtype.itemsize)
        starts = np.cumsum([0, *(-(-parameter.numel() // step) * step for parameter in parameters)]).tolist()
        count = starts[-1] + len(members)
        # What is reduced must be in shared memory; autograd and the optimizer see the same memory, unless it is wider.
        narrow = compress is not None and dtype.is_floating_point and dtype.itemsize > torch.bfloat16.itemsize
        self._gradients = torch.zeros(count, dtype=dtype) if narrow else _shared(communicator, count, dtype)
        self._wire = _shared(communicator, count, torch.bfloat16) if narrow else self._gradients
        self._flags = self._gradients[starts[-1] :]
        self.views = [
            self._gradients[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(starts, parameters, strict=False)
        ]

    def launch(self, communicator: Communicator, touched: Sequence[bool]) -> None:
        self._is_whole = all(touched)
        if self._is_whole:
            self._flags.fill_(1)
        else:
            self._flags.copy_(torch.tensor(touched))
        if self._wire is not self._gradients:
            self._wire.copy_(self._gradients)
        self._handle = communicator.all_reduce(self._wire, op="avg", async_op=True)

    def wait(self) -> list[bool]:
        """Wait for the averages; for every member, whether any rank used it."""
        assert self._handle is not None
        self._handle.wait()
        if self._wire is not self._gradients:
            self._gradients.copy_(self._wire)
        return [True] * len(self.members) if self._is_whole else [flag != 0 for flag in self._flags.tolist()]


def _shared(communicator: Communicator, count: int, dtype: torch.dtype) -> torch.Tensor:
    return empty(count, dtype=dtype, group=communicator).zero_()
