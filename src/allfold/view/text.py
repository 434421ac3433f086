"""A schedule in text: its moves, and who holds what after every step.

A move is one word, `+0:1→2`: chunk 0 of rank 1 is added to that of rank 2 (without the plus it replaces it). A grid has
one row per rank and one column per chunk, and its cells say what they hold: for a reduction, which ranks have
contributed, each in its own place (`·1·3`), otherwise which slice it is. `moves_as_text` is plain; `draw` gives styled
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from ..collectives import NOTHING
from ..schedules import Schedule
from ..symbolic import State, name_of
from ..wording import counted
from . import WIDTH
from .tokens import TERMINAL

_DIGITS = 10  # up to this many ranks, each contributor has a digit and a place of its own
_STEPS, _LINES_OF_MOVES, _ROWS, _COLUMNS = 40, 4, 32, 32  # beyond these, the middle is left out
_TITLE, _LABEL, _QUIET, _NEW, _DONE, _REDUCE, _COPY = (
    TERMINAL[name] for name in ("title", "label", "quiet", "new", "good", "reduce", "copy")
)


def moves_as_text(schedule: Schedule, width: int = WIDTH, full: bool = False) -> str:
    """The text of `print(schedule)`: a title, then the moves, one step per line; long parts are only counted."""
    return "\n".join(line.plain for line in draw_moves(schedule, width, full))


def draw_moves(schedule: Schedule, width: int = WIDTH, full: bool = False) -> Iterator[Text]:
    """The title, then the moves of every step."""
    yield Text(title(schedule), style=_TITLE)
    lines = max(1, _STEPS // max(1, schedule.steps))  # about one page, with few long steps or many short ones
    for step in _kept(schedule.steps, None if full else _STEPS):
        if step is None:
            yield _steps_left_out(schedule)
        else:
            yield from _moves_of(schedule, step, width, None if full else lines)


def draw(schedule: Schedule, width: int = WIDTH, full: bool = False) -> Iterator[Text]:
    """The title, then the moves of every step, each step followed by who holds what after it.

    A step that makes no sense raises `ScheduleError` where it would be drawn.
    """
    after = State(schedule)
    # Which contributions are new is only shown between few ranks; between thousands, a state takes gigabytes.
    before = State(schedule) if schedule.ranks <= _DIGITS else after
    cells = _Cells.of(schedule)
    yield Text(title(schedule), style=_TITLE)
    yield from _legend(schedule, cells, width)
    yield Text()
    yield Text("at the start", style=_LABEL)
    yield from _grid(before, after, frozenset(), cells, width, full)
    for step in _kept(schedule.steps, None if full else _STEPS):
        yield Text()
        if step is None:
            yield _steps_left_out(schedule)
            continue
        while after.step < step:
            after.advance()
            if before is not after:
                before.advance()
        yield from _moves_of(schedule, step, width, None if full else _LINES_OF_MOVES)
        changed = frozenset(after.advance().target.tolist())
        yield from _grid(before, after, changed, cells, width, full)
        if before is not after:
            before.advance()


def title(schedule: Schedule) -> str:
    """`all_reduce by ring: 4 ranks, 4 chunks, 6 steps, 24 messages`."""
    facts = [counted(schedule.ranks, "rank")]
    facts += [] if schedule.root is None else [f"root {schedule.root}"]
    facts += [counted(schedule.chunks, "chunk") + (f" + {schedule.scratch} scratch" if schedule.scratch else "")]
    facts += [counted(schedule.steps, "step"), counted(schedule.counts.messages, "message")]
    return f"{schedule.promise.label} by {schedule.algorithm}: {', '.join(facts)}"


# The moves -----------------------------------------------------------------------------------------------------------


def _moves_of(schedule: Schedule, step: int, width: int, most_lines: int | None) -> Iterator[Text]:
    """`step 1  +3:0→1  +0:1→2  …`, over several lines if needed, with the words aligned."""
    label = f"step {step + 1:<{len(str(schedule.steps))}}  "
    moves = schedule.step(step)
    words = [str(move) for move in moves]
    longest = max(map(len, words))
    a_line = max(1, (width - len(label) + 2) // (longest + 2))
    room = len(words) if most_lines is None else a_line * most_lines
    if len(words) > room:  # the last line ends with the count of what is left out
        room = max(1, room - -(-len(_more(len(words))) // (longest + 2)))
    for start in range(0, min(room, len(words)), a_line):
        line = Text.assemble((label if start == 0 else " " * len(label), _LABEL))
        for i in range(start, min(start + a_line, room, len(words))):
            line.append(words[i], style=_REDUCE if moves[i].reduces else _COPY)
            line.append(" " * (2 + (longest - len(words[i]) if len(words) > a_line else 0)))
        if start + a_line >= room and room < len(words):
            line.append(_more(len(words) - room), style=_QUIET)
        line.rstrip()
        yield line


def _more(number: int) -> str:
    return f"… {number} more"


def _steps_left_out(schedule: Schedule) -> Text:
    kept = _kept(schedule.steps, _STEPS)
    gap = kept.index(None)
    first, end = gap, schedule.steps - (len(kept) - gap - 1)
    moves = int(schedule.starts[end] - schedule.starts[first])
    return Text(f"…  steps {first}–{end - 1} with {moves} moves are left out", style=_QUIET)


# Who holds what ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """The cells of one schedule as text, each at most `width` wide."""

    schedule: Schedule
    promised: NDArray[np.int32]
    named: bool  # a cell may hold a datum other than its column's, so it says which
    width: int

    @staticmethod
    def of(schedule: Schedule) -> _Cells:
        promise, columns = schedule.promise, schedule.columns
        named = schedule.chunks > 1 and bool((columns["chunk"] != columns["into"]).any())
        largest = len(str(schedule.ranks - 1))
        if not promise.reduces:
            part = schedule.chunks // promise.slices(schedule.ranks)
            extra = 1 + len(str(part - 1)) if promise.exchanges and part > 1 else 0
            width = 2 * largest + 1 + extra if promise.exchanges else len(str(schedule.chunks - 1))
        else:
            width = schedule.ranks if schedule.ranks <= _DIGITS else 2 * len(str(schedule.ranks)) + 1
            width += len(str(schedule.chunks - 1)) + 1 if named else 0
        promised = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
        return _Cells(schedule, promised, named, width)

    def content(self, before: State, after: State, rank: int, chunk: int, is_new: bool) -> Text:
        cell = rank * after.width + chunk
        datum = int(after.datum[cell])
        text = Text()
        if datum == NOTHING:
            many = self.schedule.ranks if self.schedule.promise.reduces and self.schedule.ranks <= _DIGITS else 1
            text.append("·" * many, style=_QUIET)
        elif not self.schedule.promise.reduces:
            text.append(name_of(self.schedule, datum), style=_NEW if is_new else "")
        else:
            if self.named and datum != chunk:
                text.append(f"{datum}:", style=_QUIET)
            if self.schedule.ranks > _DIGITS:
                many = after.contributions(rank, chunk)
                text.append(f"{many}/{self.schedule.ranks}", style=_NEW if is_new else "")
            else:
                present = after.contributors(rank, chunk)
                there = before.contributors(rank, chunk) if int(before.datum[cell]) == datum else []
                for one in range(self.schedule.ranks):
                    style = (_NEW if one not in there else "") if one in present else _QUIET
                    text.append(str(one) if one in present else "·", style=style)
        if after.keeps(self.promised, rank, chunk):
            text.stylize(_DONE)
        return text


def _grid(
    before: State, after: State, changed: frozenset[int], cells: _Cells, width: int, full: bool
) -> Iterator[Text]:
    """One row per rank, one column per chunk; in several blocks if the page is too narrow for one."""
    schedule = after.schedule
    rows = _kept(schedule.ranks, None if full else _ROWS)
    columns = _kept(after.width, None if full else _COLUMNS)
    label = max(len("chunk"), len(f"rank {schedule.ranks - 1}"))
    one = cells.width + 4  # a gap, the brackets, and the mark
    a_block = max(1, (width - label - 4) // one)
    for start in range(0, len(columns), a_block):
        block = columns[start : start + a_block]
        head = _row(
            "chunk", label, block, schedule, lambda chunk: Text(f"{chunk:>{cells.width + 1}}  ", style=_LABEL), one
        )
        yield head
        for rank in rows:
            if rank is None:
                shown = len(rows) - 1
                yield Text(f"  …  {schedule.ranks - shown} ranks are left out", style=_QUIET)
                continue

            def cell(chunk: int, rank: int = rank) -> Text:
                is_new = rank * after.width + chunk in changed
                content = cells.content(before, after, rank, chunk, is_new)
                text = Text(" " * (cells.width - len(content)))
                text.append("[" if is_new else " ", style=_NEW if is_new else "")
                text.append_text(content)
                text.append("✓" if after.keeps(cells.promised, rank, chunk) else "", style=_DONE)
                text.append("]" if is_new else "", style=_NEW)
                text.pad_right(one - 1 - len(text))
                return text

            yield _row(f"rank {rank}", label, block, schedule, cell, one)
    if None in columns:
        yield Text(f"  …  {after.width - len(columns) + 1} chunks are left out", style=_QUIET)


def _row(
    label: str, wide: int, block: list[int | None], schedule: Schedule, cell: Callable[[int], Text], one: int
) -> Text:
    line = Text.assemble((f"  {label:<{wide}}", _LABEL))
    for chunk in block:
        line.append(" │" if chunk == schedule.chunks else "", style=_QUIET)  # what follows is scratch
        line.append(" ")
        line.append_text(cell(chunk) if chunk is not None else Text(f"{'…':>{one - 3}}  ", style=_QUIET))
    line.rstrip()
    return line


def _legend(schedule: Schedule, cells: _Cells, width: int) -> Iterator[Text]:
    """The legend of the signs that occur in the grid."""
    ranks, promise = schedule.ranks, schedule.promise
    notes: list[tuple[str, str]] = []
    if not promise.reduces:
        many = promise.exchanges
        slice_of_last = (f"{ranks - 1}→0", f"what rank {ranks - 1} has for rank 0")
        notes.append(slice_of_last if many else ("0", "chunk 0 lies here"))
        notes.append(("·", "holds nothing"))
    elif ranks > _DIGITS:
        notes.append((f"3/{ranks}", f"3 of {ranks} ranks have contributed"))
    elif ranks >= 4:
        notes.append(("·1·3" + "·" * (ranks - 4), "ranks 1 and 3 have contributed"))
    elif ranks > 1:
        notes.append(("·1" + "·" * (ranks - 2), "rank 1 has contributed"))
    if promise.reduces and cells.named:
        notes.append(("2:", "of chunk 2, lying elsewhere"))
    notes += [("[ ]", "changed in this step")] if schedule.steps else []
    notes += [("✓", f"as {schedule.promise.label} promises")]
    notes += [("│", "scratch follows")] if schedule.scratch else []
    line = Text()
    for sign, meaning in notes:
        item = Text.assemble("  ", (sign, "bold"), " ", (meaning, _QUIET), " ")
        if len(line) and len(line) + len(item) > width:
            line.rstrip()
            yield line
            line = Text()
        line.append_text(item)
    line.rstrip()
    yield line


def _kept(total: int, limit: int | None) -> list[int | None]:
    """All of `range(total)`, or its beginning and its end with None for what is left out in between."""
    if limit is None or total <= limit:
        return list(range(total))
    end = limit // 4
    return [*range(limit - end), None, *range(total - end, total)]
