"""The programs in docs/, which are not in a package, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def docs_program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_of_allfold", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
