"""The lines of the user's program that make a call, found in a microsecond."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
from types import CodeType, FrameType

_ALLFOLD = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_FOLDERS_OF_PACKAGES = frozenset(("site-packages", "dist-packages"))
_MOST_FRAMES, _MOST_LINES = 200, 6
_LONGEST = 2 * _MOST_LINES  # of a place

Line = tuple[str, int, str]
"""File, line, function."""
Place = tuple[int, ...]
"""A stack in a form that is cheap to make and to compare; `lines_of` converts it."""

_USER, _FRAMEWORK, _MACHINERY = 0, 1, 2
_kinds: dict[int, int] = {}
_codes: dict[int, CodeType] = {}  # holds them, so that no other code object gets the same number


def place(skip: int = 1) -> Place:
    """The current stack of the user's program, the innermost line first."""
    own: list[int] = []
    others: list[int] = []
    frame: FrameType | None = sys._getframe(skip)
    _collect(frame, own, others)
    if own or others:
        return tuple(own or others)
    # On a thread of autograd: the stack of the main thread.
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    _collect(frame, own, others)
    return tuple(own or others)


def place_of_main() -> Place:
    """The current stack of the main thread."""
    own: list[int] = []
    others: list[int] = []
    _collect(sys._current_frames().get(threading.main_thread().ident or 0), own, others)
    return tuple(own or others)


def _collect(frame: FrameType | None, own: list[int], others: list[int]) -> None:
    kinds = _kinds
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        number = id(code)
        kind = kinds.get(number)
        if kind is None:
            kind = kinds[number] = _kind(code)
            _codes[number] = code
        if kind == _USER:
            own += number, frame.f_lasti
            if len(own) == _LONGEST:
                return
        elif kind == _FRAMEWORK and len(others) < _LONGEST:
            others += number, frame.f_lasti
        frame = frame.f_back


def lines_of(place: Place) -> list[Line]:
    """The lines of a place."""
    found = []
    for number, instruction in zip(place[::2], place[1::2], strict=True):
        code = _codes[number]
        found.append((code.co_filename, _line(code, instruction), code.co_name))
    return found


def _line(code: CodeType, instruction: int) -> int:
    for begin, end, line in code.co_lines():
        if begin <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def _kind(code: CodeType) -> int:
    name = code.co_filename
    if name.startswith(("<frozen", "<__array_function__", "<eval_with_key>")):
        return _MACHINERY
    path = name
    with contextlib.suppress(OSError):
        path = os.path.abspath(name)
    torch = sys.modules.get("torch")
    folder = os.path.dirname(torch.__file__ or "") if torch is not None else ""
    if (folder and path.startswith(folder + os.sep)) or path.startswith(_ALLFOLD + os.sep):
        return _MACHINERY
    # Packages may lie in folders of another environment, of the user or of the system.
    if path.startswith(_INSTALLED) or not _FOLDERS_OF_PACKAGES.isdisjoint(path.split(os.sep)):
        return _FRAMEWORK
    return _MACHINERY if path.startswith(_LIBRARY) else _USER
