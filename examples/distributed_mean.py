"""The mean and the deviation of numbers that are spread over the ranks, as if they were in one array.

Every rank has a different number of samples, so the mean of the ranks' means is wrong. The sums and the counts must be
added up.
"""

import argparse

import numpy as np

import allfold as af


def samples_of(rank):
    """1000 samples on rank 0, 2000 on rank 1, and so on; higher ranks have larger numbers."""
    return np.random.default_rng(rank).normal(loc=10.0 * rank, scale=2.0, size=1000 * (rank + 1))


def main(comm):
    mine = samples_of(comm.rank)

    # One small array, one call: both numbers travel together.
    total = np.array([mine.sum(), len(mine)])
    comm.all_reduce(total)
    mean = total[0] / total[1]

    # The deviation needs the mean of all first. (The one-pass form, mean of squares minus square of the mean, loses its
    # digits when the mean is large.)
    squares = np.array([((mine - mean) ** 2).sum()])
    comm.all_reduce(squares)
    deviation = np.sqrt(squares[0] / total[1])

    # A common mistake: the average of the ranks' means.
    mean_of_means = np.array([mine.mean()])
    comm.all_reduce(mean_of_means, op="avg")

    everything = np.concatenate([samples_of(rank) for rank in range(comm.size)])
    assert np.isclose(mean, everything.mean(), rtol=1e-12), (mean, everything.mean())
    assert np.isclose(deviation, everything.std(), rtol=1e-12), (deviation, everything.std())

    # For the table: everyone's own figures, on rank 0 alone.
    table = np.empty((comm.size, 2)) if comm.rank == 0 else None
    comm.gather(np.array([len(mine), mine.mean()]), table)
    if comm.rank == 0:
        for rank, (count, own) in enumerate(table):
            print(f"rank {rank}: {count:6.0f} samples, mean {own:9.5f}")
        print(f"all    : {total[1]:6.0f} samples, mean {mean:9.5f}, deviation {deviation:.5f}")
        print(f"NumPy, in one process:  mean {everything.mean():9.5f}, deviation {everything.std():.5f}")
        print(f"mean of the means:           {mean_of_means[0]:9.5f}, which is something else: it ignores the counts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
