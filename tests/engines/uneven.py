"""Collectives with uneven parts, and what NumPy says they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from allfold.communicator.communicator import Communicator

COLLECTIVES = ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")
OPERATIONS = {"sum": np.add, "max": np.maximum}


def random_counts(random: np.random.Generator, ranks: int, longest: int) -> np.ndarray[Any, Any]:
    """A matrix of lengths, many of them zero and one of them large; its first row serves where one row is enough."""
    counts = random.integers(0, 6, (ranks, ranks)) * (random.random((ranks, ranks)) < 0.6)
    counts[random.integers(ranks), random.integers(ranks)] = longest
    return counts


def inputs(collective: str, counts: np.ndarray[Any, Any], seed: int, dtype: str) -> list[np.ndarray[Any, Any]]:
    """What every rank brings; of a scatter, every rank's array is what it would bring as the root."""
    ranks, random = len(counts), np.random.default_rng(seed)
    one_slice = collective in ("gather", "all_gather")
    whole = counts.sum(axis=1) if collective == "all_to_all" else np.full(ranks, counts[0].sum())
    lengths = counts[0] if one_slice else whole
    return [random.integers(1, 50, length).astype(dtype) for length in lengths.tolist()]


def expected(
    collective: str, counts: np.ndarray[Any, Any], given: list[np.ndarray[Any, Any]], rank: int, root: int, op: str
) -> np.ndarray[Any, Any] | None:
    ranks = len(counts)
    if collective == "all_to_all":
        begins = np.cumsum(counts, axis=1) - counts
        return np.concatenate(
            [given[one][begins[one, rank] : begins[one, rank] + counts[one, rank]] for one in range(ranks)]
        )
    if collective == "all_gather" or (collective == "gather" and rank == root):
        return np.concatenate(given)
    if collective == "gather":
        return None
    begin = int(counts[0, :rank].sum())
    own = slice(begin, begin + int(counts[0, rank]))
    if collective == "scatter":
        return given[root][own]
    return OPERATIONS[op].reduce(given)[own].astype(given[0].dtype)


def call(
    comm: Communicator,
    collective: str,
    counts: np.ndarray[Any, Any],
    own: np.ndarray[Any, Any],
    output: np.ndarray[Any, Any] | None,
    root: int,
    op: str,
    **how: Any,
) -> Any:
    one, rows = counts[0].tolist(), counts.tolist()
    if collective == "gather":
        return comm.gather(own, output, root, counts=one, **how)
    if collective == "scatter":
        return comm.scatter(array=own if comm.rank == root else None, output=output, root=root, counts=one, **how)
    if collective == "all_gather":
        return comm.all_gather(own, output, counts=one, **how)
    if collective == "reduce_scatter":
        return comm.reduce_scatter(own, output, op, counts=one, **how)
    return comm.all_to_all(own, output, counts=rows, **how)


def attack(comm: Communicator, seed: int, rounds: int, algorithms: dict[str, list[str | None]]) -> Iterator[str]:
    """Random calls of all collectives, compared with NumPy; yields what was tried."""
    random = np.random.default_rng(seed)  # the same on all ranks
    for number in range(rounds):
        for collective in COLLECTIVES:
            longest = int(random.choice([0, 7, 1000, 70_000]))
            counts = random_counts(random, comm.size, longest)
            root, op = int(random.integers(comm.size)), str(random.choice([*OPERATIONS]))
            dtype = str(random.choice(["float32", "int64", "uint8", "float64"]))
            algorithm = random.choice(np.array(algorithms[collective], object))
            given = inputs(collective, counts, seed * 1000 + number, dtype)
            right = expected(collective, counts, given, comm.rank, root, op)
            own = given[comm.rank]
            kind = int(random.integers(4))
            if kind == 0 and right is not None:  # in shared memory, on some ranks
                own, copied = comm.empty(own.size, dtype), own
                own[...] = copied
            output = None if right is None else np.full(right.size, 99, dtype)
            if kind == 1 and right is not None and comm.rank % 2:
                output = comm.empty(right.size, dtype)
            how = {"algorithm": algorithm, "async_op": kind == 2}
            what = f"{collective} by {algorithm} of {dtype}, root {root}, {op}, counts {counts.tolist()}"
            handle = call(comm, collective, counts, own, output, root, op, **how)
            if handle is not None:
                handle.wait()
            if right is not None:
                assert output is not None and np.array_equal(output, right), f"rank {comm.rank}: {what}"
            yield what
