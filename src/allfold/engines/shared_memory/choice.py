"""The default choices: the algorithm of a call that names none, and how ordinary arrays are moved.

On shared memory nothing beats reading straight from everyone. Up to a few KiB everybody reads everything (`naive`: one
wait); beyond that everybody reduces its own chunk and the others fetch it (`direct`: two waits, the fewest bytes). Both
fold every element over the ranks from left to right, so the choice never changes a bit of the result.

That is the built-in rule. Where `allfold tune` has measured, its findings replace the rule (`tuning`), with the same
promise: unless the user gave it up, no algorithm that folds in another order is chosen for a reduction. The way in
which ordinary arrays are moved never changes a bit of the result, whatever is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from platform import machine
from typing import NamedTuple

from ... import _native
from ...collectives import NOTHING, find_collective
from ...registry import schedule
from ...schedules import Schedule
from ...symbolic import State

ALWAYS = 2**63

# From which size on, for every rank, the kernel fetches. On a Xeon a line that its owner has just written is slow to
# fetch: with arrays written before every call (`allfold bench --fresh`, 4 ranks on 2 cores) the work area takes 0.63 to
# 0.89 of the time for 512 KiB in all, and 0.96 to 1.27 for 4 MiB. On ARM this was not measured on an idle machine.
_FETCHED_PER_RANK = 512 * 1024 if machine() == "x86_64" else 128 * 1024
# Between two ranks nobody else fetches from the same process, so it pays earlier, if the array was not written since: at
# 64 KiB it takes 0.57 of the time for all_gather, 0.77 for all_to_all, 0.94 for scatter (Xeon, 2 cores). With arrays written
# before every call it takes 1.0, 1.3 and 1.2 of the time, which is still no more than other libraries need there.
_FETCHED_BETWEEN_TWO = (
    {"all_gather": 32 * 1024, "all_to_all": 32 * 1024, "scatter": 64 * 1024} if machine() == "x86_64" else {}
)

Choice = tuple[int, str, bool]
"""(largest size of the whole buffer in bytes, algorithm, True to access arrays in shared memory directly)"""


class Way(NamedTuple):
    """A way to move ordinary arrays."""

    limit: int
    """The largest size of the whole buffer, in bytes."""
    fetches: bool
    """The kernel reads them out of their processes. Where it may not, or if this is false, they pass through the work
    areas, and the rest applies."""
    handed: int = _native.MOST_HANDED
    """Push: the largest number of peers to which a rank writes its results. With more peers, pull: they read them."""
    segment: int = 0
    """The bytes of a work area that one segment uses; 0 for the extension's `segment_bytes`."""
    in_rows: bool = _native.COPIES_IN_ROWS
    """Arrays that are larger than the caches are read in several rows side by side."""

    @property
    def manner(self) -> Manner:
        return self.handed, self.segment, self.in_rows


Manner = tuple[int, int, bool]
"""The parameters with which programs for ordinary arrays are compiled: handed, segment and in_rows of a `Way`."""

# From this size on, peers access arrays in shared memory directly; below, copying them costs less than the second wait.
REACH_FROM = 16 * 1024


def choices(collective: str, ranks: int) -> list[Choice]:
    """The built-in choices by size, smallest first. Measured on machines with 2 and 16 cores."""
    promise = find_collective(collective)
    if not promise.carries_data:
        return [(ALWAYS, "direct", False)]
    if promise.combines_all and promise.in_place:
        small = "driver" if promise.rooted else "naive"
        return [(_naive_up_to(ranks), small, False), (ALWAYS, "direct", True)]
    usual = "driver" if promise.rooted else "direct"
    return [(REACH_FROM, usual, False), (ALWAYS, usual, True)]


@lru_cache(maxsize=1024)
def folds_from_left(collective: str, algorithm: str, ranks: int) -> bool:
    """True if every element of the result is ((x₀ ⊕ x₁) ⊕ x₂) ⊕ …, whatever the root, or if data is only moved.

    If it is true of two algorithms, one may take over from the other as messages grow, and no result changes a bit.
    """
    promise = find_collective(collective)
    if not promise.reduces or promise.idempotent or algorithm in {name for _, name, _ in choices(collective, ranks)}:
        return True  # tests check this for the rule itself
    reference = ("all_reduce", "naive") if promise.combines_all else (collective, choices(collective, ranks)[-1][1])
    from_left = _expressions(schedule(*reference, ranks))
    roots = range(ranks) if promise.rooted else (None,)
    return all(_expressions(schedule(collective, algorithm, ranks, root)) == from_left for root in roots)


def _expressions(built: Schedule) -> set[int]:
    """The different expressions, as hashes, that compute elements of the result."""
    state = State(built).run_to_end()
    ends = built.promise.ends_with(built.ranks, built.root, built.chunks) != NOTHING
    return set(state.bits.reshape(built.ranks, state.width)[:, : built.chunks][ends].tolist())


def ways(collective: str, ranks: int) -> list[Way]:
    """The built-in ways to move ordinary arrays by size, smallest first: the size from which the kernel fetches.

    The other defaults depend on the architecture and are the extension's (`native/collectives/program.hpp`).

    A fetch copies once where the work area copies twice. But each fetch is a system call that goes page by page, and
    two fetches from one process at once slow each other down. So it pays where everybody fetches chunks of some size
    from everybody and nothing comes back; an all_reduce through the work area stays in the caches.
    """
    promise, fetched_from = find_collective(collective), 0
    if ranks == 2 and collective in _FETCHED_BETWEEN_TWO:
        fetched_from = _FETCHED_BETWEEN_TWO[collective]
    elif promise.sliced and not promise.ends.root_only:
        fetched_from = _FETCHED_PER_RANK * ranks
    return [Way(fetched_from - 1, False), Way(ALWAYS, True)] if fetched_from else [Way(ALWAYS, False)]


def way_at(size: int, rows: Sequence[Way]) -> Way:
    return next(way for way in rows if size <= way.limit)


def _naive_up_to(ranks: int) -> int:
    """The cost of everybody reading everything grows with the ranks, so the more ranks, the lower this limit."""
    return max(1024, 64 * 1024 // ranks)
