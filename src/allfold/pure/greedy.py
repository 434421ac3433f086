"""Spreading chunks over a network by a greedy rule, round by round: as native/find/greedy.cpp, move for move."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flow import TimeIsUp, TimeLimit

Vertices = NDArray[np.int32]
_WORD = 2**64 - 1


def spread(
    ranks: int,
    source: Vertices,
    destination: Vertices,
    offsets: NDArray[np.int64],
    links: Vertices,
    capacity: Vertices,
    holder: Vertices,
    seed: int,
    seconds: float,
) -> tuple[Any, Any, Any, Any] | None:
    """The starts of rounds, and chunk, source and destination of all moves; None if time ran out.

    No moves if somebody cannot be reached.
    """
    routes = [links[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    spreading = _Spreading(
        ranks,
        source.tolist(),
        destination.tolist(),
        routes,
        capacity.tolist(),
        holder.tolist(),
        seed,
        TimeLimit(seconds),
    )
    starts, moves = [0], spreading.moves
    try:
        while any(spreading.missing):
            before = len(moves)
            spreading.round()
            if len(moves) == before:
                starts, moves = [0], []
                break
            starts.append(len(moves))
    except TimeIsUp:
        return None
    chunk, origin, end = np.array(moves, np.int32).reshape(-1, 3).T.reshape(3, 1, -1)
    return np.array([starts], np.int64), chunk, origin, end


class _Spreading:
    def __init__(
        self,
        ranks: int,
        source: list[int],
        destination: list[int],
        routes: list[list[int]],
        capacity: list[int],
        holder: list[int],
        seed: int,
        limit: TimeLimit,
    ) -> None:
        self.source, self.routes, self.capacity, self.limit = source, routes, capacity, limit
        self.moves: list[tuple[int, int, int]] = []
        self.has = [0] * ranks  # a bit per chunk
        self.missing = [len(holder)] * ranks
        self.holders = [1] * len(holder)
        self._seed, self._number, self._order = _scramble(seed), 0, list(range(ranks))
        self._left: list[int] = []
        self._open: list[int] = []
        self._taken: list[tuple[int, int]] = []  # chunk and pair
        users = np.bincount([link for route in routes for link in route], minlength=len(capacity)).tolist()
        self._own = [all(users[link] == 1 for link in route) for route in routes]  # nobody else uses its links
        self._incoming: list[list[int]] = [[] for _ in range(ranks)]
        for pair, end in enumerate(destination):
            self._incoming[end].append(pair)
        for chunk, rank in enumerate(holder):
            self._receive(rank, chunk)

    def round(self) -> None:
        self._number += 1
        self._left = self.capacity.copy()
        # Who misses most chooses first: where links are shared, the others get what is left.
        key = [_scramble(self._seed ^ self._number << 32 ^ rank) for rank in self._order]
        self._order.sort(key=lambda rank: (-self.missing[rank], key[rank]))
        begin = len(self.moves)
        for rank in self._order:
            if self.missing[rank]:
                self.limit.check()
                self._choose(rank)
        for chunk, _, rank in self.moves[begin:]:
            self._receive(rank, chunk)
            self.holders[chunk] += 1

    def _receive(self, rank: int, chunk: int) -> None:
        self.has[rank] |= 1 << chunk
        self.missing[rank] -= 1

    def _room(self, pair: int) -> int:
        return min((self._left[link] for link in self.routes[pair]), default=2**31 - 1)

    def _choose(self, rank: int) -> None:
        """The chunks that a rank takes in this round, and from whom: the rarest first."""
        self._open = [pair for pair in self._incoming[rank] if self._room(pair) > 0]
        there = 0
        for pair in self._open:
            there |= self.has[self.source[pair]]
        there &= ~self.has[rank]
        salt = self._seed ^ _scramble(self._number << 32 ^ rank)
        candidates = sorted(
            (self.holders[chunk] << 24 | _scramble(salt ^ chunk) >> 40, chunk) for chunk in _bits_of(there)
        )
        self._taken = []
        for _, chunk in candidates:
            if not any(self._room(pair) > 0 for pair in self._open):
                break
            if self._place(chunk, set()):
                self._open = [pair for pair in self._open if self._room(pair) > 0 or self._own[pair]]
        self.moves += [(chunk, self.source[pair], rank) for chunk, pair in self._taken]

    def _place(self, chunk: int, visited: set[int]) -> bool:
        """Find somebody to take the chunk from; over pairs that share no link, by moving others (augmenting paths)."""
        holding = [pair for pair in self._open if self.has[self.source[pair]] >> chunk & 1]
        best = max(holding, key=self._room, default=None)
        if best is not None and self._room(best) > 0:
            for link in self.routes[best]:
                self._left[link] -= 1
            self._taken.append((chunk, best))
            return True
        for pair in holding:
            if pair in visited or not self._own[pair]:
                continue
            visited.add(pair)
            for place, (other, its) in enumerate(self._taken):
                # If the other can be taken from somebody else, that is now its second entry.
                if its == pair and self._place(other, visited):
                    self._taken[place] = chunk, pair
                    return True
        return False


def _scramble(x: int) -> int:
    """A number that looks random, of any number: the finalizer of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31


def _bits_of(number: int) -> list[int]:
    """The positions of the bits that are set."""
    return [at for at, bit in enumerate(reversed(bin(number)[2:])) if bit == "1"]
