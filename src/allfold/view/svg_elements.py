"""SVG as text: elements and their attributes, words that cannot break out of them, and the frame of a picture.

Attributes are written in the order given: `font_size=9` becomes font-size="9", `class_` class, and None nothing at all.
Numbers are written to a hundredth; whoever wants other digits gives a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

Value = str | float | None


def element(tag: str, *inside: str, **attributes: Value) -> str:
    """An element with what is inside of it, which is SVG already."""
    opening = f"<{tag}{_written(attributes)}"
    return f"{opening}>{''.join(inside)}</{tag}>" if inside else f"{opening}/>"


def text(words: str, **attributes: Value) -> str:
    return element("text", escape(words), **attributes)


def title(words: str) -> str:
    """What is said of the element around it when the pointer rests there."""
    return element("title", escape(words))


def group(parts: Iterable[str], **attributes: Value) -> list[str]:
    """Elements below each other, with attributes that all of them have."""
    return [f"<g{_written(attributes)}>", *parts, "</g>"]


def placed(x: float, y: float) -> str:
    """The value of `transform` that moves an element there."""
    return f"translate({number(x)} {number(y)})"


def picture(wide: float, high: float, parts: Iterable[str], **attributes: Value) -> str:
    """A whole file, to be shown in its own size."""
    width, height = number(wide), number(high)
    frame = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height, **attributes}
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg"{_written(frame)}>', *parts, "</svg>", ""])


def number(value: float) -> str:
    """A coordinate, to a hundredth and no longer than it must be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _written(attributes: dict[str, Value]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
