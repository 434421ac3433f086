"""The file of one rank: blocks that are only ever appended, so that a rank that is killed leaves a file that can be read.

`docs/record.md` describes the format. Nothing here needs torch or the engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from typing import Any

VERSION = 1
MAGIC = b"allfold record "
FIRST_LINE = b"%s%d\n" % (MAGIC, VERSION)
BLOCK = struct.Struct("<4sIQ")
"""Kind, CRC-32 of the contents (0 for DATA), length of the contents in bytes."""
HEAD, WORLD, GROUP, FORM, CALL, DONE, FAIL, DATA, STORE, SEED, ENDS = KINDS = (
    *(b"HEAD", b"WRLD", b"GRUP", b"FORM", b"CALL", b"DONE", b"FAIL", b"DATA", b"STOR", b"SEED", b"ENDS"),
)
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_PAGE = 4096


def as_json(document: Any) -> bytes:
    """The contents of a block."""
    return _ENCODER.encode(document).encode()


def call_json(number: int, form: int, place: int, digests: Sequence[int | None], time: int) -> bytes:
    """The contents of a CALL block. Written by hand, as those of DONE: json takes four times as long, in every call."""
    return b"[%d,%d,%d,%s,%d]" % (number, form, place, _list_json(digests), time)


def done_json(number: int, digests: Sequence[int | None], data: int | None, source: int | None) -> bytes:
    """The contents of a DONE block."""
    return b"[%d,%s,%s,%s]" % (number, _list_json(digests), _json(data), _json(source))


def _list_json(numbers: Sequence[int | None]) -> bytes:
    return b"[%s]" % b",".join([_json(one) for one in numbers])


def _json(number: int | None) -> bytes:
    return b"null" if number is None else b"%d" % number


def file_name(rank: int, restart: int = 0) -> str:
    """The name of a rank's file. A rank that torchrun has restarted writes another one."""
    return f"rank-{rank}.allfold" if restart == 0 else f"rank-{rank}.restart-{restart}.allfold"


class Writer:
    """Appends blocks to the file of a rank. Each is one write, which survives the death of the process."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._end = self._whole = 0  # the file, and its blocks that are complete
        self._append([FIRST_LINE])

    def write(self, kind: bytes, document: Any) -> None:
        self.write_json(kind, as_json(document))

    def write_json(self, kind: bytes, contents: bytes) -> None:
        block = BLOCK.pack(kind, zlib.crc32(contents), len(contents)) + contents
        written = os.write(self._descriptor, block)
        self._end += written
        if written < len(block):
            self._append([block[written:]])
        self._whole = self._end

    def write_data(self, addresses: Sequence[tuple[int, int]]) -> int:
        """Append memory, given as addresses and lengths; returns the offset of its first byte in the file."""
        arrays = [(ctypes.c_char * count).from_address(address) for address, count in addresses if count]
        length = sum(map(len, arrays))
        place = self._end + BLOCK.size
        self._append([BLOCK.pack(DATA, 0, length), *arrays])
        return place

    def drop(self, place: int, length: int) -> bool:
        """Return the space of old data to the file system, at unchanged offsets. False if that is not possible."""
        first, last = -(-place // _PAGE) * _PAGE, (place + length) // _PAGE * _PAGE
        if first >= last or not sys.platform.startswith("linux"):
            return first >= last
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = ctypes.c_long(first), ctypes.c_long(last - first)
        return bool(libc.fallocate(self._descriptor, _PUNCH_HOLE | _KEEP_SIZE, *arguments) == 0)

    def cut(self) -> None:
        """Remove the block that could not be written completely."""
        os.ftruncate(self._descriptor, self._whole)
        self._end = self._whole

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, parts: Sequence[Any]) -> None:
        left = [memoryview(part).cast("B") for part in parts]
        while left:
            written = os.writev(self._descriptor, left[:1000])
            self._end += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
        self._whole = self._end
