"""SVG as text: elements and attributes, escaped text and its width, the frame of a picture, and the colours of figures.

Attributes are written in the order given: `font_size=9` becomes font-size="9", `class_` class, and None nothing at all.
Numbers are written to a hundredth; for other precision, pass a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .tokens import TOKENS

Value = str | float | None

_LIGHT: dict[str, str] = TOKENS["light"]

INK, QUIET, RULE, EMPTY = (_LIGHT[name] for name in ("ink", "ink-2", "line-2", "mark-empty"))
PAPER, SURFACE = _LIGHT["paper"], _LIGHT["surface"]
LANE = _LIGHT["lane"]  # of a rank in space and time
REDUCE, COPY = _LIGHT["reduce"], _LIGHT["copy"]  # moves have no hue: hues are for ranks and algorithms
WARM = _LIGHT["warm"]  # the critical path
ACCENT, ACCENT_GROUND = _LIGHT["accent"], _LIGHT["accent-soft"]  # what came just now
GOOD, GOOD_GROUND = _LIGHT["good"], _LIGHT["good-soft"]  # as promised
HELD, HELD_DONE = _LIGHT["accent-pale"], _LIGHT["good-pale"]  # what was there before, paler than what came just now
WRONG = _LIGHT["bad"]


TEXT, SENTENCE = (float(TOKENS["sizes"][name].removesuffix("px")) for name in ("text", "sentence"))
FONT: dict[str, Value] = {"font_family": "system-ui, sans-serif", "font_size": TEXT, "fill": INK}
"""Attributes of the text of a picture."""


def hue_of(algorithm: str) -> str:
    """The colour of an algorithm by its name; of one that is not built in, that of the text."""
    return str(TOKENS["algorithms"].get(algorithm, {"light": INK})["light"])


def ink_on(color: str) -> str:
    """Black or white, whichever can be read better on a colour."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    return "#000" if light / 0.05 > 1.05 / light else "#fff"


def element(tag: str, *inside: str, **attributes: Value) -> str:
    """An element with its content, which is already SVG."""
    opening = f"<{tag}{_written(attributes)}"
    return f"{opening}>{''.join(inside)}</{tag}>" if inside else f"{opening}/>"


def text(words: str, **attributes: Value) -> str:
    return element("text", escape(words), **attributes)


def title(words: str) -> str:
    """The tooltip of the element around it."""
    return element("title", escape(words))


def group(parts: Iterable[str], **attributes: Value) -> list[str]:
    """Elements in a group, one per line, with attributes for all of them."""
    return [f"<g{_written(attributes)}>", *parts, "</g>"]


def placed(x: float, y: float) -> str:
    """The value of `transform` that moves an element there."""
    return f"translate({number(x)} {number(y)})"


def picture(wide: float, high: float, parts: Iterable[str], **attributes: Value) -> str:
    """A whole file, shown at its own size."""
    width, height = number(wide), number(high)
    frame = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height, **attributes}
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg"{_written(frame)}>', *parts, "</svg>", ""])


def number(value: float) -> str:
    """A coordinate, to a hundredth, as short as possible."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _written(attributes: dict[str, Value]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )


# Helvetica's widths in thousandths of the font size; Arial and Liberation Sans have the same.
_WIDTHS = {
    222: "'ijl",
    278: " !,./:;I[\\]ft|·",
    333: "()-`r",
    389: "*",
    500: "Jcksvxyz",
    556: "#$0123456789?L_abdeghnopqu",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "@—→",
}
_WIDTH_OF = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
_ELSE, _BOLD = 600, 1.08


def width_of(text: str, size: float, bold: bool = False) -> float:
    """The width of a line of text, in the units of its font size."""
    thousandths = sum(_WIDTH_OF.get(letter, _ELSE) for letter in text)
    return thousandths / 1000 * size * (_BOLD if bold else 1.0)
