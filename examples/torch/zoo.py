"""Every collective, before and after.

What a popular version gets wrong: its all_gather mixes float32 inputs with int64 outputs, a ValueError on every backend. All
tensors of a collective have one dtype.
"""

import torch
import torch.distributed as dist
from started import say, start


def main(rank, size):
    mine = torch.tensor([10.0 * rank, 10.0 * rank + 1])

    def show(name, before, after):
        found = [None] * size
        dist.all_gather_object(found, (before, after))
        say(name)
        for number, (had, has) in enumerate(found):
            say(f"  rank {number}  {had}  →  {has}")

    after = mine.clone()
    dist.broadcast(after, src=0)
    assert after.tolist() == [0, 1]
    show("broadcast", mine.tolist(), after.tolist())

    slices = [torch.tensor([float(i)]) for i in range(size)] if rank == 0 else None
    got = torch.empty(1)
    dist.scatter(got, slices, src=0)
    assert got.item() == rank
    show("scatter", None if slices is None else [one.item() for one in slices], got.tolist())

    gathered = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, gathered, dst=0)
    show("gather", mine.tolist(), None if gathered is None else [one.tolist() for one in gathered])

    everyones = [torch.empty(2) for _ in range(size)]
    dist.all_gather(everyones, mine)
    assert [one[0].item() for one in everyones] == [10 * i for i in range(size)]
    show("all_gather", mine.tolist(), [one.tolist() for one in everyones])

    whole = torch.arange(float(size)) + 10 * rank
    part = torch.empty(1)
    dist.reduce_scatter(part, list(whole.split(1)))
    assert part.item() == size * rank + 10 * sum(range(size))
    show("reduce_scatter", whole.tolist(), part.tolist())

    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, whole)
    assert swapped.tolist() == [10 * i + rank for i in range(size)]
    show("all_to_all", whole.tolist(), swapped.tolist())
    dist.barrier()


if __name__ == "__main__":
    start(main, __doc__)
