"""What a compiled program costs on a machine: the engine's own waits and copies, walked through with a few fitted numbers.

A schedule's price on a topology (`cost`) knows messages and links. On shared memory there are none: ranks wait for each
other's progress and read each other's memory, and what a byte costs depends on whose cache it is in. So this model walks
the programs as the engine does (`native/communicator.cpp`: calls one after the other, segments, waits, work areas used in
turns) and adds up, along the path that takes longest, what is in `TERMS`. That is linear in the terms, so they can be fitted.

A byte is *near* for a rank that touched it last, *far* where another rank wrote it since (a read) or has a copy of it
(a write): whose array it belongs to says nothing about where it is. Near and far cost more once what a rank touches in a
call no longer fits its second-level cache, and again once all of it no longer fits the last-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collectives import find_collective
from ..run.choice import fetched
from ..run.native import programs_of
from ..run.program import WORK, Memory, Programs
from .course import Course

Floats = NDArray[np.float64]

LEVELS = ("own cache", "last-level cache", "memory")
ACCESSES = tuple(product(("near", "far"), ("read", "write")))
TERMS: tuple[str, ...] = (
    "call",  # seconds to come to a call and to leave it
    "instruction",  # to find arrays and begin
    "look",  # at one peer's progress
    "news",  # from a peer's publication until it is seen: α
    "switch",  # of a core from one rank to another, where ranks outnumber cores
    "fold",  # seconds a byte and further operand: γ
    "fetch",  # of the kernel, out of another process: a call
    "fetched byte",  # and what a byte of it costs besides being read and written
    *(f"{where} {what}, {level}" for where, what in ACCESSES for level in LEVELS),  # seconds a byte: β
)
_CALL, _INSTRUCTION, _LOOK, _NEWS, _SWITCH, _FOLD, _FETCH, _FETCHED, _ACCESS = range(9)

# What the engine does, from native/communicator.cpp: these must be the same there.
_SEGMENT_BYTES = 1 << 19
_WINDOW_BYTES = 1 << 20
_FETCHED_BYTES = 1 << 19

_WALKED = 6  # segments that are walked through; what follows them repeats the last two
_LINE = 64


@dataclass(frozen=True)
class Setting:
    """What the model must know of a machine besides the terms."""

    cores: int
    own_cache: float
    """Bytes that one rank keeps at hand: of the second-level cache."""
    last_cache: float
    """Bytes that all ranks together keep before they go to memory."""
    fetches: bool
    """Whether processes may read each other's memory (see `Communicator.can_fetch`)."""


@dataclass(frozen=True)
class Item:
    """One thing that can be timed: an algorithm of a collective on arrays of one kind."""

    collective: str
    algorithm: str
    ranks: int
    shared: bool
    size: int
    """Bytes of the whole buffer."""

    def memory(self, setting: Setting) -> Memory:
        """Which of the three programs the engine takes, as `Communicator.agree` decides it."""
        if self.shared:
            return "shared"
        least, most = fetched(self.collective, self.ranks)
        return "readable" if setting.fetches and least <= self.size <= most else "private"


def predict(items: Sequence[Item], setting: Setting, terms: Floats) -> Floats:
    """The seconds a call of each item, calls following each other without a pause."""
    return amounts(items, paths(items, setting, terms), setting) @ terms


def paths(items: Sequence[Item], setting: Setting, terms: Floats) -> list[Floats]:
    """The path of each item that takes longest with these terms: how often it goes through what (`_Walk.path`)."""
    return [_walk_of(item, item.memory(setting)).path(item.size, setting, terms) for item in items]


def amounts(items: Sequence[Item], along: Sequence[Floats], setting: Setting) -> Floats:
    """How much of each term lies on given paths: a row an item, a column a term."""
    found = np.empty((len(items), len(TERMS)))
    for row, (item, path) in enumerate(zip(items, along, strict=True)):
        found[row] = path @ _walk_of(item, item.memory(setting)).rows(item.size, setting)
    return found


def _walk_of(item: Item, memory: Memory) -> _Walk:
    return _walk(item.collective, item.algorithm, item.ranks, memory)


@lru_cache(maxsize=1024)
def _walk(collective: str, algorithm: str, ranks: int, memory: Memory) -> _Walk:
    root = 0 if find_collective(collective).rooted else None
    return _Walk(programs_of(collective, algorithm, ranks, root, memory))


# One program --------------------------------------------------------------------------------------------------------


