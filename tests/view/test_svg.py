"""The figures: well-formed, with as many marks and arrows as the schedule has contributions and moves."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from each import each

import allfold as af
from allfold.cli import main
from allfold.cli.plan.map import map_as_svg
from allfold.collectives import COLLECTIVES, NOTHING
from allfold.price.cost.sweep import sweep
from allfold.price.simulate.simulate import simulate
from allfold.price.topology.gpu_servers import dgx_h100
from allfold.symbolic import State
from allfold.view import svg_elements
from allfold.view.svg import WIDTH, figure
from allfold.view.svg_elements import width_of
from allfold.view.timeline import timeline_as_svg

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]
DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def grids(text: str) -> list[ElementTree.Element]:
    """The grids of a figure, in order: the innermost groups that have cells."""
    found = ElementTree.fromstring(text).iter(f"{SVG}g")
    return [
        group
        for group in found
        if any((path.get("class") or "").startswith("cells") for path in group.findall(f"{SVG}path"))
    ]


def count(grid: ElementTree.Element, *classes: str) -> int:
    """How many squares, arrows or boxes of these classes a grid has."""
    total = 0
    for element in grid.iter():
        if element.get("class") in classes:
            total += (element.get("d") or "M").count("M")
    return total


@each(("collective", "name"), EVERY)
@each("ranks", [1, 2, 5])
def test_marks_and_arrows_are_those_of_the_schedule(collective: str, name: str, ranks: int) -> None:
    schedule = af.schedule(collective, name, ranks)
    drawn = grids(figure([schedule]))
    assert len(drawn) == schedule.steps + 1
    state, width = State(schedule), schedule.chunks + schedule.scratch
    for step, grid in enumerate(drawn):
        if step:
            state.advance()
        holding = [
            (rank, chunk)
            for rank in range(ranks)
            for chunk in range(width)
            if state.datum[rank * width + chunk] != NOTHING
        ]
        expected = sum(len(state.contributors(*cell)) for cell in holding)
        assert count(grid, "marks held", "marks new", "marks held done", "marks new done") == expected
        if schedule.promise.reduces:
            assert count(grid, "marks none") == ranks * ranks * width - expected
        assert count(grid, "cells", "cells new", "cells done", "cells new done") == ranks * width
        assert count(grid, "moves") == count(grid, "heads") == (len(schedule.step(step - 1)) if step else 0)
        assert count(grid, "flaw") == 0
    wanted = schedule.promise.ends_with(ranks, schedule.root, schedule.chunks) != NOTHING
    assert count(drawn[-1], "cells done", "cells new done") == wanted.sum()


def test_new_marks_are_what_arrived() -> None:
    start, first, *_ = grids(figure([af.schedule("all_reduce", "ring", 4)]))
    assert count(start, "marks new") == 0
    assert count(first, "marks new") == 4 and count(first, "cells new") == 4


def test_a_wrong_step_is_flagged_and_the_figure_ends_there() -> None:
    def twice(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, 1, 0)]
        yield [af.reduce(0, 1, 0)]
        yield [af.copy(0, 0, 1)]

    text = figure([af.schedule("all_reduce", twice, 2)])
    drawn = grids(text)
    assert [count(grid, "flaw") for grid in drawn] == [0, 0, 1]
    assert "rank 0 chunk 0 has rank 1 twice" in text and "step 2 ✗" in text


def test_what_is_lacking_at_the_end_is_flagged_there() -> None:
    def half(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, 1, 0)]

    text = figure([af.schedule("all_reduce", half, 2)])
    assert [count(grid, "flaw") for grid in grids(text)] == [0, 1]
    assert "rank 1 chunk 0 lacks rank 0" in text


def test_it_says_what_it_shows() -> None:
    text = figure([af.schedule("all_reduce", "ring", 4)])
    root = ElementTree.fromstring(text)
    assert root.findtext(f"{SVG}title") == "all_reduce by ring, 4 ranks"
    assert "step 6  2:0→1  3:1→2  0:2→3  1:3→0" in (root.findtext(f"{SVG}desc") or "")
    assert "6 steps · 24 messages · 6 S sent in all · 1.5 S through the busiest port" in text
    assert "font-family" in text and not re.search("url\\(|@font-face|href", text)
    assert float(root.get("width") or 0) <= WIDTH


def fills(elements: Iterable[ElementTree.Element]) -> set[str]:
    return {fill for element in elements if (fill := element.get("fill"))}


@each(("collective", "name"), EVERY)
def test_the_legend_has_the_colours_of_the_marks(collective: str, name: str) -> None:
    root = ElementTree.fromstring(figure([af.schedule(collective, name, 4)]))
    marks = fills(element for element in root.iter() if (element.get("class") or "").startswith("marks"))
    explained = fills(
        element
        for group in root.findall(f"{SVG}g")
        if group.find(f"{SVG}text") is not None and len(group.findall(f"{SVG}text")) == 1
        for element in group.findall(f"{SVG}rect")
        if element.get("stroke") is None
    )
    assert explained == marks


def test_words_fit_into_their_cells() -> None:
    for ranks in (4, 12):
        (grid,) = grids(figure([af.schedule("all_to_all", "direct", ranks)]))[1:]
        boxes = [element for element in grid.iter(f"{SVG}rect") if "marks" in (element.get("class") or "")]
        words = [element for element in grid.iter(f"{SVG}text") if "→" in (element.text or "")]
        assert len(boxes) == len(words) == ranks**2
        for box, word in zip(boxes, words, strict=True):
            assert width_of(word.text or "", 8) + 2 <= float(box.get("width") or 0)


def test_a_wrong_schedule_says_so_in_words_too() -> None:
    def cut_short(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, 1, 0)]
        yield [af.copy(0, 0, 1)]

    text = figure([af.schedule("all_reduce", cut_short, 3)])
    assert "✗ cut_short(ranks=3): " in (ElementTree.fromstring(text).findtext(f"{SVG}desc") or "")


def test_titles_of_narrow_maps_are_not_cut() -> None:
    picture = ElementTree.fromstring(map_as_svg(sweep("all_reduce", lambda _: dgx_h100(1), [8], [1024])))
    title = next(picture.iter(f"{SVG}text"))
    assert float(title.get("x") or 0) + width_of(title.text or "", 16, bold=True) < float(picture.get("width") or 0)


def test_a_crowd_of_messages_does_not_hide_what_is_below() -> None:
    timeline = simulate(af.schedule("all_reduce", "naive", 16), dgx_h100(2), 2**20)
    picture = ElementTree.fromstring(timeline_as_svg(timeline))
    (crowd,) = picture.findall(f"{SVG}g")
    assert float(crowd.get("opacity") or 1) < 0.7
    outside = [one for one in picture.findall(f"{SVG}polygon") if "critical" not in (one.get("class") or "")]
    assert len(list(crowd)) > 200 and not outside
    assert "polygon.critical { fill-opacity: 0; }" in (picture.findtext(f"{SVG}style") or "")


def test_names_are_escaped() -> None:
    def odd(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, 1, 0)]

    odd.__name__ = "</svg><script>&"
    root = ElementTree.fromstring(figure([af.schedule("all_reduce", odd, 2)]))
    assert root.findtext(f"{SVG}title") == "all_reduce by </svg><script>&, 2 ranks"
    assert not list(root.iter(f"{SVG}script"))


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_columns_are_as_asked(columns: int) -> None:
    drawn = grids(figure([af.schedule("all_reduce", "ring", 4)], columns=columns))
    lefts = {(grid.get("transform") or "").split("(")[1].split()[0] for grid in drawn}
    assert len(lefts) == columns


def test_what_nobody_could_read_is_refused() -> None:
    with pytest.raises(af.UsageError, match=r"would have 2,064,384 marks.*take fewer ranks, or use the page"):
        figure([af.schedule("all_reduce", "ring", 32)])
    with pytest.raises(af.UsageError, match="at least 1"):
        figure([af.schedule("all_reduce", "ring", 4)], columns=0)
    ring = af.schedule("all_reduce", "ring", 4)
    for options, says in (
        ({"topology": 5}, "expected a topology, .*, not 5"),
        ({"size": "1M"}, "a buffer of '1M' bytes"),
    ):
        with pytest.raises(af.UsageError, match=says):
            ring.to_html(**options)
    with pytest.raises(af.UsageError, match="a figure with '2' grids in a row"):
        ring.to_svg(columns="2")  # type: ignore[arg-type]


def test_show_draws_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "three.svg"
    assert main(("show", "naive", "driver", "ring", "--svg", str(out))) == 0
    schedules = [af.schedule("all_reduce", name, 4) for name in ("naive", "driver", "ring")]
    assert out.read_text(encoding="utf-8") == figure(schedules)
    assert len(grids(out.read_text(encoding="utf-8"))) == sum(schedule.steps + 1 for schedule in schedules)
    assert af.schedule("all_reduce", "ring", 4).to_svg() == figure(schedules[2:])
    assert not capsys.readouterr().out


def test_figures_have_the_colours_of_the_page() -> None:
    style = (files("allfold.view") / "static" / "page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]{3,6})\b", style[style.index(":root{") :].partition("}")[0]))
    for name, color in svg_elements.TOKENS["light"].items():
        if color.startswith("#"):
            short = "#" + color[1::2] if color[1::2] == color[2::2] else color
            assert light[name] in (color, short), name


def test_every_algorithm_has_a_colour_of_its_own() -> None:
    for collective in COLLECTIVES:
        names = af.algorithms(collective)
        for theme in ("light", "dark"):
            colors = [svg_elements.TOKENS["algorithms"][name][theme] for name in names]
            assert len(set(colors)) == len(names), collective


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_moving_picture_is_the_schedule(theme: str) -> None:
    schedule = af.schedule("all_reduce", "ring", 4)
    drawn = (DOCS / "gallery" / f"ring-moving-{theme}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(drawn)
    assert len(drawn) < 70_000 and "prefers-reduced-motion" in drawn and "href" not in drawn
    assert not {"script", "image", "animate", "a"} & {one.tag.removeprefix(SVG) for one in root.iter()}
    # One chip per move between ranks; at the end, and where nothing moves, every cell of the buffer has the sum.
    chips = [one for one in root.iter(f"{SVG}g") if (one.get("class") or "").startswith("m ")]
    assert len(chips) == sum(move.source != move.destination for step in schedule for move in step)
    last = [one for one in root.iter(f"{SVG}g") if (one.get("class") or "").endswith(" last")]
    held = [label.text for one in last for label in one.iter(f"{SVG}text")]
    columns = range(schedule.chunks + schedule.scratch)
    for chunk in range(schedule.chunks):
        total = str(sum(1 + (rank * 4 + chunk * 5) % 9 for rank in range(4)))
        assert held.count(total) >= 4
    assert len(held) <= 4 * len(columns)
    used = set(re.findall(r"animation:(a\d+) ", drawn))
    assert used == set(re.findall(r"@keyframes (a\d+)", drawn)) == set(re.findall(r' class="[sm] (a\d+)', drawn))


def test_the_gallery_is_what_the_algorithms_make_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    assert spec is not None and spec.loader is not None
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    made = gallery.pages()
    for name, text in made.items():
        there = DOCS / name
        assert there.is_file() and there.read_text(encoding="utf-8") == text, f"docs/{name} is old: run make gallery"
    assert {f"gallery/{path.name}" for path in (DOCS / "gallery").iterdir()} == set(made) - {"gallery.md"}
