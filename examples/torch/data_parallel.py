"""Data-parallel training: gradients averaged by hand, and by torch's DistributedDataParallel, with the same result.

What popular versions get wrong: they forget to give all ranks the same weights at the start, or they divide by the number
of ranks although ranks have different numbers of samples.
"""

import torch
import torch.distributed as dist
from started import say, start
from torch.nn.parallel import DistributedDataParallel


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def train(network, x, y, after_backward):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(x), y)
        loss.backward()
        after_backward(network)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


def average_gradients(network):
    """By hand: one all_reduce per parameter. DDP puts them into buckets and sends these while backward goes on."""
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main(rank, size):
    torch.manual_seed(0)
    x = torch.randn(8 * size, 4, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    mine = slice(8 * rank, 8 * rank + 8)  # equally many samples on every rank

    by_hand = model()
    for parameter in by_hand.parameters():
        dist.broadcast(parameter.data, src=0)  # the same weights everywhere
    start_state = {name: value.clone() for name, value in by_hand.state_dict().items()}
    hand = train(by_hand, x[mine], y[mine], average_gradients)

    wrapped, alone = model(), model()
    for network in (wrapped, alone):
        network.load_state_dict(start_state)
    ddp = train(DistributedDataParallel(wrapped), x[mine], y[mine], lambda network: None)
    one_process = train(alone, x, y, lambda network: None)
    assert torch.allclose(hand, one_process, rtol=1e-9) and torch.allclose(ddp, one_process, rtol=1e-9)
    say(f"by hand and by DDP: the weights of one process with all {8 * size} samples")


if __name__ == "__main__":
    start(main, __doc__)
