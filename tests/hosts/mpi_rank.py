"""One of the ranks that mpirun starts for test_over_mpi.py: `mpi_rank.py HOSTS [every]`, on hosts that are
pretended."""

from __future__ import annotations

import faulthandler
import os
import sys
from itertools import accumulate

import test_pretended

import allfold as af


def main(hosts: tuple[int, ...], every: bool) -> None:
    faulthandler.dump_traceback_later(150, exit=True)
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["ALLFOLD_HOSTID"] = str(sum(end <= rank for end in accumulate(hosts)))
    with af.init() as comm:
        assert comm.engine.hosts() == test_pretended.islands_of(hosts)
        if every:
            test_pretended.everything(comm, hosts, every)
        else:  # test_pretended.py runs the rest
            test_pretended.copies(comm, hosts, every)
            for work in (test_pretended.own_generator, test_pretended.messages, test_pretended.groups):
                work(comm, hosts)
    print(f"rank {rank} has passed\n", end="", flush=True)  # one write: lines of several ranks do not mix


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1].split(","))), "every" in sys.argv)
