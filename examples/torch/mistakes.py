"""The usual mistakes in programs with several processes, and how allfold reports each.

What popular versions get wrong is in the first column; what rank 0 is told comes after it. On gloo the same programs wait
for half an hour, end in an error that names no rank, or go on with wrong numbers, so they are not run there.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from started import say, start


def different_lengths(rank, group):
    dist.all_reduce(torch.ones(3 + rank), group=group)


def different_types(rank, group):
    dist.all_reduce(torch.ones(3, dtype=torch.float64 if rank else torch.float32), group=group)


def another_order(rank, group):
    first, second = (dist.all_reduce, dist.barrier) if rank == 0 else (dist.barrier, dist.all_reduce)
    for call in (first, second):
        call(*([torch.ones(3)] if call is dist.all_reduce else []), group=group)


def a_call_on_one_rank_only(rank, group):
    if rank == 0:  # "only rank 0 saves the model", with a collective inside
        dist.all_reduce(torch.ones(3), group=group)


def everybody_receives_first(rank, group):
    other = 1 - rank
    dist.recv(torch.empty(3), src=other, group=group)
    dist.send(torch.ones(3), dst=other, group=group)


def a_root_of_their_own(rank, group):
    dist.broadcast(torch.ones(3), src=rank, group=group)
    dist.barrier(group=group)  # the ranks notice in the next call at the latest


MISTAKES = (
    different_lengths,
    different_types,
    another_order,
    a_call_on_one_rank_only,
    everybody_receives_first,
    a_root_of_their_own,
)


def main(rank, size):
    if dist.get_backend() != "allfold":
        say("not run: some of these would wait for half an hour")
        return
    for mistake in MISTAKES:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))  # after an error a group is of no use
        told = "nothing"
        if rank < 2:
            try:
                mistake(rank, group)
            except RuntimeError as error:
                told = str(error).splitlines()[0]
        say(f"{mistake.__name__.replace('_', ' ')}: {told}")
        dist.barrier()


if __name__ == "__main__":
    start(main, __doc__, ranks=2)
