"""The program of docs/ray.md, and what happens without Ray."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/ray.md"


def test_the_program_on_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("ray.util.collective", reason="needs ray: make test-frameworks")
    program, printed = re.findall(
        r"```python\n(.*?)```.*?```console\n\$ python sum.py\n(.*?)```", PAGE.read_text(), re.S
    )[0]
    (tmp_path / "sum.py").write_text(program)
    done = subprocess.run([sys.executable, "sum.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    lines = done.stdout.splitlines()  # with some of Ray's own
    assert [line for line in lines if line.startswith("[")] == printed.splitlines(), done.stdout + done.stderr


def test_without_ray_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith(("ray.", "allfold.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"allfold.ray needs ray \(pip install 'allfold\[ray\]'\)"):
        importlib.import_module("allfold.ray")
