import numpy as np

from allfold import copy, reduce


def doubled(ranks):
    """A scan: everybody sends all it has twice as far on as before."""
    distance = 1
    while distance < ranks:
        yield [reduce(chunk=0, source=r, destination=r + distance) for r in range(ranks - distance)]
        distance *= 2


def without_me(ranks):
    """An exscan: everybody hands its part to the next rank, and ranks 1 to P - 1 scan what they got."""
    yield [copy(chunk=0, source=r, destination=r + 1) for r in range(ranks - 1)]
    for step in doubled(ranks - 1):
        yield [reduce(chunk=0, source=move.source + 1, destination=move.destination + 1) for move in step]


def begins_at(comm, many):
    """The number of records of all ranks before this one."""
    before = np.array([many])
    comm.exscan(before)
    return 0 if comm.rank == 0 else int(before[0])
