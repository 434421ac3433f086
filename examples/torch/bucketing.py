"""One large all_reduce against buckets, and the bandwidth of each.

What a popular version gets wrong: it reduces the same tensor over and over (2.9e18 after its 30 calls; it would overflow),
and it would drop the tail if the length were not a multiple of the bucket.
"""

import time

import torch
import torch.distributed as dist
from started import say, start

ELEMENTS = 2**20 + 7  # not a multiple of any bucket


def main(rank, size):
    say(f"{ELEMENTS * 4} bytes, ranks: {size}")
    for elements in (ELEMENTS, 2**18, 2**14):
        best = float("inf")
        for _ in range(3):
            tensor = torch.full((ELEMENTS,), rank + 1.0)  # new numbers every time
            dist.barrier()
            begin = time.perf_counter()
            for bucket in tensor.split(elements):  # the last one may be shorter
                dist.all_reduce(bucket)
            best = min(best, time.perf_counter() - begin)
            assert (tensor == size * (size + 1) / 2).all()
        calls = -(-ELEMENTS // elements)
        algorithm = ELEMENTS * 4 / best / 1e9
        bus = algorithm * 2 * (size - 1) / size
        say(f"{calls:5d} calls: {best * 1e3:8.2f} ms  algbw {algorithm:6.2f} GB/s  busbw {bus:6.2f} GB/s")


if __name__ == "__main__":
    start(main, __doc__)
