"""Ranks in containers that share the network and not their PIDs, as in a pod: equal PIDs, and PIDs that mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 60.0
OUTSIDE: list[str] = []
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
OUTER_PROC = CONTAINER[:-1]  # its /proc shows the processes of the namespace around it

RANK = """
import os, numpy as np, allfold as af
from allfold import _native
comm = af.init(timeout=30)
assert _native.is_alive(comm.engine.members[1 - comm.rank].arena)
length = 2**20
everyone = np.empty(2 * length, np.uint8)
comm.all_gather(np.full(length, comm.rank + 1, np.uint8), everyone)
assert np.array_equal(everyone, np.repeat(np.array([1, 2], np.uint8), length))
if comm.rank == 1:
    if os.fork() == 0:
        os.read(0, 1)  # a child that outlives its rank does not stand for it
    os._exit(0)
try:
    comm.barrier()
except af.RankLost as error:
    print(error)
"""


def can_unshare() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, timeout=PATIENCE).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="this user cannot make PID namespaces")
@pytest.mark.parametrize(
    "wrappers", [(CONTAINER, CONTAINER), (OUTSIDE, CONTAINER), (CONTAINER, OUTSIDE), (OUTER_PROC, OUTER_PROC)]
)
def test_ranks_of_different_pid_namespaces_share_memory_and_notice_deaths(
    wrappers: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    # The key of a run of this user: nothing listens at this address.
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": str(tmp_path).replace(":", "-"), "MASTER_PORT": "1"}
    ranks = [
        subprocess.Popen(
            [*wrapper, sys.executable, "-c", RANK],
            env={**environ, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, wrapper in enumerate(wrappers)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    number = 1 if wrappers[1] is not OUTSIDE else ranks[1].pid
    lost = f"barrier: rank 1 (process {number} of another PID namespace) is gone (call 2 of the world)\n"
    assert [one[0] for one in said] == [lost, ""], said
