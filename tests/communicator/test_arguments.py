"""Wrong arguments get a sentence, and the communicator works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allfold as af
from allfold.communicator.communicator import Communicator


def given_wrong_arguments(comm: Communicator) -> list[str]:
    half, x = np.ones(4, np.float16), np.ones(4)
    tries: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(half, dtype="bfloat16"),
        lambda: comm.all_reduce(x, dtype="int64"),
        lambda: comm.all_reduce(x, dtype=np.float64),  # type: ignore[arg-type]
        lambda: comm.send(x, 0, dtype=3),  # type: ignore[arg-type]
        lambda: comm.send(None, 0),
        lambda: comm.all_reduce(x, op=None),  # type: ignore[arg-type]
        lambda: comm.all_reduce(x, timeout=10**400),
        lambda: comm.broadcast(x, root=10**30),
        lambda: comm.broadcast(x, root=7),
        lambda: comm.group([0, 1.5]),  # type: ignore[list-item]
        lambda: comm.group("01"),  # type: ignore[arg-type]
        lambda: comm.group([True]),
        lambda: comm.empty(1.5),  # type: ignore[arg-type]
        lambda: comm.empty((2**32, 2**32)),
        lambda: comm.empty((2**63, 0)),
        lambda: comm.empty([[2]]),  # type: ignore[list-item]
        lambda: comm.scatter(array=x if comm.rank else None, output=x),
        lambda: comm.all_reduce(np.lib.stride_tricks.as_strided(x, (4, 3), (8, 0))),
        lambda: comm.all_reduce(x, algorithm=dict),  # type: ignore[arg-type]
        lambda: comm.all_reduce(np.ma.array(x, mask=[0, 1, 0, 0])),
        lambda: comm.all_reduce(np.ma.array(np.ones((4, 4)))[::2, ::2]),  # not contiguous: it goes another way
        lambda: comm.all_gather(np.ma.array(x), np.empty(8)),
        lambda: comm.send(np.ma.array(x), 0),
        lambda: comm.all_gather([np.ma.array(x)]),
        lambda: comm.all_reduce([1.0, 2.0]),
        lambda: comm.all_reduce(np.zeros(2, "datetime64[s]")),
        lambda: comm.all_reduce(np.zeros(2, np.longdouble)),
        lambda: comm.all_reduce(np.zeros(2, [("a", "f4"), ("b", "i4")])),
        lambda: comm.all_reduce(x, op="ad"),
        lambda: comm.all_reduce(1.0, async_op=True),
        lambda: comm.all_reduce(2**70),
        lambda: comm.all_gather(x, async_op=True),
        lambda: comm.all_gather(["a"]),
        lambda: comm.reduce_scatter([1, 2, 3]),
        lambda: comm.scatter(array=[1, 2, 3] if comm.rank == 0 else None),
        lambda: comm.gather(x, x, root=1 - comm.rank),
    ]
    said = []
    for one in tries:
        with pytest.raises((af.UsageError, af.SharedMemoryError)) as caught:
            one()
        said.append(str(caught.value))
    handle = comm.all_reduce(x, async_op=True)
    for wrong in (-1, float("nan"), "x", 10**400):
        with pytest.raises(af.UsageError):
            handle.wait(wrong)  # type: ignore[union-attr,arg-type]
    handle.wait()  # type: ignore[union-attr]
    comm.broadcast(x, root=np.int64(1))  # nothing was lost
    return said


def test_wrong_arguments_get_a_sentence() -> None:
    said = af.spawn(given_wrong_arguments, np.int64(2))[0]  # type: ignore[arg-type]
    for message, part in zip(
        said,
        [
            "the array is float16, not bfloat16",
            "the array is float64, not int64",
            "dtype must be the name of a type",
            "dtype must be the name of a type, not 3",
            "got NoneType",
            "expected an operation, got None",
            "timeout is too large for a floating-point number",
            "root must be a rank, a whole number, not 1000000000000000000000000000000",
            "root must be a rank from 0 to 1, not 7",
            "expected different ranks from 0 to 1, not [0, 1.5]",
            "expected different ranks from 0 to 1, not '01'",
            "not [True]",
            "not 1.5",
            "exceeds a process's address space",
            "exceeds a process's address space",
            "not [[2]]",
            "scatter: only the root passes an array",
            "several elements at the same address",
            "dict cannot be called for all_reduce",
            "a masked array's mask would be ignored",
            "a masked array's mask would be ignored",
            "a masked array's mask would be ignored",
            "send: a masked array's mask would be ignored",
            "all_gather: a masked array's mask would be ignored",
            "got list, which is not changed in place; pass x = numpy.array(…)",
            "(datetime64[s])",
            f"({np.dtype(np.longdouble)})",
            "('a', '<f4')",
            "did you mean 'add'?",
            "a number cannot be changed in the background",
            "exceeds 64 bits; for numbers of any size, use all_reduce_object",
            "all_gather: async_op requires an output",
            "for other objects, use all_gather_object",
            "reduce_scatter: 3 rows cannot be divided among 2 ranks",
            "scatter: 3 rows cannot be divided among 2 ranks",
            "gather: only the root passes an output",
        ],
        strict=True,
    ):
        assert part in message