class _Walk:
    """The programs of all ranks, ready to be walked through for any size."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.ranks = programs.schedule.ranks
        self.rank = programs.rank
        self.chunks = programs.schedule.chunks
        self.slots = int(programs.work_slots.max(initial=0))
        self.carries = programs.schedule.promise.carries_data
        self._courses: dict[tuple[int, int], Course] = {}

    def segments(self, size: int) -> tuple[int, float]:
        """How many segments the engine makes of the chunks of a buffer, and the bytes of each."""
        longest = max(1.0, size / self.chunks)
        if not self.slots:
            return 1, longest
        slot = max(_WINDOW_BYTES // self.slots // _LINE * _LINE, _LINE)
        wanted = max(_SEGMENT_BYTES, _LINE * self.slots) // self.slots // _LINE * _LINE
        count = max(1, int(np.ceil(longest / min(slot, max(wanted, _LINE)))))
        return count, longest / count

    def path(self, size: int, setting: Setting, terms: Floats) -> Floats:
        """The longest path of one call, once the first calls are over: how often it goes through each row of `rows`."""
        segments, _ = self.segments(size)
        rows = self.rows(size, setting)
        calls = 5 if segments == 1 else 3 if segments <= _WALKED else 1
        course = self._course(calls, min(segments, _WALKED))
        taken = course.run((rows @ terms).tolist(), float(terms[_NEWS]), float(terms[_SWITCH]), setting.cores)

        def until(nodes: Sequence[int]) -> Floats:
            steps, news, switches = taken.path(nodes)
            found: Floats = np.bincount(steps, minlength=len(rows)).astype(float)
            found[-2:] = news, switches
            return found

        whole = until(course.call_ends[-1])
        if calls > 1:
            earlier = calls - 3
            return (whole - until(course.call_ends[earlier])) / (calls - 1 - earlier)
        period = (until(course.segment_ends[_WALKED - 1]) - until(course.segment_ends[_WALKED - 3])) / 2
        return whole + (segments - _WALKED) * period

    def rows(self, size: int, setting: Setting) -> Floats:
        """The terms of every instruction for one segment; then of coming, agreeing, leaving, of news and of a switch."""
        segments, bytes = self.segments(size)
        fixed, touched = self._fixed, self._touched
        rows = np.zeros((len(self.rank) + 5, len(TERMS)))
        at = slice(0, len(self.rank))
        rows[at, _INSTRUCTION] = 1.0
        rows[at, _LOOK] = np.diff(self.programs.waits.starts)
        if self.carries:
            rows[at, _FOLD] = fixed["fold"] * bytes
            rows[at, _FETCHED] = fixed["far sources"] * bytes
            tiles = np.where(fixed["operands"] > 1, np.ceil(bytes * fixed["far sources"] / _FETCHED_BYTES), 1.0)
            rows[at, _FETCH] = fixed["far sources"] * tiles
            # How far what a rank touches, and what all touch, outgrows the caches.
            chunk = size / self.chunks
            work = 2 * self.slots * bytes if segments > 1 else self.slots * bytes
            out = _ramp(touched[self.rank] * chunk + work, setting.own_cache)
            away = out * _ramp(np.full(len(out), self._everything * chunk), setting.last_cache)
            shares = np.stack([1 - out, out - away, away], axis=1)
            for number, access in enumerate(ACCESSES):
                first = _ACCESS + number * len(LEVELS)
                rows[at, first : first + len(LEVELS)] = (fixed["array", *access] * bytes)[:, None] * shares
                rows[at, first] += fixed["work", *access] * bytes
        comes, agrees, leaves = len(self.rank) + np.arange(3)
        rows[comes, _CALL] = 1.0
        rows[[comes, agrees], _LOOK] = self.ranks - 1
        rows[leaves, _LOOK] = self._awaited_at_the_end
        rows[-2, _NEWS] = rows[-1, _SWITCH] = 1.0
        return rows

    @cached_property
    def _awaited_at_the_end(self) -> float:
        return float(np.diff(self.programs.leave.starts).mean())

    @cached_property
    def _touched(self) -> Floats:
        """How many different chunks of arrays each rank touches."""
        rank, _, code, is_work, _ = self._accesses
        pairs = np.unique(np.stack([rank[~is_work], code[~is_work]]), axis=1)
        return np.bincount(pairs[0], minlength=self.ranks).astype(float)

    @cached_property
    def _everything(self) -> int:
        _, _, code, is_work, _ = self._accesses
        return len(np.unique(code[~is_work]))

    @cached_property
    def _accesses(self) -> tuple[NDArray[Any], ...]:
        """(rank, row, slot, whether it is in the work area, whether it writes), reads before writes in every row."""
        programs = self.programs
        width = 4 * programs.width
        lists = (programs.sources, programs.destinations)
        row = np.concatenate([part.row for part in lists])
        code = np.concatenate([part.rank * width + part.value for part in lists])
        is_work = np.concatenate([part.value >= WORK * programs.width for part in lists])
        writes = np.repeat([False, True], [len(part.rank) for part in lists])
        order = np.lexsort((writes, row, programs.step[row]))
        row = row[order]
        return self.rank[row], row, code[order], is_work[order], writes[order]

    @cached_property
    def _fixed(self) -> dict[Any, Floats]:
        """For every instruction, how many of its bytes are touched how: what does not depend on the size."""
        total = len(self.rank)
        fixed: dict[Any, Floats] = {
            (space, *access): np.zeros(total) for space in ("array", "work") for access in ACCESSES
        }
        holders: dict[int, set[int]] = {}  # who has a slot in its cache as it is now
        for turn in range(2):  # once to see who had it last in the call before
            for rank, row, code, is_work, writes in zip(*(part.tolist() for part in self._accesses), strict=True):
                held = holders.get(code)
                near = held is not None and rank in held and (not writes or len(held) == 1)
                if turn:
                    access = ("near" if near else "far", "write" if writes else "read")
                    fixed["work" if is_work else "array", *access][row] += 1
                if writes or held is None:
                    holders[code] = {rank}
                else:
                    held.add(rank)
        sources = self.programs.sources
        fixed["operands"] = np.diff(sources.starts).astype(float)
        fixed["fold"] = np.maximum(fixed["operands"] - 1, 0)
        far = (sources.rank != self.rank[sources.row]) & (sources.value < WORK * self.programs.width)
        far &= self.programs.memory == "readable"
        fixed["far sources"] = np.bincount(sources.row[far], minlength=total).astype(float)
        return fixed

    def _course(self, calls: int, segments: int) -> Course:
        if (calls, segments) not in self._courses:
            self._courses[calls, segments] = Course(self.programs, calls, segments)
        return self._courses[calls, segments]


def _ramp(bytes: Floats, cache: float) -> Floats:
    """0 where it fits well, 1 where it does not fit at all, between half of the cache and twice as much."""
    return np.clip(np.log2(np.maximum(bytes, 1.0) / (cache / 2)) / 2, 0.0, 1.0)
