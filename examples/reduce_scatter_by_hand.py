"""A reduce_scatter small enough to do by hand: two ranks, two numbers for each.

Every rank has one row for every rank. Row i of all ranks is added up, and the sum ends on rank i and nowhere else:

    rank 0 has [[-1,  5], [2, 2]]        rank 0 gets [-1 + 3, 5 - 3] = [2, 2]
    rank 1 has [[ 3, -3], [4, 1]]        rank 1 gets [ 2 + 4, 2 + 1] = [6, 3]

Four ways to the same result: messages, an all_to_all, the library's reduce_scatter, and its schedule replayed.
"""

import argparse

import numpy as np

import allfold as af

TWO = np.array([[[-1, 5], [2, 2]], [[3, -3], [4, 1]]], np.float32)


def inputs(ranks):
    """What every rank has: with two ranks the numbers above, otherwise others of the same kind."""
    if ranks == 2:
        return TWO
    return np.random.default_rng(ranks).integers(-5, 6, size=(ranks, ranks, 2)).astype(np.float32)


def by_messages(comm, rows):
    """Everyone sends everyone its row; the owner adds up what arrives."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    on_the_way = [comm.isend(rows[rank], destination=rank) for rank in others]
    total = rows[comm.rank].copy()
    for rank in others:
        row = np.empty_like(total)
        comm.recv(row, source=rank)
        total += row
    for message in on_the_way:
        message.wait()
    return total


def by_all_to_all(comm, rows):
    """The same exchange in one call: row j of rank i becomes row i of rank j."""
    mine = np.empty_like(rows)
    comm.all_to_all(rows, mine)
    return mine.sum(axis=0)


def by_reduce_scatter(comm, rows):
    result = np.empty_like(rows[0])
    comm.reduce_scatter(rows, result)
    return result


def main(comm):
    before = inputs(comm.size)
    after = before.sum(axis=0)  # row i is what rank i must get
    rows = before[comm.rank]
    for way in (by_messages, by_all_to_all, by_reduce_scatter):
        assert np.array_equal(way(comm, rows), after[comm.rank]), (way.__name__, comm.rank)

    # The result as rank 0 sees it: the first way's, from every rank.
    results = np.empty_like(after)
    comm.all_gather(by_messages(comm, rows), results)
    if comm.rank != 0:
        return
    schedule = af.schedule("reduce_scatter", "direct", ranks=comm.size)
    replayed = af.replay(schedule, list(before))  # in this process alone, step by step
    assert all(np.array_equal(replayed[rank].reshape(-1), after[rank]) for rank in range(comm.size))
    assert comm.size != 2 or results.tolist() == [[2, 2], [6, 3]]
    print(schedule)
    for rank in range(comm.size):
        print(f"rank {rank} had {before[rank].astype(int).tolist()} and gets {results[rank].astype(int).tolist()}")
    print("by messages, by all_to_all, by reduce_scatter and by replaying the schedule: all the same")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
