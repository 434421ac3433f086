"""The options of calls. torch passes them as an object, or in other forms of the same calls as single arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor


def listed(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def plain_options(kind: Any, opts: Any, timeout: Any = None) -> Any:
    """The options of a call: as given, or made from a timeout."""
    if isinstance(opts, timedelta):
        opts, timeout = None, opts
    if opts is None:
        opts = kind()
        if timeout is not None:
            opts.timeout = timeout
    return opts


def reduced(kind: Any, opts: Any, op: Any = None, timeout: Any = None) -> Any:
    if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        opts, op, timeout = None, opts, timeout if op is None else op
    made = plain_options(kind, opts, timeout)
    if op is not None:
        made.reduceOp = op
    return made


def rooted(kind: Any, opts: Any, root: int | None, timeout: Any, op: Any = None) -> Any:
    if isinstance(opts, int):
        opts, root = None, opts
    made = reduced(kind, opts, op, timeout)
    if root is not None:
        made.rootRank = root
    return made
