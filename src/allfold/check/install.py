"""Starts the check when a script creates its first group. `allfold_autoload` installs it while torch is imported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..intercept.dispatch import watch, watch_waits
from ..intercept.install import on_world

_MEETING = timedelta(seconds=300)
_is_installed = False


def install() -> None:
    """Check the calls of all groups that this process creates. Calling it again has no effect."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        on_world(_begin, end_check)


def _begin(group: Any, store: Any) -> None:
    from .checker import begin

    checker = begin(store, group.rank(), group.size(), _MEETING)
    watch("check", checker)
    watch_waits(checker.wait_for_tensor)


def end_check() -> None:
    """Stop checking calls, and mark this rank as one that makes no more."""
    from .checker import end

    watch("check", None)
    watch_waits(None)
    end()
