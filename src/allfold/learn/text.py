"""A lesson's text, with its figures computed: blocks of prose, pictures and tables, which a terminal, a Markdown file or a
site each show in their own way.

In a text, `{{ expression }}` becomes the value of the expression. A block of code in the language `figure` is an
expression for a schedule, and becomes its picture; one with the ranks' own numbers (`in_numbers`) is played where pictures
can be played, and text elsewhere. In the language `table`, one for rows of cells, the first of which is
the head; in the language `computed`, one for lines of text. `figures.py` has the words of expressions. What is in a block
of the language `terminal`, `drawn` or `studio` is prose for those who read it there, where pictures look different.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import fill

from ..schedules import Schedule
from .figures import InNumbers, Rows, compute, show

WIDTH = 120
PLAYED = "studio"
PLACES = ("terminal", "drawn", PLAYED)
"""Text, figures in a Markdown file or on the site, and pictures that can be played."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


@dataclass(frozen=True)
class Prose:
    """Markdown."""

    text: str
    only: str | None = None
    """One of `PLACES`, if it is for readers there only."""


@dataclass(frozen=True)
class Picture:
    schedule: Schedule
    values: str | None = None
    """The numbers that its ranks bring, in a picture that is played."""


@dataclass(frozen=True)
class TextTable:
    rows: Rows


Block = Prose | Picture | TextTable


def blocks(text: str) -> list[Block]:
    """The text in its parts, all figures computed."""
    found: list[Block] = []
    end = 0
    for fence in _FENCE.finditer(text):
        language, body = fence.groups()
        if language not in ("figure", "table", "computed", *PLACES):
            continue
        _add_prose(found, text[end : fence.start()])
        end = fence.end()
        if language in PLACES:
            found.append(Prose(_reflowed(body.strip()), language))
            continue
        value = compute(body)
        if isinstance(value, InNumbers):
            found += [Picture(*value), *(_code(value.as_text(), place) for place in PLACES if place != PLAYED)]
        elif language == "figure":
            found.append(Picture(value))
        elif language == "table":
            found.append(TextTable(value))
        else:
            found.append(_code(value))
    _add_prose(found, text[end:])
    return found


def read_in(place: str, found: list[Block]) -> list[Block]:
    """The blocks for a reader at this place."""

    def is_here(one: Block) -> bool:
        if isinstance(one, Prose):
            return one.only in (None, place)
        return place == PLAYED or not (isinstance(one, Picture) and one.values)

    return list(filter(is_here, found))


def _code(text: str, only: str | None = None) -> Prose:
    return Prose(f"```text\n{text}\n```", only)


def _add_prose(found: list[Block], text: str) -> None:
    if text.strip():
        found.append(Prose("\n\n".join(map(_reflowed, text.strip().split("\n\n")))))


def _reflowed(paragraph: str) -> str:
    """The paragraph with its figures computed; its lines then have other lengths, so it is wrapped again."""
    computed = filled(paragraph)
    if computed == paragraph or paragraph.startswith(("|", "    ")) or "```" in paragraph:
        return computed
    items = re.split(r"\n(?=- |\d+\. )", computed)
    indents = [" " * len(match[0]) if (match := re.match(r"- |\d+\. ", item)) else "" for item in items]
    lines = (
        fill(" ".join(item.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for item, indent in zip(items, indents, strict=True)
    )
    return "\n".join(lines)


def filled(text: str) -> str:
    """The text with every `{{ expression }}` computed."""
    return _INLINE.sub(lambda match: show(compute(match[1])), text)


def as_markdown(found: list[Block], picture: str) -> tuple[str, dict[str, str]]:
    """One Markdown file and its pictures, by their file names: `picture` is how these begin."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for block in read_in("drawn", found):
        if isinstance(block, Prose):
            parts.append(block.text)
        elif isinstance(block, TextTable):
            head, *rows = block.rows
            lines = [head, ["---"] * len(head), *rows]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        else:
            name = f"{picture}_{len(pictures) + 1}.svg"
            pictures[name] = block.schedule.to_svg()
            what = f"{block.schedule.collective} by {block.schedule.algorithm}, {block.schedule.ranks} ranks"
            parts.append(f"![{what}, step by step]({name})")
    return "\n\n".join(parts) + "\n", pictures
