"""What the ranks of a group have in shared memory: an arena each, and in it a post, a work area and an inbox per group."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Any, NamedTuple

from ... import _native
from ...errors import UsageError

ADDRESS_SPACE = 2**44  # every rank maps every rank's arena, and a process has 2**47 bytes of addresses


class Member(NamedTuple):
    """One rank's part of a group: its arena, and where in it its post, work area and inbox lie."""

    arena: Any
    post: int
    work: int
    inbox: int


def new_member(ranks: int, room: int = ADDRESS_SPACE) -> Member:
    """An arena of its own for one of so many ranks, whose arenas take at most `room` addresses together."""
    arena = _native.Arena(_arena_bytes(room // ranks))
    return Member(arena, *allocate_parts(arena, ranks))


def allocate_parts(arena: Any, ranks: int) -> tuple[int, int, int]:
    post, work = arena.allocate(_native.POST_BYTES), arena.allocate(_native.WORK_BYTES)
    return post, work, arena.allocate(_native.inbox_bytes(ranks))


def number_of(*names: object) -> int:
    """A number that all ranks of a group find alike, and that no other group of the machine has."""
    return int.from_bytes(blake2b(repr(names).encode(), digest_size=8).digest(), "little")


def _arena_bytes(room: int) -> int:
    """The most shared memory one rank may use: all of the machine's, unless told otherwise. Only what is touched counts."""
    text = os.environ.get("ALLFOLD_ARENA_BYTES")
    if text is None:
        return min(room, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # Fifteen digits at most: more are out of range, and a number of thousands of them is refused elsewhere, untyped.
    if not (text.isascii() and text.isdecimal() and len(text) <= 15) or not 2**23 <= int(text) <= 2**46:
        raise UsageError(f"ALLFOLD_ARENA_BYTES is {text!r}; expected a number of bytes from {2**23} to {2**46}")
    return int(text)
