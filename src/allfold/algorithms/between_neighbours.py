"""Exchanges between the neighbours of a graph: all at once, or in rounds in which no port is busy twice.

They are not registered: each graph is a collective of its own (`allfold.neighbourhoods`), and they work for all of them.
`wanted` lists what must travel: (chunk, the rank that has it, a rank that must get it).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..neighbourhoods import Piece
from ..schedules import Move, copy


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
