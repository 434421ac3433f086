"""Judges of lesson 11: the same in one process, by NumPy, is right."""

import numpy as np

from allfold.learn.checks import Wrong, on_ranks

RANKS = (3, 4, 2, 7, 1)


def parts(ranks, seed):
    """A part per rank, of different lengths; with three ranks or more, one has nothing."""
    random = np.random.default_rng(seed)
    return [random.normal(10.0 * rank, 2.0, 0 if rank == 2 else 5 * (rank + 1)) for rank in range(ranks)]


def _short(value):
    return f"{value:.6g}" if isinstance(value, int | float) else f"{value!r:.40}"


def _few(values):
    return f"[{', '.join(f'{value:.3g}' for value in np.ravel(values)[:3])}, …]" if np.size(values) else "empty"


def check_mean(mean):
    for ranks in RANKS:
        mine = parts(ranks, ranks)
        real = np.concatenate(mine).mean()
        with np.errstate(all="ignore"):
            found = on_ranks(lambda comm, mine=mine: mean(comm, mine[comm.rank]), ranks)
        for rank, one in enumerate(found):
            if not np.isscalar(one) or not np.isclose(one, real, rtol=1e-12):
                kind = _kind_of_mean(one, mine, rank)
                has = ", ".join(f"{len(part)} of mean {part.mean():.4g}" for part in mine if len(part))
                says = f"rank {rank} returns {_short(one)}; {real:.6g} is the mean (the ranks have samples: {has})"
                raise Wrong(f"with {ranks} ranks, {says}", kind=kind)
    return "the mean of all samples, as one process computes it"


def _kind_of_mean(one, mine, rank):
    """What was computed instead, if it is a mistake that is known."""
    if not np.isscalar(one) or np.isnan(one):
        return "nan"
    means = [part.mean() for part in mine if len(part)]
    if np.isclose(one, np.mean(means)) or np.isclose(one, sum(means) / len(mine)):
        return "mean_of_means"
    if len(mine[rank]) and np.isclose(one, mine[rank].mean()):
        return "local"
    return "sum" if np.isclose(one, np.concatenate(mine).sum()) else "wrong_mean"


def _kind_of_softmax(found, mine):
    if not all(np.isfinite(one).all() for one in found):
        return "overflow"
    powers = [np.exp(part - part.max(initial=-np.inf)) for part in mine]
    total = sum(part.sum() for part in powers)
    if all(
        np.shape(one) == part.shape and np.allclose(one, part / total) for one, part in zip(found, powers, strict=True)
    ):
        return "local_max"
    sums = [float(np.sum(one)) for one in found if np.size(one)]
    return "local_sum" if np.allclose(sums, 1.0) else "wrong_part"


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
            says = f"the parts of all ranks add up to {total:.6g} instead of 1"
            raise Wrong(f"with {ranks} ranks, {says}", kind=_kind_of_softmax(found, mine))
        for rank, (one, right) in enumerate(zip(found, expected, strict=True)):
            if np.shape(one) != right.shape or not np.allclose(one, right, rtol=1e-9, atol=0):
                says = f"the part of rank {rank} is {_few(one)}; one process computes {_few(right)}"
                raise Wrong(f"with {ranks} ranks, {says}", kind=_kind_of_softmax(found, mine))
    return "the softmax of the whole vector, as one process computes it"


def check_argmax(argmax):
    for ranks in RANKS:
        for values in (
            [float(rank % 3) for rank in range(ranks)],
            [3.0] * ranks,
            [-1.0 - rank for rank in range(ranks)],
        ):
            real = max(values), values.index(max(values))
            for rank, one in enumerate(on_ranks(lambda comm, values=values: argmax(comm, values[comm.rank]), ranks)):
                if not isinstance(one, tuple) or len(one) != 2:
                    kind = "no_rank" if np.size(one) == 1 else "shape"
                    raise Wrong(f"argmax returns {one!r:.40}; expected a value and a rank", kind=kind)
                if one[0] != real[0]:
                    says = f"rank {rank} returns {_short(one[0])} as the largest value"
                    raise Wrong(f"of the numbers {values}, {says}", kind="value")
                if one[1] != real[1]:
                    last = ranks - 1 - values[::-1].index(real[0])
                    kind = "own_rank" if one[1] == rank else "highest_rank" if one[1] == last else "wrong_rank"
                    says = f"rank {rank} returns rank {one[1]}; the lowest rank that has {real[0]:g} is {real[1]}"
                    raise Wrong(f"of the numbers {values}, {says}", kind=kind)
    return "the largest value and its lowest rank, on every rank"
