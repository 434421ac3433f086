"""A ring all_reduce from isend and recv, and from batch_isend_irecv.

What a popular version gets wrong: its peers are `rank ± step`, which is the rank itself in the first step
(`dist.send` refuses that with ValueError), and it sends whole buffers where a chunk was meant, so that parts are added twice.
`allfold learn start 2` is about that; `allfold verify FILE.py:ring` proves a ring before it runs.
"""

import torch
import torch.distributed as dist
from started import say, start


def exchange(outgoing, incoming, right, left):
    """Send to the right while receiving from the left. `outgoing` must not change before wait() has returned."""
    sending = dist.isend(outgoing, dst=right)
    dist.recv(incoming, src=left)
    sending.wait()


def batched(outgoing, incoming, right, left):
    """The same as one batch, which is the form that GPU backends want."""
    operations = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()


def ring_all_reduce(tensor, rank, size, exchange):
    """P − 1 steps to add up, P − 1 to hand out; one chunk in each, S/P long."""
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = list(tensor.tensor_split(size))  # views; works for any length
    for step in range(2 * (size - 1)):
        out, into = (rank - 1 - step) % size, (rank - 2 - step) % size
        arrived = torch.empty_like(chunks[into])
        exchange(chunks[out], arrived, right, left)
        if step < size - 1:
            chunks[into] += arrived
        else:
            chunks[into].copy_(arrived)


def main(rank, size):
    for way in (exchange, batched):
        tensor = torch.arange(1003.0) * (rank + 1)
        if size > 1:
            ring_all_reduce(tensor, rank, size, way)
        assert torch.equal(tensor, torch.arange(1003.0) * (size * (size + 1) / 2))
        say(f"ring from {way.__name__}: right on every rank, {2 * (size - 1)} messages from each")
    if size > 1:
        try:
            dist.send(torch.ones(1), dst=rank)  # the popular version's first step
        except ValueError as error:
            say(f"to oneself: ValueError: {error}")


if __name__ == "__main__":
    start(main, __doc__)
