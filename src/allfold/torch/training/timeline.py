"""When a rank computed and when gradients were reduced: what overlaps, as figures, for Perfetto, and as a picture.

    with record(model) as timeline:  # on all ranks
        with timeline.span("forward"):
            loss = model(inputs).square().mean()
        with timeline.span("backward"):
            loss.backward()
    timeline.save("step.json")  # for https://ui.perfetto.dev and chrome://tracing
    timeline.save("step.svg")

The times of the reductions are the engine's own: from the first to the last instruction of each call, waiting for other
ranks to arrive not counted. All ranks of a machine read the same clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from ...chrome_trace import Row, Track, process_name, trace
from ...communicator.communicator import Communicator
from ...errors import UsageError
from ...files import write_whole
from ...view.svg_elements import element, picture, text, title
from .data_parallel import DataParallel
from .same_model import everybodys

COMPUTE, REDUCE = "compute", "reduce"


@dataclass(frozen=True)
class Span:
    """Something that took time on a rank. Nanoseconds of the machine's monotonic clock."""

    rank: int
    track: str
    name: str
    start: int
    end: int


@dataclass
class Timeline:
    """The spans of all ranks. `ends` says, by rank, when the backward pass had computed its last gradient."""

    spans: list[Span] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    rank: int = 0

    @contextmanager
    def span(self, name: str, track: str = COMPUTE) -> Iterator[None]:
        start = time.monotonic_ns()
        yield
        self.spans.append(Span(self.rank, track, name, start, time.monotonic_ns()))

    @property
    def reducing(self) -> float:
        """Seconds in which a reduction went on, the mean of the ranks."""
        return self._mean(lambda rank: _covered(self._reductions(rank)))

    @property
    def overlapped(self) -> float:
        """The fraction of that time in which gradients were still being computed."""

        def before_the_end(rank: int) -> int:
            end = self.ends[rank]
            return _covered([(start, min(stop, end)) for start, stop in self._reductions(rank) if start < end])

        return self._mean(before_the_end) / max(self.reducing, 1e-9)

    def save(self, path: str | PathLike[str], title: str = "") -> None:
        save({title: self}, path)

    def _reductions(self, rank: int) -> list[tuple[int, int]]:
        return [(span.start, span.end) for span in self.spans if span.rank == rank and span.track == REDUCE]

    def _mean(self, value: Any) -> float:
        return float(sum(value(rank) for rank in self.ends)) / max(1, len(self.ends)) / 1e9


@contextmanager
def record(model: DataParallel) -> Iterator[Timeline]:
    """Record one step of all ranks, which all take part in the call; the timeline is whole when the block has ended."""
    communicator = model.communicator
    timeline = Timeline(rank=communicator.rank)
    with watch(timeline, model.module), communicator.trace() as trace:
        yield timeline
    calls: dict[tuple[int, int], list[Any]] = {}
    for event in trace.events:
        if event.collective == "all_reduce":
            calls.setdefault((event.rank, event.call), []).append(event)
    first = {rank: min(call for other, call in calls if other == rank) for rank, _ in calls}
    reductions = [
        Span(
            rank,
            REDUCE,
            f"bucket {(call - first[rank]) % len(model.buckets)}",
            events[0].start,
            max(event.start + event.waited + event.worked for event in events),
        )
        for (rank, call), events in calls.items()
    ]
    timeline.spans += [span for span in reductions if span.rank == communicator.rank]
    gather(timeline, communicator)


