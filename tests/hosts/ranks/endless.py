"""What a rank does in the checks of faults: calls without end, while the laboratory does something to one of them.

    endless.py BACKEND WORK VICTIM TIMEOUT SECONDS

WORK says what the ranks call, and what the victim does differently. TIMEOUT is the group's. After SECONDS rank 0 tells
the others, in the data, that it was enough. Every rank reports that it is ready, and how it ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from report import rank_and_size, say, say_here

DIFFERENT_CALL = 30  # the number of the call in which the victim differs, or leaves
LATE_SECONDS = 3.0
COUNTS = {"small": 1000, "large": 4 * 2**20, "message": 16 * 2**20}


def main(backend: str, work: str, victim: str, timeout: str, seconds: str) -> int:
    say_here()
    import torch
    import torch.distributed as dist

    if work == "absent" and rank_and_size()[0] == int(victim):
        time.sleep(3600)
    torch.set_num_threads(1)
    say("meets")
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=float(timeout)))
        is_victim = dist.get_rank() == int(victim)
        for _ in range(3):
            dist.all_reduce(torch.ones(COUNTS["small"]))
        if work == "message":
            calls = _message(is_victim, int(victim))
        elif work in ("waiting", "barrier", "recv"):
            calls = _wait_for(work, int(victim), is_victim)
        else:
            calls = _loop(work, is_victim, float(seconds))
        say("end", error=None, text="", ours=False, calls=calls)
        dist.destroy_process_group()
    except Exception as error:
        say("end", error=type(error).__name__, text=str(error), ours=_is_ours(error))
        return 1
    return 0


def _wait_for(work: str, victim: int, is_victim: bool) -> int:
    """Everybody waits for the victim, which does not come."""
    import torch
    import torch.distributed as dist

    calls: dict[str, Callable[[], Any]] = {
        "waiting": lambda: dist.all_reduce(torch.ones(COUNTS["small"])),
        "barrier": dist.barrier,
        "recv": lambda: dist.recv(torch.ones(COUNTS["small"]), victim),
    }
    say("ready")
    if is_victim:
        time.sleep(3600)
    calls[work]()
    return 1


def _message(is_victim: bool, victim: int) -> int:
    """The victim gets one long message from rank 0, which leaves as soon as it has sent it, as the others do."""
    import torch
    import torch.distributed as dist

    say("ready")
    array = torch.full((COUNTS["message"],), 1.0 - is_victim)
    if dist.get_rank() == 0:
        dist.send(array, victim)
    elif is_victim:
        dist.recv(array, 0)
        assert bool((array == 1).all())
    return 1


def _loop(work: str, is_victim: bool, seconds: float) -> int:
    import torch
    import torch.distributed as dist

    count = COUNTS["large" if work == "large" else "small"]
    began, number = time.monotonic(), 0
    while True:
        if number == 3:
            say("ready")
        number += 1
        enough = dist.get_rank() == 0 and time.monotonic() > began + seconds
        array = torch.full((count,), float(enough))
        if number == DIFFERENT_CALL:
            say("differs")
            if is_victim and _differ(work, array):
                continue
        dist.all_reduce(array)
        if float(array[-1]):
            return number


def _differ(work: str, array: Any) -> bool:
    """What the victim does instead of the call that the others make; whether it did."""
    import torch
    import torch.distributed as dist

    if work == "late":
        time.sleep(LATE_SECONDS)
        return False
    if work == "raises":
        raise ArithmeticError("an error of the user's own")
    if work == "leaves":
        sys.exit(0)
    instead: dict[str, Callable[[], Any]] = {
        "another count": lambda: dist.all_reduce(torch.ones(len(array) + 1)),
        "another type": lambda: dist.all_reduce(array.double()),
        "another operation": lambda: dist.all_reduce(array, dist.ReduceOp.MAX),
        "another collective": lambda: dist.broadcast(array, 0),
    }
    if work in instead:
        instead[work]()
        return True
    return False


def _is_ours(error: Exception) -> bool:
    module = sys.modules.get("allfold.errors")
    return module is not None and isinstance(error, module.AllfoldError)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
