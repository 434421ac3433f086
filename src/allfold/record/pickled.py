"""Pickles that are the same in every run, as `all_gather_object` sends them.

torch writes the address of a tensor's memory into them, and lengthens them by memory that nobody has written.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d


def make_steady() -> None:
    """Have tensors that this process pickles contain a number in place of the address, and pad messages with zeros."""
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        kind.__reduce__ = _reduce  # type: ignore[method-assign]
    original = c10d._object_to_tensor
    if hasattr(original, "is_padded"):
        return

    def padded(*arguments: Any, **given: Any) -> Any:
        letters, count = original(*arguments, **given)
        return letters.as_subclass(_Padded), count

    padded.is_padded = True  # type: ignore[attr-defined]
    c10d._object_to_tensor = padded


class _Padded(torch.Tensor):
    """A pickle as bytes. torch gives those of all ranks the length of the longest, and sends them."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def resize_(self, count: int) -> torch.Tensor:  # type: ignore[override]
        before = self.numel()
        super().resize_(count)
        self[before:].zero_()
        return self


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
