"""Data-parallel training with gradients in buckets, reduced while the backward pass goes on: what DDP does, in short.

The gradients of a bucket lie in one piece of memory (on allfold in memory that all ranks share, so that nothing is copied),
and every `.grad` is a view of it. Autograd computes gradients from the last layer to the first; a full bucket is reduced in
the background while the pass computes the next one.

What popular versions get wrong: they reduce a bucket as soon as it is full. Ranks may fill theirs in different orders, and
all ranks must make the same calls in the same order.
"""

import torch
import torch.distributed as dist
from started import say, start
from torch.nn.parallel import DistributedDataParallel

BUCKET_BYTES = 32 * 1024
STEPS, BATCH = 20, 16


class Buckets:
    """The gradients of a module; `finish` leaves their averages over all ranks in `.grad`."""

    def __init__(self, module):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, src=0)  # the same start everywhere
        self.flat, self.sizes = [], []  # by bucket: its memory, and how many parameters it has
        self.missing, self.calls, self.early = [], [], 0
        row = []
        for parameter in reversed(list(module.parameters())):
            row.append(parameter)
            if sum(one.nbytes for one in row) >= BUCKET_BYTES:
                self._add(row)
                row = []
        if row:
            self._add(row)

    def _add(self, parameters):
        """A bucket of these, whose gradients become views of it."""
        flat = shared_zeros(sum(parameter.numel() for parameter in parameters), parameters[0].dtype)
        number, begin = len(self.flat), 0
        for parameter in parameters:
            parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._computed(number))
        self.flat.append(flat)
        self.sizes.append(len(parameters))

    def zero(self):
        """Before a pass: in place, because the gradients are views."""
        for flat in self.flat:
            flat.zero_()
        self.missing, self.calls = list(self.sizes), []

    def _computed(self, number):
        """A gradient is there. Launch the buckets that are full, in their order and no other."""
        self.missing[number] -= 1
        while len(self.calls) < len(self.flat) and self.missing[len(self.calls)] == 0:
            self._launch()

    def _launch(self):
        self.calls.append(dist.all_reduce(self.flat[len(self.calls)], async_op=True))

    def finish(self):
        """After a pass: launch what it did not use, and wait for all."""
        self.early = len(self.calls)
        while len(self.calls) < len(self.flat):
            self._launch()
        for flat, call in zip(self.flat, self.calls, strict=True):
            call.wait()
            flat /= dist.get_world_size()


def shared_zeros(count, dtype):
    if dist.get_backend() != "allfold":
        return torch.zeros(count, dtype=dtype)
    import allfold.torch

    return allfold.torch.empty(count, dtype=dtype).zero_()


def network():
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).double()


def train(model, rank, before, after):
    """Train on this rank's own data; the first and the last loss, averaged over the ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 64, generator=data, dtype=torch.float64)
        before()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
        loss.backward()
        after()
        optimizer.step()
        losses.append(loss.detach())
    ends = torch.stack([losses[0], losses[-1]])
    dist.all_reduce(ends)
    return (ends / dist.get_world_size()).tolist()


def main(rank, size):
    torch.manual_seed(rank)  # every rank starts with weights of its own, and gets those of rank 0
    ours, theirs = network(), network()
    buckets = Buckets(ours)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.data.copy_(own.data)
    wrapped = DistributedDataParallel(theirs)

    first, last = train(ours, rank, buckets.zero, buckets.finish)
    train(wrapped, rank, wrapped.zero_grad, lambda: None)
    say(
        f"{len(buckets.flat)} buckets, {buckets.early} launched during the backward pass; loss {first:.3f} to {last:.3f}"
    )
    assert last < first

    mine = torch.nn.utils.parameters_to_vector(ours.parameters()).detach()
    everyones = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(one, mine) for one in everyones)
    say(f"all {size} ranks hold the same model, bit for bit")
    ddp = torch.nn.utils.parameters_to_vector(theirs.parameters()).detach()
    assert torch.allclose(mine, ddp, rtol=1e-9, atol=1e-12)
    say("and DistributedDataParallel trains the same, up to rounding")


if __name__ == "__main__":
    start(main, __doc__)
