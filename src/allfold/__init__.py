"""allfold: write a collective algorithm once, then prove it, price it, see it, and run it."""

# The package `algorithms` and the modules `schedule` and `verify` share their names with functions that users call. A
# module binds its name here when it is first loaded, so load them before the functions take the names.
from . import algorithms as _algorithms  # noqa: F401
from .communicator.messages import Message
from .engines.engine import ANY_TAG
from .engines.reference.replay import Replay, replay
from .errors import (
    AllfoldError,
    CollectiveTimeout,
    MismatchError,
    RankFailed,
    RankLost,
    ScheduleError,
    SharedMemoryError,
    UsageError,
)
from .launch.spawn import init, spawn, start
from .ops import Op, op
from .registry import algorithm, algorithms, schedule
from .schedule import Move, Schedule, copy, reduce
from .verify import Proof, verify
from .version import __version__

__all__ = [
    "ANY_TAG",
    "AllfoldError",
    "CollectiveTimeout",
    "Message",
    "MismatchError",
    "Move",
    "Op",
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
    "init",
    "op",
    "reduce",
    "replay",
    "schedule",
    "spawn",
    "start",
    "verify",
]
