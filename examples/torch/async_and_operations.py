"""async_op=True, and every operation of all_reduce.

What popular versions get wrong: they read the tensor before `wait()` has returned. With small tensors that often works.
"""

import torch
import torch.distributed as dist
from started import say, start


def main(rank, size):
    tensor = torch.full((1_000_000,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    elsewhere = sum(range(1000))  # anything that does not touch the tensor
    work.wait()
    assert elsewhere == 499_500 and (tensor == size * (size + 1) / 2).all()
    say(f"async_op: {tensor[0].item():g} on every rank after wait()")

    numbers = range(1, size + 1)
    expected = {"SUM": sum(numbers), "PRODUCT": torch.tensor(list(numbers)).prod().item(), "MIN": 1, "MAX": size}
    for name, right in expected.items():
        value = torch.tensor([rank + 1])
        dist.all_reduce(value, op=getattr(dist.ReduceOp, name))
        assert value.item() == right, name
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == 2**size - 1
    say(f"{', '.join(f'{name} {right}' for name, right in expected.items())}, BOR {bits.item()}")


if __name__ == "__main__":
    start(main, __doc__)
