"""Proved programs: everything that ranks execute was checked first, down to each wait, whoever wrote the algorithm."""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import NamedTuple

from . import _native
from .errors import ScheduleError, UsageError
from .ops import Op
from .programs.check import check
from .programs.check_messages import check_messages, check_segments
from .programs.compile import Memory, Programs, compile
from .programs.messages import MessagePrograms, lower
from .programs.places import check_message_places, check_places
from .programs.two_level import Islands
from .programs.versions import Versions
from .proof import check_promise, verify
from .registry import Algorithm, AnyAlgorithm, algorithm_of, schedule
from .schedules import Schedule
from .symbolic import State

# Ranks that are threads of one process need the same programs at the same time: one of them makes them for all. A
# forked child has the lock, but not the thread that may have held it.
_proving = threading.RLock()


def _forked() -> None:
    global _proving
    _proving = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


def programs_of(
    collective: str,
    algorithm: AnyAlgorithm,
    ranks: int,
    root: int | None,
    memory: Memory,
    most_handed: int = _native.MOST_HANDED,
) -> Programs:
    """The programs of an algorithm. Exactly the programs returned were checked. `most_handed`: see `compile`."""
    with _proving:
        return _proved_programs(_fixed(collective, algorithm, ranks, root), ranks, root, memory, most_handed)


def message_programs_of(collective: str, algorithm: AnyAlgorithm, ranks: int, root: int | None) -> MessagePrograms:
    """The message programs of an algorithm. Exactly the programs returned were checked."""
    with _proving:
        return _proved_messages(_fixed(collective, algorithm, ranks, root), ranks, root)


class TwoLevel(NamedTuple):
    """Programs in two levels. `expression`: the hash of the expression that computes every element, wherever the buffer is
    cut into segments; None if it cannot be cut."""

    programs: MessagePrograms
    expression: int | None


def two_level_programs_of(
    collective: str,
    algorithm: AnyAlgorithm,
    root: int | None,
    islands: Islands,
    by: tuple[tuple[str, str], ...],
    ahead: int | None,
) -> TwoLevel:
    """The programs of an algorithm in two levels, whose groups are the islands. Exactly these were checked.

    `by`: its other parameters. `ahead`: how many segments are begun before one is ended (None: all).
    """
    with _proving:
        return _proved_in_two_levels(algorithm_of(collective, algorithm), root, islands, by, ahead)


def schedule_of(collective: str, algorithm: AnyAlgorithm, ranks: int, root: int | None) -> Schedule:
    """The schedule of an algorithm, which keeps the promise of its collective.

    To execute exactly what was compared, pass the schedule itself on: a generator may yield something else next time.
    """
    with _proving:
        return _proved_schedule(_fixed(collective, algorithm, ranks, root), ranks, root)


def check_rank_order(collective: str, algorithm: AnyAlgorithm, ranks: int, root: int | None, op: Op) -> None:
    """Refuse an operation that is not commutative where the algorithm does not keep the order of the ranks."""
    if op.commutative:
        return
    with _proving:
        chosen = _fixed(collective, algorithm, ranks, root)
        keeps = _keeps_rank_order(chosen, ranks, root)
    if not keeps:
        raise UsageError(
            f"{collective}: {op.name} is not commutative, and {chosen.name} with {ranks} ranks does not keep rank "
            f"order; `allfold verify {chosen.name} --ranks {ranks}` shows it, `algorithm=None` takes one that does"
        )


def check_uneven(collective: str, algorithm: AnyAlgorithm, ranks: int, root: int | None) -> None:
    """Refuse an algorithm that cannot move slices with lengths of their own."""
    with _proving:
        wrong = _wrong_places(_fixed(collective, algorithm, ranks, root), ranks, root)
    if wrong:
        raise UsageError(f"{collective}: {wrong}")


@lru_cache(maxsize=256)
def _proved_programs(algorithm: Algorithm, ranks: int, root: int | None, memory: Memory, most_handed: int) -> Programs:
    versions = _proved_versions(algorithm, ranks, root)
    programs = compile(versions.schedule, memory, versions, most_handed)
    check(programs, versions.state)
    return programs


@lru_cache(maxsize=256)
def _proved_messages(algorithm: Algorithm, ranks: int, root: int | None) -> MessagePrograms:
    versions = _proved_versions(algorithm, ranks, root)
    made = lower(versions.schedule)
    check_messages(made, versions.state)
    if not _wrong_places(algorithm, ranks, root):
        check_message_places(made)
    return made


@lru_cache(maxsize=256)
def _wrong_places(algorithm: Algorithm, ranks: int, root: int | None) -> str:
    """The reason why it cannot move slices with lengths of their own; "" if it can."""
    try:
        check_places(_proved_versions(algorithm, ranks, root))
    except ScheduleError as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def _proved_in_two_levels(
    algorithm: Algorithm, root: int | None, islands: Islands, by: tuple[tuple[str, str], ...], ahead: int | None
) -> TwoLevel:
    groups = [list(island) for island in islands]
    built = schedule(algorithm.collective, algorithm, sum(map(len, islands)), root, groups=groups, **dict(by))
    state = State(built).run_to_end()
    check_promise(state)
    made = lower(built, islands)
    check_messages(made, state)
    is_cut = built.promise.in_place and built.promise.carries_data and not built.promise.has_order
    return TwoLevel(made, check_segments(made, state, ahead) if is_cut else None)


@lru_cache(maxsize=256)
def _proved_schedule(algorithm: Algorithm, ranks: int, root: int | None) -> Schedule:
    return _proved_versions(algorithm, ranks, root).schedule


@lru_cache(maxsize=8)  # large, and needed for one kind of memory after the other, all about the same time
def _proved_versions(algorithm: Algorithm, ranks: int, root: int | None) -> Versions:
    versions = Versions(_built(algorithm, ranks, root))
    check_promise(versions.state)
    return versions


def _fixed(collective: str, algorithm: AnyAlgorithm, ranks: int, root: int | None) -> Algorithm:
    """The algorithm as one schedule for these ranks: whatever is proved and compiled, is so of this very schedule."""
    return algorithm_of(collective, _built(algorithm_of(collective, algorithm), ranks, root))


@lru_cache(maxsize=256)
def _built(algorithm: Algorithm, ranks: int, root: int | None) -> Schedule:
    # Once: a generator that yields something else each time must not give each kind of memory a different schedule.
    return schedule(algorithm.collective, algorithm, ranks, root)


@lru_cache(maxsize=256)
def _keeps_rank_order(algorithm: Algorithm, ranks: int, root: int | None) -> bool:
    return verify(_built(algorithm, ranks, root), programs=False).rank_order is not False
