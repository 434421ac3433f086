"""Pickles of tensors that are the same in every run: torch writes the address of a tensor's memory into them."""

from __future__ import annotations

import io
import struct
from typing import Any

import torch


def make_steady() -> None:
    """Have tensors that this process pickles, as in `all_gather_object`, contain a number in place of the address."""
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        kind.__reduce__ = _reduce  # type: ignore[method-assign]


def _reduce(storage: Any) -> Any:
    """As torch's own, which gives each storage the name of its address; there is only one in these bytes."""
    file = io.BytesIO()
    torch.save(storage, file, _use_new_zipfile_serialization=False)
    content = file.getvalue()
    bare = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
    data, name = len(content) - bare.nbytes(), str(bare._cdata).encode()  # the elements come last
    return torch.storage._load_from_bytes, (content[:data].replace(_text(name), _text(b"0")) + content[data:],)


def _text(letters: bytes) -> bytes:
    """A text in a pickle."""
    return b"X" + struct.pack("<I", len(letters)) + letters
