"""An all_reduce as a picture that moves: an SVG for the head of the README, with no script in it. `gallery.py` makes it.

On the left the ranks in a circle, on the right what they hold: numbers that add up, in one cell per chunk. All that moves
is moved by CSS, which stops where the reader has asked for less motion; then the result is shown. The numbers, who sends
what when, and the sentences are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from math import cos, pi, sin

from allfold.registry import find_algorithm
from allfold.schedules import Schedule
from allfold.symbolic import State
from allfold.view.phases import phases_of
from allfold.view.svg_elements import Value, element, number, picture, text, title
from allfold.view.text import moves_as_text
from allfold.view.tokens import TOKENS

_BEGIN, _STEP, _END = 1.4, 1.7, 2.6  # seconds: before the first step, each step, and with the result
_GO, _COME, _MERGED = 0.1, 0.62, 0.86  # when numbers leave, arrive, and are one with what is there, as parts of a step
_ALWAYS = "0%"
_FONT = "Helvetica, Arial, sans-serif"
_RANKS = TOKENS["ranks"]
_GROUND = {"light": TOKENS["light"]["surface"], "dark": "#0d1117"}  # as GitHub's own page: the README stands there


def _theme(name: str) -> dict[str, str]:
    names = {
        "ink": "ink", "soft": "ink-2", "line": "line-2", "cell": "cell", "reduce": "reduce", "copy": "copy",
        "good": "good", "done": "good-soft",
    }  # fmt: skip
    return {"ground": _GROUND[name], **{ours: TOKENS[name][token] for ours, token in names.items()}}


_WIDE, _HIGH, _LEFT, _TOP = 58.0, 44.0, 330.0, 74.0
_CENTRE, _RADIUS, _SPOT = (140.0, 164.0), 84.0, 19.0


def moving(schedule: Schedule, theme: str = "light") -> str:
    """The picture of an all_reduce between a few ranks, for a light or a dark page."""
    film = _Film(schedule, theme)
    parts = [*film.ranks(), *film.cells(), *film.chips(), *film.words()]
    bottom = _TOP + schedule.ranks * _HIGH + 54
    width = _LEFT + film.width * _WIDE + 24
    head = f"{schedule.collective} by {schedule.algorithm}, {schedule.ranks} ranks, step by step"
    return picture(
        width,
        bottom,
        [
            title(head),
            element("desc", escape(moves_as_text(schedule))),
            element("style", film.styles()),
            element("rect", width=width, height=bottom, rx=8, fill=film.colours["ground"]),
            *parts,
        ],
        role="img",
        font_family=_FONT,
        font_size=12,
        fill=film.colours["ink"],
    )


@dataclass
class _Film:
    schedule: Schedule
    theme: str
    width: int = 0
    colours: dict[str, str] = field(default_factory=dict)
    _frames: dict[str, str] = field(default_factory=dict)
    """Names of animations by what they do, so that each is written once."""

    def __post_init__(self) -> None:
        self.width = self.schedule.chunks + self.schedule.scratch
        self.colours = _theme(self.theme)
        self.seconds = _BEGIN + self.schedule.steps * _STEP + _END

    # Time ------------------------------------------------------------------------------------------------------------

    def _at(self, step: int, part: float) -> str:
        """A moment of a step, counted from 0, as CSS says it; `part` beyond 1 is in the next step."""
        return f"{number(100 * (_BEGIN + (step + part) * _STEP) / self.seconds)}%"

    def _animated(self, frames: str) -> str:
        return self._frames.setdefault(frames, f"a{len(self._frames)}")

    def _after(self, steps: int) -> str:
        """The moment when what these steps brought has arrived."""
        return self._at(steps - 1, _MERGED) if steps else _ALWAYS

    def _shown(self, begin: str, end: str | None) -> str:
        """The class of what is seen between two moments; None: to the end, and where nothing moves."""
        frames = "" if begin == _ALWAYS else f"{_ALWAYS}{{opacity:0}}"
        frames += f"{begin}{{opacity:1}}" + ("" if end is None else f"{end}{{opacity:0}}")
        name = self._animated(frames + f"100%{{opacity:{int(end is None)}}}")
        return f"s {name}" if end else f"s {name} last"

    def styles(self) -> str:
        rules = [".s,.m{opacity:0}.last{opacity:1}", "@media (prefers-reduced-motion: no-preference){"]
        for frames, name in self._frames.items():
            rules += [f"@keyframes {name}{{{frames}}}", f".{name}{{animation:{name} {number(self.seconds)}s infinite}}"]
        return "\n".join([*rules, ".s{animation-timing-function:step-end}", "}"])

    # What is drawn ---------------------------------------------------------------------------------------------------

    def _spot(self, rank: int) -> tuple[float, float]:
        angle = 2 * pi * rank / self.schedule.ranks - 3 * pi / 4
        return _CENTRE[0] + _RADIUS * cos(angle), _CENTRE[1] + _RADIUS * sin(angle)

    def _moves(self) -> Iterator[tuple[int, int, int, int, int, bool]]:
        """(step, chunk, source, destination, into, reduces)"""
        for number_, step in enumerate(self.schedule):
            for move in step:
                yield number_, move.chunk, move.source, move.destination, move.into, move.reduces

    def ranks(self) -> Iterator[str]:
        """The circle: who sends to whom, and dots that travel there."""
        travels: dict[tuple[int, int], dict[int, bool]] = {}
        for step, _, source, destination, _, reduces in self._moves():
            if source != destination:
                travels.setdefault((source, destination), {})[step] = reduces
        for source, destination in travels:
            (x, y), (to_x, to_y) = self._spot(source), self._spot(destination)
            yield element("line", x1=x, y1=y, x2=to_x, y2=to_y, stroke=self.colours["line"], stroke_width=2)
        for (source, destination), steps in travels.items():
            (x, y), (to_x, to_y) = self._spot(source), self._spot(destination)
            for kind, wanted in (("reduce", True), ("copy", False)):
                when = [step for step, reduces in steps.items() if reduces is wanted]
                if when:
                    name = self._journey(when, to_x - x, to_y - y)
                    yield element("circle", class_=f"m {name}", cx=x, cy=y, r=7, fill=self.colours[kind])
        for rank in range(self.schedule.ranks):
            x, y = self._spot(rank)
            look: dict[str, Value] = {
                "fill": self.colours["ground"],
                "stroke": _RANKS[self.theme][rank],
                "stroke_width": 5,
            }
            yield element("circle", cx=x, cy=y, r=_SPOT, **look)
            yield self._label(str(rank), x, y + 5, font_size=15, font_weight="bold")

    def _journey(self, steps: Iterable[int], right: float, down: float) -> str:
        """Wait at the source, be seen, go, arrive, be gone; once in each of these steps."""
        home, there = "transform:none", f"transform:translate({number(right)}px,{number(down)}px)"
        frames = "0%{opacity:0}"
        for step in steps:
            frames += f"{self._at(step, 0)}{{opacity:0;{home}}}{self._at(step, _GO)}{{opacity:1;{home}}}"
            frames += f"{self._at(step, _COME)}{{opacity:1;{there}}}{self._at(step, _COME + 0.01)}{{opacity:0;{there}}}"
        return self._animated(frames + "100%{opacity:0}")

    def cells(self) -> Iterator[str]:
        """The content of every cell, from one change to the next."""
        for chunk in range(self.width):
            yield self._label(str(chunk), self._x(chunk) + _WIDE / 2 - 3, _TOP - 8, fill=self.colours["soft"])
        yield self._label("chunk", _LEFT - 16, _TOP - 8, text_anchor="end", fill=self.colours["soft"])
        for rank in range(self.schedule.ranks):
            yield self._label(f"rank {rank}", _LEFT - 16, self._y(rank) + 24, text_anchor="end")
            colour = _RANKS[self.theme][rank]
            yield element("rect", x=_LEFT - 10, y=self._y(rank) + 11, width=4, height=16, rx=2, fill=colour)
        for rank in range(self.schedule.ranks):
            for chunk in range(self.width):
                x, y = self._x(chunk), self._y(rank)
                yield element("rect", x=x, y=y, width=_WIDE - 6, height=_HIGH - 6, rx=6, fill=self.colours["cell"])
                held = self._held(rank, chunk)
                for place, (first, parts) in enumerate(held):
                    end = self._after(held[place + 1][0]) if place + 1 < len(held) else None
                    if parts:
                        yield from self._content(rank, chunk, parts, self._shown(self._after(first), end))

    def _held(self, rank: int, chunk: int) -> list[tuple[int, list[int]]]:
        """From which number of steps on a cell holds the contributions of which ranks."""
        found: list[tuple[int, list[int]]] = []
        for done, state in enumerate(_states(self.schedule)):
            parts = state[rank][chunk]
            if not found or found[-1][1] != parts:
                found.append((done, parts))
        return found

    def _content(self, rank: int, chunk: int, parts: list[int], shown: str) -> Iterator[str]:
        x, y = self._x(chunk), self._y(rank)
        complete = len(parts) == self.schedule.ranks
        inside = [self._label(self._amount(parts, chunk), x + _WIDE / 2 - 3, y + 24, font_size=16)]
        if complete:
            look: dict[str, Value] = {"fill": self.colours["done"], "stroke": self.colours["good"], "stroke_width": 1.5}
            inside.insert(0, element("rect", x=x, y=y, width=_WIDE - 6, height=_HIGH - 6, rx=6, **look))
        inside[-1:-1] = self._quilt(x, y, parts)
        yield element("g", *inside, class_=shown)

    def _quilt(self, x: float, y: float, parts: list[int]) -> Iterator[str]:
        """The ground of a number, as on the page (web/src/views/quilt.tsx): the colours of the ranks whose parts are in it."""
        wide, high = (_WIDE - 10) / self.schedule.ranks, _HIGH - 10
        for one in parts:
            place: dict[str, Value] = {"x": x + 2 + one * wide, "width": wide, "fill": _RANKS[self.theme][one]}
            yield element("rect", **place, y=y + 2, height=high, opacity=0.22)
            yield element("rect", **place, y=y + 2 + high - 5, height=5)

    def chips(self) -> Iterator[str]:
        """The tiles that travel, with what the source held when they left; where they arrive, both numbers side by side."""
        states = list(_states(self.schedule))
        for step, chunk, source, destination, into, reduces in self._moves():
            if source == destination:
                continue
            right, down = (into - chunk) * _WIDE, (destination - source) * _HIGH
            coming, there = states[step][source][chunk], states[step][destination][into]
            amount = self._amount(coming, chunk)
            tile = self._tile(self._x(chunk), self._y(source), coming, amount)
            yield element("g", *tile, class_=f"m {self._journey([step], right, down)}")
            merged = f"{self._amount(there, chunk)} + {amount}" if reduces else amount
            both = sorted({*coming, *there}) if reduces else coming
            shown = self._shown(self._at(step, _COME), self._after(step + 1))
            yield element("g", *self._tile(self._x(into), self._y(destination), both, merged), class_=shown)

    def _amount(self, parts: list[int], chunk: int) -> str:
        return str(sum(_given(one, chunk) for one in parts))

    def _tile(self, x: float, y: float, parts: list[int], words: str) -> Iterator[str]:
        look: dict[str, Value] = {"fill": self.colours["cell"], "stroke": self.colours["ink"], "stroke_width": 1.5}
        yield element("rect", x=x, y=y, width=_WIDE - 6, height=_HIGH - 6, rx=6, **look)
        yield from self._quilt(x, y, parts)
        yield self._label(words, x + _WIDE / 2 - 3, y + 24, font_size=13 if "+" in words else 16, font_weight="bold")

    def words(self) -> Iterator[str]:
        """The sentence of every step, and a bar of the steps done."""
        schedule, end = self.schedule, _TOP + self.schedule.ranks * _HIGH
        yield text(f"{schedule.collective} by {schedule.algorithm}", x=24, y=32, font_size=16, font_weight="bold")
        for words, begin, last in self._sentences():
            yield text(words, class_=self._shown(begin, last), x=24, y=end + 22, font_size=13)
        for step in range(schedule.steps):
            bar: dict[str, Value] = {"x": 24 + step * 22, "y": end + 34, "width": 18, "height": 4, "rx": 2}
            yield element("rect", **bar, fill=self.colours["line"])
            yield element("rect", **bar, fill=self.colours["good"], class_=self._shown(self._after(step + 1), None))

    def _sentences(self) -> Iterator[tuple[str, str, str | None]]:
        """The sentences, and from when until when each is shown."""
        schedule = self.schedule
        yield f"Everybody has {schedule.chunks} numbers and wants the sums.", _ALWAYS, self._at(0, 0)
        declared = find_algorithm(schedule.collective, schedule.algorithm).phases
        for phase in phases_of(schedule, declared):
            step = phase["first"]
            for sentence, same in groupby(phase["sentences"]):
                many = len(list(same))
                yield f"{phase['name']}: {sentence}", self._at(step, 0), self._at(step + many, 0)
                step += many
        yield "Everybody has all sums.", self._at(schedule.steps, 0), None

    def _label(self, words: str, x: float, y: float, **look: Value) -> str:
        return text(words, x=x, y=y, **{"text_anchor": "middle", **look})

    def _x(self, chunk: int) -> float:
        return _LEFT + chunk * _WIDE

    def _y(self, rank: int) -> float:
        return _TOP + rank * _HIGH


def _given(rank: int, chunk: int) -> int:
    """The number that a rank brings: one digit, the same as on the page (web/src/amounts.ts)."""
    return 1 + (rank * 4 + chunk * 5) % 9


def _states(schedule: Schedule) -> Iterator[list[list[list[int]]]]:
    """By rank and chunk: whose contributions are there, before the first step and after each."""
    state, width = State(schedule), schedule.chunks + schedule.scratch
    while True:
        yield [[state.contributors(rank, chunk) for chunk in range(width)] for rank in range(schedule.ranks)]
        if state.done:
            return
        state.advance()
