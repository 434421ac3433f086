"""Seeded trials on a GPU: one of several ranks is killed somewhere, and all others must name it soon.

    python tests/gpu/faults.py [--trials 100] [--seed 0] [--jobs 4] [--mps]

In a trial, two to four ranks train on one GPU: calls of random sizes, staged and on the GPU, on one or two streams, some
async, in the whole group or in a pair of ranks. One rank kills itself before a call, in the middle of queued calls, or
while the others wait for it in their streams. The others must raise `RankLost` with its number within a second. After
all trials the GPU's memory must be back, and an ordinary run must work. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mps import mps

import allfold as af

SOON_SECONDS = 1.0
_LENGTHS = (1, 1000, 50_000, 400_000, 3_000_000)  # of float32: the first three are staged where ranks take turns
_GIVE_UP_SECONDS = 20.0


def work(comm: Any, seed: int, folder: str, dies: bool) -> tuple[float, str] | None:
    """One rank of a trial: when it heard of the death, and in which words; None without an error."""
    import torch
    import torch.distributed as dist

    import allfold.torch  # noqa: F401 - makes the backend known where allfold is not installed

    plan = random.Random(seed)  # the same on all ranks
    victim, last, how = plan.randrange(comm.size), plan.randrange(2, 30), plan.choice(["before", "queued", "awaited"])
    torch.cuda.set_device(0)
    dist.init_process_group("allfold", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
    pair = dist.new_group(sorted({victim, (victim + 1) % comm.size}))
    side, tensors = torch.cuda.Stream(), [torch.ones(length, device="cuda") for length in _LENGTHS]
    dist.all_reduce(tensors[0])
    torch.cuda.synchronize()
    dist.barrier()
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    try:
        for number in range(10**9 if dies else last):
            tensor, on_side = plan.choice(tensors), plan.random() < 0.3
            group = pair if plan.random() < 0.2 and comm.size > 2 else None
            is_async, syncs = plan.random() < 0.3, plan.random() < 0.3
            if dies and number == last and comm.rank == victim:
                if how == "queued" and group is None:
                    dist.all_reduce(tensor)
                elif how == "awaited":
                    time.sleep(0.2)  # the others are in their streams by now
                Path(folder, "died").write_text(repr(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            if group is not None and dist.get_rank(group) < 0:
                continue
            with torch.cuda.stream(side if on_side else torch.cuda.current_stream()):
                done = dist.all_reduce(tensor, group=group, async_op=is_async)
                if done is not None:
                    done.wait()
            if syncs:
                torch.cuda.synchronize()
            if time.monotonic() > deadline:
                return time.monotonic(), "nothing was raised"
        torch.cuda.synchronize()
    except Exception as error:
        return time.monotonic(), f"{type(error).__name__}: {error}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return None


def trial(seed: int) -> str:
    """What was wrong, or nothing."""
    plan = random.Random(seed)
    ranks = random.Random(seed + 10**6).choice([2, 3, 4])
    victim = plan.randrange(ranks)
    with tempfile.TemporaryDirectory() as folder:
        try:
            heard = af.spawn(work, ranks, args=(seed, folder, True), survive=True, timeout=60.0)
        except Exception as error:
            return f"{ranks} ranks: {type(error).__name__}: {error}"
        died = float(Path(folder, "died").read_text())
    # In the pair, ranks have other numbers.
    names = {f"rank {victim} ", f"rank {sorted({victim, (victim + 1) % ranks}).index(victim)} "}
    for rank, said in enumerate(heard):
        if rank == victim:
            continue
        if said is None or not said[1].startswith("RankLost: ") or not any(name in said[1] for name in names):
            return f"{ranks} ranks, {victim} died: rank {rank} says {said}"
        if said[0] - died > SOON_SECONDS:
            return f"{ranks} ranks, {victim} died: rank {rank} heard of it after {said[0] - died:.2f} s"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="trials at the same time (default: 4)")
    parser.add_argument("--mps", action="store_true", help="run NVIDIA's Multi-Process Service meanwhile")
    arguments = parser.parse_args()
    with mps(arguments.mps):
        return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("faults.py needs a GPU, and there is none\n")
        return 2
    free, wrong, began = torch.cuda.mem_get_info()[0], 0, time.monotonic()
    seeds = range(arguments.seed, arguments.seed + arguments.trials)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for seed, said in zip(seeds, pool.map(trial, seeds), strict=True):
            if said:
                wrong += 1
                print(f"seed {seed}: {said}", flush=True)
    time.sleep(1.0)
    held = free - torch.cuda.mem_get_info()[0]
    if held > 64 << 20:
        wrong += 1
        print(f"{held >> 20} MiB of the GPU's memory are not back", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if af.spawn(work, 4, args=(arguments.seed, folder, False), timeout=60.0) != [None] * 4:
            wrong += 1
            print("the next run does not work", flush=True)
    seconds, how = time.monotonic() - began, "with" if arguments.mps else "without"
    print(f"{'FAIL' if wrong else 'PASS'}: {arguments.trials} trials in {seconds:.0f} s {how} MPS, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
