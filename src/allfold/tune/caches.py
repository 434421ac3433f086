"""Where a rank finds the bytes that it touches: in its own cache, in a peer's, in the last-level cache, or in memory.

A cache keeps what was touched last. So the size of an array does not matter; what matters is how much a rank has
touched since it last touched the same bytes. That is nothing if an instruction writes what it has just read, a few
chunks within a call, and everything it touches in a call if it comes back to the bytes in the next call. Bytes that a
peer has written since then are in the peer's cache, unless the peer has touched too much since. The same holds for
bytes that are to be written and that a peer has a copy of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..programs.compile import WORK, Programs

Floats = NDArray[np.float64]

PLACES = ("own cache", "last-level cache", "peer's cache", "memory")

_IN_THE_CALL_BEFORE = -1.0


@dataclass(frozen=True)
class Setting:
    """What the model must know about a machine besides the terms."""

    cores: int
    own_cache: float
    """Bytes of the second-level cache, which one rank has to itself."""
    last_cache: float
    """Bytes of the last-level cache; the ranks get the share that belongs to their cores."""
    fetches: bool
    """Whether processes may read each other's memory (see `Communicator.can_fetch`)."""


class Touches:
    """All reads and writes of the programs, one entry each, in the order of the steps; reads before writes."""

    def __init__(self, programs: Programs) -> None:
        lists = (programs.sources, programs.destinations)
        row = np.concatenate([part.row for part in lists])
        slot = np.concatenate([part.rank * 4 * programs.width + part.value for part in lists])
        is_work = np.concatenate([part.value >= WORK * programs.width for part in lists])
        writes = np.repeat([0, 1], [len(part.rank) for part in lists])
        order = np.lexsort((writes, row, programs.step[row]))
        self.row, self.writes = row[order], writes[order]
        self._slot, self._is_work = slot[order], is_work[order]
        self._rank = programs.rank[self.row]
        self._ranks = programs.schedule.ranks
        self._one_area = programs.one_area
        self.readers = self._count_readers(programs.step[self.row])
        """How many other ranks read the same bytes at the same time."""
        self._near = np.ones(len(row), bool)  # no peer has written it since, or has a copy of what is to be written
        self._since = np.zeros(len(row))  # slots that this rank has touched since it touched this one
        self._peer = np.zeros(len(row), int)  # if not near: the peer that has it
        self._since_peer = np.zeros(len(row))
        self._trace()

    def shares(self, chunk: float, bytes: float, segments: int, setting: Setting) -> list[Floats]:
        """What share of each entry lies in each place, for the bytes of a chunk and of a segment."""
        areas = 2 if segments > 1 and not self._one_area else 1
        of_arrays, of_work = (self._slots_by_rank(self._is_work == kind) for kind in (False, True))
        in_a_call = of_arrays * chunk + areas * of_work * bytes
        between_uses = areas * (of_arrays + of_work) * bytes
        everything = sum(
            len(np.unique(self._slot[self._is_work == kind])) * each
            for kind, each in ((False, chunk), (True, areas * bytes))
        )

        def distance(slots: Floats, rank: NDArray[Any]) -> Floats:
            # A work area is used again one or two segments later, an array in the next call.
            again = np.where(self._is_work, np.minimum(between_uses, in_a_call)[rank], in_a_call[rank])
            return np.where(slots == _IN_THE_CALL_BEFORE, again, slots * bytes)

        own = distance(self._since, self._rank)
        peer = np.where(self._near, 0.0, 1 - _misses(distance(self._since_peer, self._peer), setting.own_cache))
        out = np.where(self._near, _misses(own, setting.own_cache), 1 - peer)
        # All ranks share the part of the last-level cache that belongs to their cores.
        last_cache = setting.last_cache * min(1.0, self._ranks / setting.cores)
        away = out * _misses(np.minimum(own * self._ranks, everything), last_cache)
        return [1 - peer - out, out - away, peer, away]

    def _slots_by_rank(self, chosen: NDArray[np.bool_]) -> Floats:
        pairs = np.unique(np.stack([self._rank[chosen], self._slot[chosen]]), axis=1)
        return np.bincount(pairs[0], minlength=self._ranks).astype(float)

    def _count_readers(self, step: NDArray[Any]) -> Floats:
        """Count other ranks that read at the same time: in the same step, by the same-numbered instruction in it."""
        first: dict[tuple[int, int], int] = {}
        keys = []
        for rank, row, slot, at, writes in zip(
            *(part.tolist() for part in (self._rank, self.row, self._slot, step, self.writes)), strict=True
        ):
            keys.append((at, row - first.setdefault((rank, at), row), slot, writes))
        many = Counter(keys)
        return np.array([0 if key[3] else many[key] - 1 for key in keys], float)

    def _trace(self) -> None:
        """Follow two calls; the first one shows where data lies when the second begins."""
        recent: list[dict[int, tuple[int, int]]] = [
            {} for _ in range(self._ranks)
        ]  # slots, the last touched at the end
        holders: dict[int, set[int]] = {}  # by slot: the ranks that have touched its current content
        fetched: set[tuple[int, int]] = set()  # (instruction, slot) of what was found in a peer's cache

        def since(rank: int, slot: int) -> float:
            if recent[rank][slot][0] < call:
                return _IN_THE_CALL_BEFORE
            if recent[rank][slot][1] == row:
                return 0.0
            return float(next(i for i, other in enumerate(reversed(recent[rank])) if other == slot))

        entries = [part.tolist() for part in (self._rank, self.row, self._slot, self.writes)]
        for call in range(2):
            for i, (rank, row, slot, writes) in enumerate(zip(*entries, strict=True)):
                held = holders.setdefault(slot, {rank})
                others = held - {rank}
                if call:
                    self._since[i] = since(rank, slot) if rank in held else _IN_THE_CALL_BEFORE
                    # What the same instruction has just fetched from a peer comes along for the write.
                    self._near[i] = rank in held and ((row, slot) in fetched or not (writes and others))
                    if not self._near[i]:
                        fetched.add((row, slot))
                        # The peer that touched it last; peers that touched it in this call come before those of the
                        # previous call.
                        nearest = {peer: since(peer, slot) for peer in sorted(others)}
                        peer = min(nearest, key=lambda peer: (nearest[peer] == _IN_THE_CALL_BEFORE, nearest[peer]))
                        self._peer[i], self._since_peer[i] = peer, nearest[peer]
                recent[rank].pop(slot, None)
                recent[rank][slot] = (call, row)
                if writes:
                    held.clear()
                held.add(rank)


def _misses(bytes: Floats, cache: float) -> Floats:
    """What share of the data is no longer in a cache when it is touched again after so many other bytes.

    Caches are not exact: they start to lose data at half of their size, and have lost all of it at twice their size.
    """
    return np.clip(np.log2(np.maximum(bytes, 1.0) / (cache / 2)) / 2, 0.0, 1.0)
