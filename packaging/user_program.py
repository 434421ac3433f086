"""A small program as a user would write it: `make types` has mypy and pyright check it against the installed package."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import allfold as af
from allfold import Move, copy, reduce
from allfold.communicator.communicator import Communicator
from allfold.price import Topology, cost, find_topology


@af.algorithm("all_reduce", "to_zero_and_back")
def to_zero_and_back(ranks: int) -> Iterator[list[Move]]:
    """Everything to rank 0, and back."""
    for rank in range(1, ranks):
        yield [reduce(chunk=0, source=rank, destination=0)]
    yield [copy(chunk=0, source=0, destination=rank) for rank in range(1, ranks)]


def work(comm: Communicator, elements: int) -> float:
    x = np.full(elements, comm.rank + 1.0, np.float32)
    comm.all_reduce(x, op="sum", algorithm="to_zero_and_back")
    handle = comm.all_reduce(x, async_op=True)
    if handle is not None:
        handle.wait()
    return float(x[0])


def main() -> None:
    schedule: af.Schedule = af.schedule("all_reduce", "to_zero_and_back", ranks=4)
    proof: af.Proof = af.verify(schedule)
    print(schedule.counts.steps, proof.same_bits, af.algorithms("all_reduce"))
    topology: Topology = find_topology("dgx_h100", 4)
    print(cost(schedule, topology, 2**20).time)
    found: af.Found = af.find("all_gather", topology)
    print(found.time, found.bound)
    results: list[float] = af.spawn(work, 4, args=(1000,))
    print(results)
    try:
        af.verify(af.schedule("all_reduce", "ring", ranks=0))
    except af.UsageError as error:
        print(error)


if __name__ == "__main__":
    main()
