"""Judges of lesson 12: training on many ranks is right if it does what training on one does."""

from importlib.util import find_spec

import numpy as np

from allfold.learn.checks import Wrong, on_processes, on_ranks

STEPS, RATE, FEATURES = 30, 0.1, 3


def check_average_in_buckets(function):
    class Counting:
        """A communicator that notes how long the arrays of its calls are."""

        def __init__(self, comm):
            self._comm, self.rank, self.size, self.lengths = comm, comm.rank, comm.size, []

        def all_reduce(self, array, *arguments, **options):
            self.lengths.append(len(array))
            return self._comm.all_reduce(array, *arguments, **options)

    def work(comm, length, elements):
        array, counting = np.full(length, float(comm.rank)), Counting(comm)
        function(counting, array, elements)
        return array, counting.lengths

    for ranks in (2, 3, 1):
        for length, elements in ((10, 5), (10, 4), (3, 100), (7, 1), (0, 4)):
            for rank, (found, lengths) in enumerate(on_ranks(work, ranks, length, elements)):
                where = f"{length} elements in buckets of {elements}, {ranks} ranks: rank {rank}"
                wrong = np.flatnonzero(found != (ranks - 1) / 2)
                if len(wrong):
                    value = found[wrong[0]]
                    raise Wrong(f"{where} has {value:g} as element {wrong[0]}, and the average is {(ranks - 1) / 2:g}")
                if any(not 0 < one <= elements for one in lengths):
                    raise Wrong(f"{where} makes a call with {max(lengths)} elements")
    return "every element, also those of a last short bucket"


def samples(rank):
    """A different number of samples on every rank, and none on rank 2."""
    random = np.random.default_rng(rank)
    x = random.normal(size=(0 if rank == 2 else 20 * (rank + 1), FEATURES))
    return x, x @ np.array([1.0, -2.0, 0.5]) + random.normal(scale=0.1, size=len(x))


def train(comm, function):
    weights = np.zeros(FEATURES)
    x, y = samples(comm.rank)
    for _ in range(STEPS):
        weights = function(comm, weights, x, y, RATE)
        if not isinstance(weights, np.ndarray) or weights.shape != (FEATURES,):
            raise Wrong(f"training_step returns {weights!r:.40}; expected {FEATURES} weights")
    return weights


def trained_alone(ranks):
    x, y = (np.concatenate(part) for part in zip(*map(samples, range(ranks)), strict=True))
    weights = np.zeros(FEATURES)
    for _ in range(STEPS):
        weights = weights - RATE * 2 / len(y) * x.T @ (x @ weights - y)
    return weights


def check_training_step(function):
    for ranks in (1, 2, 3, 4, 6):
        with np.errstate(all="ignore"):
            found = on_ranks(train, ranks, function)
        compare(found, ranks)
    return f"the weights after {STEPS} steps are those of one process with all the samples"


def compare(found, ranks):
    alone = trained_alone(ranks)
    for rank, weights in enumerate(found):
        if weights.tobytes() != found[0].tobytes():
            raise Wrong(f"with {ranks} ranks, the weights of ranks 0 and {rank} differ: {found[0]} and {weights}")
        if not np.allclose(weights, alone, rtol=1e-9):
            raise Wrong(f"with {ranks} ranks, the weights {weights} differ from those of one process, {alone}")
    return alone


def run_training_step(function):
    """On two hosts, as far as one machine can pretend to be two; something must carry bytes between them."""
    if find_spec("torch") is None and find_spec("mpi4py") is None:
        found, where = on_processes(train, 4, function), "4 processes (two hosts need torch or mpi4py, for gloo or MPI)"
    else:
        found, where = on_processes(train, 4, function, hosts=2), "4 processes on two pretended hosts"
    alone = compare(found, 4)
    rows = [["weights", *(f"w{i}" for i in range(FEATURES))], ["one process", *(f"{w:.12f}" for w in alone)]]
    rows += [[f"rank {rank}", *(f"{w:.12f}" for w in weights)] for rank, weights in enumerate(found)]
    return f"{STEPS} steps on {where}", rows
