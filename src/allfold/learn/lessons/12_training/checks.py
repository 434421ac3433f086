"""Judges of lesson 12: training on many ranks is right if it does what training on one does."""

import numpy as np

from allfold.learn.checks import Wrong, on_processes, on_ranks

STEPS, RATE, FEATURES = 30, 0.1, 3


def check_average_in_buckets(function):
    class Counting:
        """A communicator that notes how long the arrays of its calls are."""

        def __init__(self, comm):
            self._comm, self.rank, self.size, self.lengths, self.under_way = comm, comm.rank, comm.size, [], 0

        def all_reduce(self, array, *arguments, async_op=False, **options):
            self.lengths.append(len(array))
            if not async_op:
                return self._comm.all_reduce(array, *arguments, **options)
            return Late(self, array, arguments, options)

    class Late:
        """A call in the background that changes its array as late as it may: in `wait`."""

        def __init__(self, counting, array, arguments, options):
            self._array, self._result, self._counting = array, array.copy(), counting
            counting._comm.all_reduce(self._result, *arguments, **options)
            counting.under_way += 1

        def wait(self, timeout=None):
            if self._result is not None:
                self._array[:], self._result = self._result, None
                self._counting.under_way -= 1

    def work(comm, length, elements):
        array, counting = np.full(length, float(comm.rank)), Counting(comm)
        function(counting, array, elements)
        return array, counting.lengths, counting.under_way

    for ranks in (3, 2, 1):
        for length, elements in ((10, 5), (10, 4), (3, 100), (7, 1), (0, 4)):
            for rank, (found, lengths, under_way) in enumerate(on_ranks(work, ranks, length, elements)):
                where = f"{length} elements in buckets of {elements}, {ranks} ranks: rank {rank}"
                if under_way:
                    raise Wrong(f"{where} returns before it has waited for {under_way} of its calls", kind="not_waited")
                wrong = np.flatnonzero(found != (ranks - 1) / 2)
                if len(wrong):
                    value = found[wrong[0]]
                    same = len(wrong) == length
                    kind = "sum" if value == ranks * (ranks - 1) / 2 else "untouched" if same else "tail"
                    says = f"has {value:g} as element {wrong[0]}, and the average is {(ranks - 1) / 2:g}"
                    raise Wrong(f"{where} {says}", kind=kind)
                strange = [one for one in lengths if not 0 < one <= elements]
                if strange:
                    kind = "too_large" if strange[0] else "empty_call"
                    raise Wrong(f"{where} makes a call with {strange[0]} elements", kind=kind)
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
            raise Wrong(f"training_step returns {weights!r:.40}; expected {FEATURES} weights", kind="shape")
    return weights


def trained_alone(ranks):
    x, y = (np.concatenate(part) for part in zip(*map(samples, range(ranks)), strict=True))
    weights = np.zeros(FEATURES)
    for _ in range(STEPS):
        weights = weights - RATE * 2 / len(y) * x.T @ (x @ weights - y)
    return weights


def check_training_step(function):
    for ranks in (4, 3, 2, 6, 1):
        with np.errstate(all="ignore"):
            found = on_ranks(train, ranks, function)
        compare(found, ranks)
    return f"the weights after {STEPS} steps are those of one process with all the samples"


def compare(found, ranks):
    alone = trained_alone(ranks)
    for rank, weights in enumerate(found):
        if weights.tobytes() != found[0].tobytes():
            says = f"the weights of ranks 0 and {rank} differ: {found[0]} and {weights}"
            raise Wrong(f"with {ranks} ranks, {says}", kind="nan" if np.isnan(weights).any() else "local")
    if not np.allclose(found[0], alone, rtol=1e-9):
        kind = "nan" if np.isnan(found[0]).any() else "mean_of_means" if ranks > 1 else "differ"
        says = f"the weights {found[0]} differ from those of one process, {alone}"
        raise Wrong(f"with {ranks} ranks, {says}", kind=kind)
    return alone


def run_training_step(function):
    """On two hosts, simulated on one machine."""
    found, where = on_processes(train, 4, function, hosts=2), "4 processes on two simulated hosts"
    alone = compare(found, 4)
    rows = [["weights", *(f"w{i}" for i in range(FEATURES))], ["one process", *(f"{w:.12f}" for w in alone)]]
    rows += [[f"rank {rank}", *(f"{w:.12f}" for w in weights)] for rank, weights in enumerate(found)]
    return f"{STEPS} steps on {where}", rows
