"""All engines, by name. A new engine is a folder beside this and a line here.

Engines are imported when first asked for: one may need packages that are not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import UsageError
from ..wording import suggest
from .engine import Engine, Processes

ENGINES = {
    "shared_memory": ".shared_memory.engine",
    "reference": ".reference.engine",
    "islands": ".islands.meeting",
    "stream": ".stream.engine",
}
"""The module of each engine, by name. It has one or more of these functions, which say what the engine is for:

`in_processes(ranks, timeout)`: the engine of this rank, for ranks that are processes. `ranks` are `Processes`.
`in_threads(ranks, timeout)`: an engine per rank, for that many ranks as threads of this process.
`over(engine)`: for arrays that are not in main memory, an engine that uses the given one for staging.

An engine that serves processes that name none also has `compare_names(ranks, name, timeout)`: a rank that names another
engine says so where the ranks of this one meet. All of them raise if their names differ.
"""

_FOR = {
    "in_processes": "ranks that are processes",
    "in_threads": "ranks that are threads",
    "over": "arrays that are not in main memory",
}


def in_processes(name: str, ranks: Processes, timeout: float) -> Engine:
    """The engine of this rank, for ranks that are processes."""
    return _call(name, "in_processes", ranks, timeout)  # type: ignore[no-any-return]


def in_threads(name: str, ranks: int, timeout: float) -> list[Engine]:
    """An engine per rank, for ranks that are threads of this process."""
    return _call(name, "in_threads", ranks, timeout)  # type: ignore[no-any-return]


def over(name: str, engine: Engine) -> Engine:
    """An engine for arrays that are not in main memory; it alone uses the engine that it is given."""
    return _call(name, "over", engine)  # type: ignore[no-any-return]


def compare_names(met: str, ranks: Processes, name: str, timeout: float) -> object:
    """Compare the engine that this rank names with those of all ranks, where ranks of the engine `met` meet.

    Returns what must be kept until the ranks have met.
    """
    return _module(met).compare_names(ranks, name, timeout)


def check(name: object, function: str = "in_processes") -> None:
    """Raise for an unknown engine, and for one that is for something else."""
    __tracebackhide__ = True
    if not isinstance(name, str) or name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}; {suggest(name, _with(function))}")
    if not hasattr(_module(str(name)), function):
        raise UsageError(f"the engine {name!r} is not for {_FOR[function]}; known: {', '.join(_with(function))}")


def _call(name: str, function: str, *arguments: Any) -> Any:
    check(name, function)
    return getattr(_module(name), function)(*arguments)


def _module(name: str) -> Any:
    return import_module(ENGINES[name], __package__)


def _with(function: str) -> list[str]:
    """The engines that are for this, by name."""
    return [name for name in ENGINES if hasattr(_module(name), function)]
