"""Make the site: all lessons, the gallery and the documentation in one folder that opens from disk. `make site` runs this.

    python docs/site.py pages FOLDER     writes what mkdocs builds the site from: Markdown, pictures, mkdocs.yml
    python docs/site.py check FOLDER     of the site that was built: all links lead somewhere, nothing is loaded from elsewhere

Files keep their places in the repository, so that links between them stay as they are. A file of code that a page links to
is copied too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from allfold.learn.course import after_of, text_of
from allfold.learn.figures import compute, show
from allfold.learn.lesson import Lesson, lessons
from allfold.learn.text import Block, Picture, as_markdown, filled, read_in
from allfold.view.html import icon, page_as_html
from allfold.view.page import page_of
from allfold.view.tokens import TOKENS

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    "web/README.md",
    "benchmarks/simgrid/README.md",
)
ABOUT = "about.md"
_ASSETS = ("site.js", "site.css")
_THEME = {"light": "default", "dark": "slate"}
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def lesson_page(lesson: Lesson) -> dict[str, str]:
    """One page, its pictures, and these again to be played, by their paths."""
    text, pictures = _illustrated(text_of(lesson), f"{lesson.label}_text")
    after, more = _illustrated(after_of(lesson), f"{lesson.label}_after")
    parts = [text, "## Predict first", "Commit to a number before you look at the answer.", *_predictions(lesson)]
    parts += [
        "## Then write it",
        f'<a href="../index.html#lesson={lesson.name}">Write it in your browser</a>, with nothing installed. On your machine, '
        f"`allfold learn start {lesson.number}` gives you the file, and `allfold learn check` judges it.",
    ]
    parts.append("\n".join(f"- `{one.function}`: {one.task}" for one in lesson.exercises))
    parts.append(f"```python\n{lesson.read('start.py').strip()}\n```")
    parts += [after.replace("## What you have seen", "## Afterwards"), *_neighbours(lesson)]
    path = f"lessons/{lesson.label}.md"
    files = {f"lessons/{name}": content for name, content in {**pictures, **more}.items()}
    return {path: "\n\n".join(parts) + "\n", **files}


def _illustrated(found: list[Block], picture: str) -> tuple[str, dict[str, str]]:
    """Markdown and its pictures. Under each of them is a link to the page on which it can be played."""
    text, pictures = as_markdown(found, picture)
    played = (block.schedule for block in read_in("drawn", found) if isinstance(block, Picture))
    for name, schedule in zip(list(pictures), played, strict=True):
        page = name.replace(".svg", ".html")
        pictures[page] = page_as_html(page_of(schedule, others=[], table_ranks=()))
        text = text.replace(f"({name})", f"({name})\n\n[Play it step by step]({page})")
    return text, pictures


def _predictions(lesson: Lesson) -> Iterator[str]:
    """`site.js` asks for a number before it shows the answer. Without JavaScript the answer is folded up."""
    for one in lesson.predictions:
        answer = compute(one.answer)
        facts = f'data-answer="{float(answer)!r}" data-within="{one.within!r}" data-shown="{escape(show(answer))}"'
        because = (
            f"<details><summary>The answer</summary><p>{escape(f'{show(answer)}. {filled(one.because)}')}</p></details>"
        )
        yield f'<div class="predict" {facts}>\n<p>{escape(one.question)}</p>\n{because}\n</div>'


def _neighbours(lesson: Lesson) -> list[str]:
    following = [one for one in lessons() if one.number == lesson.number + 1]
    return [f"Next: [{one.title}]({one.label}.md)" for one in following]


def overview() -> str:
    lines = [f"{one.number}. [{one.title}]({one.label}.md) ({one.minutes} minutes): {one.about}" for one in lessons()]
    how = (
        'Read here, and write <a href="../index.html#lessons">in your browser</a>, with nothing installed; or work in your '
        "terminal: `allfold learn` ([how it works](../docs/learn.md)) checks what you write."
    )
    return "\n".join(["# The course", "", how, "", *lines, ""])


def write_pages(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "pages"
    made = {"lessons/index.md": overview()}
    for lesson in lessons():
        made |= lesson_page(lesson)
    for path in (*PAGES, *(str(one.relative_to(ROOT)) for one in sorted((ROOT / "docs").glob("*.md")))):
        made[path] = (ROOT / path).read_text(encoding="utf-8")
    # The site begins with a page of its own (`site_page.py`), which takes the place of this one.
    made = {"index.md": "# allfold\n", **{_placed(path): _linked(path, text) for path, text in made.items()}}
    for path, text in made.items():
        _write(source / path, text)
    for path, text in made.items():
        _copy_linked(path, text, source)
    shutil.copytree(ROOT / "docs/gallery", source / "docs/gallery", dirs_exist_ok=True)
    for name in _ASSETS:
        shutil.copy(ROOT / "docs" / name, source / name)
    _write(source / "tokens.css", _tokens())
    _write(source / "icon.svg", icon())
    _write(folder / "mkdocs.yml", json.dumps(_settings(), indent=1))  # JSON is YAML
    print(f"{len(made)} files for the site are in {folder}")


def _tokens() -> str:
    """The colours of the page for Material's variables, by its names of the two themes."""
    names = {
        "--md-primary-fg-color": "surface",
        "--md-primary-bg-color": "ink",
        "--md-primary-bg-color--light": "ink-2",
        "--md-default-bg-color": "paper",
        "--md-default-fg-color": "ink",
        "--md-default-fg-color--light": "ink-2",
        "--md-default-fg-color--lighter": "line-2",
        "--md-default-fg-color--lightest": "line",
        "--md-typeset-color": "ink",
        "--md-typeset-a-color": "accent",
        "--md-accent-fg-color": "accent",
        "--md-code-bg-color": "cell",
        "--md-code-fg-color": "ink",
        "--md-footer-bg-color": "surface",
        "--md-footer-bg-color--dark": "surface",
        "--md-footer-fg-color": "ink",
        "--md-footer-fg-color--light": "ink-2",
        "--md-footer-fg-color--lighter": "ink-2",
    }
    rules = [
        f"""[data-md-color-scheme="{scheme}"] {{\n"""
        + "".join(f"  {theirs}: {TOKENS[kind][ours]};\n" for theirs, ours in names.items())
        + "}\n"
        for kind, scheme in _THEME.items()
    ]
    return "".join(rules)


