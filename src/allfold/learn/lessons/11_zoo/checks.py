"""Judges of lesson 11: the same in one process, by NumPy, is right."""

import numpy as np

from allfold.learn.checks import Wrong, on_ranks

RANKS = (2, 3, 4, 7, 1)


def parts(ranks, seed):
    """A part per rank, of different lengths; with three ranks or more, one has nothing."""
    random = np.random.default_rng(seed)
    return [random.normal(10.0 * rank, 2.0, 0 if rank == 2 else 5 * (rank + 1)) for rank in range(ranks)]


def _short(value):
    return f"{value:.6g}" if isinstance(value, int | float) else f"{value!r:.40}"


def check_mean(mean):
    for ranks in RANKS:
        mine = parts(ranks, ranks)
        real = np.concatenate(mine).mean()
        with np.errstate(all="ignore"):
            found = on_ranks(lambda comm, mine=mine: mean(comm, mine[comm.rank]), ranks)
        for rank, one in enumerate(found):
            if not np.isscalar(one) or not np.isclose(one, real, rtol=1e-12):
                raise Wrong(f"with {ranks} ranks, rank {rank} returns {_short(one)}; {real:.6g} is the mean")
    return "the mean of all samples, as one process computes it"


def check_softmax(softmax):
    for ranks in RANKS:
        mine = [part + 1000.0 for part in parts(ranks, 10 + ranks)]
        whole = np.concatenate(mine)
        powers = np.exp(whole - whole.max())
        expected = np.split(powers / powers.sum(), np.cumsum([len(part) for part in mine])[:-1])
        with np.errstate(all="ignore"):
            found = on_ranks(lambda comm, mine=mine: softmax(comm, mine[comm.rank].copy()), ranks)
        total = sum(float(np.sum(one)) for one in found)
        if not np.isclose(total, 1.0):
            raise Wrong(f"with {ranks} ranks, the parts add up to {total:.6g} instead of 1")
        for rank, (one, right) in enumerate(zip(found, expected, strict=True)):
            if np.shape(one) != right.shape or not np.allclose(one, right, rtol=1e-9, atol=0):
                raise Wrong(f"with {ranks} ranks, the part of rank {rank} is not what one process computes")
    return "the softmax of the whole vector, as one process computes it"


def check_argmax(argmax):
    for ranks in RANKS:
        for values in (
            [3.0] * ranks,
            [float(rank % 3) for rank in range(ranks)],
            [-1.0 - rank for rank in range(ranks)],
        ):
            real = max(values), values.index(max(values))
            for rank, one in enumerate(on_ranks(lambda comm, values=values: argmax(comm, values[comm.rank]), ranks)):
                if not isinstance(one, tuple) or len(one) != 2:
                    raise Wrong(f"argmax returns {one!r:.40}; expected a value and a rank")
                if one[0] != real[0]:
                    raise Wrong(f"of the numbers {values}, rank {rank} returns {one[0]:g} as the largest value")
                if one[1] != real[1]:
                    raise Wrong(f"of the numbers {values}, rank {rank} returns {one[1]}; the lowest rank is {real[1]}")
    return "the largest value and its lowest rank, on every rank"
