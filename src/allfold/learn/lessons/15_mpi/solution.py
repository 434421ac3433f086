import numpy as np

from allfold.mpi4py import MPI


def mean(comm, array):
    """`array` becomes the mean of all ranks' arrays."""
    comm.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)
    array /= comm.Get_size()


def shift(comm, array):
    """The array of the rank before this one."""
    rank, size = comm.Get_rank(), comm.Get_size()
    theirs = np.empty_like(array)
    comm.Sendrecv(array, dest=(rank + 1) % size, recvbuf=theirs, source=(rank - 1) % size)
    return theirs


def row_sum(comm, array, columns):
    """`array` becomes the sum over the ranks of this rank's row: 0 to columns - 1, then the next `columns`, …"""
    row = comm.Split(comm.Get_rank() // columns)
    row.Allreduce(MPI.IN_PLACE, array)
    row.Free()
