"""One grid of the figure: what every cell holds after a step."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, sqrt

from ..collectives import NOTHING
from ..errors import ScheduleError
from ..schedules import Move, Schedule
from ..symbolic import State, name_of
from .svg_arrows import CellGrid, draw_arrows, lanes_of
from .svg_elements import (
    ACCENT,
    EMPTY,
    GOOD,
    GOOD_GROUND,
    HELD,
    HELD_DONE,
    INK,
    QUIET,
    RULE,
    SURFACE,
    WRONG,
    element,
    group,
    number,
    text,
    width_of,
)

MARK, BETWEEN = 6.0, 1.5
LABEL = 32.0  # room for `rank 0` on the left
_HEAD, _PADDING, _ROWS_APART, _SCRATCH = 25.0, 3.0, 7.0, 8.0

_BOXES = {
    "cells": (SURFACE, RULE, 0.6),
    "cells done": (GOOD_GROUND, HELD_DONE, 0.8),
    "cells new": (SURFACE, ACCENT, 1.3),
    "cells new done": (GOOD_GROUND, GOOD, 1.3),
}
_FILLS = {"none": EMPTY, "held": HELD, "new": ACCENT, "held done": HELD_DONE, "new done": GOOD}


class Drawing:
    """Draws the grids of one schedule: the places of its cells, and their marks."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        promise, columns = schedule.promise, schedule.columns
        self.counts_ranks = promise.reduces
        self.across = ceil(sqrt(schedule.ranks)) if promise.reduces else 1
        self.mark = MARK if schedule.ranks <= 5 else 4.5 if schedule.ranks <= 9 else 3.5
        self.pitch = self.mark + (BETWEEN if schedule.ranks <= 5 else 1.0)
        down = -(-schedule.ranks // self.across)
        # A reduction that lies in another chunk's column shows which chunk it is.
        self.named = promise.reduces and schedule.chunks > 1 and bool((columns["chunk"] != columns["into"]).any())
        self.promised = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
        last = schedule.ranks * schedule.chunks - 1 if promise.exchanges else schedule.chunks - 1
        if promise.reduces:
            wide = self.across * self.pitch - self.pitch + self.mark + 2 * _PADDING
            high = down * self.pitch - self.pitch + self.mark + 2 * _PADDING + (7.0 if self.named else 0.0)
        else:
            wide, high = max(15.0, ceil(width_of(name_of(schedule, last), 8)) + 9.0), 15.0
        lanes, width = lanes_of(schedule), schedule.chunks + schedule.scratch
        wanders = bool((columns["chunk"] != columns["into"]).any())  # then arrows may pass between all cells
        pitch = wide + max(10.0 if wanders else 3.0, lanes.left + lanes.right + 3.0)
        apart = 13.0 if wanders else _ROWS_APART
        self.grid = CellGrid(
            tuple(lanes.left + chunk * pitch + (_SCRATCH if chunk >= schedule.chunks else 0) for chunk in range(width)),
            tuple(_HEAD + (8.0 if wanders else 0.0) + rank * (high + apart) for rank in range(schedule.ranks)),
            max(wide, 12.0),
            max(high, 12.0),
            lanes,
        )
        self.wide = self.grid.x[-1] + self.grid.wide + lanes.right
        self.high = self.grid.y[-1] + self.grid.high

    def draw(
        self,
        label: str,
        before: State,
        after: State,
        changed: frozenset[int],
        moves: list[Move],
        flaw: ScheduleError | None,
        leftmost: bool,
    ) -> list[str]:
        """The elements of one grid: its labels, cells, marks and arrows."""
        behind, on_top = draw_arrows(moves, self.grid)
        return [
            *self._labels(label, leftmost),
            *behind,
            *self._cells(after, changed),
            *(self._marks(before, after) if self.counts_ranks else self._names(after, changed)),
            *on_top,
            *self._flaw(flaw),
        ]

    def _labels(self, label: str, leftmost: bool) -> Iterator[str]:
        grid, schedule = self.grid, self.schedule
        yield text(label, x=grid.x[0], y=8, font_weight="bold")
        above = [text(str(chunk), x=x + grid.wide / 2, y=20) for chunk, x in enumerate(grid.x)]
        yield from group(above, font_size=7.5, fill=QUIET, text_anchor="middle")
        word = "rank " if leftmost else ""
        beside = [text(f"{word}{rank}", x=-5, y=y + grid.high / 2 + 2.7) for rank, y in enumerate(grid.y)]
        if leftmost:
            beside.insert(0, text("chunk", x=-5, y=20))
        yield from group(beside, font_size=7.5, fill=QUIET, text_anchor="end")
        if schedule.scratch:
            x = grid.x[schedule.chunks] - _SCRATCH / 2 - 2
            line = f"M{number(x)} {number(grid.y[0])}V{number(self.high)}"
            yield element("path", d=line, stroke=QUIET, stroke_width=0.7, stroke_dasharray="2 2")

    def _cells(self, after: State, changed: frozenset[int]) -> Iterator[str]:
        """The boxes: plain ones, those that hold what is promised, and on top the borders of changed ones."""
        kinds: dict[str, list[str]] = {name: [] for name in _BOXES}
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                box = _box(x, y, self.grid.wide, self.grid.high)
                complete = after.keeps(self.promised, rank, chunk)
                is_new = rank * after.width + chunk in changed
                kinds["cells" + (" new" if is_new else "") + (" done" if complete else "")].append(box)
        for name, boxes in kinds.items():
            fill, stroke, weight = _BOXES[name]
            if boxes:
                yield element("path", class_=name, d="".join(boxes), fill=fill, stroke=stroke, stroke_width=weight)

    def _marks(self, before: State, after: State) -> Iterator[str]:
        """One mark per contribution, each rank's in its own place."""
        kinds: dict[str, list[str]] = {name: [] for name in _FILLS}
        words = []
        inset = (self.grid.wide - (self.across - 1) * self.pitch - self.mark) / 2
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                cell = rank * after.width + chunk
                datum = int(after.datum[cell])
                present = set(after.contributors(rank, chunk))
                there = set(before.contributors(rank, chunk)) if int(before.datum[cell]) == datum else set()
                done = " done" if after.keeps(self.promised, rank, chunk) else ""
                top = y + _PADDING + (7.0 if self.named else 0.0)
                if self.named and datum not in (NOTHING, chunk):
                    words.append(text(f"{datum}:", x=x + self.grid.wide / 2, y=y + 8))
                for one in range(self.schedule.ranks):
                    row, column = divmod(one, self.across)
                    left, down = x + inset + column * self.pitch, top + row * self.pitch
                    kind = "none" if one not in present else ("held" if one in there else "new") + done
                    kinds[kind].append(_box(left, down, self.mark, self.mark))
        for kind, spots in kinds.items():
            if spots:
                yield element("path", class_=f"marks {kind}", d="".join(spots), fill=_FILLS[kind])
        if words:
            yield element("g", *words, font_size=7, text_anchor="middle", fill=QUIET)

    def _names(self, after: State, changed: frozenset[int]) -> Iterator[str]:
        """The number of the data in each cell, white on dark if it is new."""
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                cell = rank * after.width + chunk
                if int(after.datum[cell]) == NOTHING:
                    continue
                is_new, done = cell in changed, after.keeps(self.promised, rank, chunk)
                fill = (GOOD if done else ACCENT) if is_new else (HELD_DONE if done else HELD)
                kind = ("new" if is_new else "held") + (" done" if done else "")
                wide, high, ink = self.grid.wide, self.grid.high, SURFACE if is_new else INK
                place = {"x": x + 2, "y": y + 2, "width": wide - 4, "height": high - 4, "rx": 1.5}
                middle = {"x": x + wide / 2, "y": y + high / 2 + 2.8, "font_size": 8}
                name = text(name_of(self.schedule, int(after.datum[cell])), **middle, text_anchor="middle", fill=ink)
                yield element("rect", class_=f"marks {kind}", **place, fill=fill) + name

    def _flaw(self, flaw: ScheduleError | None) -> Iterator[str]:
        if flaw is None or flaw.rank is None or flaw.chunk is None:
            return
        x, y = self.grid.x[flaw.chunk] - 2.5, self.grid.y[flaw.rank] - 2.5
        wide, high = self.grid.wide + 5, self.grid.high + 5
        cross = f"M{number(x + wide - 2)} {number(y - 2)}l4 4m0 -4l-4 4"
        yield (
            element("path", class_="flaw", d=_box(x, y, wide, high), fill="none", stroke=WRONG, stroke_width=2)
            + element("circle", cx=x + wide, cy=y, r=5, fill=WRONG)
            + element("path", d=cross, stroke=SURFACE, stroke_width=1.2)
        )


def _box(x: float, y: float, wide: float, high: float) -> str:
    """A rectangle as path data, so that many of them make one element."""
    return f"M{number(x)} {number(y)}h{number(wide)}v{number(high)}h-{number(wide)}z"
