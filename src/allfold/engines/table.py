"""Which engines there are, and which one a group of ranks gets. A new engine is a folder beside this and a line here.

Engines are imported when first asked for: one may need packages that are not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .. import _native
from ..errors import UsageError
from ..fabrics.fabric import Board
from ..wording import suggest
from .engine import Engine

ENGINES = {
    "shared_memory": ".shared_memory.engine",
    "reference": ".reference.engine",
    "islands": ".islands.meeting",
    "stream": "..cuda.engine",
}
"""The module of each engine, by name. It has `in_threads(ranks, timeout)`: an engine per rank, for ranks as threads.

One for arrays that are not in main memory has `over(engine)`: an engine that uses the given one for staging.
"""


def meet(rank: int, size: int, key: str, timeout: float, room: int | None = None) -> Engine:
    """The engine of a rank that is a process of its own, with all ranks that use the same key.

    `room`: how much of this process's address space the engine may take.
    """
    _native.require_engine("a communicator")
    from .shared_memory.engine import meet

    return meet(rank, size, key, timeout, room)


def meet_across(board: Board, timeout: float, room: int | None = None) -> Engine:
    """The engine of a rank whose run may span several hosts, with all ranks that meet on the same board."""
    _native.require_engine("a communicator")
    from .islands.meeting import meet

    return meet(board, timeout, room)


def in_threads(name: str, ranks: int, timeout: float) -> list[Engine]:
    """An engine per rank, for ranks that are threads of this process."""
    make: Callable[[int, float], list[Engine]] = _module(name).in_threads
    return make(ranks, timeout)


def over(name: str, engine: Engine) -> Engine:
    """An engine for arrays that are not in main memory; it alone uses the engine that it is given."""
    make: Callable[[Engine], Engine] = _module(name).over
    return make(engine)


def _module(name: str) -> Any:
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}; {suggest(name, ENGINES)}")
    return import_module(ENGINES[name], __package__)
