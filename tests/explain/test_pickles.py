"""Pickles from anywhere: plain data is read, everything else is refused with a sentence, and nothing is executed."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allfold.documents import DocumentError
from allfold.explain.pickles import read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(DocumentError, match=r"nothing in this file was executed|not a pickle of plain data"):
        read_pickle(pickle.dumps({"version": "2.10", "entries": [_Runs(tmp_path / "made")]}, protocol))
    assert not (tmp_path / "made").exists()


@given(data=st.binary(max_size=200))
@example(b"\x80\x02r\xff\xff\xff\xff")
@example(b"\x80\x02]r\xff\xff\xff\x7f.")  # Python's own unpickler reserves 16 GiB for this
@example(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.")
@example(b"\x80\x02]" + b"(" * 100 + b"e.")
@example(b"\x80\x02}(]]u.")
@example(b"\x80\x02(K\x01a.")
def test_garbage_is_refused(data: bytes) -> None:
    with contextlib.suppress(DocumentError):
        read_pickle(data)


@given(value=PLAIN, at=st.integers(0, 400), byte=st.integers(0, 255))
def test_damage_is_refused_or_harmless(value: Any, at: int, byte: int) -> None:
    data = bytearray(pickle.dumps(value, 2))
    data[at % len(data)] = byte
    for damaged in (bytes(data), bytes(data[: at % len(data)])):
        with contextlib.suppress(DocumentError):
            read_pickle(damaged)


def test_tuples_within_tuples_are_no_keys() -> None:
    # Hashing this would take 2**50 steps.
    doubled = b"\x80\x02)" + b"".join(b"q\x01h\x01\x86" for _ in range(50))
    with pytest.raises(DocumentError, match="expected a text or a number"):
        read_pickle(b"\x80\x02}" + doubled[2:] + b"Ns.")
