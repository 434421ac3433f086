"""A hierarchical all_reduce: inside each group, between the leaders, inside each group again.

What a popular version gets wrong: it calls `new_group` for the leaders on the leaders alone. torch wants every rank to call
it, also those that are not in the group, and in the same order. It may work by luck.
"""

import torch
import torch.distributed as dist
from started import say, start


def main(rank, size):
    half = (size + 1) // 2
    members = [list(range(half)), list(range(half, size))] if size > 1 else [[0]]
    groups = [dist.new_group(ranks) for ranks in members]  # every rank makes every group
    leaders = dist.new_group([ranks[0] for ranks in members])
    mine = 0 if rank < half else 1
    leader = members[mine][0]

    tensor = torch.full((5,), rank + 1.0)
    dist.reduce(tensor, dst=leader, group=groups[mine])
    if rank == leader:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=leader, group=groups[mine])
    assert (tensor == size * (size + 1) / 2).all()
    say(f"groups {members}: every rank has {tensor.tolist()}")


if __name__ == "__main__":
    start(main, __doc__)
