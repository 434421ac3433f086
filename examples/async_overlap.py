"""Non-blocking calls: start a collective, do something else, wait for it.

`async_op=True` returns a handle. Do not touch the array until `handle.wait()` has returned; everything else can go on. This
file measures how much of the collective is hidden, with two kinds of work in between:

    waiting    for a disk, a network, a user: the core is free, so the collective can use it
    computing  the collective needs a core too, and is hidden only if there is a spare one
"""

import argparse
import os
import time

import numpy as np

import allfold as af

ELEMENTS = 4 * 1024 * 1024  # 16 MiB of float32
ROUNDS = 7


def best_time(comm, prepare, action, check):
    """Seconds of the action on the slowest rank, the best of a few rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        prepare()
        comm.barrier()
        start = time.perf_counter()
        action()
        taken = np.array([time.perf_counter() - start])
        check()
        comm.all_reduce(taken, op="max")
        best = min(best, taken[0])
    return best


def main(comm):
    say = print if comm.rank == 0 else lambda *_: None
    array = comm.empty(ELEMENTS)  # in shared memory, so that nothing is copied
    total = comm.size * (comm.size + 1) / 2

    def fill():
        array[:] = comm.rank + 1  # every time, or the sums would grow without end

    def check():
        assert (array == total).all(), f"rank {comm.rank}: expected {total}, found {array[:3]}"

    def reduce_now():
        comm.all_reduce(array)

    alone = best_time(comm, fill, reduce_now, check)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    say(f"an all_reduce of {array.nbytes >> 20} MiB alone: {alone * 1e3:.1f} ms; ranks: {comm.size}, cores: {cores}")
    say(f"{'work':12s}{'alone':>10s}{'one after the other':>22s}{'at once':>10s}{'hidden':>9s}")

    # Work that takes about twice as long as the all_reduce. It is a fixed amount, not a fixed time, so that computing
    # takes longer when it is disturbed, and the delay shows.
    matrix = np.full((64, 64), 1.0 / 64)
    one_product = best_time(comm, fill, lambda: [matrix @ matrix for _ in range(20)], lambda: None) / 20
    products = int(2 * alone / one_product) + 1
    shares = []
    kinds = {"waiting": lambda: time.sleep(2 * alone), "computing": lambda: [matrix @ matrix for _ in range(products)]}
    for name, work in kinds.items():

        def in_turn(work=work):
            reduce_now()
            work()

        def at_once(work=work):
            handle = comm.all_reduce(array, async_op=True)
            work()
            handle.wait()  # now, and not before, the array may be touched

        work_alone = best_time(comm, fill, work, lambda: None)
        serial = best_time(comm, fill, in_turn, check)
        overlapped = best_time(comm, fill, at_once, check)
        hidden = min(1.0, max(0.0, (serial - overlapped) / min(alone, work_alone)))
        times = f"{work_alone * 1e3:7.1f} ms{serial * 1e3:19.1f} ms{overlapped * 1e3:7.1f} ms"
        say(f"{name:12s}{times}{hidden:9.0%}")
        for_lack = cores < comm.size and name == "computing" and hidden < 0.5
        shares.append(f"{name} hid {hidden:.0%}" + (f" ({comm.size} ranks share {cores} cores)" if for_lack else ""))
    say(f"of the shorter of the two, {', '.join(shares)}")

    # Several calls in flight: they are executed in the order in which they were started.
    fill()
    quarters = [array[begin : begin + ELEMENTS // 4] for begin in range(0, ELEMENTS, ELEMENTS // 4)]
    handles = [comm.all_reduce(quarter, async_op=True) for quarter in quarters]
    for handle in handles:
        handle.wait()
    check()
    assert all(handle.done() for handle in handles)
    say(f"{len(handles)} calls in flight, then waited for: every element is {total:.0f} on every rank")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
