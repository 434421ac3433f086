"""The fastest way to move ordinary arrays, for the algorithms that were chosen: push, pull or fetch, and the segments.

Every way is timed in turns with the built-in one, and what counts is the median over the rounds of its time divided by
the built-in way's in the same round. So what disturbs both, a neighbour or a change of the clock, does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import product
from math import ceil, exp, log, sqrt
from statistics import median

from .. import _native
from ..bench.case import Case, case_of_size
from ..bench.measure import Subject, measure
from ..bench.peers import start_ours
from ..collectives import COLLECTIVES, find_collective
from ..engines.shared_memory.choice import ALWAYS, Choice, Way, way_at, ways
from ..programs.compile import Programs
from ..proved import programs_of
from ..wording import format_size
from .choose import WORTH_LEAVING_THE_RULE, WORTH_SWITCHING, best_rows, signature
from .timing import Progress, at_once, rules_for

LEAST_SIZE = 16 * 1024
"""Below, arrays are copied whole, and all ways take about the same time."""

SEGMENTS = (0, 2**17, 2**18, 2**19, 2**20)

_FAR_BEYOND = 4  # a size beyond the caches is added if it is at most this many times the largest one asked for
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Moved:
    """One way of moving ordinary arrays, compared with the built-in one."""

    collective: str
    algorithm: str
    size: int
    way: Way
    """Without its limit, which means nothing here."""
    ratio: float
    """Its time divided by that of the built-in way: the median of the rounds."""
    noise: float
    """The standard error of the logarithm of the ratio."""


# Measuring ------------------------------------------------------------------------------------------------------------


def measure_ways(
    ranks: int,
    sizes: Sequence[int],
    chosen: Mapping[str, Sequence[Choice]],
    fetches: bool,
    seconds: float,
    progress: Progress,
) -> list[Moved]:
    """Time all ways that differ from the built-in one, for the algorithms chosen, in about this many seconds.

    `fetches`: whether processes may read each other's memory.
    """
    todo = []
    for collective, rows in chosen.items():
        if not COLLECTIVES[collective].carries_data:
            continue
        for size in _sizes(sizes, ranks):
            case = case_of_size(collective, size, ranks)
            _, algorithm, reaches = next(row for row in rows if case.size <= row[0])
            different = list(_different(case, algorithm, fetches and reaches).values())
            if len(different) > 1:
                todo.append((case, algorithm, different))
    left = sum(len(different) for _, _, different in todo)
    found: list[Moved] = []
    if not todo:
        return found
    crew = start_ours(ranks, tuned=False)
    try:
        deadline = time.monotonic() + seconds
        for case, algorithm, different in sorted(todo, key=lambda one: -one[0].size):
            remaining = max(0.0, deadline - time.monotonic())
            name, done = f"{case.collective} {format_size(case.size)}", 1 - remaining / seconds
            subjects = [
                Subject(describe(way, case.collective), "allfold", {"algorithm": algorithm, "way": list(way[1:])})
                for way in different
            ]
            usual, others = subjects[0], subjects[1:]
            # Programs write their arrays between two calls, and the ways differ in what that costs.
            rules = replace(rules_for(case, remaining / left), fresh=True)
            by_label = dict(zip([one.label for one in subjects], different, strict=True))

            def tell(what: str, name: str = name, done: float = done) -> None:
                progress(f"{name}, ordinary arrays: {what}", done)

            for some in at_once(case, others, beside=1):
                timings = measure(case, [usual, *some], {"allfold": crew}, rules, tell)
                for one in some:
                    ratio, noise = compare(timings[one.label].rounds, timings[usual.label].rounds)
                    found.append(Moved(case.collective, algorithm, case.size, by_label[one.label], ratio, noise))
            left -= len(different)
    finally:
        crew.close()
    return found


def compare(rounds: Sequence[float], usual: Sequence[float]) -> tuple[float, float]:
    """The median ratio of rounds that took turns, and the standard error of its logarithm."""
    ratios = [log(one / other) for one, other in zip(rounds, usual, strict=True)]
    middle = median(ratios)
    # 1.48 times the median deviation is the standard deviation, 1.25 times that ÷ √n the error of a median.
    return exp(middle), 1.4826 * 1.2533 * median(abs(one - middle) for one in ratios) / sqrt(len(ratios))


def _sizes(sizes: Sequence[int], ranks: int) -> list[int]:
    """The sizes that matter here, and one beyond the caches if it is not far."""
    beyond = 2 * _native.CACHED_BYTES // ranks
    wanted = [size for size in sizes if size >= LEAST_SIZE]
    return wanted if not wanted or max(wanted) * _FAR_BEYOND < beyond else sorted({*wanted, beyond})


# What differs ---------------------------------------------------------------------------------------------------------


Key = tuple[object, ...]


def _every_way(ranks: int) -> Iterator[Way]:
    """All ways without limits, the built-in one first."""
    handed = dict.fromkeys((_native.MOST_HANDED, 0, ranks - 1))
    rows = (_native.COPIES_IN_ROWS, not _native.COPIES_IN_ROWS)
    for many, segment, in_rows in product(handed, SEGMENTS, rows):
        yield Way(ALWAYS, False, many, segment, in_rows)
    yield Way(ALWAYS, True)


def _key(way: Way, case: Case, algorithm: str, fetches: bool) -> Key:
    """A key that is equal for ways that make no difference for arrays of this size."""
    if way.fetches and fetches:
        return ("fetch",)
    programs, does = _compiled(case.collective, algorithm, case.ranks, way.handed)
    in_rows = case.size * case.ranks > _native.CACHED_BYTES and way.in_rows
    return does, segments(programs, case.size, way.segment), in_rows


def segments(programs: Programs, size: int, segment: int = 0) -> int:
    """The number of segments that the engine cuts chunks into. `segment`: see `choice.Way`."""
    slots = int(programs.work_slots.max(initial=0))
    if not slots:
        return 1
    slot = max(_native.WINDOW_BYTES // slots // _LINE * _LINE, _LINE)
    together = segment or _native.segment_bytes(slots, programs.one_area)
    wanted = max(together, _LINE * slots) // slots // _LINE * _LINE
    return max(1, ceil(size / programs.schedule.chunks / min(slot, max(wanted, _LINE))))


@lru_cache(maxsize=256)
def _compiled(collective: str, algorithm: str, ranks: int, handed: int) -> tuple[Programs, bytes]:
    """The programs, and a digest that is equal for programs that do the same."""
    root = 0 if find_collective(collective).rooted else None
    programs = programs_of(collective, algorithm, ranks, root, "private", handed)
    return programs, sha256(b"".join(signature(programs))).digest()


def _different(case: Case, algorithm: str, fetches: bool) -> dict[Key, Way]:
    """One way of each kind, the built-in one first."""
    usual = way_at(case.size, ways(case.collective, case.ranks))._replace(limit=ALWAYS)
    found: dict[Key, Way] = {}
    for way in (usual, *_every_way(case.ranks)):
        found.setdefault(_key(way, case, algorithm, fetches), way if fetches else way._replace(fetches=False))
    return found


# Choosing -------------------------------------------------------------------------------------------------------------


def choose_ways(ranks: int, moved: Sequence[Moved], unrest: float = 0.0) -> dict[str, list[Way]]:
    """Choose a way up to each size, for every collective where it pays to leave the built-in ones.

    A way counts with its ratio and twice the noise, and must gain as much as an algorithm (`choose`). On a busy
    machine that is more: there long segments win, because ranks wait less often for others that do not run.
    """
    found = {}
    worth_switching, worth_leaving = (least + log(1 + unrest) for least in (WORTH_SWITCHING, WORTH_LEAVING_THE_RULE))
    for collective in dict.fromkeys(one.collective for one in moved):
        rule = ways(collective, ranks)
        costs: dict[int, dict[Way, float]] = {}
        same: dict[int, set[Way]] = {}  # by size: the ways that are no different from the built-in one
        for size in sorted({one.size for one in moved if one.collective == collective}):
            here = [one for one in moved if (one.collective, one.size) == (collective, size)]
            case, algorithm = case_of_size(collective, size, ranks), here[0].algorithm
            usual = way_at(size, rule)._replace(limit=ALWAYS)
            # Where the built-in way fetches and that was possible, not to fetch was measured as another way.
            instead = _key(usual._replace(fetches=False), case, algorithm, True)
            fetches = any(one.way.fetches or _key(one.way, case, algorithm, True) == instead for one in here)
            known = {_key(one.way, case, algorithm, fetches): log(one.ratio) + 2 * one.noise for one in here}
            known[_key(usual, case, algorithm, fetches)] = 0.0
            costs[size], same[size] = {}, set()
            for way in (usual, *_every_way(ranks)):
                key = _key(way, case, algorithm, fetches)
                if key in known:
                    costs[size][way] = known[key]
                if key == _key(usual, case, algorithm, fetches):
                    same[size].add(way)

        def penalty(size: int, way: Way, same: Mapping[int, set[Way]] = same) -> float:
            return 0.0 if way in same[size] else worth_leaving

        rows = best_rows(costs, penalty, worth_switching, [way.limit for way in rule])
        if any(way not in same[size] for size in costs for way in [_at(size, rows)]):
            found[collective] = [way._replace(limit=limit) for limit, way in rows]
    return found


def _at(size: int, rows: Sequence[tuple[int, Way]]) -> Way:
    return next(way for limit, way in rows if size <= limit)


def gains(ranks: int, collective: str, rows: Sequence[Way], moved: Sequence[Moved]) -> dict[int, float]:
    """The time of the chosen way divided by that of the built-in one, by size, where they differ."""
    found = {}
    for one in moved:
        if one.collective != collective:
            continue
        case = case_of_size(collective, one.size, ranks)
        if _key(one.way, case, one.algorithm, True) == _key(way_at(one.size, rows), case, one.algorithm, True):
            found[one.size] = one.ratio
    return found


def describe(way: Way, collective: str) -> str:
    """`pull in 256K`, `push`, `fetch`."""
    if way.fetches:
        return "fetch"
    kind = "push" if way.handed and find_collective(collective).reduces else "pull"
    segment = f" in {format_size(way.segment)}" if way.segment else ""
    rows = "" if way.in_rows == _native.COPIES_IN_ROWS else " in rows" if way.in_rows else " not in rows"
    return f"{kind}{segment}{rows}"
