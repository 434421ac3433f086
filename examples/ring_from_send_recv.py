"""A ring all_reduce built from send and recv only: no collective, any number of ranks, any length.

Rank r only ever sends to r + 1 and receives from r − 1. The array is cut into one chunk per rank. There are two rounds of
P − 1 steps each:

    share-reduce: every rank adds what comes from the left to its own chunk, and sends the sum on in the next step;
    share-only:   every rank sends on the finished chunks.

Three mistakes are common. First, the peer is always (rank + 1) % P and does not depend on the step: rank + step would be
the rank itself in the first step. Second, each message is one chunk of S/P, not the whole buffer: whole buffers would
carry P times as much, and would add the same numbers twice. Third, it ends after 2(P − 1) steps, when every rank has
everything.
"""

import argparse
from itertools import pairwise

import numpy as np

import allfold as af


def ring_all_reduce(comm, array, log=None):
    """`array` becomes the sum of all ranks' arrays; how many messages and elements this rank sent."""
    ranks, rank = comm.size, comm.rank
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    # Chunk c goes from c·n//P to (c+1)·n//P: chunks differ by one element at most, and none is forgotten.
    bounds = [len(array) * c // ranks for c in range(ranks + 1)]
    chunks = [array[begin:end] for begin, end in pairwise(bounds)]  # views: no copies
    messages = elements = 0
    for step in range(2 * (ranks - 1)):
        adding = step < ranks - 1
        # The chunk that arrives now is the one that goes out in the next step.
        outgoing = (rank - 1 - step) % ranks
        incoming = (outgoing - 1) % ranks
        # All ranks send at the same time, so a blocking send could deadlock: isend, recv, wait.
        on_the_way = comm.isend(chunks[outgoing], destination=right)
        arrived = np.empty_like(chunks[incoming])
        comm.recv(arrived, source=left)
        if adding:
            chunks[incoming] += arrived
        else:
            chunks[incoming][:] = arrived
        on_the_way.wait()
        messages, elements = messages + 1, elements + len(chunks[outgoing])
        if log is not None:
            verb = "adds" if adding else "takes"
            log(f"  step {step + 1}: sends chunk {outgoing} to rank {right}, {verb} chunk {incoming} from rank {left}")
    return messages, elements


def sent_according_to(schedule, length):
    """Messages and elements that each rank sends, counted from the moves of a schedule."""
    bounds = [length * c // schedule.chunks for c in range(schedule.chunks + 1)]
    sent = np.zeros((schedule.ranks, 2), np.int64)
    for step in schedule:
        for move in step:
            sent[move.source] += 1, bounds[move.chunk + 1] - bounds[move.chunk]
    return sent


def main(comm):
    say = print if comm.rank == 0 else lambda *_: None
    say(f"what rank 0 of {comm.size} does")
    ring_all_reduce(comm, np.ones(12, np.float32), log=say)

    schedule = af.schedule("all_reduce", "ring", ranks=comm.size)
    say("\nlength   messages per rank   elements sent by rank 0   2(P−1)/P · length   the busiest rank   result")
    for length in (0, 1, 3, 1000, 1003, 100_000):
        inputs = [np.random.default_rng(rank).standard_normal(length).astype(np.float32) for rank in range(comm.size)]
        mine, ours = inputs[comm.rank].copy(), inputs[comm.rank].copy()
        sent = ring_all_reduce(comm, mine)

        # The library's ring adds in the same order, so even the last bits agree; its own choice adds in another one.
        comm.all_reduce(ours, algorithm="ring")
        assert mine.tobytes() == ours.tobytes(), f"rank {comm.rank}, length {length}: other bits than the schedule's"
        comm.all_reduce(chosen := inputs[comm.rank].copy())
        assert np.allclose(mine, chosen, rtol=1e-5, atol=1e-5)
        assert np.allclose(mine, np.sum(inputs, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5)

        # What was really sent, on every rank, is what the schedule says.
        everyone = np.empty((comm.size, 2), np.int64)
        comm.all_gather(np.array(sent, np.int64), everyone)
        assert np.array_equal(everyone, sent_according_to(schedule, length)), (length, everyone)
        assert everyone[:, 0].sum() == schedule.counts.messages
        bound, most = 2 * (comm.size - 1) / comm.size * length, everyone[:, 1].max()
        say(f"{length:6d} {sent[0]:19d} {sent[1]:25d} {bound:19.1f} {most:18d}   the bits of algorithm='ring'")
    say(f"in all {schedule.counts.messages} messages, counted here and by the schedule alike")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
