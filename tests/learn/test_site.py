"""The pages of the site, and the check of its links; `make test-site` builds the whole of it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from docs_programs import docs_program

from allfold.learn.figures import compute, show
from allfold.learn.lesson import lessons


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return docs_program("site")


def test_every_lesson_has_a_page(site: ModuleType, tmp_path: Path) -> None:
    site.write_pages(tmp_path)
    for lesson in lessons():
        text = (tmp_path / f"pages/lessons/{lesson.label}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {lesson.title}") and "{{" not in text
        for one in lesson.predictions:  # folded up, after its question
            answer = show(compute(one.answer))
            assert re.search(rf"</summary><p>{re.escape(answer)}\. ", text), one.name
            assert f'data-shown="{answer}"' in text
        for picture in re.findall(r"\]\((\w+\.(?:svg|html))\)", text):
            assert (tmp_path / "pages/lessons" / picture).is_file()
        assert lesson.read("solution.py").rsplit("\n\n\n", 1)[1] not in text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="other.html">', "index.html links to other.html, which does not exist"),
        ('<a href="page.html#nowhere">', "index.html links to page.html#nowhere, which has no such heading"),
        ('<script src="https://example.org/a.js"></script>', "index.html loads https://example.org/a.js"),
        ('<img src="missing.svg">', "index.html links to missing.svg, which does not exist"),
        ('<a href="page.html#here"> <a href="https://example.org"> <a href="#top"><p id="top">', None),
    ],
)
def test_faults_of_a_site_are_found(site: ModuleType, body: str, says: str | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(body)
    (tmp_path / "page.html").write_text('<h2 id="here">')
    assert site.faults_of(tmp_path) == ([] if says is None else [says])
