"""Derived datatypes against the definition: a list of where every element of the type lies."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from allfold.mpi4py import MPI
from allfold.mpi4py.data.layout import gathered, spread

Places = list[int]
"""The place of each byte of one item, in the order in which they are sent."""


def _items(places: Places, extent: int, start: int, count: int) -> Places:
    return [start + one * extent + byte for one in range(count) for byte in places]


def _derived(chance: random.Random, depth: int) -> tuple[Any, Places, int]:
    """A random datatype, its places by the definition, and its extent as MPI tells it."""
    if depth == 0:
        plain = chance.choice([MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE])
        return plain, list(range(plain.size)), plain.size
    base, places, extent = _derived(chance, depth - 1)
    kind = chance.choice(["contiguous", "vector", "hvector", "indexed", "hindexed_block", "struct", "grid", "resized"])
    count, length = chance.randint(0, 3), chance.randint(0, 3)
    if kind == "contiguous":
        made, own = base.Create_contiguous(count), _items(places, extent, 0, count)
    elif kind in ("vector", "hvector"):
        stride = chance.randint(-9, 9)
        step = stride * extent if kind == "vector" else stride
        made = getattr(base, f"Create_{kind}")(count, length, stride)
        own = [byte for one in range(count) for byte in _items(places, extent, one * step, length)]
    elif kind == "indexed":
        lengths, starts = ([chance.randint(low, 4) for _ in range(count)] for low in (0, -4))
        made = base.Create_indexed(lengths, starts)
        pairs = zip(lengths, starts, strict=True)
        own = [byte for many, start in pairs for byte in _items(places, extent, start * extent, many)]
    elif kind == "hindexed_block":
        starts = [chance.randint(-20, 20) for _ in range(count)]
        made = base.Create_hindexed_block(length, starts)
        own = [byte for start in starts for byte in _items(places, extent, start, length)]
    elif kind == "struct":
        other, others, far = _derived(chance, depth - 1)
        first, second = chance.randint(-20, 20), chance.randint(-20, 20)
        made = MPI.Datatype.Create_struct([count, length], [first, second], [base, other])
        own = _items(places, extent, first, count) + _items(others, far, second, length)
    elif kind == "grid":
        made, own = _grid(chance, base, places, extent)
    else:
        made, own = base.Create_resized(chance.randint(-9, 9), chance.randint(-30, 60)), places
    return made, own, made.extent


def _grid(chance: random.Random, base: Any, places: Places, extent: int) -> tuple[Any, Places]:
    """A part of an array: a rectangle, or what one process of a grid holds."""
    sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
    order = chance.choice([MPI.ORDER_C, MPI.ORDER_FORTRAN])
    if chance.random() < 0.5:
        parts = [chance.randint(1, size) for size in sizes]
        starts = [chance.randint(0, size - part) for size, part in zip(sizes, parts, strict=True)]
        made = base.Create_subarray(sizes, parts, starts, order)
        chosen = [list(range(start, start + part)) for start, part in zip(starts, parts, strict=True)]
    else:
        processes = [chance.randint(1, 3) for _ in sizes]
        rank = chance.randrange(int(np.prod(processes)))
        hows = [chance.choice([MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC]) for _ in sizes]
        blocks = [
            -(-size // many) if how == MPI.DISTRIBUTE_BLOCK else chance.randint(1, 2)
            for size, many, how in zip(sizes, processes, hows, strict=True)
        ]
        made = base.Create_darray(len(processes), rank, sizes, hows, blocks, processes, order)
        place = np.unravel_index(rank, processes)  # processes are in row-major order, whatever the array's is
        chosen = [
            [one for one in range(size) if one // block % many == own]
            for size, block, many, own in zip(sizes, blocks, processes, place, strict=True)
        ]
    layout = "C" if order == MPI.ORDER_C else "F"
    numbers = np.arange(np.prod(sizes)).reshape(sizes, order=layout)[np.ix_(*chosen)].flatten(order=layout)
    return made, [byte for number in numbers for byte in _items(places, extent, int(number) * extent, 1)]


def test_bytes_lie_where_the_definition_says() -> None:
    chance = random.Random(40)
    for _ in range(200):
        datatype, places, extent = _derived(chance, chance.randint(1, 3))
        count = chance.randint(0, 3)
        every = _items(places, extent, 0, count)
        low, high = datatype.layout.span(count)
        assert (low, high) == ((min(every), max(every) + 1) if every else (0, 0))
        assert datatype.size == len(places)
        raw = np.random.default_rng(len(every)).integers(0, 256, high - low + 8, np.uint8)
        start = 4 - low
        at = np.array(every, int) + start
        data = gathered(raw, start, count, datatype.layout)
        assert np.array_equal(data, raw[at])
        if len(set(every)) == len(every):  # a receive into overlapping places is an error in MPI
            part = np.arange(chance.randint(0, len(every)), dtype=np.uint8)
            expected = raw.copy()
            expected[at[: part.size]] = part
            spread(raw, start, count, datatype.layout, part)
            assert np.array_equal(raw, expected)


def test_bounds_are_those_of_the_parts_or_what_the_program_sets() -> None:
    pair = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.BYTE])
    assert (pair.lb, pair.extent, pair.true_extent) == (0, 16, 9)  # as C pads it
    set_by_program = MPI.INT.Create_resized(-4, 12)
    assert MPI.Datatype.Create_struct([1, 1], [0, -16], [set_by_program, MPI.DOUBLE]).Get_extent() == (-4, 12)
    nothing = MPI.INT.Create_contiguous(0)
    assert MPI.Datatype.Create_struct([1, 1], [0, 100], [MPI.INT, nothing]).Get_extent() == (0, 4)
    assert MPI.INT.Create_vector(3, 1, -2).Get_extent() == (-16, 20)


def test_types_of_billions_of_elements_are_made_at_once() -> None:
    many = 2**31
    assert MPI.INT.Create_contiguous(many).size == 4 * many
    column = MPI.DOUBLE.Create_vector(many, 1, 1000)
    assert (column.size, column.extent) == (8 * many, 8 * (1000 * (many - 1) + 1))
    assert column.Create_contiguous(many).size == 8 * many**2


@pytest.mark.parametrize("order", [MPI.ORDER_C, MPI.ORDER_FORTRAN])
def test_a_rectangle_is_what_numpy_cuts_out(order: int) -> None:
    layout = "C" if order == MPI.ORDER_C else "F"
    whole = np.arange(60, dtype="i").reshape((3, 4, 5), order=layout)
    part = MPI.INT.Create_subarray((3, 4, 5), (2, 2, 3), (1, 0, 2), order).Commit()
    got = np.empty((2, 2, 3), "i", order=layout)
    MPI.COMM_SELF.Sendrecv([whole, 1, part], 0, recvbuf=got, source=0)
    assert np.array_equal(got, whole[1:3, 0:2, 2:5])


def test_types_by_the_code_of_an_array() -> None:
    for code in "?bhilqBHILQfdgFDG":
        datatype = MPI._typedict[np.dtype(code).char]
        assert datatype.Get_size() == np.dtype(code).itemsize
        assert np.dtype(MPI._typecode(datatype)) == np.dtype(code)
