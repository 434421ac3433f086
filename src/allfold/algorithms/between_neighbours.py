"""The collectives between neighbours, as data: a promise for every graph.

MPI's neighbourhood collectives move data along the edges of a graph of ranks. Each graph is a collective of its own, and
its name holds the edges: `neighbor_alltoall(0>1,1>2)` moves a piece of data from rank 0 to rank 1, and another from rank 1
to rank 2. So schedules, proofs, pictures, prices and files work for it as they do for every other collective.

- neighbor_alltoall: every edge has a piece of data of its own. Chunk i is that of edge i, in the order of the name.
- neighbor_allgather: every rank has one piece, chunk r of rank r, which goes along all its edges.

Its algorithms are the same for every graph, so they are not registered. They take `wanted`, the list of what must travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collectives import NOTHING, PIECES, SLICE, Bounds, Collective
from ..errors import UsageError
from ..schedules import Move, copy

Edge = tuple[int, int]
Piece = tuple[int, int, int]
"""A chunk, the rank that has it, and one that must get it."""

NEIGHBOURHOODS = {
    "neighbor_allgather": "each rank's slice to all its neighbours",
    "neighbor_alltoall": "a slice of its own along every edge",
}
_SHOWN = 12  # edges in a heading


@dataclass(frozen=True)
class Neighbourhood(Collective):
    """A collective between the neighbours of one graph."""

    edges: tuple[Edge, ...] = ()
    """(source, target) of each edge."""

    @cached_property
    def kind(self) -> str:
        return self.name.partition("(")[0]

    @cached_property
    def is_per_edge(self) -> bool:
        return self.kind == "neighbor_alltoall"

    @cached_property
    def ranks(self) -> int:
        """The fewest ranks that the graph needs."""
        return max((rank + 1 for edge in self.edges for rank in edge), default=1)

    @cached_property
    def sliced(self) -> bool:
        return True

    @cached_property
    def one_way(self) -> bool:
        return self.is_per_edge

    @property
    def label(self) -> str:
        more = len(self.edges) - _SHOWN
        return self.name if more <= 0 else f"{self.kind} of a graph with {len(self.edges)} edges"

    def facts(self) -> dict[str, Any]:
        # For the page, slices are as many as ranks.
        return {**super().facts(), "sliced": not self.is_per_edge}

    def slices(self, ranks: int) -> int:
        return max(1, len(self.edges)) if self.is_per_edge else ranks

    def chunks(self, ranks: int, named: int) -> int:
        return self.slices(ranks)

    @cached_property
    def held(self) -> list[Edge]:
        """(chunk, rank): where each chunk that travels begins."""
        return list(dict.fromkeys((chunk, source) for chunk, source, _ in self._pieces))

    @cached_property
    def wanted(self) -> list[Piece]:
        """The pieces that must be sent. No rank gets the same piece twice, and no rank sends to itself."""
        return [one for one in self._pieces if one[1] != one[2]]

    @cached_property
    def _pieces(self) -> list[Piece]:
        numbered = enumerate(self.edges)
        return list(
            dict.fromkeys((i if self.is_per_edge else source, source, target) for i, (source, target) in numbered)
        )

    def arguments(self, ranks: int, root: int | None) -> tuple[Any, ...]:
        self._check(ranks)
        return (ranks, list(self.wanted))

    def _check(self, ranks: int) -> None:
        if ranks < self.ranks:
            raise UsageError(
                f"{self.label} has an edge of rank {self.ranks - 1}: it needs {self.ranks} ranks, not {ranks}"
            )

    def starts_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        if not self.is_per_edge:
            return super().starts_with(ranks, root, chunks)
        return self._placed(ranks, chunks, self.held)

    def ends_with(self, ranks: int, root: int | None, chunks: int) -> NDArray[np.int32]:
        return self._placed(ranks, chunks, ((chunk, target) for chunk, _, target in self._pieces))

    def _placed(self, ranks: int, chunks: int, places: Iterable[Edge]) -> NDArray[np.int32]:
        self._check(ranks)
        layout = np.full((ranks, chunks), NOTHING, np.int32)
        for chunk, rank in places:
            layout[rank, chunk] = chunk
        return layout

    def bounds(self, ranks: int) -> Bounds:
        pairs = {(source, target) for _, source, target in self.wanted}
        degrees = [Counter(edge[end] for edge in pairs) for end in (0, 1)]
        into = Counter(target for _, _, target in self.wanted)
        # A chunk may leave its rank once and be forwarded by others.
        out = Counter(source for _, source in {(chunk, source) for chunk, source, _ in self.wanted})
        busiest = max([*into.values(), *out.values()], default=0)
        whole = self.slices(ranks)
        return Bounds(
            max((many.bit_length() for one in degrees for many in one.values()), default=0),
            max(map(len, degrees)),
            Fraction(len(self.wanted), whole),
            Fraction(busiest, whole),
        )

    def must_leave(self, ranks: int, root: int | None, inside: Any) -> Fraction:
        chosen = set(inside)
        leaving = {chunk for chunk, source, target in self.wanted if source in chosen and target not in chosen}
        return Fraction(len(leaving), self.slices(ranks))


def name_of(kind: str, edges: Iterable[Edge]) -> str:
    """The name of a neighbourhood collective on a graph.

    >>> name_of("neighbor_alltoall", [(0, 1), (1, 2)])
    'neighbor_alltoall(0>1,1>2)'
    """
    return f"{kind}({','.join(f'{source}>{target}' for source, target in edges)})"


@lru_cache(maxsize=64)
def find_neighbourhood(name: str) -> Neighbourhood | None:
    """The collective of such a name; None if it is the name of something else."""
    kind, bracket, rest = name.partition("(")
    if not bracket or kind.strip() not in NEIGHBOURHOODS:
        return None
    words = [word.strip() for word in rest.removesuffix(")").split(",")] if rest.strip(" )") else []
    edges = []
    for word in words:
        ends = word.split(">")
        if len(ends) != 2 or not all(end.isascii() and end.isdecimal() and len(end) <= 9 for end in ends):
            raise UsageError(
                f"{name:.80}: {word!r} is no edge; expected edges as in {kind}(0>1,1>2): from rank 0 to rank 1, and so on"
            )
        edges.append((int(ends[0]), int(ends[1])))
    kind = kind.strip()
    starts = PIECES if kind == "neighbor_alltoall" else SLICE
    return Neighbourhood(name_of(kind, edges), NEIGHBOURHOODS[kind], starts, PIECES, _nothing, edges=tuple(edges))


def _nothing(ranks: int) -> tuple[int, int, int]:
    """`least` of the other collectives: `bounds` says it from the edges."""
    return 0, 0, 0


# Algorithms -----------------------------------------------------------------------------------------------------------


def direct(ranks: int, wanted: list[Piece]) -> Iterator[list[Move]]:
    """Every rank sends to all its neighbours at once: one step, and a message per edge.

    This is what the neighbourhood calls of `allfold.mpi4py` do.
    """
    yield [copy(*piece) for piece in wanted]


def rounds(ranks: int, wanted: list[Piece]) -> Iterator[list[Move]]:
    """In each step, a rank sends at most one message and receives at most one.

    The steps are the colours of the edges of a bipartite graph, sending ports on one side and receiving ports on the
    other: as many as the busiest port has messages, and no fewer would do (Kőnig). On a periodic grid, a step is a shift.
    """
    steps: list[list[Piece]] = [[] for _ in range(_degree(wanted))]
    for piece, step in zip(wanted, _colours(wanted, len(steps)), strict=True):
        steps[step].append(piece)
    for pieces in steps:
        yield [copy(*piece) for piece in pieces]


def _ports(piece: Piece) -> tuple[tuple[bool, int], tuple[bool, int]]:
    return (False, piece[1]), (True, piece[2])


def _degree(wanted: list[Piece]) -> int:
    busy: dict[tuple[bool, int], int] = {}
    for piece in wanted:
        for port in _ports(piece):
            busy[port] = busy.get(port, 0) + 1
    return max(busy.values(), default=0)


def _colours(wanted: list[Piece], steps: int) -> list[int]:
    """A step for every piece. If a step is free at only one of a piece's ports, two steps are swapped along a path."""
    at: dict[tuple[tuple[bool, int], int], int] = {}  # port and step: the piece
    found = [0] * len(wanted)
    for number, piece in enumerate(wanted):
        sends, receives = _ports(piece)
        free = next(step for step in range(steps) if (sends, step) not in at)
        other = next(step for step in range(steps) if (receives, step) not in at)
        if (receives, free) in at:
            # From the receiving port, follow the pieces of `free` and `other` in turns. The path cannot end at the sending
            # port: it would arrive there by a piece of `free`, which has none there.
            path, port, step = [], receives, free
            while (port, step) in at:
                one = at[port, step]
                path.append(one)
                port = next(end for end in _ports(wanted[one]) if end != port)
                step = other if step == free else free
            for one in path:
                for end in _ports(wanted[one]):
                    at.pop((end, found[one]), None)
            for one in path:
                found[one] = other if found[one] == free else free
            for one in path:
                for end in _ports(wanted[one]):
                    at[end, found[one]] = one
        found[number] = free
        at[sends, free] = at[receives, free] = number
    return found
