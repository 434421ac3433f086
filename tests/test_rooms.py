"""The house: imports go one way, down the floors, and no room grows too large to take in at a glance."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from each import each

SOURCE = Path(__file__).parents[1] / "src" / "allfold"

# From the lowest floor up. A room imports from those before it, and from itself. docs/architecture.md says why.
ROOMS = [
    "errors",
    "pure",
    "_native",
    "version",
    "wording",
    "documents",
    "chrome_trace",
    "files",
    "collectives",
    "division",
    "dtypes",
    "ops",
    "schedules",
    "symbolic",
    "patterns",
    "registry",
    "algorithms",
    "programs",
    "proof",
    "proved",
    "fabrics",
    "engines.engine",
    "engines.signature",
    "engines.buffer",
    "engines.taken",
    "engines.mailbox",
    "engines.last_words",
    "engines.reference",
    "engines.shared_memory",
    "engines.islands",
    "engines.stream",
    "engines.table",
    "engines.choose",
    "communicator",
    "launch",
    "price.topology",
    "price.cost",
    "price.simulate",
    "price",
    "search",
    "export",
    "view",
    "bench",
    "tune",
    "explain",
    "intercept",
    "check",
    "record",
    "learn",
    "studio",
    "torch",
    "testing",
    "ray",
    "mpi4py",
    "cli",
    "",  # allfold itself, and `python -m allfold`
]
# How a schedule shows itself: imported only when asked for.
UPWARDS = {("schedules", "view")}
WITHOUT_CIRCLES = ["engines.islands"]
MOST_FILES = 16
ONE_PER_ALGORITHM = "algorithms"  # families, one per file: as many as there are
LESSONS = SOURCE / "learn" / "lessons"  # what learners get and write: data, not modules


def room_of(module: str) -> str:
    """The longest name in ROOMS that a module lies under."""
    path = module.removeprefix("allfold").strip(".")
    if path == "__main__":
        return ""
    while path and path not in ROOMS:
        path = path.rpartition(".")[0]
    return path


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(file for file in SOURCE.rglob("*.py") if file.stat().st_size and LESSONS not in file.parents):
        parts = ("allfold", *file.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(part for part in parts if part != "__init__"), file


@cache
def names() -> set[str]:
    return {name for name, _ in modules()}


def imports(module: str, file: Path, with_types: bool = False) -> Iterator[str]:
    """The modules of allfold that a file imports, anywhere in the file; those only for types if `with_types`."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not with_types:
            skipped.update(part for line in node.body for part in ast.walk(line))
        if not isinstance(node, ast.ImportFrom) or node in skipped:
            continue
        base = [*package[: len(package) - node.level + 1]] if node.level else []
        target = ".".join([*base, *([node.module] if node.module else [])])
        if target.split(".")[0] == "allfold":
            for name in node.names:
                yield f"{target}.{name.name}" if f"{target}.{name.name}" in names() else target


@each(("module", "file"), [pytest.param(*one, id=one[0]) for one in modules()])
def test_imports_go_down(module: str, file: Path) -> None:
    own = room_of(module)
    wrong = [
        target
        for target in imports(module, file)
        if ROOMS.index(room_of(target)) > ROOMS.index(own) and (own, room_of(target)) not in UPWARDS
    ]
    assert not wrong, f"{module} ({own or 'allfold'}) imports {', '.join(wrong)} from above"


@pytest.mark.parametrize("room", WITHOUT_CIRCLES)
def test_a_room_has_no_import_circle(room: str) -> None:
    """Not even through imports that are only for types, or inside functions."""
    files = {module: file for module, file in modules() if module.startswith(f"allfold.{room}.")}
    assert files
    below = {module: set(imports(module, file, with_types=True)) & set(files) for module, file in files.items()}
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(f"the modules of {room} import each other: {' <- '.join(error.args[1])}")


def test_every_module_has_a_room() -> None:
    assert not [
        module for module, _ in modules() if not room_of(module) and module not in ("allfold", "allfold.__main__")
    ]


@pytest.mark.parametrize("folder", ["src/allfold", "native", "tests"])
def test_no_room_is_crowded(folder: str) -> None:
    root = SOURCE.parents[1] / folder
    for place in (root, *(one for one in root.rglob("*") if one.is_dir() and one.name != "__pycache__")):
        files = [one for one in place.iterdir() if one.suffix in (".py", ".cpp", ".hpp") and "__" not in one.name]
        if place.name != ONE_PER_ALGORITHM:
            assert len(files) <= MOST_FILES, f"{place.relative_to(root.parent)} has {len(files)} files"
