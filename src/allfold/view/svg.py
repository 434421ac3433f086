"""The step-by-step figure of a schedule, for papers and slides: one grid per step, as an SVG file.

A row is a rank and a column is a chunk. In each cell every rank has its place, filled once its contribution is there:
dark when it came in this step, light when it was there before. Data that is only copied is shown by its number. Arrows
are the step's moves. Nothing depends on colour alone: new marks are darker, changed cells have a heavy border, a copy's
arrow is dashed and its head hollow. The text of the moves is in the picture's description, for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from ..errors import ScheduleError, UsageError
from ..proof import verify
from ..schedules import Schedule
from ..symbolic import State
from ..wording import counted
from .svg_arrows import DASHES
from .svg_elements import (
    ACCENT,
    COPY,
    EMPTY,
    GOOD,
    GOOD_GROUND,
    HELD,
    HELD_DONE,
    INK,
    QUIET,
    REDUCE,
    SURFACE,
    WRONG,
    Value,
    element,
    group,
    picture,
    placed,
    text,
    title,
    width_of,
)
from .svg_grid import LABEL, MARK, Drawing
from .text import moves_as_text

MOST_MARKS = 100_000
WIDTH = 760  # where a row of grids wraps unless the number of columns is given

_MARGIN, _APART, _BELOW = 10.0, 26.0, 14.0
_LETTER = 0.48  # the mean width of a letter, in font sizes, for line breaks
_LEAST = 320.0  # width that a line of text may use even with a narrow grid


def figure(
    schedules: Sequence[Schedule], columns: int | None = None, errors: Sequence[ScheduleError | None] | None = None
) -> str:
    """The figure of one schedule, or of several below each other.

    `errors` say what kept a schedule from being complete. Anything else that is wrong is found and shown at its cell,
    and the figure ends there.
    """
    if columns is not None and (not isinstance(columns, int) or columns < 1):
        raise UsageError(f"a figure with {columns!r:.40} grids in a row; expected at least 1")
    for schedule in schedules:
        _check_size(schedule)
    given = errors or [None] * len(schedules)
    flaws = [error or _flaw_of(schedule) for schedule, error in zip(schedules, given, strict=True)]
    parts: list[str] = []
    x, y, below, right = _MARGIN, _MARGIN, 0.0, 0.0
    for schedule, flaw in zip(schedules, flaws, strict=True):
        drawn, wide, high = _section(schedule, flaw, columns)
        if x > _MARGIN and x + wide > WIDTH - _MARGIN:
            x, y = _MARGIN, below
        parts += group(drawn, transform=placed(x, y))
        right, below = max(right, x + wide), max(below, y + high + 20)
        x += wide + 30
    legend, wide, bottom = _legend(schedules, "".join(parts), below, max(right, _LEAST))
    right, bottom = max(right, wide) + _MARGIN, bottom + 4
    return picture(
        right,
        bottom,
        [
            title("; ".join(map(_heading, schedules))),
            element("desc", escape(_text_twin(schedules, flaws))),
            element("rect", width=right, height=bottom, fill=SURFACE),
            *parts,
            *legend,
        ],
        role="img",
        font_family="Helvetica, Arial, sans-serif",
        font_size=9,
        fill=INK,
    )


def _check_size(schedule: Schedule) -> None:
    each = schedule.ranks if schedule.promise.reduces else 1
    marks = schedule.ranks * (schedule.chunks + schedule.scratch) * each * (schedule.steps + 1)
    if marks > MOST_MARKS:
        raise UsageError(
            f"a figure of {schedule.title} would have {marks:,} marks and be illegible; up to {MOST_MARKS:,} are "
            "drawn: take fewer ranks, or use the page (--html), which draws up to 1,024"
        )


def _heading(schedule: Schedule) -> str:
    rooted = "" if schedule.root is None else f", root {schedule.root}"
    return f"{schedule.promise.label} by {schedule.algorithm}, {counted(schedule.ranks, 'rank')}{rooted}"


def _counts(schedule: Schedule) -> str:
    counts = schedule.counts
    facts = [counted(counts.steps, "step"), counted(counts.messages, "message")]
    if schedule.promise.carries_data:
        port = f"{float(counts.busiest_port_bytes):.4g} S through the busiest port"
        facts += [f"{float(counts.bytes):.4g} S sent in all", port]
    return " · ".join(facts)


def _flaw_of(schedule: Schedule) -> ScheduleError | None:
    try:
        verify(schedule, programs=False)
    except ScheduleError as wrong:
        return wrong
    return None


def _text_twin(schedules: Sequence[Schedule], flaws: Sequence[ScheduleError | None]) -> str:
    return "\n\n".join(
        moves_as_text(schedule) + ("" if flaw is None else f"\n✗ {flaw}")
        for schedule, flaw in zip(schedules, flaws, strict=True)
    )


# One schedule --------------------------------------------------------------------------------------------------------


def _section(schedule: Schedule, error: ScheduleError | None, columns: int | None) -> tuple[list[str], float, float]:
    """Title, counts and grids of one schedule, from (0, 0); then their width and height."""
    drawing = Drawing(schedule)
    fitting = max(1, int((WIDTH - 2 * _MARGIN - LABEL + _APART) // (drawing.wide + _APART)))
    rows = -(-(schedule.steps + 1) // (fitting if columns is None else columns))
    columns = -(-(schedule.steps + 1) // rows)  # rows as equal in length as possible
    room = LABEL + columns * (drawing.wide + _APART) - _APART
    lines: list[tuple[str, dict[str, Value]]] = [
        (_heading(schedule), {"font_size": 12, "font_weight": "bold", "fill": INK})
    ]
    lines += [(line, {"fill": QUIET}) for line in _wrapped(_counts(schedule), max(room, _LEAST))]
    if error is not None:
        wrong = _wrapped(f"✗ {error}", max(room, _LEAST))
        lines += [(line, {"fill": WRONG, "font_weight": "bold"}) for line in wrong]
    parts = [text(line, x=0, y=10 + 13 * place, **style) for place, (line, style) in enumerate(lines)]
    top, grids = 13.0 * len(lines) + 8, list(_grids(drawing, error, columns))
    for place, grid in enumerate(grids):
        row, column = divmod(place, columns)
        left, down = LABEL + column * (drawing.wide + _APART), top + row * (drawing.high + _BELOW)
        parts += group(grid, transform=placed(left, down))
    widest = max(
        width_of(line, 9 if place else 12, bold="font_weight" in style) for place, (line, style) in enumerate(lines)
    )
    return parts, max(room, widest), top - _BELOW + -(-len(grids) // columns) * (drawing.high + _BELOW)


def _grids(drawing: Drawing, error: ScheduleError | None, columns: int) -> Iterator[list[str]]:
    schedule = drawing.schedule
    before, after = State(schedule), State(schedule)
    last = schedule.steps - 1
    # A broken promise shows at the end; an invalid move, in the step that makes it.
    at_end = error if error is not None and (error.step or 0) >= last else None
    yield drawing.draw("start", before, after, frozenset(), [], at_end if last < 0 else None, True)
    for step in range(schedule.steps):
        moves = schedule.step(step)
        leftmost = (step + 1) % columns == 0
        try:
            changed = frozenset(after.advance().target.tolist())
        except ScheduleError as wrong:
            yield drawing.draw(f"step {step + 1} ✗", before, before, frozenset(), moves, wrong, leftmost)
            return
        flaw = at_end if step == last else None
        label = f"step {step + 1}" + (" ✗" if flaw is not None else "")
        yield drawing.draw(label, before, after, changed, moves, flaw, leftmost)
        before.advance()


# The legend ----------------------------------------------------------------------------------------------------------


def _legend(schedules: Sequence[Schedule], drawn: str, y: float, room: float) -> tuple[list[str], float, float]:
    """The legend of the signs that were drawn; then its width, and where it ends."""
    items = list(_signs(schedules, drawn))
    parts, x, right = [], _MARGIN, 0.0
    for sign, wide, words in items:
        long = wide + 4 + width_of(words, 8) + 14
        if x > _MARGIN and x + long - 14 > room:
            x, y = _MARGIN, y + 13
        label = text(words, x=wide + 4, y=7, font_size=8, fill=QUIET)
        parts.append(element("g", sign, "\n", label, transform=placed(x, y)))
        x += long
        right = max(right, x - 14)
    return parts, right, y + 13


def _signs(schedules: Sequence[Schedule], drawn: str) -> Iterator[tuple[str, float, str]]:
    if any(schedule.promise.reduces for schedule in schedules):
        there, came = "is there", "came in this step"
    else:
        there, came = "this chunk lies here", "it came in this step"
    for colors, words in (
        ((EMPTY,), "a rank's contribution is not there"),
        ((HELD, HELD_DONE), there),
        ((ACCENT, GOOD), came),
    ):
        seen = [color for color in colors if f'fill="{color}"' in drawn]
        squares = "".join(
            element("rect", x=0.5 + place * (MARK + 2), y=0.5, width=MARK + 1, height=MARK + 1, fill=color)
            for place, color in enumerate(seen)
        )
        if seen:
            yield squares, len(seen) * (MARK + 2), words
    if f'fill="{GOOD_GROUND}"' in drawn:
        promised = element("rect", x=0.5, y=0.5, width=9, height=7, fill=GOOD_GROUND, stroke=GOOD)
        yield promised, 10.0, "holds what is promised"
    for reduces, color, words in ((True, REDUCE, "is combined"), (False, COPY, "is copied")):
        if f'stroke="{color}"' in drawn:
            fill, dashes = (color, None) if reduces else (SURFACE, DASHES)
            line = element("path", d="M0 4H11", stroke=color, stroke_width=0.9, stroke_dasharray=dashes)
            head = element("path", d="M15 4L10.6 5.9L10.6 2.1Z", fill=fill, stroke=color, stroke_width=0.7)
            yield line + head, 15.0, words
    if any(schedule.scratch for schedule in schedules):
        border = element("path", d="M2 0V8", stroke=QUIET, stroke_width=0.7, stroke_dasharray="2 2")
        yield border, 4.0, "scratch follows"
    if any(schedule.promise.carries_data for schedule in schedules):
        yield text("S", y=7, font_size=8, font_style="italic", fill=INK), 5.0, "the bytes of one buffer"


def _wrapped(text: str, room: float) -> list[str]:
    return wrap(text, max(20, int(room / (9 * _LETTER)))) or [""]
