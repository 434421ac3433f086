"""Every all_reduce algorithm, from first principles: run on real numbers, checked, counted and timed.

An all_reduce replaces one array per rank by their sum, on every rank. There are many algorithms for it. Each is written as
a schedule: a list of steps, and in each step moves of a chunk from one rank to another. What an algorithm costs (steps,
messages, bytes through the busiest port) is counted from the schedule. The time is measured on this machine's shared memory,
where a message costs almost nothing and moving bytes takes the time. On a network the counts decide.
"""

import argparse
import time
from fractions import Fraction

import numpy as np

import allfold as af
from allfold import copy, reduce

SIZES = {"4 KiB": 1024, "4 MiB": 1024 * 1024}  # float32 elements


def naive_all_reduce(ranks):
    """Everybody sends its whole array to everybody."""
    yield [reduce(chunk=0, source=s, destination=d) for d in range(ranks) for s in range(ranks) if s != d]


def ring_all_reduce(ranks):
    """The ring without chunks: one array goes around and collects the sum, then the sum goes around."""
    for r in range(ranks - 1):
        yield [reduce(chunk=0, source=r, destination=r + 1)]
    for r in range(ranks - 1):
        yield [copy(chunk=0, source=(r - 1) % ranks, destination=r)]


def chunked_ring_all_reduce(ranks):
    """Your own algorithm is a generator: every yield is one step, a list of moves. It is proved before it runs."""
    for step in range(ranks - 1):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]
    for step in range(ranks - 1):
        yield [copy(chunk=(r - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]


def check(comm, algorithm):
    """The sum is right on every rank, for a length that the number of ranks does not divide."""
    inputs = [np.random.default_rng(rank).standard_normal(1003).astype(np.float32) for rank in range(comm.size)]
    array = inputs[comm.rank].copy()
    comm.all_reduce(array, algorithm=algorithm)
    expected = np.sum(inputs, axis=0, dtype=np.float64)  # what an all_reduce is, in one line
    assert np.allclose(array, expected, rtol=1e-5, atol=1e-5), f"{algorithm} on rank {comm.rank}"


def best_time(comm, array, algorithm, rounds=5):
    """Seconds per call, the best of a few rounds; a collective is as slow as its slowest rank."""
    calls = max(1, 200_000 // array.nbytes)
    best = float("inf")
    for _ in range(rounds):
        array[:] = 0.0  # summing the same array again and again would overflow
        comm.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            comm.all_reduce(array, algorithm=algorithm)
        best = min(best, (time.perf_counter() - start) / calls)
    comm.all_reduce(slowest := np.array([best]), op="max")
    return slowest[0]


def count_the_truth(say):
    """n(n−1) "naive messages" against 2(n−1) "ring messages": a common comparison, and what is wrong with it."""
    say("\n ranks  n(n−1)  2(n−1)  messages in all             bytes through the busiest port")
    say("                        naive  driver    ring       naive     driver        ring")
    for n in (2, 4, 8, 16, 32):
        naive, driver, ring = (af.schedule("all_reduce", name, n).counts for name in ("naive", "driver", "ring"))
        assert (naive.messages, naive.steps, naive.busiest_port_bytes) == (n * (n - 1), 1, n - 1)
        assert (driver.messages, driver.steps, driver.busiest_port_bytes) == (2 * (n - 1), 2, n - 1)
        assert (ring.messages, ring.steps, ring.busiest_port_messages) == (2 * n * (n - 1), 2 * (n - 1), 2 * (n - 1))
        assert ring.busiest_port_bytes == Fraction(2 * (n - 1), n)
        ports = [f"{float(counts.busiest_port_bytes):g} S" for counts in (naive, driver, ring)]
        say(
            f"{n:6d}{n * (n - 1):8d}{2 * (n - 1):8d}{naive.messages:13d}{driver.messages:8d}{ring.messages:8d}"
            f"{ports[0]:>12s}{ports[1]:>11s}{ports[2]:>12s}"
        )
    say(
        "n(n−1) counts the messages of all ranks together; 2(n−1) counts the ring's steps, or the messages of one rank."
    )
    say(
        "In all a ring sends 2n(n−1) messages, twice as many as naive. It wins by their size, S/n: no port carries more"
    )
    say("than 2(n−1)/n · S. What does take 2(n−1) messages in all is the driver, and one rank's port carries them.")


def main(comm):
    say = print if comm.rank == 0 else lambda *_: None
    say(f"all_reduce, float32 sum, ranks: {comm.size}; S is the bytes of one array; every result was checked")
    heads = [f"{'steps':>6s}", f"{'messages':>9s}", f"{'bytes in all':>14s}", f"{'busiest port':>14s}"]
    say(f"{'algorithm':24s}" + "".join(heads) + "".join(f"{size:>10s}" for size in SIZES))
    arrays = {size: comm.empty(elements) for size, elements in SIZES.items()}  # in shared memory: nothing is copied
    for algorithm in [*af.algorithms("all_reduce"), naive_all_reduce, ring_all_reduce, chunked_ring_all_reduce]:
        check(comm, algorithm)
        times = [best_time(comm, array, algorithm) for array in arrays.values()]
        counts = af.schedule("all_reduce", algorithm, comm.size).counts
        name = algorithm if isinstance(algorithm, str) else f"{algorithm.__name__}"
        say(
            f"{name:24s}{counts.steps:6d}{counts.messages:9d}{float(counts.bytes):12.4g} S"
            f"{float(counts.busiest_port_bytes):12.4g} S" + "".join(f"{seconds * 1e6:7.0f} µs" for seconds in times)
        )
    count_the_truth(say)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
