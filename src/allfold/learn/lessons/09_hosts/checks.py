"""Judges of lesson 9."""

from fractions import Fraction

import numpy as np

from allfold.learn.checks import Wrong, on_ranks


def count_crossing(schedule):
    """{} S between the hosts"""
    half = (schedule.ranks + 1) // 2
    moves = [move for step in schedule for move in step]
    return Fraction(sum((move.source < half) != (move.destination < half) for move in moves), schedule.chunks)


def check_leaders_first(function):
    def work(comm):
        array = np.arange(5.0) * (comm.rank + 1)
        function(comm, array)
        return array

    for ranks in (3, 4, 2, 5, 7, 8, 1):
        expected = np.arange(5.0) * ranks * (ranks + 1) / 2
        half = (ranks + 1) // 2
        everyone = on_ranks(work, ranks)
        for rank, found in enumerate(everyone):
            if not np.array_equal(found, expected):
                host = range(half) if rank < half else range(half, ranks)
                own = np.array_equal(found, np.arange(5.0) * sum(one + 1 for one in host))
                led = np.array_equal(everyone[0], expected)
                kind = "leaders_only" if led else "only_own_host" if own else "wrong_sum"
                where = f"with {ranks} ranks, rank {rank}"
                raise Wrong(f"{where} gets {found.tolist()}, and the sum is {expected.tolist()}", kind=kind)
    return "the right sum on 1 to 8 ranks, and nobody waits in vain"
