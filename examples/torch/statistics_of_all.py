"""A mean, a softmax and an argmax of data that lies on many ranks.

What popular versions get wrong: the mean of the means, where ranks have different numbers of samples; a softmax that
subtracts each rank's own maximum; an argmax that says the value but not the rank.
"""

import torch
import torch.distributed as dist
from started import say, start

MAX, MIN = dist.ReduceOp.MAX, dist.ReduceOp.MIN


def samples_of(rank):
    return torch.arange(rank + 1, dtype=torch.float64) + 1000 * (rank % 2)  # unequal parts, and exp of them overflows


def main(rank, size):
    everything = torch.cat([samples_of(one) for one in range(size)])
    mine = samples_of(rank)

    total = torch.tensor([mine.sum(), len(mine)], dtype=torch.float64)
    dist.all_reduce(total)  # sums and counts, not means
    mean = total[0] / total[1]
    assert torch.isclose(mean, everything.mean())

    largest = mine.max().reshape(1)
    dist.all_reduce(largest, op=MAX)  # of all ranks
    powers = torch.exp(mine - largest)
    below = powers.sum().reshape(1)
    dist.all_reduce(below)
    begin = rank * (rank + 1) // 2
    assert torch.allclose(powers / below, torch.softmax(everything, 0)[begin : begin + len(mine)])

    who = torch.tensor([rank if mine.max() == largest else size])
    dist.all_reduce(who, op=MIN)  # the lowest rank that has it
    assert samples_of(who.item()).max() == everything.max()
    say(f"mean {mean:.4f}; softmax as in one process; the largest is {largest.item():g}, on rank {who.item()}")


if __name__ == "__main__":
    start(main, __doc__)
