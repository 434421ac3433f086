"""Judges of lesson 10: real messages, between threads, and at the end between processes."""

import time

import numpy as np

from allfold.learn.checks import Wrong, on_processes, on_ranks
from allfold.price.cost.plan import duration


class OnlyMessages:
    """A communicator without collectives, which counts the elements that are sent."""

    def __init__(self, comm):
        self._comm, self.rank, self.size, self.recv, self.irecv = comm, comm.rank, comm.size, comm.recv, comm.irecv
        self.sent = 0

    def send(self, array, *arguments, **options):
        self.sent += np.size(array)
        return self._comm.send(array, *arguments, **options)

    def isend(self, array, *arguments, **options):
        self.sent += np.size(array)
        return self._comm.isend(array, *arguments, **options)


def check_swap(swap):
    def work(comm):
        return swap(OnlyMessages(comm), np.full(1000, float(comm.rank)))

    for ranks in (2, 3, 4, 7, 1):
        for rank, found in enumerate(on_ranks(work, ranks)):
            partner = rank ^ 1 if rank ^ 1 < ranks else rank
            if not isinstance(found, np.ndarray) or found.shape != (1000,) or not (found == partner).all():
                raise Wrong(
                    f"with {ranks} ranks, rank {rank} has got {_short(found)} instead of the array of rank {partner}"
                )
    return "the right arrays with 1 to 7 ranks, and nobody waits in vain"


def _short(value):
    return f"{value.ravel()[:3].tolist()} …" if isinstance(value, np.ndarray) else f"{value!r:.40}"


def check_ring_all_reduce(function):
    def work(comm, length):
        only = OnlyMessages(comm)
        array = np.arange(float(length)) * (comm.rank + 1)
        function(only, array)
        return array, only.sent

    for ranks in (2, 3, 4, 5, 8, 9, 17, 1):
        for length in (100, 7, 1, 0):
            expected = np.arange(float(length)) * ranks * (ranks + 1) / 2
            most = 2 * (ranks - 1) * -(-length // ranks)
            for rank, (found, sent) in enumerate(on_ranks(work, ranks, length)):
                where = f"with {ranks} ranks and {length} elements, rank {rank}"
                if not np.array_equal(found, expected):
                    wrong = int(np.flatnonzero(found != expected)[0])
                    raise Wrong(f"{where} has {found[wrong]:g} as element {wrong}, and the sum is {expected[wrong]:g}")
                if sent > most:
                    raise Wrong(f"{where} sends {sent} elements; a ring sends at most {most}")
    return "the right sums on 1 to 17 ranks, of 0 to 100 elements, with a ring's bytes"


def run_ring_all_reduce(function):
    """Both on the same arrays, between processes."""
    sizes = (1_000, 100_000, 1_000_000)
    seconds = np.max(on_processes(timed, 4, function, sizes), axis=0).tolist()
    rows = [["float32 elements", *(f"{size:,}" for size in sizes)]]
    rows += [
        [name, *map(duration, row)] for name, row in zip(("yours, by hand", 'algorithm="ring"'), seconds, strict=True)
    ]
    return "ring_all_reduce between 4 processes of this machine, and the same moves as a compiled schedule", rows


def timed(comm, function, sizes):
    ways = (lambda array: function(comm, array), lambda array: comm.all_reduce(array, algorithm="ring"))
    best = np.full((2, len(sizes)), np.inf)
    for column, size in enumerate(sizes):
        array = np.zeros(size, np.float32)
        for _ in range(5):
            for row, way in enumerate(ways):
                comm.barrier()
                start = time.perf_counter()
                way(array)
                best[row, column] = min(best[row, column], time.perf_counter() - start)
    return best.tolist()
