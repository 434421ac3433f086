"""What the pages say that a command prints is what it prints: every line, in order, with gaps only where they say so."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import PAGES, ROOT

from allfold.cli import main
from allfold.registry import REGISTRY

CORRECTED = "range(ranks - 1):  # once"
# The others print times, run until they are stopped, or start what a test cannot check.
# What starts programs on the pages with how-tos.
STARTERS = {"python": [], "torchrun": ["-m", "torch.distributed.run"], "allfold": ["-m", "allfold"]}
COMMANDS = ("list", "show", "verify", "compare", "export", "plan", "find", "simulate")


def commands_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, with the lines that they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        words, *quoted = part.splitlines()
        yield words.partition("  #")[0], quoted


def assert_printed(quoted: list[str], printed: str, what: str) -> None:
    """The lines as they are quoted, without gaps except after `…`. A line that ends with `…` may be longer."""
    real, at, may_skip = [line.rstrip() for line in printed.splitlines()], 0, False
    for line in (line.rstrip() for line in quoted):
        if line.strip() == "…":
            may_skip = True
            continue
        wanted = line.removesuffix("…").rstrip() if line.endswith("…") else line
        places = range(at, len(real)) if may_skip else range(at, min(at + 1, len(real)))
        found = next((n for n in places if real[n] == wanted or (wanted != line and real[n].startswith(wanted))), None)
        assert found is not None, f"{what}: {line!r} is not what comes next: {real[at : at + 3]}"
        at, may_skip = found + 1, False
    assert may_skip or at == len(real), f"{what}: after that it prints {real[at : at + 3]}"


def write_file(block: str) -> None:
    """A block of code that begins with the name of a file, or that defines a function that pages use without one."""
    named = re.match(r"# (\w+)\.py\n", block) or re.search(r"def (two_hops)\(", block)
    if named:
        Path(f"{named[1]}.py").write_text(block, encoding="utf-8")


@pytest.fixture(autouse=True)
def forget_what_pages_register() -> Iterator[None]:
    with REGISTRY.scope():
        yield


# One command each that takes seconds, for which there are tests of their own in tests/price and tests/search.
LONG = {"docs/find.md": "--groups 0,2,4,6 1,3,5,7", "docs/model.md": "--ranks 100000"}
IN_PART = [(page, LONG.get(page)) for page in PAGES]
WHOLE = [pytest.param(page, None, marks=pytest.mark.exhaustive, id=f"the whole of {page}") for page in LONG]


@pytest.mark.parametrize(("page", "without"), [*IN_PART, *WHOLE])
def test_the_output_in_the_pages_is_real(
    page: str, without: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if language == "json" and "allfold-topology" in block and (name := json.loads(block).get("name")):
            Path(f"{name}.json").write_text(block, encoding="utf-8")
        if language == "python":
            write_file(block)
        for words, quoted in commands_of(block) if language == "console" else ():
            command = shlex.split(words)
            if command[0] != "allfold" or command[1] not in COMMANDS or not quoted:
                continue
            if without is not None and without in words:
                continue
            status = main(command[1:])
            out, err = capsys.readouterr()
            assert_printed(quoted, out + re.sub("^note: .*\n", "", err, flags=re.MULTILINE), f"{page}: {words}")
            if status == 1 and command[1:3] == ["verify", "my_ring.py:my_ring"]:
                # Then the page corrects the file, here under a path that was not loaded yet.
                right = Path("my_ring.py").read_text(encoding="utf-8").replace("range(ranks):  # once", CORRECTED)
                (tmp_path / "right").mkdir()
                monkeypatch.chdir(tmp_path / "right")
                Path("my_ring.py").write_text(right, encoding="utf-8")


HOW_TOS = [page for page in PAGES if page.startswith("docs/howto-")]
# Every rank of theirs imports torch, to print what tests/hosts and the examples for torch print as well.
SLOW = ("docs/howto-operator.md", "docs/howto-pytorch.md")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.exhaustive) if page in SLOW else page for page in HOW_TOS]
)
def test_the_programs_of_the_how_tos_print_what_they_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, block in re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
        if language == "python":
            write_file(block)
        for words, quoted in commands_of(block) if language == "console" else ():
            name, *rest = shlex.split(words)
            if not quoted or name not in STARTERS or (name == "allfold" and rest[0] != "run"):
                continue
            command = [sys.executable, *STARTERS[name], *rest]
            variables = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=120)
            assert done.returncode == 0, done.stderr
            assert_printed(quoted, done.stdout, f"{page}: {words}")
