"""Drawings of a timeline: who was busy when, as text, and the space-time diagram of all messages as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from ..price.cost.plan import duration
from ..price.simulate.timeline import Timeline
from .svg_elements import COPY, INK, LANE, QUIET, REDUCE, RULE, SURFACE, WARM, element, group, picture, text, title
from .tokens import TERMINAL

RANKS, MESSAGES = 32, 20_000
"""With more ranks than this, only the first are drawn; the same for messages."""

_BOLD, _QUIET, _LABEL = (TERMINAL[name] for name in ("critical", "quiet", "label"))
_SIGNS = {(True, True): "█", (True, False): "▀", (False, True): "▄"}


def timeline_as_text(timeline: Timeline, width: int = 100, ranks: int = RANKS) -> Iterator[Text]:
    """One row per rank, time from left to right; the critical path is bold, and yellow if there is colour."""
    shown = min(ranks, timeline.schedule.ranks)
    label = len(f"rank {timeline.schedule.ranks - 1}") + 2
    columns = max(10, width - label)
    sends = _covered(timeline, timeline.source, timeline.start, timeline.sent, columns)
    receives = _covered(timeline, timeline.destination, timeline.first_arrived, timeline.arrived, columns)
    combines = _covered(timeline, timeline.destination, timeline.landed, timeline.end, columns)
    critical = _critical_cells(timeline, columns)
    ruler = f"0{duration(timeline.duration):>{columns - 1}}"
    yield Text.assemble((" " * label + ruler, _QUIET))
    for rank in range(shown):
        line = Text.assemble((f"rank {rank}".ljust(label), _LABEL))
        for column in range(columns):
            sign = _SIGNS.get((bool(sends[rank, column]), bool(receives[rank, column])))
            sign = sign or ("+" if combines[rank, column] else "·")
            style = _BOLD if critical[rank, column] else (_QUIET if sign == "·" else "")
            line.append(sign, style=style)
        yield line
    if shown < timeline.schedule.ranks:
        yield Text(f"…  {timeline.schedule.ranks - shown} more ranks", style=_QUIET)
    yield Text("█ sends and receives   ▀ sends   ▄ receives   + combines only   · idle", style=_QUIET)


def _covered(
    timeline: Timeline, rank: NDArray[np.int32], begin: NDArray[np.float64], end: NDArray[np.float64], columns: int
) -> NDArray[np.bool_]:
    """Ranks × columns of time: where a rank is busy in the middle of the column."""
    counted = timeline.travels & (end > begin) if rank is timeline.source else end > begin
    change = np.zeros((timeline.schedule.ranks, columns + 1), np.int64)
    scale = columns / timeline.duration if timeline.duration else 0.0
    for sign, when in ((1, begin), (-1, end)):
        place = np.clip(np.ceil(when[counted] * scale - 0.5), 0, columns).astype(np.int64)
        np.add.at(change, (rank[counted], place), sign)
    return np.asarray(change.cumsum(axis=1)[:, :columns] > 0)


def _critical_cells(timeline: Timeline, columns: int) -> NDArray[np.bool_]:
    """The cells of the critical path: at the sender while bytes leave, then at the receiver."""
    cells = np.zeros((timeline.schedule.ranks, columns), bool)
    scale = columns / timeline.duration if timeline.duration else 0.0
    for message, (begin, end) in zip(timeline.critical.tolist(), timeline.spans.tolist(), strict=True):
        sent = min(max(float(timeline.sent[message]), begin), end)
        for rank, first, last in ((timeline.source, begin, sent), (timeline.destination, sent, end)):
            cells[rank[message], round(first * scale) : round(last * scale)] = True
    return cells


# The picture ---------------------------------------------------------------------------------------------------------

_WIDE, _LEFT, _RIGHT, _TOP, _ROW, _BAND = 1100, 76, 24, 74, 56, 12
_THROUGH, _FAINTEST = 0.65, 0.05  # screens have no fainter shades
_STYLE = f"""
text {{ font: 13px system-ui, sans-serif; fill: {INK}; }}
text.title {{ font-weight: bold; }}
.quiet {{ font-size: 11px; fill: {QUIET}; }}
.copy, .reduce {{ stroke-width: .6; stroke-opacity: EDGE; }}
.copy {{ fill: {COPY}; stroke: {COPY}; fill-opacity: OPACITY; }}
.reduce {{ fill: {REDUCE}; stroke: {REDUCE}; fill-opacity: OPACITY; }}
.combine {{ fill: {REDUCE}; }} .band {{ fill: {LANE}; }}
.critical {{ stroke: {WARM}; stroke-width: 2; stroke-opacity: 1; }}
.grid {{ stroke: {RULE}; stroke-width: 1; }}
"""
_HATCHING = (
    '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="{SURFACE}"/><rect width="2" height="6" fill="{RULE}"/></pattern></defs>'
)


def timeline_as_svg(timeline: Timeline, ranks: int = RANKS) -> str:
    """The space-time diagram: one lifeline per rank, and each message a parallelogram from sender to receiver.

    Its slope is the latency, its width the time that its bytes take. Blocks are reductions; hatched ranks are idle;
    the critical path is outlined.
    """
    shown = min(ranks, timeline.schedule.ranks)
    scale = (_WIDE - _LEFT - _RIGHT) / (timeline.duration or 1.0)
    high = _TOP + (shown - 1) * _ROW + 58

    def x(time: float) -> str:
        return f"{_LEFT + time * scale:.2f}"

    def y(rank: int) -> int:
        return _TOP + rank * _ROW + 12

    chosen = np.flatnonzero((timeline.source < shown) & (timeline.destination < shown))[:MESSAGES]
    # Where many overlap, each is fainter, so that they can be told apart; then critical ones are only outlines.
    faint = max(_FAINTEST, 1 - 0.2 ** (1 / _most_at_once(timeline, chosen)))
    style = _STYLE.replace("OPACITY", f"{min(0.45, faint):.2g}").replace("EDGE", f"{min(0.5, 3 * faint):.2g}")
    style += "polygon.critical { fill-opacity: 0; }\n" if faint == _FAINTEST else ""
    what = f"{timeline.schedule.collective} by {timeline.schedule.algorithm}, {_size(timeline)}"
    heading = f"{what} on {timeline.topology.name}: {duration(timeline.duration)}"
    lines = [
        title(heading) + element("style", style),
        _HATCHING,
        element("rect", width=_WIDE, height=high, fill=SURFACE),
        text(heading, x=_LEFT, y=24, class_="title"),
        *_legend(),
    ]
    for time in _ticks(timeline.duration):
        lines.append(element("path", class_="grid", d=f"M{x(time)} {_TOP}V{high - 28}"))
        lines.append(text(duration(time), class_="quiet", x=x(time), y=high - 12, text_anchor="middle"))
    for rank in range(shown):
        lines.append(text(f"rank {rank}", x=_LEFT - 10, y=y(rank) + 4, text_anchor="end"))
        lines.append(element("rect", class_="band", x=x(0), width=f"{timeline.duration * scale:.2f}", **_band(y(rank))))
    idle, spans = timeline.idle_spans()
    for rank, (begin, end) in zip(idle.tolist(), spans.tolist(), strict=True):
        if rank < shown and (end - begin) * scale > 0.5:
            tip, wide = title(f"rank {rank} idle {duration(end - begin)}"), f"{(end - begin) * scale:.2f}"
            lines.append(element("rect", tip, fill="url(#idle)", x=x(begin), width=wide, **_band(y(rank))))
    critical = dict(zip(timeline.critical.tolist(), timeline.spans.tolist(), strict=True))
    ordered = sorted(chosen.tolist(), key=lambda one: one in critical)  # the critical ones on top
    shapes = [shape for message in ordered for shape in _message(timeline, message, critical.get(message), x, y)]
    # However many overlap, what is below stays visible.
    lines += group([shape for is_behind, shape in shapes if is_behind], opacity=_THROUGH)
    lines += [shape for is_behind, shape in shapes if not is_behind]
    left_out = timeline.schedule.ranks - shown
    if left_out or len(chosen) < timeline.messages:
        note = f"{shown} of {timeline.schedule.ranks} ranks, {len(chosen)} of {timeline.messages} messages"
        lines.append(text(note, class_="quiet", x=_WIDE - _RIGHT, y=24, text_anchor="end"))
    return picture(_WIDE, high, lines, role="img")


def _band(middle: int) -> dict[str, str]:
    """The place and thickness of a lifeline."""
    return {"y": f"{middle - _BAND / 2:.1f}", "height": f"{_BAND}"}


def _most_at_once(timeline: Timeline, chosen: NDArray[np.intp]) -> int:
    """The most messages that pass between two neighbouring lifelines at a time."""
    low = np.minimum(timeline.source, timeline.destination)[chosen]
    high = np.maximum(timeline.source, timeline.destination)[chosen]
    most = 1
    for rank in range(int(high.max(initial=0))):
        passing = chosen[(low <= rank) & (rank < high)]
        times = np.concatenate([timeline.start[passing], timeline.arrived[passing]])
        change = np.repeat([1, -1], len(passing))
        most = max(most, int(change[np.lexsort((change, times))].cumsum().max(initial=1)))  # ends before starts
    return most


def _message(
    timeline: Timeline,
    message: int,
    critical: list[float] | None,
    across: Callable[[float], str],
    down: Callable[[int], int],
) -> Iterator[tuple[bool, str]]:
    """The shapes of a message, and for each whether it belongs behind the others."""
    source, destination = int(timeline.source[message]), int(timeline.destination[message])
    times = {name: float(getattr(timeline, name)[message]) for name in ("start", "sent", "arrived", "landed", "end")}
    reduces = bool(timeline.schedule.columns["reduces"][timeline.move[message]])
    begin, end = critical or (np.inf, -np.inf)
    tip = (
        f"{timeline.word(message)}, step {timeline.step[message] + 1}, segment {timeline.segment[message]}, "
        f"{timeline.bytes[message]:.0f} bytes, {duration(times['start'])} to {duration(times['end'])}"
    )
    if source != destination:
        side = _BAND / 2 if destination > source else -_BAND / 2
        top, bottom = down(source) + side, down(destination) - side
        corners = (
            (times["start"], top),
            (times["sent"], top),
            (times["arrived"], bottom),
            (float(timeline.first_arrived[message]), bottom),
        )
        points = " ".join(f"{across(time)},{height:g}" for time, height in corners)
        is_critical = begin < times["arrived"]
        kind = ("reduce" if reduces else "copy") + (" critical" if is_critical else "")
        yield not is_critical, element("polygon", title(tip), class_=kind, points=points)
    if times["end"] > times["landed"]:
        wide = float(across(times["end"])) - float(across(times["landed"]))
        place = {"x": across(times["landed"]), "y": f"{down(destination) - _BAND / 2:.1f}"}
        kind = "combine" + (" critical" if end > times["landed"] else "")
        yield False, element("rect", title(tip), class_=kind, **place, width=f"{wide:.2f}", height=_BAND)


def _legend() -> Iterator[str]:
    at = _LEFT
    through = {"opacity": f"{_THROUGH}", "style": "fill-opacity:.45"}
    for look, word, room in (
        ({"class_": "copy", **through}, "copied", 80),
        ({"class_": "reduce", **through}, "to be combined", 126),
        ({"class_": "combine"}, "combining", 100),
        ({"class_": "copy critical", "style": "fill-opacity:.3"}, "on the critical path", 156),
        ({"fill": "url(#idle)"}, "idle", 60),
    ):
        sign = element("rect", **look, x=at, y=38, width=14, height=12)
        yield sign + text(word, class_="quiet", x=at + 20, y=48)
        at += room


def _ticks(span: float) -> list[float]:
    """Round times, five to ten of them."""
    if span <= 0:
        return [0.0]
    step = 10.0 ** floor(log10(span / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    return [step * number for number in range(ceil(span / step - 1e-9))]


def _size(timeline: Timeline) -> str:
    size: float = timeline.size
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"
