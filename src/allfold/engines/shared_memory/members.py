"""The shared memory of a group's ranks: an arena per rank, with a post, a work area and an inbox per group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from ... import _native
from ...errors import UsageError
from ...wording import parse_size

ADDRESS_SPACE = 2**44  # every rank maps every rank's arena, and a process has 2**47 bytes of addresses


class Member(NamedTuple):
    """One rank's part of a group: its arena, and where in it its post, work area and inbox lie."""

    arena: Any
    post: int
    work: int
    inbox: int


def new_member(ranks: int, room: int = ADDRESS_SPACE) -> Member:
    """A new arena for one of `ranks` ranks, whose arenas together take at most `room` bytes of address space."""
    arena = _native.Arena(_arena_bytes(room // ranks))
    return Member(arena, *allocate_parts(arena, ranks))


def allocate_parts(arena: Any, ranks: int) -> tuple[int, int, int]:
    post, work = arena.allocate(_native.POST_BYTES), arena.allocate(_native.WORK_BYTES)
    return post, work, arena.allocate(_native.inbox_bytes(ranks))


def release_parts(own: Member) -> None:
    for offset in own[1:]:
        own.arena.release(offset)


class Loans:
    """The memory that a rank has lent to groups, each until none of its ranks can touch it any more."""

    def __init__(self) -> None:
        self._lock = Lock()  # groups may be made by several threads at the same time
        self._loans: list[tuple[Member, list[_native.Arena]]] = []

    def lend(self, own: Member, members: Sequence[Member]) -> None:
        with self._lock:
            self._loans.append((own, [member.arena for member in members]))

    def collect(self) -> None:
        """Release the memory of groups that every rank has dropped, or that ended with its process."""
        with self._lock:
            kept = []
            for own, arenas in self._loans:
                if _native.is_unused(own.arena, own.post, arenas):
                    release_parts(own)
                else:
                    kept.append((own, arenas))
            self._loans = kept


def number_of(*names: object) -> int:
    """A number that all ranks of a group derive independently, unique among the groups of the machine."""
    return int.from_bytes(blake2b(repr(names).encode(), digest_size=8).digest(), "little")


def _arena_bytes(room: int) -> int:
    """The most shared memory one rank may use: all of the machine's, unless set otherwise. Only touched pages count."""
    text = os.environ.get("ALLFOLD_ARENA_BYTES")
    if text is None:
        return min(room, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        bytes = parse_size(text)
    except UsageError:
        bytes = 0
    if not 2**23 <= bytes <= 2**46:
        raise UsageError(f"ALLFOLD_ARENA_BYTES is {text!r}; expected a size from 8M to 65536G, as in 64M")
    return bytes
