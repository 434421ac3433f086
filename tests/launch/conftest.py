"""No test of the launcher leaves a file open. Each of its runs has a template of its own, but in test_repeated.py."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import pytest

from allfold.launch import supervise
from allfold.launch.template import Template

_PATIENCE_SECONDS = 20.0


def _open_files() -> dict[str, str]:
    """The descriptors of this process, and what each is."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the folder itself, which is closed by now
            continue
    return found


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = _open_files()
    yield
    # Fewer is fine: what an earlier test left to the garbage collector may go at any time. More may be there for a moment,
    # while a thread that has done its work ends.
    end = time.monotonic() + _PATIENCE_SECONDS
    while more := {number: file for number, file in _open_files().items() if number not in before}:
        gc.collect()
        assert time.monotonic() < end, f"left open: {more}"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def own_templates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.stem != "test_repeated":
        monkeypatch.setattr(supervise, "RepeatedTemplate", Template)
