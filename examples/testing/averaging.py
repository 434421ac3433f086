"""The code under test: a mean over all ranks, with allfold and with torch.distributed."""

from __future__ import annotations

from typing import Any

import numpy as np


def mean(comm: Any, values: np.ndarray) -> float:
    """The mean of the values of all ranks, which may have different numbers of them."""
    total = np.array([values.sum(), float(len(values))])
    comm.all_reduce(total)
    return float(total[0] / total[1])


def average_gradients(model: Any) -> None:
    """Replace every gradient by its mean over all ranks, as data-parallel training does."""
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
