"""The map of who wins where, as text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from string import ascii_uppercase

from rich.text import Text

from ...price.cost.plan import Plan, duration
from ...price.cost.sweep import Sweep
from ...view.svg_elements import FONT, QUIET, SENTENCE, SURFACE, element, hue_of, ink_on, picture, text, title, width_of
from ...wording import format_size

_WIDER = 1.2  # system fonts are wider than Helvetica


def letters(found: Sweep) -> dict[str, str]:
    """A letter for every algorithm that wins somewhere."""
    return {name: ascii_uppercase[place % 26] for place, name in enumerate(found.winners)}


def map_as_text(found: Sweep, color: bool = False) -> Iterator[Text | str]:
    """Sizes downwards, ranks to the right, a letter for the winner; then what the letters mean."""
    letter = letters(found)
    cell = max(4, *(len(f"{ranks:,}") + 1 for ranks in found.ranks))
    left = max(6, *(len(format_size(size)) for size in found.sizes))
    yield f"{found.collective}: who wins where"
    yield "ranks".ljust(left) + "".join(f"{ranks:>{cell},}" for ranks in found.ranks)
    for size in found.sizes:
        line = Text(format_size(size).ljust(left))
        for ranks in found.ranks:
            name = found.plans[ranks, size].winner.algorithm
            line.append(" " * (cell - 2))
            line.append(f" {letter[name]}", style=_style_of(name) if color else "")
        yield line
    yield ""
    for name in found.winners:
        cells = [key for key, plan in found.plans.items() if plan.winner.algorithm == name]
        sign = Text(letter[name], style=_style_of(name) if color else "")
        yield sign.append(f"  {name}, {len(cells)} of {len(found.plans)}", style="not bold default on default")


def _style_of(algorithm: str) -> str:
    """Its colour in all pictures, behind text that can be read on it: so the terminal's own background does not matter."""
    return f"bold {ink_on(hue_of(algorithm))} on {hue_of(algorithm)}"


def map_as_svg(found: Sweep) -> str:
    """The same as a picture; each cell has its times as a tooltip."""
    letter, names = letters(found), found.winners
    side, left, top = 44, 116, 64
    across, down = len(found.ranks) * side, len(found.sizes) * side
    heading = _heading(found)
    wide = max(left + across + 20, 360, ceil(40 + _WIDER * width_of(heading, SENTENCE, bold=True)))
    high = top + down + 34 + 22 * len(names)
    parts = [
        element("rect", width=wide, height=high, fill=SURFACE),
        text(heading, x=20, y=24, font_size=SENTENCE, font_weight="600"),
        text("bytes \\ ranks", x=left - 10, y=top - 12, text_anchor="end", fill=QUIET),
    ]
    for column, ranks in enumerate(found.ranks):
        middle = f"{left + column * side + side / 2:.1f}"
        parts.append(text(f"{ranks:,}", x=middle, y=top - 12, text_anchor="middle"))
    for row, size in enumerate(found.sizes):
        y = top + row * side
        baseline = f"{y + side / 2 + 5:.1f}"
        parts.append(text(format_size(size), x=left - 10, y=baseline, text_anchor="end"))
        for column, ranks in enumerate(found.ranks):
            plan = found.plans[ranks, size]
            name, x = plan.winner.algorithm, left + column * side
            color = hue_of(name)
            box = element("rect", x=x + 1, y=y + 1, width=side - 2, height=side - 2, rx=4, fill=color)
            label = {"x": f"{x + side / 2:.1f}", "y": baseline, "text_anchor": "middle", "font_weight": "600"}
            winner = text(letter[name], **label, fill=ink_on(color))
            parts.append(element("g", title(_tip(plan)), box, winner))
    for place, name in enumerate(names):
        y = top + down + 24 + 22 * place
        color = hue_of(name)
        box = element("rect", x=left, y=y, width=16, height=16, rx=3, fill=color)
        parts.append(box + text(f"{letter[name]}  {name}", x=left + 24, y=y + 13))
    return picture(wide, high, parts, **FONT)


def _heading(found: Sweep) -> str:
    return f"{found.collective} on {next(iter(found.plans.values())).topology.name}: who wins where"


def _tip(plan: Plan) -> str:
    first = f"{plan.ranks:,} ranks, {format_size(plan.size)}B"
    return "\n".join([first, *(f"{cost.algorithm}  {duration(cost.time)}" for cost in plan.costs[:4])])
