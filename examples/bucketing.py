"""Buckets: one all_reduce of everything, or many of parts of it? Measures the bandwidth, and shows when buckets help.

Buckets never save a byte. Many small calls cost more than one large one, because each call has a fixed cost. Buckets help
because the first can be sent while the last is still being computed. Three measurements:

    1. the same array, whole and in buckets of several sizes (including the tail that does not fill a bucket);
    2. many small tensors: one call each, and packed into buckets;
    3. gradients that become ready one after the other: wait for all, or send each bucket as soon as it is full.

algbw = S/t is how fast the array was reduced. busbw = algbw · 2(P−1)/P is the speed that a port needs for that; it can be
compared between different numbers of ranks.
"""

import argparse
import math
import time

import numpy as np

import allfold as af

ELEMENTS = 4 * 1024 * 1024 + 1003  # 16 MiB and a tail that no bucket size divides
SMALL = 500  # small tensors of 1000 elements


def buckets(array, elements):
    """The array cut into buckets; the last one holds what is left, however little."""
    return [array[begin : begin + elements] for begin in range(0, len(array), elements)]


def best_time(comm, array, reduce_all, rounds=3):
    """Seconds on the slowest rank, the best of a few rounds, each on fresh numbers and checked to the last element."""
    best = float("inf")
    total = comm.size * (comm.size + 1) / 2
    for _ in range(rounds):
        array[:] = comm.rank + 1
        comm.barrier()
        start = time.perf_counter()
        reduce_all()
        taken = np.array([time.perf_counter() - start])
        assert (array == total).all(), f"rank {comm.rank}: {(array != total).sum()} elements are wrong"
        comm.all_reduce(taken, op="max")
        best = min(best, taken[0])
    return best


def reduce_each(comm, parts):
    for part in parts:
        comm.all_reduce(part)


def whole_against_buckets(comm, say, array):
    say(
        f"{array.nbytes} bytes, ranks: {comm.size}\n{'bucket':>10s}{'calls':>7s}{'time':>12s}{'algbw':>15s}{'busbw':>15s}"
    )
    for size in (len(array), 2**20, 2**18, 2**16, 2**14, 2**12):
        parts = buckets(array, size)
        seconds = best_time(comm, array, lambda parts=parts: reduce_each(comm, parts))
        algbw = array.nbytes / seconds / 1e9
        busbw = algbw * 2 * (comm.size - 1) / comm.size
        name = "whole" if size == len(array) else f"{size * 4 >> 10} KiB"
        say(f"{name:>10s}{len(parts):7d}{seconds * 1e3:9.2f} ms{algbw:10.2f} GB/s{busbw:10.2f} GB/s")


def many_small_tensors(comm, say, array):
    flat = array[: SMALL * 1000]
    tensors = buckets(flat, 1000)
    apart = best_time(comm, flat, lambda: reduce_each(comm, tensors))
    packed = best_time(comm, flat, lambda: reduce_each(comm, buckets(flat, 125_000)))
    say(f"\n{SMALL} tensors of 4 kB: {apart * 1e3:.2f} ms one by one, {packed * 1e3:.2f} ms in 4 buckets of 500 kB")


def gradients_that_come_in(comm, say, array):
    """The backward pass is a wait here, so that it takes no core from the communication."""
    parts = buckets(array, math.ceil(len(array) / 8))
    whole = best_time(comm, array, lambda: comm.all_reduce(array))
    pause = 2 * whole / len(parts)  # a backward pass that takes twice as long as the all_reduce

    def all_at_the_end():
        for _ in parts:
            time.sleep(pause)
        comm.all_reduce(array)

    def as_they_come():
        handles = []
        for part in reversed(parts):  # the last layer's gradients are the first to be ready
            time.sleep(pause)
            handles.append(comm.all_reduce(part, async_op=True))
        for handle in handles:
            handle.wait()

    late, early = best_time(comm, array, all_at_the_end), best_time(comm, array, as_they_come)
    say(
        f"gradients come in over {(late - whole) * 1e3:.1f} ms: {late * 1e3:.1f} ms if reduced whole at the end,",
        end=" ",
    )
    say(f"{early * 1e3:.1f} ms in {len(parts)} buckets as they come")


def what_overflows(comm, say):
    """A benchmark that reduces the same array over and over multiplies it by the number of ranks each time."""
    array, calls = np.ones(8, np.float32), 0
    while comm.size > 1 and np.isfinite(array).all():
        comm.all_reduce(array)
        calls += 1
    if comm.size > 1:
        assert calls == math.ceil(128 / math.log2(comm.size)), calls
        say(f"\nnever refilled, an array of ones is infinite after {calls} calls: here it is refilled for each")


def main(comm):
    say = print if comm.rank == 0 else lambda *_, **__: None
    array = comm.empty(ELEMENTS)  # in shared memory, so that nothing is copied
    whole_against_buckets(comm, say, array)
    many_small_tensors(comm, say, array)
    gradients_that_come_in(comm, say, array)
    what_overflows(comm, say)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
