"""Renumberings of the ranks that a network does not notice, so that a schedule need only be found for part of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .neighbours import UNLIMITED, Neighbours

Numbers = NDArray[np.int64]

_MOST_RANKS = 32
_MOST_FOUND = 64  # renumberings that are looked at
_MOST_TRIED = 10_000  # ranks placed in the search for them


@lru_cache(maxsize=8)
def renumberings(among: Neighbours) -> list[Numbers]:
    """Renumberings that keep all capacities, of which no two bring a rank to the same place, and with any two the one
    after the other.

    For a torus, the steps along one way through it; for a DGX-1, the exchange of its boards, of the halves of both, and
    of both. Only the one that changes nothing, if there are no others or if pairs share links.
    """
    nothing = np.arange(among.ranks)
    if not among.direct or among.ranks > _MOST_RANKS:
        return [nothing]
    capacity = np.zeros((among.ranks, among.ranks), np.int64)
    capacity[among.source, among.destination] = among.narrowest(among.capacity, UNLIMITED)
    free = [one for one in _all(capacity) if (one != nothing).all()]
    best = [nothing]
    for group in (_powers(one) for one in free):
        if len(group) > len(best) and all((one != nothing).all() for one in group[1:]):
            best = group
    together = {tuple(one.tolist()) for one in [nothing, *free]}
    closed = all(tuple(one[other].tolist()) in together for one in free for other in free)
    return [nothing, *free] if closed and len(free) >= len(best) else best


def _powers(one: Numbers) -> list[Numbers]:
    """Nothing, the renumbering once, twice, and so on until nothing has changed again."""
    found = [np.arange(len(one)), one]
    while (after := found[-1][one]).tolist() != found[0].tolist():
        found.append(after)
    return found


def _all(capacity: NDArray[np.int64]) -> list[Numbers]:
    """Renumberings that keep all capacities, as many as are found soon: rank after rank is placed where it can be."""
    ranks = len(capacity)
    kind = [
        (int(capacity[rank, rank]), *sorted(capacity[rank].tolist()), *sorted(capacity[:, rank].tolist()))
        for rank in range(ranks)
    ]
    found: list[Numbers] = []
    placed: list[int] = []
    tried = 0

    def place() -> None:
        nonlocal tried
        rank = len(placed)
        if rank == ranks:
            found.append(np.asarray(placed, np.int64))
            return
        for other in range(ranks):
            if len(found) >= _MOST_FOUND or tried > _MOST_TRIED:
                return
            if other in placed or kind[other] != kind[rank]:
                continue
            tried += 1
            if (capacity[other, placed] == capacity[rank, :rank]).all() and (
                capacity[placed, other] == capacity[:rank, rank]
            ).all():
                placed.append(other)
                place()
                placed.pop()

    place()
    return found
