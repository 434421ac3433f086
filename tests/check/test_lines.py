"""The lines of a stack that belong to the user's program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allfold.intercept.lines import lines_of, place


def _placed(path: Path, text: str, **names: Any) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    exec(compile(text, str(path), "exec"), names)
    return names


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_are_not_the_users_program(tmp_path: Path, folder: str) -> None:
    package = tmp_path / "env/lib/python3/" / folder / "package/inner.py"
    library = _placed(package, "def called(): return place()", place=place)
    program = _placed(tmp_path / "train.py", "def main():\n    return called()", called=library["called"])
    assert lines_of(program["main"]())[0] == (str(tmp_path / "train.py"), 2, "main")
    assert all("inner.py" not in file for file, _, _ in lines_of(program["main"]()))
