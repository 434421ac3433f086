"""Ranks of tests come from the processes that conftest.py keeps."""

from __future__ import annotations

import os
from pathlib import Path

from launched import launched

import allfold as af


def grandparent(_: object) -> int:
    """The process that the template of this rank was forked from."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_templates_are_forked_from_the_process_that_is_kept() -> None:
    """A fresh template imports everything again: half a second of processor time for each run, three seconds with torch."""
    found = {*af.spawn(grandparent, 2), *launched(grandparent, 2)}
    assert len(found) == 1 and found != {os.getpid()}
