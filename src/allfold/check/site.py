"""Connects ranks to the board of their host: through torch's store, once, when the first group is created."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import _native
from ..engines.islands.meeting import here
from ..errors import AllfoldError

_PREFIX = "allfold check"
_times = 0  # the number of connections of this process: a script may create its groups again, in the same store


@dataclass
class Site:
    """This rank's host. `ranks` are those that share its board; `size` counts all ranks of the run, `hosts` has the first rank
    of each host by rank."""

    board: Any
    store: dist.Store
    rank: int
    size: int
    ranks: list[int]
    hosts: list[int]

    @property
    def is_whole(self) -> bool:
        """True if all ranks are on this host."""
        return len(self.ranks) == self.size


def connect(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Site:
    """Connect to the board of this rank's host, an anonymous file that lives as long as its ranks. All ranks call this."""
    _native.require_engine("--check")
    global _times
    _times += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"{_PREFIX} {attempt} {_times}", store)
    own = json.dumps(here() | {"processes": os.readlink("/proc/self/ns/pid")}, sort_keys=True)
    store.set(f"place {rank}", own)
    everybody = [f"place {number}" for number in range(size)]
    store.wait(everybody, timeout)
    places = [value.decode() for value in store.multi_get(everybody)]
    ranks = [number for number, place in enumerate(places) if place == own]
    count = _native.check_board_bytes(size)
    if rank == ranks[0]:
        descriptor = os.memfd_create("allfold-check", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, count)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        store.set(f"board {rank}", path)
    else:
        store.wait([f"board {ranks[0]}"], timeout)
        path = store.get(f"board {ranks[0]}").decode()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise AllfoldError(
                f"check: rank {rank} cannot open {path}, the board of rank {ranks[0]}: {error.strerror}; run all ranks of a "
                "host as the same user, or without ALLFOLD_CHECK"
            ) from None
    board = _native.CheckBoard(descriptor, size, rank)
    store.set(f"here {rank}", "1")
    if rank == ranks[0]:
        # The path is valid only while this rank has the file open.
        store.wait([f"here {number}" for number in ranks], timeout)
    os.close(descriptor)
    return Site(board, store, rank, size, ranks, [places.index(place) for place in places])
