"""`Work.wait` for the Work objects of a record and of its replay, which torch makes from futures."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

from ..intercept.done_work import NO_TIMEOUT

_wait_of_torch = dist.Work.wait
_POLL_SECONDS = 0.0005


def wait(work: Any, *arguments: Any, **given: Any) -> Any:
    """torch's `Work.wait`, extended: torch's own accepts no timeout for a Work object made from a future."""
    try:
        return _wait_of_torch(work, *arguments, **given)
    except RuntimeError as error:
        if "FutureWrappingWork" not in str(error):
            raise
    timeout = given.get("timeout", arguments[0] if arguments else NO_TIMEOUT)
    end = time.monotonic() + timeout.total_seconds()
    while not work.is_completed():
        if time.monotonic() > end:
            raise RuntimeError(f"Operation timed out after {timeout.total_seconds():g} s")
        time.sleep(_POLL_SECONDS)
    return _wait_of_torch(work)
