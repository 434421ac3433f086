"""How buffers divide: one rule, exact for any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allfold.division import chunk_bounds
from allfold.errors import UsageError


@given(length=st.integers(0, 2**62), parts=st.integers(1, 300))
def test_the_rule_is_exact_even_where_the_product_overflows(length: int, parts: int) -> None:
    bounds = chunk_bounds(length, parts)
    assert bounds.dtype == np.int64
    assert bounds.tolist() == [part * length // parts for part in range(parts + 1)]


@given(length=st.integers(0, 10_000), parts=st.integers(1, 300))
def test_parts_cover_everything_and_differ_by_at_most_one(length: int, parts: int) -> None:
    sizes = np.diff(chunk_bounds(length, parts))
    assert sizes.sum() == length
    assert sizes.min() >= 0 and sizes.max() - sizes.min() <= 1


@given(ranks=st.integers(1, 40), part=st.integers(1, 9), slice_length=st.integers(0, 500))
def test_slices_are_made_of_whole_chunks(ranks: int, part: int, slice_length: int) -> None:
    bounds = chunk_bounds(ranks * slice_length, ranks * part)
    assert bounds[::part].tolist() == [rank * slice_length for rank in range(ranks + 1)]


@pytest.mark.parametrize(
    ("length", "parts", "bounds"),
    [(0, 3, [0, 0, 0, 0]), (1, 4, [0, 0, 0, 0, 1]), (10, 4, [0, 2, 5, 7, 10]), (7, 1, [0, 7]), (6, 3, [0, 2, 4, 6])],
)
def test_examples(length: int, parts: int, bounds: list[int]) -> None:
    assert chunk_bounds(length, parts).tolist() == bounds


@pytest.mark.parametrize(("length", "parts"), [(-1, 4), (4, 0), (4, -2)])
def test_what_cannot_be_divided(length: int, parts: int) -> None:
    with pytest.raises(UsageError, match=rf"{length} elements cannot be divided into {parts} chunks"):
        chunk_bounds(length, parts)
