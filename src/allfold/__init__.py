"""allfold: write a collective algorithm once, then prove it, price it, see it, and run it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator.messages import Message
    from .engines.engine import ANY_TAG
    from .engines.reference.replay import Replay, replay
    from .errors import (
        AllfoldError,
        BoundError,
        CollectiveTimeout,
        DeviceError,
        MismatchError,
        RankFailed,
        RankLost,
        ScheduleError,
        SharedMemoryError,
        UsageError,
    )
    from .find.found import Found
    from .find.together import FoundTogether
    from .launch.spawn import init, spawn, start
    from .ops import Op, op
    from .registry import Phase, algorithm, algorithms, register
    from .schedule import Move, Schedule, copy, load, reduce
    from .verify import Proof, verify
    from .version import __version__

if TYPE_CHECKING:
    # After what is imported from modules of these names: type checkers take the last meaning of a name.
    from .find.find import find
    from .registry import schedule

__all__ = [
    "ANY_TAG",
    "AllfoldError",
    "BoundError",
    "CollectiveTimeout",
    "DeviceError",
    "Found",
    "FoundTogether",
    "Message",
    "MismatchError",
    "Move",
    "Op",
    "Phase",
    "Proof",
    "RankFailed",
    "RankLost",
    "Replay",
    "Schedule",
    "ScheduleError",
    "SharedMemoryError",
    "UsageError",
    "__version__",
    "algorithm",
    "algorithms",
    "copy",
    "find",
    "init",
    "load",
    "op",
    "reduce",
    "register",
    "replay",
    "schedule",
    "spawn",
    "start",
    "verify",
]

# Where each name comes from. Modules are loaded when a name is first used: loading all of them takes longer than NumPy.
_HOMES = {
    "communicator.messages": ("Message",),
    "engines.engine": ("ANY_TAG",),
    "engines.reference.replay": ("Replay", "replay"),
    "errors": (
        "AllfoldError",
        "BoundError",
        "CollectiveTimeout",
        "DeviceError",
        "MismatchError",
        "RankFailed",
        "RankLost",
        "ScheduleError",
        "SharedMemoryError",
        "UsageError",
    ),
    "find.find": ("find",),
    "find.found": ("Found",),
    "find.together": ("FoundTogether",),
    "launch.spawn": ("init", "spawn", "start"),
    "ops": ("Op", "op"),
    "registry": ("Phase", "algorithm", "algorithms", "register", "schedule"),
    "schedule": ("Move", "Schedule", "copy", "load", "reduce"),
    "verify": ("Proof", "verify"),
    "version": ("__version__",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package `algorithms` and the modules `schedule` and `verify` share their names with functions that users call.

    A module that is loaded binds its name here; these names stay those of the functions.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _HOME_OF):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (__name__,)  # functions of users that refer to it are pickled


sys.modules[__name__].__class__ = _Package
