"""The moves of one step as arrows beside the columns of a grid.

A chunk that stays in its column travels beside it: downwards on the right, upwards on the left, with wider arcs for
longer distances, so that arrows hide neither cells nor each other. A chunk that lands in another column goes there
directly, behind the cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot

import numpy as np

from ..schedules import Move, Schedule
from .svg_elements import COPY, REDUCE, SURFACE, Value, element, number

DASHES = "3 1.4"  # of a copy's line


@dataclass(frozen=True)
class Lanes:
    """The room that arrows need on the left and right of a column."""

    left: float
    right: float
    most: float
    """The largest distance of an arrow from its column: wide with few columns, narrow with many."""


@dataclass(frozen=True)
class CellGrid:
    """The places of cells: the upper left corner of cell (rank, chunk) is (x[chunk], y[rank])."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    wide: float
    high: float
    lanes: Lanes


def lanes_of(schedule: Schedule) -> Lanes:
    columns = schedule.columns
    stays = columns["chunk"] == columns["into"]
    down = (columns["destination"] - columns["source"])[stays]
    most = 12.0 if schedule.chunks + schedule.scratch > 2 else 34.0
    return Lanes(_bulge(int(-down.min(initial=0)), most), _bulge(int(down.max(initial=0)), most), most)


def _bulge(distance: int, most: float) -> float:
    return 0.0 if distance == 0 else min(most, 6.0 + (2.0 if most < 30 else 3.5) * (distance - 1))


def draw_arrows(moves: Iterable[Move], grid: CellGrid) -> tuple[list[str], list[str]]:
    """The elements behind the cells, and those on top of them.

    Each kind of move has one element for its lines and one for its heads: filled for a reduction, hollow for a copy.
    """
    moves = list(moves)
    behind: list[str] = []
    on_top: list[str] = []
    weight = 0.6 if len(moves) > 4 * len(grid.y) else 0.9  # thinner where all ranks send to all
    for reduces, color, fill in ((False, COPY, SURFACE), (True, REDUCE, REDUCE)):
        dashes = None if reduces else DASHES
        heads: list[str] = []
        for shape, layer in ((_beside, on_top), (_across, behind)):
            shapes = [
                shape(move, grid)
                for move in moves
                if bool(move.reduces) == reduces and _keeps_its_column(move) == (shape is _beside)
            ]
            if shapes:
                lines = " ".join(line for line, _ in shapes)
                layer.append(_stroked("moves", lines, "none", color, weight, stroke_dasharray=dashes))
                heads += [head for _, head in shapes]
        if heads:
            on_top.append(_stroked("heads", " ".join(heads), fill, color, 0.7, stroke_linejoin="round"))
    return behind, on_top


def _stroked(kind: str, path: str, fill: str, color: str, weight: float, **more: Value) -> str:
    return element("path", class_=kind, d=path, fill=fill, stroke=color, stroke_width=weight, **more)


def _keeps_its_column(move: Move) -> bool:
    return move.chunk == move.into and move.source != move.destination


def _beside(move: Move, grid: CellGrid) -> tuple[str, str]:
    down = move.destination > move.source
    side = 1 if down else -1
    x = grid.x[move.chunk] + (grid.wide if down else 0)
    # It leaves on the side towards its destination, and arrives on the side towards its source.
    leaves = grid.y[move.source] + grid.high * (0.72 if down else 0.28)
    arrives = grid.y[move.destination] + grid.high * (0.28 if down else 0.72)
    out = x + side * _bulge(abs(move.destination - move.source), grid.lanes.most) * 1.25
    tip = x + side * 0.8
    end = tip + side * 3.6
    line = _path("M", (x, leaves), "C", (out, leaves), (out, arrives), (end, arrives))
    return line, _head(tip, arrives, side, 0)


def _across(move: Move, grid: CellGrid) -> tuple[str, str]:
    x1, y1, x2, y2 = (
        corner + size / 2
        for corner, size in (
            (grid.x[move.chunk], grid.wide),
            (grid.y[move.source], grid.high),
            (grid.x[move.into], grid.wide),
            (grid.y[move.destination], grid.high),
        )
    )
    if move.source == move.destination:
        return _above(x1, x2, y1 - grid.high / 2)
    length = hypot(x2 - x1, y2 - y1)
    bend = min(10.0, length / 8) / length
    middle = ((x1 + x2) / 2 - (y2 - y1) * bend, (y1 + y2) / 2 + (x2 - x1) * bend)
    x1, y1 = _border(x1, y1, middle[0] - x1, middle[1] - y1, grid, 0.0)
    tip = _border(x2, y2, middle[0] - x2, middle[1] - y2, grid, 0.8)
    back = hypot(middle[0] - tip[0], middle[1] - tip[1]) or 1.0
    away = ((middle[0] - tip[0]) / back, (middle[1] - tip[1]) / back)
    end = (tip[0] + away[0] * 3.6, tip[1] + away[1] * 3.6)
    line = _path("M", (x1, y1), "Q", middle, end)
    return line, _head(*tip, *away)


def _above(x1: float, x2: float, y: float) -> tuple[str, str]:
    """Within one rank's row: above the cells in between, with separate lanes for the two directions."""
    side = 1 if x2 > x1 else -1
    x1, x2, top = x1 + 4 * side, x2 - 4 * side, y - (8 if side > 0 else 5.5)
    line = _path("M", (x1, y), "C", (x1, top - 2), (x2, top - 2), (x2, y - 4))
    return line, _head(x2, y - 0.8, 0, -1)


def _border(x: float, y: float, dx: float, dy: float, grid: CellGrid, gap: float) -> tuple[float, float]:
    """The point where a line from a cell's centre in direction (dx, dy) leaves the cell."""
    reach = min(
        (grid.wide / 2 + gap) / abs(dx) if dx else np.inf,
        (grid.high / 2 + gap) / abs(dy) if dy else np.inf,
    )
    return (x + dx * reach, y + dy * reach) if np.isfinite(reach) else (x, y)


def _head(x: float, y: float, dx: float, dy: float) -> str:
    """A triangle with its tip at (x, y), opening towards (dx, dy)."""
    bx, by = x + dx * 4.4, y + dy * 4.4
    return _path("M", (x, y), "L", (bx - dy * 1.9, by + dx * 1.9), (bx + dy * 1.9, by - dx * 1.9)) + "Z"


def _path(*parts: str | tuple[float, float]) -> str:
    """Letters and points as path data."""
    words = (part if isinstance(part, str) else f"{number(part[0])} {number(part[1])}" for part in parts)
    return " ".join(words)
