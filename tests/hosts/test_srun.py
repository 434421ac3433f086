"""Ranks on two hosts with the variables of srun, and no others: they find each other, and the islands."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

RANK = """
import numpy as np
import allfold as af

with af.init(timeout=60) as comm:
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array)
    print(comm.rank, comm.size, comm._engine.hosts(), array.tolist(), flush=True)
"""
LAUNCHERS = ("ALLFOLD_", "MASTER_", "OMPI_", "PMI", "SLURM", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_")


def step(ranks_per_node: list[int], job: int) -> list[dict[str, str]]:
    """What `srun --ntasks … --nodes 2` puts into the environment of each rank (Slurm 23), on two nodes of one machine."""
    nodes, ranks = len(ranks_per_node), sum(ranks_per_node)
    tasks = ",".join(map(str, ranks_per_node))
    places = [(node, local) for node, count in enumerate(ranks_per_node) for local in range(count)]
    names = f"127.0.0.[1-{nodes}]"
    common = {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_STEP_ID": 0,
        "SLURM_STEPID": 0,
        "SLURM_NTASKS": ranks,
        "SLURM_NPROCS": ranks,
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NUM_TASKS": ranks,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_LAUNCHER_PORT": 41000,
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    }
    return [
        {name: str(value) for name, value in common.items()}
        | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        | {"SLURMD_NODENAME": f"127.0.0.{node + 1}", "ALLFOLD_HOSTID": f"node {node}"}
        for rank, (node, local) in enumerate(places)
    ]


@pytest.mark.parametrize("ranks_per_node", [pytest.param([2, 2], marks=pytest.mark.exhaustive), [1, 2]])
def test_ranks_of_srun_find_each_other(ranks_per_node: list[int]) -> None:
    own = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHERS)}
    places = step(ranks_per_node, random.randrange(10**8))
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(command, env=own | place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for place in places
    ]
    size, first = len(places), ranks_per_node[0]
    islands = [list(range(first)), list(range(first, size))]
    total = float(size * (size + 1) // 2)
    for rank, process in enumerate(ranks):
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, f"{rank} {size} {islands} {[total] * 3}\n"), errors
