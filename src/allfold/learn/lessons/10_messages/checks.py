"""Judges of lesson 10: messages between threads, carried as late as a library may (`learn/messages.py`); at the end real
messages between processes."""

import time

import numpy as np

from allfold.learn.checks import Wrong, on_processes, on_ranks
from allfold.learn.messages import Exchange, by_messages
from allfold.price.cost.plan import duration


def check_swap(swap):
    def work(comm, board, length):
        return by_messages(comm, board, swap, np.arange(float(length)) + 1000 * comm.rank)[0]

    for ranks in (2, 3, 4, 7, 1):
        for length in (1000, 100_000):
            for rank, found in enumerate(on_ranks(work, ranks, Exchange(ranks), length)):
                partner = rank ^ 1 if rank ^ 1 < ranks else rank
                expected = np.arange(float(length)) + 1000 * partner
                if not isinstance(found, np.ndarray) or not np.array_equal(found, expected):
                    own = isinstance(found, np.ndarray) and np.array_equal(found, expected + 1000 * (rank - partner))
                    got = "its own array" if own and rank != partner else _short(found)
                    says = f"rank {rank} returns {got} instead of the array of rank {partner}"
                    raise Wrong(f"with {ranks} ranks, {says}", kind="own_array" if own else "wrong_array")
    return "the right arrays with 1 to 7 ranks; nobody waits in vain, and nothing that is being sent is changed"


def _short(value):
    return f"{value.ravel()[:3].tolist()} …" if isinstance(value, np.ndarray) else f"{value!r:.40}"


def digits(ranks):
    """A number per rank. Between few ranks, the digits of a sum say whose numbers are in it; all sums are exact."""
    return [10.0**rank if ranks <= 8 else rank + 1.0 for rank in range(ranks)]


def check_ring_all_reduce(function):
    def work(comm, board, length):
        array = np.arange(1.0, length + 1) * digits(comm.size)[comm.rank]
        _, sent = by_messages(comm, board, function, array)
        return array, sent

    for ranks in (3, 4, 2, 5, 8, 9, 17, 1):
        for length in (100, 7, 1, 0):
            numbers = digits(ranks)
            expected = np.arange(1.0, length + 1) * sum(numbers)
            most = 2 * (ranks - 1) * -(-length // ranks)
            for rank, (found, sent) in enumerate(on_ranks(work, ranks, Exchange(ranks), length)):
                where = f"with {ranks} ranks and {length} elements, rank {rank}"
                if not np.array_equal(found, expected):
                    wrong = np.flatnonzero(found != expected)
                    first = int(wrong[0])
                    begin = ", ".join(f"{number * (first + 1):g}" for number in numbers[:4])
                    begin += ", …" if ranks > 4 else ""
                    untouched = found[first] == numbers[rank] * (first + 1)
                    tail = untouched and len(wrong) < length and first == length - len(wrong)
                    kind = "tail" if tail else "untouched" if untouched and len(wrong) == length else "wrong_sum"
                    said = f"has {found[first]:g} as element {first}, and the sum is {expected[first]:g}"
                    raise Wrong(f"{where} {said}: the ranks begin with {begin} there", kind=kind)
                if sent > most:
                    kind = "whole_buffer" if sent >= (ranks - 1) * length else "extra_step"
                    raise Wrong(f"{where} sends {sent} elements; a ring sends at most {most}", kind=kind)
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
        array = np.empty(size, np.float32)
        for _ in range(5):
            for row, way in enumerate(ways):
                array[:] = comm.rank + 1
                comm.barrier()
                start = time.perf_counter()
                way(array)
                best[row, column] = min(best[row, column], time.perf_counter() - start)
                if not (array == comm.size * (comm.size + 1) / 2).all():
                    raise AssertionError(f"rank {comm.rank}: the sum of {size:,} elements is wrong")
    return best.tolist()
