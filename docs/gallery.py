"""Make docs/gallery.md and its figures: every built-in algorithm, step by step. `make gallery` runs this.

A test compares the committed files with what this file makes, so that no figure is older than its algorithm.
"""

from __future__ import annotations

from pathlib import Path

from moving import moving

import allfold as af
from allfold.collectives import COLLECTIVES
from allfold.registry import find_algorithm
from allfold.view.svg import figure

HERE = Path(__file__).parent
RANKS = 4

_HEAD = """\
# Every algorithm, step by step

`make gallery` draws this page from the schedules themselves. `allfold show NAME --svg FILE` draws the same figure for any
algorithm, including your own; `allfold show NAME --html FILE` makes an interactive page. Each row is a rank, each column a
chunk. Each cell has one mark per rank, which is filled once that rank's contribution has arrived. Where data is only copied,
the cell shows which chunk it holds.

[Documentation index](index.md)

Three all_reduce algorithms side by side:

![naive, driver and ring, step by step](gallery/naive-driver-ring.svg)
"""


def pages() -> dict[str, str]:
    """All files of the gallery, by their names in docs/."""
    three = [af.schedule("all_reduce", name, RANKS) for name in ("naive", "driver", "ring")]
    found = {"gallery/naive-driver-ring.svg": figure(three), "gallery/ring.svg": figure(three[2:])}
    for theme in ("light", "dark"):
        found[f"gallery/ring-moving-{theme}.svg"] = moving(three[2], theme)
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
