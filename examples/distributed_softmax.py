"""A softmax over a vector that is spread over the ranks: global max, local exp, global sum, divide.

Two all_reduces of one number each are all that is communicated, however long the vector is. This is how the
cross-entropy over a vocabulary that is split over devices is computed.
"""

import argparse

import numpy as np

import allfold as af

LENGTH = 100_003  # no number of ranks up to 100002 divides it


def logits():
    """Large ones: exp(710) is beyond float64 already."""
    return np.random.default_rng(0).normal(loc=1000.0, scale=3.0, size=LENGTH)


def softmax(comm, mine):
    """This rank's part of the softmax over all ranks' parts."""
    largest = np.array([mine.max(initial=-np.inf)])  # a rank may have no elements
    comm.all_reduce(largest, op="max")
    powers = np.exp(mine - largest[0])  # at most exp(0) = 1: nothing overflows, and the common factor cancels
    total = np.array([powers.sum()])
    comm.all_reduce(total)
    return powers / total[0]


def main(comm):
    everything = logits()
    begin, end = (LENGTH * part // comm.size for part in (comm.rank, comm.rank + 1))
    mine = everything[begin:end]
    probabilities = softmax(comm, mine)

    # The same in one process, and the same without the maximum.
    powers = np.exp(everything - everything.max())
    expected = (powers / powers.sum())[begin:end]
    with np.errstate(over="ignore", invalid="ignore"):
        careless = np.exp(mine)
        sum_of_careless = np.array([careless.sum()])
        comm.all_reduce(sum_of_careless)
        careless /= sum_of_careless[0]

    difference = np.array([np.abs(probabilities - expected).max(initial=0.0), np.isnan(careless).sum()])
    comm.all_reduce(difference[:1], op="max")
    comm.all_reduce(difference[1:])
    total = np.array([probabilities.sum()])
    comm.all_reduce(total)
    assert np.allclose(probabilities, expected, rtol=1e-12, atol=0), difference
    assert np.isclose(total[0], 1.0, rtol=1e-12), total
    assert np.isnan(careless).all(), "without the maximum, every exp is infinite, and so is their sum"

    if comm.rank == 0:
        print(f"softmax of {LENGTH} numbers from {everything.min():.0f} to {everything.max():.0f}; ranks: {comm.size}")
        print(f"  the probabilities add up to                 {total[0]:.15f}")
        print(f"  largest difference from the single process  {difference[0]:.1e}")
        print(f"  communicated by each rank                   2 numbers, instead of {LENGTH}")
        print(f"  without subtracting the maximum             {difference[1]:.0f} of {LENGTH} are NaN")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
