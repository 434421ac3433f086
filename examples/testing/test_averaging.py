"""Tests that pass. Run them with: pytest examples/testing/test_averaging.py"""

from __future__ import annotations

import numpy as np
import pytest
from averaging import average_gradients, mean


@pytest.mark.ranks(2, 4)
def test_mean(comm, rank, world_size):
    values = np.full(rank + 1, float(rank))
    total = sum(one * (one + 1) for one in range(world_size))
    assert mean(comm, values) == total / sum(range(1, world_size + 1))


@pytest.mark.ranks(4, hosts=2)
@pytest.mark.parametrize("length", [1, 1000])
def test_mean_across_hosts(comm, rank, length):
    assert mean(comm, np.full(length, float(rank))) == 1.5


@pytest.mark.ranks(2, backend="gloo")
def test_gradients_are_averaged(process_group, rank):
    import torch

    model = torch.nn.Linear(3, 1, bias=False)
    model(torch.full((1, 3), float(rank))).sum().backward()
    average_gradients(model)
    assert model.weight.grad.tolist() == [[0.5, 0.5, 0.5]]


@pytest.mark.ranks(2)
def test_output_of_a_rank(rank, capsys, tmp_path):
    print(f"I am rank {rank}")
    assert capsys.readouterr().out == f"I am rank {rank}\n"
    (tmp_path / f"{rank}.txt").write_text("tmp_path is the same folder on all ranks")
