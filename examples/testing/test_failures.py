"""Tests that fail, one in each way. docs/testing.md shows what they print: pytest examples/testing/test_failures.py"""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(3)
def test_wrong_result(comm, rank):
    x = np.full(4, rank)
    comm.all_reduce(x)
    if rank == 2:
        x += 1  # the mistake
    assert x.tolist() == [3, 3, 3, 3]
    comm.barrier()


@pytest.mark.ranks(3)
def test_differing_calls(comm, rank):
    comm.all_reduce(np.zeros(5 if rank == 1 else 4))


@pytest.mark.ranks(4, backend="gloo")
def test_differing_calls_of_torch(process_group, rank):
    x = torch.ones(4)
    if rank == 1:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)


@pytest.mark.ranks(3, timeout=5)
def test_hang(comm, rank):
    if rank == 1:
        time.sleep(3600)
    comm.barrier()


@pytest.mark.ranks(3, timeout=5)
def test_deadlock(comm, rank):
    if rank == 1:
        comm.recv(np.empty(4), source=0)
    comm.barrier()


@pytest.mark.ranks(3)
def test_crash(comm, rank):
    if rank == 1:
        ctypes.string_at(0)
    comm.barrier()


@pytest.mark.ranks(2)
def test_child_process_left_behind(rank):
    if rank == 1:
        subprocess.Popen(["sleep", "3600"])


@pytest.mark.ranks(2)
def test_thread_left_behind(rank):
    if rank == 1:
        threading.Thread(target=time.sleep, args=(3600,), name="pump").start()


@pytest.mark.ranks(2)
def test_shared_memory_left_behind(rank):
    if rank == 1:
        SharedMemory(create=True, size=1024)
