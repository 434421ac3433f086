"""Ranks on two hosts with the variables of srun, and no others: they find each other, and the islands."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from launched import launched

import allfold as af
from allfold.launch.environment import Place

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


def as_a_rank_of_srun(place: Place, places: list[dict[str, str]]) -> tuple[int, int, list[list[int]], list[float]]:
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        del os.environ[name]
    os.environ.update(places[place.rank])
    with af.init(timeout=60) as comm:
        array = np.full(3, comm.rank + 1.0)
        comm.all_reduce(array)
        return comm.rank, comm.size, comm.engine.hosts(), array.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ranks_per_node", [[2, 2], [1, 2]])
def test_ranks_of_srun_find_each_other(ranks_per_node: list[int]) -> None:
    places = step(ranks_per_node, random.randrange(10**8))
    size, first = len(places), ranks_per_node[0]
    islands = [list(range(first)), list(range(first, size))]
    total = float(size * (size + 1) // 2)
    found = launched(as_a_rank_of_srun, size, places, hosts=ranks_per_node)
    assert found == [(rank, size, islands, [total] * 3) for rank in range(size)]
