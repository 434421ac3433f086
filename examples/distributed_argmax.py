"""The largest value of all ranks, and where it is: which rank has it, at which index.

Values and places must travel together, because a place is useless without its value. There are two ways, which agree:

1. A custom operation on pairs. allfold passes it *pieces* of the arrays, cut anywhere between two elements, so a pair must
   be one element: a complex number holds two float64, here the value and the place.
2. Two built-in calls: the max of the values, then the min of the places where it was found.

Of equal values the one on the lowest rank counts, and there the one with the lowest index, as in np.argmax. NaN counts as
larger than anything, also as in np.argmax.
"""

import argparse

import numpy as np

import allfold as af

COLUMNS = 5  # five questions at once: the argmax of each column of a table whose rows are spread over the ranks
ROWS = 1000  # on every rank


def rows_of(rank):
    """Whole numbers from a small range, so that the largest one occurs often: ties are the rule here."""
    table = np.random.default_rng(rank).integers(0, 200, size=(ROWS, COLUMNS)).astype(np.float64)
    table[:, 1] += 1000.0 * (rank == 1)  # the largest of column 1 is on rank 1, where there is one
    if rank == 0:
        table[[17, 400], 2] = np.nan
    return table


def larger(left, right):
    """Of two (value, place) pairs the larger value; of two equal ones the lower place. Commutative and associative."""
    left_is_nan, right_is_nan = np.isnan(left.real), np.isnan(right.real)
    equal = (left.real == right.real) | (left_is_nan & right_is_nan)
    left_is_larger = (left.real > right.real) | (left_is_nan & ~right_is_nan)
    return np.where(left_is_larger | (equal & (left.imag < right.imag)), left, right)


def argmax_by_pairs(comm, values, places):
    pairs = np.empty(len(values), np.complex128)
    pairs.real, pairs.imag = values, places  # places are exact up to 2**53
    comm.all_reduce(pairs, op=af.op(larger, commutative=True))
    return pairs.real, pairs.imag.astype(np.int64)


def argmax_by_two_calls(comm, values, places):
    largest = values.copy()
    comm.all_reduce(largest, op="max")  # NaN if there is one
    is_here = (values == largest) | (np.isnan(values) & np.isnan(largest))
    first = np.where(is_here, places, np.iinfo(np.int64).max)
    comm.all_reduce(first, op="min")
    return largest, first


def main(comm):
    mine = rows_of(comm.rank)
    index = mine.argmax(axis=0)  # of each column, the lowest index
    values = mine[index, np.arange(COLUMNS)]
    places = comm.rank * ROWS + index  # one number for rank and index; lower ranks have lower places

    largest, place = argmax_by_pairs(comm, values, places)
    largest_again, place_again = argmax_by_two_calls(comm, values, places)

    everything = np.concatenate([rows_of(rank) for rank in range(comm.size)])
    assert np.array_equal(place, everything.argmax(axis=0)), (place, everything.argmax(axis=0))
    assert np.array_equal(place_again, place), (place_again, place)
    assert np.array_equal(largest, everything.max(axis=0), equal_nan=True)
    assert np.array_equal(largest_again, largest, equal_nan=True)

    if comm.rank == 0:
        print(f"the largest of {len(everything)} rows, column by column; ranks: {comm.size}")
        for column, (value, (rank, index)) in enumerate(zip(largest, (divmod(p, ROWS) for p in place), strict=True)):
            same = (everything[:, column] == value) | (np.isnan(everything[:, column]) & np.isnan(value))
            ranks = sorted({row // ROWS for row in np.flatnonzero(same).tolist()})
            print(
                f"  column {column}: {value:6.0f} on rank {rank} at index {index:3d}"
                f"  ({same.sum():2d} times there, ranks {', '.join(map(str, ranks))})"
            )
        print("ties go to the lowest rank; pairs in one call, two calls and np.argmax agree")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
