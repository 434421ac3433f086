"""Judges of lesson 15. Ranks are threads, whose MPI is allfold's; `Send` waits for its receiver, as any MPI's may."""

import numpy as np

from allfold.learn.checks import Wrong, on_ranks
from allfold.learn.findings import learners_line
from allfold.mpi4py import MPI

RANKS = (4, 6, 3, 2, 7, 1)


class Strict:
    """An MPI communicator as a program must expect it: a send returns when its message has been received."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, {"Send": "Ssend", "send": "ssend"}.get(name, name))

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        if sendbuf is recvbuf:  # allfold does not mind; other MPIs return wrong sums, or an error
            line = learners_line()
            raise Wrong(f"line {line} passes the same array twice, which MPI forbids", line, "aliased")
        self._comm.Allreduce(sendbuf, recvbuf, op)


def called(function, *arguments):
    """Call the learner's function on this rank, and return its result."""
    comm = MPI.COMM_WORLD
    try:
        return function(Strict(comm), *arguments)
    except MPI.Exception as error:
        line, rank = learners_line(error), comm.Get_rank()
        if error.Get_error_class() == MPI.ERR_PENDING:
            raise Wrong(f"rank {rank} waits forever in line {line}", line, "deadlock") from error
        raise Wrong(f"rank {rank} gets an error in line {line}: {error}", line, "raised") from error


def own(rank, length):
    """The array of a rank. The digits of a sum say whose numbers are in it."""
    return np.full(length, 10.0**rank)


def check_mean(mean):
    def work(comm):
        array = own(comm.rank, 3)
        called(mean, array)
        return array

    for ranks in RANKS:
        total = sum(10.0**rank for rank in range(ranks))
        for rank, found in enumerate(on_ranks(work, ranks)):
            if not np.allclose(found, total / ranks, rtol=1e-12):
                known = {"untouched": 10.0**rank, "dropped": 10.0**rank / ranks, "sum": total}
                says = f"rank {rank} has {found[0]:g}, and the mean is {total / ranks:g}"
                raise Wrong(f"with {ranks} ranks, {says}", kind=named(found, known))
    return "the right means on 1 to 7 ranks"


def check_shift(shift):
    def work(comm, length):
        return called(shift, own(comm.rank, length))

    for ranks in RANKS:
        for length in (1, 100_000):
            for rank, found in enumerate(on_ranks(work, ranks, length)):
                before = (rank - 1) % ranks
                if not isinstance(found, np.ndarray) or not np.array_equal(found, own(before, length)):
                    is_own = isinstance(found, np.ndarray) and np.array_equal(found, own(rank, length))
                    got = "its own array" if is_own else f"{found!r:.40}"
                    says = f"rank {rank} returns {got} instead of the array of rank {before}"
                    raise Wrong(f"with {ranks} ranks, {says}", kind="own_array" if is_own else "wrong_array")
    return "the right arrays on 1 to 7 ranks; nobody waits in vain"


def check_row_sum(row_sum):
    def work(comm, columns):
        array = own(comm.rank, 3)
        called(row_sum, array, columns)
        return array

    for ranks in RANKS:
        for columns in (2, 3, 1, 8):
            for rank, found in enumerate(on_ranks(work, ranks, columns)):
                row = [one for one in range(ranks) if one // columns == rank // columns]
                right = sum(10.0**one for one in row)
                if not np.array_equal(found, np.full(3, right)):
                    column = [one for one in range(ranks) if one % columns == rank % columns]
                    known = {
                        "untouched": 10.0**rank,
                        "everything": sum(10.0**one for one in range(ranks)),
                        "column": sum(10.0**one for one in column),
                    }
                    says = f"rank {rank} has {found[0]:g}; its row is {row}, and the sum is {right:g}"
                    raise Wrong(f"with {ranks} ranks and columns={columns}, {says}", kind=named(found, known))
    return "the right sums on 1 to 7 ranks, with 1 to 8 columns"


def named(found, known):
    """The mistake that gives this value."""
    return next((kind for kind, value in known.items() if np.array_equal(found, np.full(len(found), value))), "wrong")
