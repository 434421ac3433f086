"""One grid of the figure: what every cell holds after a step."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, sqrt

from ..collectives import NOTHING
from ..errors import ScheduleError
from ..schedule import Move, Schedule
from ..symbolic import State
from .svg_arrows import Grid, draw_arrows, lanes_of, number
from .svg_text import width_of

INK, QUIET, FAINT, EMPTY, WRONG = "#1b2530", "#5b6773", "#c4ccd4", "#e6eaee", "#b00020"
HELD, NEW = "#9db5cc", "#14406f"
HELD_DONE, NEW_DONE, GROUND_DONE = "#8cbf91", "#1c6b2a", "#eef7ee"
MARK, BETWEEN = 6.0, 1.5
LABEL = 32.0  # room for `rank 0` on the left
_HEAD, _PADDING, _ROWS_APART, _SCRATCH = 25.0, 3.0, 7.0, 8.0

_BOXES = {
    "cells": ("#ffffff", FAINT, 0.6),
    "cells done": (GROUND_DONE, HELD_DONE, 0.8),
    "cells new": ("#ffffff", NEW, 1.3),
    "cells new done": (GROUND_DONE, NEW_DONE, 1.3),
}
_FILLS = {"none": EMPTY, "held": HELD, "new": NEW, "held done": HELD_DONE, "new done": NEW_DONE}


class Drawing:
    """How the cells of one schedule are drawn: where they lie, what their marks mean."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        promise, columns = schedule.promise, schedule.columns
        self.counts_ranks = promise.reduces
        self.across = ceil(sqrt(schedule.ranks)) if promise.reduces else 1
        self.mark = MARK if schedule.ranks <= 5 else 4.5 if schedule.ranks <= 9 else 3.5
        self.pitch = self.mark + (BETWEEN if schedule.ranks <= 5 else 1.0)
        down = -(-schedule.ranks // self.across)
        # A reduction that lies in another chunk's column says which chunk it is.
        self.named = promise.reduces and schedule.chunks > 1 and bool((columns["chunk"] != columns["into"]).any())
        self.promised = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
        last = schedule.ranks * schedule.chunks - 1 if promise.name == "all_to_all" else schedule.chunks - 1
        if promise.reduces:
            wide = self.across * self.pitch - self.pitch + self.mark + 2 * _PADDING
            high = down * self.pitch - self.pitch + self.mark + 2 * _PADDING + (7.0 if self.named else 0.0)
        else:
            wide, high = max(15.0, ceil(width_of(self.name_of(last), 8)) + 9.0), 15.0
        lanes, width = lanes_of(schedule), schedule.chunks + schedule.scratch
        wanders = bool((columns["chunk"] != columns["into"]).any())  # then lines pass between all cells
        pitch = wide + max(10.0 if wanders else 3.0, lanes.left + lanes.right + 3.0)
        apart = 13.0 if wanders else _ROWS_APART
        self.grid = Grid(
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
        yield f'<text x="{number(grid.x[0])}" y="8" font-weight="bold">{escape(label)}</text>'
        yield f'<g font-size="7.5" fill="{QUIET}" text-anchor="middle">'
        for chunk, x in enumerate(grid.x):
            yield f'<text x="{number(x + grid.wide / 2)}" y="20">{chunk}</text>'
        yield "</g>"
        yield f'<g font-size="7.5" fill="{QUIET}" text-anchor="end">'
        if leftmost:
            yield '<text x="-5" y="20">chunk</text>'
        for rank, y in enumerate(grid.y):
            yield f'<text x="-5" y="{number(y + grid.high / 2 + 2.7)}">{"rank " if leftmost else ""}{rank}</text>'
        yield "</g>"
        if schedule.scratch:
            x = grid.x[schedule.chunks] - _SCRATCH / 2 - 2
            style = f'stroke="{QUIET}" stroke-width="0.7" stroke-dasharray="2 2"'
            yield f'<path d="M{number(x)} {number(grid.y[0])}V{number(self.high)}" {style}/>'

    def _cells(self, after: State, changed: frozenset[int]) -> Iterator[str]:
        """The boxes: plain ones, those that hold what is promised, and on top the borders of those that changed."""
        kinds: dict[str, list[str]] = {name: [] for name in _BOXES}
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                box = f"M{number(x)} {number(y)}h{number(self.grid.wide)}v{number(self.grid.high)}h-{number(self.grid.wide)}z"
                complete = self.as_promised(after, rank, chunk)
                is_new = rank * after.width + chunk in changed
                kinds["cells" + (" new" if is_new else "") + (" done" if complete else "")].append(box)
        for name, boxes in kinds.items():
            fill, stroke, weight = _BOXES[name]
            if boxes:
                path = f'<path class="{name}" d="{"".join(boxes)}"'
                yield f'{path} fill="{fill}" stroke="{stroke}" stroke-width="{weight}"/>'

    def _marks(self, before: State, after: State) -> Iterator[str]:
        """One mark a contribution, each rank's in its own place."""
        kinds: dict[str, list[str]] = {name: [] for name in _FILLS}
        words = []
        square = f"h{self.mark:g}v{self.mark:g}h-{self.mark:g}z"
        inset = (self.grid.wide - (self.across - 1) * self.pitch - self.mark) / 2
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                cell = rank * after.width + chunk
                datum = int(after.datum[cell])
                present = set(after.contributors(rank, chunk))
                there = set(before.contributors(rank, chunk)) if int(before.datum[cell]) == datum else set()
                done = " done" if self.as_promised(after, rank, chunk) else ""
                top = y + _PADDING + (7.0 if self.named else 0.0)
                if self.named and datum not in (NOTHING, chunk):
                    words.append(f'<text x="{number(x + self.grid.wide / 2)}" y="{number(y + 8)}">{datum}:</text>')
                for one in range(self.schedule.ranks):
                    row, column = divmod(one, self.across)
                    spot = f"M{number(x + inset + column * self.pitch)} {number(top + row * self.pitch)}{square}"
                    kind = "none" if one not in present else ("held" if one in there else "new") + done
                    kinds[kind].append(spot)
        for kind, spots in kinds.items():
            if spots:
                yield f'<path class="marks {kind}" d="{"".join(spots)}" fill="{_FILLS[kind]}"/>'
        if words:
            yield f'<g font-size="7" text-anchor="middle" fill="{QUIET}">{"".join(words)}</g>'

    def _names(self, after: State, changed: frozenset[int]) -> Iterator[str]:
        """The number of what lies in each cell, white on dark where it is new."""
        for rank, y in enumerate(self.grid.y):
            for chunk, x in enumerate(self.grid.x):
                cell = rank * after.width + chunk
                if int(after.datum[cell]) == NOTHING:
                    continue
                is_new, done = cell in changed, self.as_promised(after, rank, chunk)
                fill = (NEW_DONE if done else NEW) if is_new else (HELD_DONE if done else HELD)
                kind = ("new" if is_new else "held") + (" done" if done else "")
                yield (
                    f'<rect class="marks {kind}" x="{number(x + 2)}" y="{number(y + 2)}" width="{number(self.grid.wide - 4)}" '
                    f'height="{number(self.grid.high - 4)}" rx="1.5" fill="{fill}"/>'
                    f'<text x="{number(x + self.grid.wide / 2)}" y="{number(y + self.grid.high / 2 + 2.8)}" font-size="8" '
                    f'text-anchor="middle" fill="{"#ffffff" if is_new else INK}">{self.name_of(int(after.datum[cell]))}</text>'
                )

    def _flaw(self, flaw: ScheduleError | None) -> Iterator[str]:
        if flaw is None or flaw.rank is None or flaw.chunk is None:
            return
        x, y = self.grid.x[flaw.chunk] - 2.5, self.grid.y[flaw.rank] - 2.5
        wide, high = self.grid.wide + 5, self.grid.high + 5
        yield (
            f'<path class="flaw" d="M{number(x)} {number(y)}h{number(wide)}v{number(high)}h-{number(wide)}z" fill="none" '
            f'stroke="{WRONG}" stroke-width="2"/>'
            f'<circle cx="{number(x + wide)}" cy="{number(y)}" r="5" fill="{WRONG}"/>'
            f'<path d="M{number(x + wide - 2)} {number(y - 2)}l4 4m0 -4l-4 4" stroke="#ffffff" stroke-width="1.2"/>'
        )

    def as_promised(self, state: State, rank: int, chunk: int) -> bool:
        if chunk >= self.schedule.chunks or self.promised[rank, chunk] == NOTHING:
            return False
        if int(state.datum[rank * state.width + chunk]) != self.promised[rank, chunk]:
            return False
        return not self.counts_ranks or len(state.contributors(rank, chunk)) == self.schedule.ranks

    def name_of(self, datum: int) -> str:
        """Which piece of data: its chunk, or for an all_to_all the rank it is from and the rank it is for."""
        if self.schedule.collective != "all_to_all":
            return str(datum)
        part = self.schedule.chunks // self.schedule.ranks
        origin, chunk = divmod(datum, self.schedule.chunks)
        return f"{origin}→{chunk // part}" + (f".{chunk % part}" if part > 1 else "")
