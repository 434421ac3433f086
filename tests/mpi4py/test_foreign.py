"""Arrays of other libraries in messages: by DLPack, and by CUDA's array interface."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from allfold.mpi4py import MPI


class _Cuda:
    """An array as CUDA's libraries hand it over, at an address of this process."""

    def __init__(self, array: np.ndarray[Any, Any], **other: Any) -> None:
        self.array = array
        data = {"data": (array.ctypes.data, False), "typestr": array.dtype.str, "shape": array.shape}
        self.__cuda_array_interface__ = {"version": 3, **data, **other}


class _DLPack:
    """An array that has DLPack and no buffer protocol."""

    def __init__(self, array: np.ndarray[Any, Any], is_old: bool) -> None:
        self.array, self.is_old = array, is_old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **more: Any) -> Any:
        if self.is_old and more:
            raise TypeError("no such keyword")
        return self.array.__dlpack__(**more)


def _to_self(sent: Any, got: Any) -> None:
    MPI.COMM_SELF.Sendrecv(sent, 0, recvbuf=got, source=0)


@pytest.mark.parametrize("wrapped", [_Cuda, lambda one: _DLPack(one, False), lambda one: _DLPack(one, True)])
def test_messages_of_memory_that_the_processor_reads(wrapped: Any) -> None:
    for dtype in "?bhilBHILefdFD":
        sent, got = np.arange(6).astype(dtype), np.zeros(6, dtype)
        _to_self(wrapped(sent), wrapped(got))
        assert np.array_equal(sent, got)


def test_memory_that_the_processor_cannot_read_gets_a_sentence() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_WRITE) as page:
        address = np.frombuffer(page, np.uint8).ctypes.data
    there = _Cuda(np.zeros(4), data=(address, False))  # unmapped since
    with pytest.raises(BufferError, match="in a GPU's memory"):
        _to_self(there, np.zeros(4))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"shape": (4, -1)}, BufferError),
        ({"strides": (16,)}, BufferError),
        ({"mask": True}, BufferError),
        ({"typestr": ">f8"}, BufferError),
        ({"typestr": "<fX"}, ValueError),
        ({"data": 7}, TypeError),
        ({"data": (7,)}, ValueError),
        ({"shape": None}, TypeError),
    ],
)
def test_malformed_descriptions_are_refused_before_anything_is_sent(wrong: dict[str, Any], kind: Any) -> None:
    with pytest.raises(kind):
        _to_self(_Cuda(np.zeros(4), **wrong), np.zeros(4))
    got = np.zeros(2)
    _to_self(np.arange(2.0), got)  # nothing of it is left over
    assert got[1] == 1
