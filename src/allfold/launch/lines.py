"""The line of a user's program at which a rank is: frames of allfold, of Python and of installed packages are left out."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Sequence

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOLDERS = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# Functions between a user's line and the one that it calls: torch's decorators, and those of `allfold.testing.faults`.
_WRAPPERS = ("wrapper", "acting", "inner", "decorate_context")

Frame = tuple[str, int, str]  # file, line, function


def is_installed(file: str) -> bool:
    """True for files of Python and of installed packages."""
    return os.path.abspath(file).startswith(_FOLDERS)


def users_line(frames: Sequence[Frame]) -> str:
    """`test_sum.py:9 in work: comm.barrier()`: the innermost of these frames that is the user's; the innermost is first."""
    file, line, function = frames[_innermost(frames) or 0]
    source = linecache.getline(file, line).strip()
    return f"{shown(file)}:{line} in {function}" + (f": {source}" if source else "")


def call_at(frames: Sequence[Frame]) -> tuple[str, str, int] | None:
    """The call of allfold or of torch.distributed that the user's innermost line is in: its name, and that file and line."""
    innermost = _innermost(frames)
    for file, _, function in reversed(frames[:innermost]):
        if function not in _WRAPPERS:
            is_ours = file.startswith(_OWN) or f"{os.sep}torch{os.sep}distributed{os.sep}" in file
            return (function, *frames[innermost or 0][:2]) if is_ours else None
    return None


def shown(file: str) -> str:
    """The path as users would write it."""
    try:
        inside = os.path.relpath(file)
    except ValueError:  # on another drive of Windows
        return file
    return file if inside.startswith("..") else inside


def _innermost(frames: Sequence[Frame]) -> int | None:
    """The index of the innermost frame that is the user's."""
    for index, (file, _, _) in enumerate(frames):
        if not file.startswith((_OWN, "<")) and not is_installed(file):
            return index
    return None
