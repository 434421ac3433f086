"""reduce and all_reduce: the sum of every rank's tensor, on one rank or on all.

What popular versions get wrong: they print the tensor of every rank after `reduce`. Only the root's is defined; gloo leaves
partial sums on the others, and a program that reads them works until the number of ranks changes.
"""

import torch
import torch.distributed as dist
from started import say, start


def main(rank, size):
    total = size * (size + 1) / 2
    tensor = torch.full((4,), rank + 1.0)
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.SUM)
    if rank == 0:
        assert (tensor == total).all()
    say(f"reduce: rank 0 has {tensor.tolist()}; what the other ranks have now is undefined")

    tensor = torch.full((4,), rank + 1.0)  # fill it again: it was changed in place
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    assert (tensor == total).all()
    say(f"all_reduce: every rank has {tensor.tolist()}")

    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean)
    mean /= size  # ReduceOp.AVG does both, but not on every backend
    assert mean.item() == (size - 1) / 2
    say(f"the mean of the ranks' numbers: {mean.item():g}")


if __name__ == "__main__":
    start(main, __doc__)
