"""Calls that return their result, and calls on any Python object."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator


class Mine:
    def __init__(self, rank: int) -> None:
        self.rank = rank


def on_numbers(comm: Communicator) -> None:
    ranks = comm.size
    total = ranks * (ranks + 1) // 2
    for one in (int, float, complex, np.int16, np.float32):
        found = comm.all_reduce(one(comm.rank + 1))
        assert found == total and type(found) is one
    assert comm.all_reduce(comm.rank == 0) is True and comm.all_reduce(2, op="add") == 2 * ranks
    assert comm.reduce(comm.rank + 1.0, root=1) == (total if comm.rank == 1 else None)
    assert comm.broadcast(comm.rank, root=1) == 1


def without_an_output(comm: Communicator) -> None:
    ranks, rank = comm.size, comm.rank
    assert comm.all_gather(rank).tolist() == list(range(ranks))
    assert comm.all_gather([[rank, 7]]).tolist() == [[one, 7] for one in range(ranks)]
    assert comm.all_gather(np.full((2, 3), rank, np.float32)).shape == (2 * ranks, 3)
    assert comm.all_gather(np.full(1, rank, np.uint16), dtype="bfloat16").dtype == np.uint16
    for one in (rank, [rank], np.float32(rank)):  # on all ranks, and where there is an output
        numbers = comm.gather(one, root=1)
        assert numbers is None if rank != 1 else numbers.tolist() == list(range(ranks))
        output = np.empty(ranks, np.asarray(one).dtype)
        comm.all_gather(one, output)
        assert output.tolist() == list(range(ranks))
    gathered = comm.gather(np.array([rank]), root=1)
    assert gathered is None if rank != 1 else gathered.tolist() == list(range(ranks))
    assert comm.scatter(array=np.arange(2.0 * ranks) if rank == 0 else None).tolist() == [2.0 * rank, 2.0 * rank + 1]
    assert comm.scatter(array=[[one] for one in range(ranks)] if rank == 1 else None, root=1).tolist() == [[rank]]
    assert comm.reduce_scatter(list(range(ranks))).tolist() == [rank * ranks]
    assert comm.all_to_all(np.arange(ranks) + 10 * rank).tolist() == [10 * one + rank for one in range(ranks)]


def scatter_in_the_old_order(comm: Communicator) -> None:
    whole, output = np.arange(2.0 * comm.size), np.zeros(2)
    root = comm.size - 1
    given = whole if comm.rank == root else None
    for rest, named in (((given, root), {}), ((given,), {"root": root}), ((), {"array": given, "root": root})):
        output[:] = 0
        with pytest.warns(DeprecationWarning, match="array=… and output=… by name"):
            comm.scatter(output, *rest, **named)
        assert output.tolist() == [2.0 * comm.rank, 2.0 * comm.rank + 1]


def on_objects(comm: Communicator) -> None:
    ranks, rank = comm.size, comm.rank
    assert comm.all_gather_object({"rank": rank, "text": "x" * rank}) == [
        {"rank": one, "text": "x" * one} for one in range(ranks)
    ]
    # One object is far longer than the others.
    assert [len(one) for one in comm.all_gather_object(bytes(3_000_000 if rank == 0 else 1))] == [
        3_000_000,
        *[1] * (ranks - 1),
    ]
    assert comm.all_gather_object(None) == [None] * ranks
    for length in (
        450,
        480,
        490,
        495,
        500,
        505,
        520,
    ):  # around what the first exchange holds, with and without pickle's own
        texts = ["x" * (length + place) for place in range(ranks)]
        assert comm.all_gather_object(texts[rank]) == texts
        assert comm.gather_object(texts[rank], root=1) == (texts if rank == 1 else None)
        assert comm.broadcast_object(texts[rank], root=1) == texts[1]
    assert comm.broadcast_object(Mine(rank), root=1).rank == 1
    assert comm.broadcast_object((lambda: "no name") if rank == 0 else None)() == "no name"
    gathered = comm.gather_object((rank,), root=1)
    assert gathered is None if rank != 1 else gathered == [(one,) for one in range(ranks)]
    assert comm.scatter_object([Mine(one) for one in range(ranks)] if rank == 0 else None).rank == rank
    assert comm.reduce_object([rank], root=1) == ([*range(ranks)] if rank == 1 else None)
    assert comm.all_reduce_object(2**70) == ranks * 2**70  # more than any array's element holds
    assert comm.all_reduce_object({rank}, op=operator.or_) == {*range(ranks)}
    assert comm.all_reduce_object("abc"[rank], op="max") == "abc"[ranks - 1]


def everything(comm: Communicator) -> None:
    on_numbers(comm)
    without_an_output(comm)
    scatter_in_the_old_order(comm)
    on_objects(comm)


@pytest.mark.parametrize("hosts", [None, 2])
def test_numbers_new_arrays_and_objects(hosts: int | None) -> None:
    af.spawn(everything, 3, hosts=hosts)


def test_scatter_on_one_rank_takes_the_output_first() -> None:
    """Both arrays are equally long: nothing but the order says which one is written."""
    af.spawn(scatter_in_the_old_order, 1)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise pickle.PicklingError("it stays here")


class Unloadable:
    def __reduce__(self) -> Any:
        return operator.truediv, (1, 0)


def refused(comm: Communicator) -> list[str]:
    """All ranks are told at once, and the communicator works afterwards."""
    said = []
    wrong = Unpicklable() if comm.rank == 1 else 0
    for call in (
        lambda: comm.all_gather_object(wrong),
        lambda: comm.gather_object(wrong),
        lambda: comm.broadcast_object(wrong, root=1),
        lambda: comm.scatter_object([0, wrong] if comm.rank == 1 else None, root=1),
        lambda: comm.scatter_object([0, 1, 2] if comm.rank == 1 else None, root=1),
        lambda: comm.all_gather_object(Unloadable()),
        lambda: comm.all_reduce_object(1, op="summ"),
    ):
        with pytest.raises(af.UsageError) as caught:
            call()
        said.append(str(caught.value))
    assert comm.all_gather_object(comm.rank) == [0, 1]
    return said


def test_objects_that_cannot_travel_are_refused_on_all_ranks() -> None:
    for rank, said in enumerate(af.spawn(refused, 2)):
        assert all("the object of rank 1 cannot be pickled" in one for one in said[:3])
        assert all(one.endswith("it stays here") for one in said[:4]) == (rank == 1)
        assert "scatter_object: " in said[3] and ("expected 2 objects" in said[4]) == (rank == 1)
        assert "cannot be unpickled here: ZeroDivisionError" in said[5] and "did you mean 'sum'?" in said[6]
