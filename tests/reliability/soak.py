"""`make soak`: ten million small collectives, and an hour of mixed ones; every result is checked, and nothing may grow.

    python tests/reliability/soak.py                              both, an hour in all
    python tests/reliability/soak.py --seconds 60 --calls 200000  a shorter form of both

Two ranks make the small ones, one call after the other. Four ranks make the mixed ones, with three threads each: one
calls on the world, one on a group of all ranks in another order, one on a pair; all collectives, algorithms and sizes,
messages, ordinary and shared arrays, in the background or not, and groups that are made and dropped. Between rounds,
when nothing is in progress, every rank reports its memory, arena, descriptors and threads.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import statistics
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import fault_plans
import numpy as np
from fault_calls import Made, Memory, WrongResult
from fault_plans import OWN, OWN_FIRST, Call

import allfold
from allfold.communicator.communicator import Communicator

SMALL_CALLS, SECONDS = 10_000_000, 3600.0
SMALL_RANKS, MIXED_RANKS = 2, 4
CALLS_A_ROUND = 40
TIMEOUT = 600.0
SECONDS_A_LINE = 30.0
PAGE = os.sysconf("SC_PAGE_SIZE")
LONG = 60.0  # seconds; runs longer than this must have flat memory
M_ARENA_MAX = -8  # of malloc.h
MAY_GROW = 8 * 2**20  # bytes per process: allocators round up, and keep memory for later


@dataclass(frozen=True)
class Sample:
    """What one rank holds while nothing is in progress."""

    seconds: float
    resident: int
    arena: int
    descriptors: int
    threads: int


A_GROUP = 4 * 2**20  # bytes; a group takes 3.2 MiB of the arena


@dataclass(frozen=True)
class Course:
    """What one rank did and held."""

    calls: int
    seconds: float
    samples: list[Sample]

    def growth(self) -> list[str]:
        """The growth from the end of the warm-up (caches fill) to the end; medians over a quarter of all samples."""
        quarter = max(1, len(self.samples) // 4)
        early, late = self.samples[quarter : 2 * quarter] or self.samples[:1], self.samples[-quarter:]
        found = []
        # A process that has just started still fills its caches.
        flat = [("resident", MAY_GROW)] if self.seconds >= LONG else []
        # A dropped group is freed when the next one is made, and its threads end with it: at any moment there may be
        # one more of each. A leak grows with every group, and there are dozens.
        for name, allowed in (*flat, ("arena", A_GROUP), ("descriptors", 0), ("threads", 2)):
            before, after = (statistics.median(getattr(one, name) for one in some) for some in (early, late))
            if after > before + allowed:
                found.append(f"{name} grew from {before:.0f} to {after:.0f}")
        return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Run collectives for a long time, check them all, and see that nothing grows."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for all of it (default {SECONDS:g})")
    parser.add_argument(
        "--calls", type=int, help=f"small collectives (default {SMALL_CALLS} for an hour, less for less)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    calls = options.calls or min(SMALL_CALLS, int(SMALL_CALLS * options.seconds / SECONDS))
    began = time.monotonic()
    wrong = _report("small", allfold.spawn(small, SMALL_RANKS, args=(calls,)))
    left = max(options.seconds - (time.monotonic() - began), options.seconds / 4)
    wrong |= _report("mixed", allfold.spawn(mixed, MIXED_RANKS, args=(left, options.seed)))
    return int(wrong)


def small(comm: Communicator, calls: int) -> Course:
    """One call after the other, as fast as possible; a few numbers each, and every result checked."""
    began, samples = time.monotonic(), []
    progress = _Progress(comm, began)
    numbers, total = np.zeros(4), float(comm.size)
    share = max(1, calls // 40)
    for call in range(calls):
        if call % 3 == 0:
            numbers[0] = call
            comm.broadcast(numbers, call % comm.size)
            right = numbers[0] == call
        elif call % 3 == 1:
            numbers[:] = call
            comm.all_reduce(numbers)
            right = numbers[3] == call * total
        else:
            numbers[1] = call + comm.rank
            comm.all_reduce(numbers, "max")
            right = numbers[1] == call + total - 1
        if not right:
            raise WrongResult(f"call {call} of rank {comm.rank} gave {numbers}")
        if call % share == share - 1:
            samples.append(_sample(comm, began))
            progress.say(f"small: {call + 1} of {calls} calls")
    return Course(calls, time.monotonic() - began, samples)


def mixed(comm: Communicator, seconds: float, seed: int) -> Course:
    """Rounds of seeded calls on three communicators at once, until the time is over."""
    comm.timeout = TIMEOUT
    # One heap for all threads: malloc_trim does not shrink the others at their ends.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    everyone = list(range(comm.size))
    turned, pair = comm.group(everyone[::-1]), comm.group([rank for rank in everyone if rank % 2 == comm.rank % 2])
    streams = [comm, turned, pair]
    began, samples, calls, number = time.monotonic(), [], 0, 0
    progress = _Progress(comm, began)
    # The same rounds again and again: everything is compiled and cached at the beginning, so later growth is a leak.
    different = max(3, int(seconds / 60))
    go_on = np.ones(1)
    while go_on[0]:
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=_stream, args=(one, f"{seed} {number % different} {place}", failures))
            for place, one in enumerate(streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        some = comm.group(random.Random(number).sample(everyone, 2))
        if some is not None:
            some.all_reduce(np.ones(10))
            some.close()
        del some
        calls += CALLS_A_ROUND * len(streams) + 2
        number += 1
        comm.barrier()
        samples.append(_sample(comm, began))
        progress.say(f"mixed: round {number}, {calls} calls of every rank")
        go_on[0] = time.monotonic() - began < seconds
        comm.broadcast(go_on)
    return Course(calls, time.monotonic() - began, samples)


def _stream(comm: Communicator, seed: str, failures: list[BaseException]) -> None:
    dice = random.Random(seed)  # the same on all ranks of the communicator
    pending: list[Made] = []
    memory = Memory()
    try:
        for _ in range(CALLS_A_ROUND):
            kinds = *fault_plans.COLLECTIVES, *fault_plans.PREFIXES
            call = fault_plans._call(dice, "shared_memory", kinds, comm.size, [])
            call = _repeatable(replace(call, salt=dice.randrange(100)))
            pending.append(Made(comm, call, memory, str(call)))
            pending[-1].begin(TIMEOUT)
            if not call.background or len(pending) > 4:
                _finish(pending)
        _finish(pending)
    except BaseException as error:
        failures.append(error)
        comm.abort()


def _finish(pending: list[Made]) -> None:
    for made in pending:
        made.finish()
        made.check()
    pending.clear()


def _repeatable(call: Call) -> Call:
    """Without functions that are made for one call, which would be compiled each time."""
    algorithm = None if call.algorithm and " " in call.algorithm else call.algorithm
    return replace(call, algorithm=algorithm, op="sum" if call.op in (OWN, OWN_FIRST) else call.op)


# Watching -------------------------------------------------------------------------------------------------------------


def _sample(comm: Communicator, began: float) -> Sample:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps is not a leak, and differs from run to run
    return Sample(
        seconds=time.monotonic() - began,
        resident=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        arena=comm.engine.members[comm.rank][0].in_use,
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
    )


class _Progress:
    """A line that is overwritten; in a file, a new line now and then."""

    def __init__(self, comm: Communicator, began: float) -> None:
        self.speaks, self.began, self.said = comm.rank == 0, began, began

    def say(self, text: str) -> None:
        now, tells = time.monotonic(), sys.stderr.isatty()
        if self.speaks and (tells or now - self.said > SECONDS_A_LINE):
            self.said = now
            end = "" if tells else "\n"
            print(f"\r\033[K{text}, {now - self.began:.0f} s{end}", end="", file=sys.stderr, flush=True)


def _report(name: str, courses: list[Course]) -> bool:
    wrong = False
    head = f"{name}: {courses[0].calls} calls of each of {len(courses)} ranks in {courses[0].seconds:.0f} s"
    print(f"\r\033[K{head}, all results right")
    for rank, course in enumerate(courses):
        for held in ("resident", "arena", "descriptors", "threads"):
            values = [getattr(sample, held) for sample in course.samples]
            print(f"  rank {rank} {held:12} first {values[0]:>12} last {values[-1]:>12} most {max(values):>12}")
        for growth in course.growth():
            wrong = True
            print(f"  rank {rank}: {growth}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
