"""Parts with lengths of their own: right for random lengths on every engine, and wrong ones refused with the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from uneven import COLLECTIVES, attack

import allfold as af
from allfold.collectives import COLLECTIVES as PROMISES
from allfold.communicator.communicator import Communicator
from allfold.division import Division, Lengths, chunk_bounds
from allfold.engines.table import ENGINES
from allfold.launch.threads import run_threads

MIXES_PLACES = ("bruck", "bine")  # of all_to_all
IN_MAIN_MEMORY = [name for name in ENGINES if name != "stream"]  # test_boundary.py has arrays of a GPU
ALGORITHMS: dict[str, list[str | None]] = {
    name: [None, *(one for one in af.algorithms(name) if name != "all_to_all" or one not in MIXES_PLACES)]
    for name in COLLECTIVES
}


@pytest.mark.parametrize("engine", IN_MAIN_MEMORY)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_random_lengths_give_what_numpy_gives(engine: str, ranks: int) -> None:
    tried = run_threads(
        lambda comm: sum(1 for _ in attack(comm, 10 * ranks, 4, ALGORITHMS)), ranks, timeout=60, engine=engine
    )
    assert tried == [4 * len(COLLECTIVES)] * ranks


def test_results_that_are_returned() -> None:
    def work(comm: Communicator) -> list[Any]:
        own = np.full((comm.rank + 1, 2), comm.rank)
        return [
            comm.all_gather(own, counts=[2, 4, 6]).tolist(),
            comm.gather(own, root=2, counts=[2, 4, 6]),
            comm.reduce_scatter(np.arange(6), counts=[1, 0, 5]).tolist(),
            comm.scatter(array=list(range(6)) if comm.rank == 1 else None, root=1, counts=[1, 0, 5]).tolist(),
            # Rank r sends one element to itself and r to rank 0: every rank gives its own row only.
            comm.all_to_all(np.full(comm.rank + 1, comm.rank), counts=_row(comm.rank)).tolist(),
        ]

    found = run_threads(work, 3)
    rows = [[0, 0], [1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]
    assert [one[0] for one in found] == [rows] * 3
    assert found[0][1] is None and found[2][1].tolist() == rows
    assert [one[2] for one in found] == [[0], [], [3, 6, 9, 12, 15]]
    assert [one[3] for one in found] == [[0], [], [1, 2, 3, 4, 5]]
    assert [one[4] for one in found] == [[0, 1, 2, 2], [1], [2]]


def _row(rank: int) -> list[int]:
    row = [rank, 0, 0]
    row[rank] += 1
    return row


WRONG: list[tuple[Callable[[Communicator], Any], str]] = [
    (
        lambda comm: comm.all_gather(np.ones(3), np.ones(5), counts=[3, 3]),
        "the output of rank . must hold 6 elements, got 5",
    ),
    (
        lambda comm: comm.all_gather(np.ones(3), np.ones(5), counts=[2, 2]),
        "the input of rank . must hold 2 elements, got 3",
    ),
    (lambda comm: comm.all_gather(np.ones(3), counts=[3]), "counts must be whole numbers, 2, one per rank; got [3]"),
    (lambda comm: comm.all_gather(np.ones(3), counts=[3.0, 3.0]), "counts must be whole numbers"),
    (
        lambda comm: comm.all_gather(np.ones(3), counts=[-1, 4]),
        "counts must be non-negative and fit in memory; got [-1, 4]",
    ),
    (lambda comm: comm.all_gather(np.ones(3), counts=[3, 2**63 - 1]), "counts must be non-negative and fit in memory"),
    (lambda comm: comm.all_to_all(np.ones(3), counts=[[1, 2], [1]]), "counts must be whole numbers, 2 rows of 2"),
    (lambda comm: comm.all_to_all(np.ones(3), counts=[1, 2, 3]), "counts must be whole numbers, 2, one per rank"),
    (lambda comm: comm.reduce_scatter(np.ones(3), counts=[2, 2]), "the input of rank . must hold 4 elements, got 3"),
    (lambda comm: comm.all_to_all(np.ones(4), np.ones(5), counts=[[2, 2], [2, 2]]), "the output of rank . must hold 4"),
    (
        lambda comm: comm.all_gather(np.ones(3), counts=[3, 3], async_op=True),
        "async_op requires an output",
    ),
]


@pytest.mark.parametrize("engine", IN_MAIN_MEMORY)
def test_wrong_lengths_are_refused_with_the_numbers(engine: str) -> None:
    def work(comm: Communicator) -> float:
        for wrong, says in WRONG:
            with pytest.raises(af.UsageError) as caught:
                wrong(comm)
            assert re.search(says.replace("[", r"\["), str(caught.value)), caught.value
        array = np.ones(3)
        comm.all_reduce(array)
        return float(array[0])

    assert run_threads(work, 2, engine=engine) == [2.0, 2.0]


@pytest.mark.parametrize("engine", IN_MAIN_MEMORY)
def test_an_algorithm_that_mixes_places_is_refused_by_name(engine: str) -> None:
    def work(comm: Communicator) -> list[str]:
        said, counts = [], np.arange(16).reshape(4, 4)
        given = np.ones(int(counts[comm.rank].sum()))
        for name in MIXES_PLACES:
            with pytest.raises(af.UsageError) as caught:
                comm.all_to_all(given, algorithm=name, counts=counts)
            said.append(str(caught.value))
        comm.barrier()
        return said

    for said in run_threads(work, 4, engine=engine):
        for name, one in zip(MIXES_PLACES, said, strict=True):
            assert re.match(
                rf"all_to_all: {name}\(ranks=4\) cannot move slices with lengths of their own: step \d puts slice \d of rank "
                r"\d into chunk \d of rank \d, the place of slice \d of rank \d \(.*\.py:\d+.*\)",
                one,
            ), one


def test_ranks_that_differ_say_their_counts() -> None:
    def work(comm: Communicator) -> str:
        with pytest.raises(af.MismatchError) as caught:
            comm.all_gather(np.ones(3), np.empty(4), counts=[1, 3] if comm.rank else [3, 1])
        return str(caught.value)

    said = run_threads(work, 2)
    assert said[0].endswith("; the counts here are [3, 1]") and said[1].endswith("; the counts here are [1, 3]")


def test_equal_counts_divide_like_none() -> None:
    for ranks, part, each in ((1, 1, 5), (3, 1, 4), (3, 2, 7), (4, 3, 0)):
        chunks, right = ranks * part, chunk_bounds(ranks * each, ranks * part).tolist()
        for promise, counts in (
            (PROMISES["all_gather"], [each] * ranks),
            (PROMISES["all_to_all"], [[each] * ranks] * ranks),
        ):
            for division in (
                Division(ranks, chunks, ranks * each),
                Division(ranks, chunks, 0, Lengths(promise, ranks, counts)),
            ):
                assert division.bounds(ranks - 1, True) == division.bounds(0, False) == right
                assert division.longest == -(-each // part)
