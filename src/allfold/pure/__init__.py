"""The computations of proofs and searches in Python: the engine's answers, where there is no engine.

Functions and constants have the names of the extension's, and `allfold._native` takes them from here. They are plain:
one instruction, edge or piece after the other where C++ does so, so that both give the same result to the last bit.
"""

import platform

from .clocks import first_unordered, needed_waits, rounds
from .conflicts import conflicts
from .cuts import can_pack, cuts_below, tightest_cut
from .folds import folds_of, versions
from .greedy import spread
from .pieces import rounds_of
from .symbols import fold_symbols, follow, order
from .trees import pack_trees

__all__ = [
    "CACHED_BYTES",
    "COPIES_IN_ROWS",
    "MOST_HANDED",
    "MOST_RANKS",
    "OPS",
    "WINDOW_BYTES",
    "can_pack",
    "conflicts",
    "cuts_below",
    "first_unordered",
    "fold_symbols",
    "folds_of",
    "follow",
    "needed_waits",
    "order",
    "pack_trees",
    "rounds",
    "rounds_of",
    "segment_bytes",
    "spread",
    "tightest_cut",
    "versions",
]

# As in native/collectives/program.hpp, for this architecture.
_IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
_SLOT_BYTES = 2**16 if _IS_ARM else 0
MOST_HANDED = 0 if _IS_ARM else 7
COPIES_IN_ROWS = not _IS_ARM
MOST_RANKS = 1024
WINDOW_BYTES = 2**20
CACHED_BYTES = 2**26
OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def segment_bytes(work_slots: int, one_area: bool) -> int:
    """The size of the work area that one segment uses."""
    least, most = 2**17, 2**19
    if _SLOT_BYTES:
        return min(max(_SLOT_BYTES * work_slots, least), most)
    if not one_area:
        return most
    return least if work_slots <= 8 else 2 * least