@contextmanager
def watch(timeline: Timeline, module: Any) -> Iterator[None]:
    """Note when the last gradient of the module was computed on this rank."""

    def computed(_: Any) -> None:
        timeline.ends[timeline.rank] = time.monotonic_ns()

    hooks = [one.register_post_accumulate_grad_hook(computed) for one in module.parameters() if one.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gather(timeline: Timeline, communicator: Communicator) -> None:
    """Give every rank the spans of all of them."""
    own = json.dumps([[asdict(span) for span in timeline.spans], timeline.ends])
    timeline.spans = []
    for answer in everybodys(communicator, own):
        spans, ends = json.loads(answer)
        timeline.spans += [Span(**span) for span in spans]
        timeline.ends.update((int(rank), end) for rank, end in ends.items())


def save(timelines: Mapping[str, Timeline], path: str | PathLike[str]) -> None:
    """Several runs of the same step, by title, into one file; its name says which format: .json or .svg."""
    kind = Path(path).suffix
    if kind not in (".json", ".svg"):
        raise UsageError(f"a timeline is saved as .json (for Perfetto) or .svg, not as {str(path)!r}")
    write_whole(path, to_svg(timelines) if kind == ".svg" else json.dumps(to_chrome(timelines)))


# For Perfetto -----------------------------------------------------------------------------------------------------------


def to_chrome(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """One process per rank of each run, with a track for what it computes and one for what it reduces."""
    rows: list[Row] = []
    for number, (run, timeline) in enumerate(timelines.items()):
        begin = _begin(timeline.spans)
        for rank in sorted(timeline.ends):
            process = number * 1000 + rank
            rows.append(process_name(process, f"{run} rank {rank}".strip()))
            rows += [Track(thread, process).name(name) for thread, name in enumerate((COMPUTE, REDUCE))]
        for span in timeline.spans:
            track = Track((COMPUTE, REDUCE).index(span.track), number * 1000 + span.rank)
            start, length = (span.start - begin) / 1e3, (span.end - span.start) / 1e3
            rows.append(track.slice(span.name, span.track, start, length))
    return trace(rows, "ms")


# As a picture -----------------------------------------------------------------------------------------------------------

# Middle tones, which can be read on white and on black.
_COLOURS = {"forward": "#5b8dd6", "backward": "#d98a3d", "optimizer": "#5fa65f", REDUCE: "#b565c4"}
_TEXT, _OTHER, _PALE = "#808080", "#909090", 0.35
_WIDTH, _LEFT, _ROW, _TOP = 960, 96, 14, 34


def to_svg(timelines: Mapping[str, Timeline]) -> str:
    """The runs below each other, on one scale: two rows per rank, computing above reducing. Waiting passes are pale."""
    longest = max(max(span.end for span in one.spans) - _begin(one.spans) for one in timelines.values())
    scale = (_WIDTH - _LEFT - 12) / longest
    parts, y = [_legend()], _TOP
    for run, timeline in timelines.items():
        begin = _begin(timeline.spans)
        note = f"{timeline.reducing * 1e3:.1f} ms of reductions, {timeline.overlapped:.0%} while computing"
        parts.append(_text(_LEFT, y + 12, f"{run}: {note}" if run else note, weight="bold"))
        y += 20
        for rank, end in sorted(timeline.ends.items()):
            parts.append(_text(_LEFT - 8, y + _ROW + 4, f"rank {rank}", anchor="end"))
            for span in timeline.spans:
                if span.rank == rank:
                    top = y + (_ROW + 1) * (COMPUTE, REDUCE).index(span.track)
                    parts.append(_bar(span, begin, end, top, scale))
            y += 2 * _ROW + 8
        y += 10
    parts.append(_axis(y, longest, scale))
    heading = title("When each rank computed and when its gradients were reduced")
    style = {"font_family": "system-ui, sans-serif", "font_size": "12", "role": "img"}
    return picture(_WIDTH, y + 32, [heading, *parts], **style)


def _bar(span: Span, begin: int, computed: int, y: float, scale: float) -> str:
    colour = _COLOURS.get(REDUCE if span.track == REDUCE else span.name, _OTHER)
    pieces: list[tuple[int, int, float | None]] = [(span.start, span.end, None)]
    if span.name == "backward" and span.start < computed < span.end:
        pieces = [(span.start, computed, None), (computed, span.end, _PALE)]
    shapes = [title(f"{span.name}: {(span.end - span.start) / 1e6:.2f} ms")]
    for start, end, opacity in pieces:
        # A gap of background between neighbours, as long as there is anything left to see.
        width = f"{max((end - start) * scale - 0.5, 0.5):.1f}"
        x = f"{_LEFT + (start - begin) * scale:.1f}"
        shapes.append(element("rect", x=x, y=y, width=width, height=_ROW, fill=colour, fill_opacity=opacity))
    return element("g", *shapes)


def _legend() -> str:
    parts, x = [], _LEFT
    for words, colour, opacity in (
        ("forward", _COLOURS["forward"], None),
        ("backward", _COLOURS["backward"], None),
        ("its last gradient computed, waiting", _COLOURS["backward"], _PALE),
        ("optimizer", _COLOURS["optimizer"], None),
        ("reduction of a bucket", _COLOURS[REDUCE], None),
    ):
        sign = element("rect", x=x, y=8, width=12, height=12, fill=colour, fill_opacity=opacity)
        parts.append(sign + _text(x + 17, 18, words))
        x += 45 + 7 * len(words)
    return "\n".join(parts)


def _axis(y: float, longest: int, scale: float) -> str:
    step = next(step for step in _round_steps() if longest / step <= 12)
    parts = [element("path", d=f"M{_LEFT} {y}H{_WIDTH - 12}", stroke=_TEXT)]
    for tick in range(0, longest + 1, step):
        x = _LEFT + tick * scale
        label = f"{tick / 1e6:g}" + (" ms" if tick == 0 else "")
        mark = element("path", d=f"M{x:.1f} {y}v5", stroke=_TEXT)
        parts.append(mark + _text(x, y + 18, label, anchor="middle"))
    return "\n".join(parts)


def _round_steps() -> Iterator[int]:
    for power in range(3, 18):
        for leading in (1, 2, 5):
            yield leading * 10**power


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return text(words, x=f"{x:.1f}", y=f"{y:.1f}", fill=_TEXT, text_anchor=anchor, font_weight=weight)


def _begin(spans: Iterable[Span]) -> int:
    return min(span.start for span in spans)


def _covered(intervals: Sequence[tuple[int, int]]) -> int:
    """The length of the union."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
