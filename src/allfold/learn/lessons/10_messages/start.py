import numpy as np


def swap(comm, array):
    """The partner's array. Both partners wait for each other: repair it."""
    partner = comm.rank ^ 1  # 0 and 1, 2 and 3, …
    if partner >= comm.size:
        return array
    theirs = np.empty_like(array)
    comm.recv(theirs, source=partner)
    comm.send(array, destination=partner)
    return theirs


def ring_all_reduce(comm, array):
    """`array` becomes the sum of all ranks' arrays. Use comm.send, comm.isend, comm.recv only."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # Write it here.
