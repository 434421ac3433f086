"""The documentation is consistent: links work, named files and modules exist, the index is complete."""

from __future__ import annotations

import os
import re
from pathlib import Path

from each import each

ROOT = Path(__file__).parents[2]
NOT_OURS = {"build", "dist", "node_modules", "static"}  # and those whose name begins with a dot
# A path may be written from the root of the repository, from the package, or from the folder of the page that names it.
FROM = ("", "src/allfold", "src", "native", "web/src")


def _files(*endings: str) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(ROOT):
        # Not entered: they have a hundred times as many files.
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.startswith(".")]
        found += [Path(folder, name) for name in files if name.endswith(endings) and not name.startswith(".")]
    return sorted(found)


PAGES = [str(path.relative_to(ROOT)) for path in _files(".md")]
SOURCES = [
    str(path.relative_to(ROOT)) for path in _files(".py", ".pyi", ".cpp", ".hpp", ".cmake", ".sh", ".ts", ".tsx")
]


def _prose(page: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub's anchors."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_there_are_pages() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "examples/README.md"} <= set(PAGES)


@each("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"(?:\]\(|\bsrc(?:set)?=\")([^)\"\s]+)[)\"]", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), f"{page} links to {target}, which does not exist"
        assert not anchor or anchor in _anchors(there), f"{page} links to {target}, which has no such heading"


@each("page", PAGES)
def test_the_files_that_are_named_exist(page: str) -> None:
    places = [*(ROOT / start for start in FROM), (ROOT / page).parent]
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cpp|hpp|md|sh|tsx?|css|svg))(?::\w+)?`", _prose(page)):
        assert any((place / path).exists() for place in places), f"{page} names {path}, which does not exist"


@each("page", PAGES)
def test_the_modules_that_are_named_exist(page: str) -> None:
    for name in re.findall(r"`(allfold(?:\.\w+)+)", _prose(page)):
        place, names = ROOT / "src/allfold", name.split(".")[1:]
        while names and ((place / names[0]).is_dir() or (place / f"{names[0]}.py").is_file()):
            place /= names.pop(0)
        if names:  # something that the module defines or imports
            modules = [*place.glob("__init__.py*"), *place.parent.glob(f"{place.name}.py")]
            text = "".join(module.read_text(encoding="utf-8") for module in modules)
            assert re.search(rf"\b{names[0]}\b", text), f"{page}: there is no {name}"


def test_the_files_that_comments_name_exist() -> None:
    paths = re.compile(
        r"(?<![\w./-])((?:src/allfold|tests|native|docs|benchmarks|examples)/[\w./-]*\w\.(?:py|cpp|hpp|md|sh))\b"
    )
    stale = {
        f"{source} names {path}"
        for source in [*SOURCES, "Makefile", "CMakeLists.txt", "pyproject.toml"]
        for path in paths.findall((ROOT / source).read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert not stale


@each("page", PAGES)
def test_no_list_runs_together(page: str) -> None:
    found = re.findall(r"^.*[.!?)`] - [A-Z].*$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert not found, f"{page}: items of a list on one line: {found}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs/index.md"
    listed = {
        (index.parent / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)\)", index.read_text(encoding="utf-8"))
    }
    lessons = "src/allfold/learn/lessons/"  # they are listed by allfold learn
    pages = [page for page in PAGES if page != "docs/index.md" and not page.startswith(lessons)]
    missing = [page for page in pages if (ROOT / page).resolve() not in listed]
    assert not missing, f"docs/index.md does not list {', '.join(missing)}"


def test_every_page_of_the_documentation_links_to_the_index() -> None:
    for page in [page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"] + ["README.md"]:
        assert re.search(r"\]\((?:docs/)?index\.md\)", (ROOT / page).read_text(encoding="utf-8")), f"{page} does not"


def test_everything_that_names_the_version_names_the_same() -> None:
    found = {
        file: re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[:1]
        for file, pattern in {
            "src/allfold/version.py": r'^__version__ = "(.+)"$',
            "pyproject.toml": r'^version = "(.+)"$',
            "CITATION.cff": r"^version: (.+)$",
            "CHANGELOG.md": r"^## (\S+)$",
            "docs/install.md": r"^allfold (\d\S*)$",
        }.items()
    }
    assert all(version == found["pyproject.toml"] != [] for version in found.values()), found


def test_the_page_about_frameworks_shows_the_programs_that_are_run() -> None:
    page = (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")
    programs = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples/frameworks").glob("*.py")}
    shown = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert sorted(shown) == sorted(programs.values())
    assert all(f"examples/frameworks/{name}\n" in page for name in programs)  # in a console block