def _placed(path: str) -> str:
    """The README is a page among others."""
    return ABOUT if path == "README.md" else path


def _linked(path: str, text: str) -> str:
    """The text with its links to the README changed accordingly."""

    def changed(link: re.Match[str]) -> str:
        target, sign, anchor = link[1].partition("#")
        leads = os.path.normpath(Path(path).parent / target)
        there = os.path.relpath(ABOUT, Path(path).parent) if target and leads == "README.md" else target
        return f"]({there}{sign}{anchor})"

    return _LINK.sub(changed, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy_linked(path: str, text: str, source: Path) -> None:
    """Files of the repository that a page links to and that are no pages."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in _LINK.findall(prose):
        file = os.path.normpath(Path(path).parent / target.partition("#")[0])
        there = source / file
        if re.match(r"[a-z]+:|#", target) or there.exists() or not (ROOT / file).is_file():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, there)


def _settings() -> dict[str, object]:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    sections: list[dict[str, object]] = []
    for head, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL):
        pages = [target for target in re.findall(r"^\| \[.*?\]\(([^)#]+\.md)\)", body, re.MULTILINE)]
        sections.append({head: [os.path.normpath(f"docs/{target}") for target in pages if target != "../README.md"]})
    course = ["lessons/index.md", *({f"{one.number}. {one.title}": f"lessons/{one.label}.md"} for one in lessons())]
    return {
        "site_name": "allfold",
        "docs_dir": "pages",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "favicon": "icon.svg",
            "logo": "icon.svg",
            "font": False,  # that of the reader: nothing is loaded from elsewhere
            "palette": [
                {"media": f"(prefers-color-scheme: {kind})", "scheme": scheme} for kind, scheme in _THEME.items()
            ],
            "features": ["navigation.tabs", "navigation.top", "content.code.copy"],
        },
        "plugins": [],  # no search: from disk it needs a script that Material loads from elsewhere
        "extra_javascript": ["site.js"],
        "extra_css": ["tokens.css", "site.css"],
        "markdown_extensions": ["attr_list", "md_in_html", "tables", "pymdownx.highlight", "pymdownx.superfences", {"toc": {}}],
        "nav": [{"Try it": "index.md"}, {"About": ABOUT}, {"Learn": course}, *sections, {"Index": "docs/index.md"}],
        "validation": {"nav": {"omitted_files": "ignore"}, "links": {"anchors": "ignore"}},
    }  # fmt: skip


# The site that was built ---------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """What a page can be linked to by, what it links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


def faults_of(site: Path) -> list[str]:
    """Links that lead nowhere, and what would be loaded from elsewhere."""
    pages: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name == "404.html":  # for servers, with their absolute addresses
            continue
        found += [f"{name} loads {one}" for one in page.loads if urlsplit(one).netloc]
        for one in (*page.links, *(load for load in page.loads if not urlsplit(load).netloc)):
            parts = urlsplit(one)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{name} links to {one}, which does not exist")
            elif there == site / "index.html":
                pass  # its fragments are places in the page, not headings (web/src/address.ts)
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                found.append(f"{name} links to {one}, which has no such heading")
    return found


def check(site: Path) -> int:
    faults = faults_of(site)
    missing = [one.label for one in lessons() if not (site / f"lessons/{one.label}.html").is_file()]
    faults += [f"there is no page for the lesson {one}" for one in missing]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("pages", "check"):
        sys.exit(f"expected: {sys.argv[0]} pages|check FOLDER")
    folder = Path(sys.argv[2]).resolve()
    sys.exit(check(folder) if sys.argv[1] == "check" else write_pages(folder))
