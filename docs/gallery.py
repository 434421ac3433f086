"""Make docs/gallery.md and the figures that it shows: every algorithm there is, step by step. `make gallery` runs this.

A test holds what is committed to what is made here, so that no figure can fall behind its algorithm.
"""

from __future__ import annotations

from pathlib import Path

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.registry import find_algorithm
from allfold.view.svg import figure

HERE = Path(__file__).parent
RANKS = 4

_HEAD = """\
# Every algorithm, step by step

Made by `make gallery` from the schedules themselves; `allfold show NAME --svg FILE` makes such a figure of any algorithm,
yours too, and `allfold show NAME --html FILE` a page on which it plays. A row is a rank, a column a chunk. In each cell
every rank has its place, which is filled once that rank's contribution is there; what is only copied bears its number.

Three ways to an all_reduce beside each other:

![naive, driver and ring, step by step](gallery/naive-driver-ring.svg)
"""


def pages() -> dict[str, str]:
    """All files of the gallery, by their names in docs/."""
    three = [af.schedule("all_reduce", name, RANKS) for name in ("naive", "driver", "ring")]
    found = {"gallery/naive-driver-ring.svg": figure(three), "gallery/ring.svg": figure(three[2:])}
    text = [_HEAD]
    for collective in COLLECTIVES.values():
        text += [f"## {collective.name}", "", f"{collective.summary[0].upper()}{collective.summary[1:]}.", ""]
        for name in af.algorithms(collective.name):
            path = f"gallery/{collective.name}-{name}.svg"
            found[path] = figure([af.schedule(collective.name, name, RANKS)])
            summary = find_algorithm(collective.name, name).summary
            text += [f"### {collective.name} by {name}", "", summary, "", f"![{collective.name} by {name}]({path})", ""]
    return {"gallery.md": "\n".join(text), **found}


def main() -> None:
    made = pages()
    (HERE / "gallery").mkdir(exist_ok=True)
    for old in (HERE / "gallery").glob("*.svg"):
        if f"gallery/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
