"""all_reduce on every rank, by several backends in turns. The first is gloo; it also keeps the ranks together.

timing.py BACKENDS SIZES ROUNDS        e.g. timing.py gloo,allfold 8,4096 7
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from report import say, say_here

TURN_SECONDS, MOST_CALLS = 0.15, 200
LIMIT_SECONDS = 60.0
TUNED, TUNING_SECONDS = tuple(2**power for power in (10, 14, 16, 18, 20, 22, 24, 26)), 12.0


def main(backends: str, sizes: str, rounds: str) -> int:
    say_here()
    import torch
    import torch.distributed as dist

    from allfold.torch.shared import communicator_of
    from allfold.tune.hosts import tune_hosts

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_SECONDS))
    groups: dict[str, Any] = {}
    for name in backends.split(","):
        try:
            groups[name] = dist.new_group(backend=name, timeout=timedelta(seconds=LIMIT_SECONDS))
        except Exception as error:
            say("missing", backend=name, text=f"{type(error).__name__}: {error}")
    for size in map(int, sizes.split(",")):
        array, turns = torch.empty(size // 4), {name: _calls_per_turn(groups[name], size) for name in groups}
        times: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(int(rounds)):
            names = list(groups)
            for name in names if number % 2 else reversed(names):
                array.zero_()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(turns[name]):
                    dist.all_reduce(array, group=groups[name])
                times[name].append((time.perf_counter() - began) / turns[name])
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, times)
        # A turn takes as long as it takes the slowest rank.
        slowest = {name: [max(turn) for turn in zip(*(one[name] for one in everybody), strict=True)] for name in groups}
        say("times", size=size, seconds=slowest, calls=turns)
    if "allfold" in groups:
        say("tuned", run=tune_hosts(communicator_of("timing", groups["allfold"]), TUNED, TUNING_SECONDS).to_json())
    for group in groups.values():
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return 0


def _calls_per_turn(group: Any, size: int) -> int:
    """As many as fill a turn; on the way the result is checked."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    seconds = 0.0
    for _ in range(2):  # the first call is slow
        array = torch.full((size // 4,), float(dist.get_rank() + 1))
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(array, group=group)
        seconds = time.perf_counter() - began
        if not bool((array == ranks * (ranks + 1) / 2).all()):
            raise AssertionError(f"a sum of {size} bytes is wrong: {array[:4].tolist()}…")
    calls = torch.tensor([max(1, min(MOST_CALLS, int(TURN_SECONDS / seconds)))])
    dist.broadcast(calls, 0)
    return int(calls)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
