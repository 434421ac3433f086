"""What a compiled program costs on a machine: the engine's waits and copies, with a few fitted numbers.

A schedule's price on a topology (`cost`) knows messages and links. On shared memory there are none: ranks wait for each
other's progress and read each other's memory. So this model walks the programs as the engine does
(`native/collectives/communicator.cpp`: calls one after the other, segments, waits, work areas used in turns) and adds
up the `TERMS` along the longest path. That is linear in the terms, so they can be fitted.

The cost of a byte depends on where it lies when it is touched, which `caches` finds out. Whose array it belongs to does
not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..collectives import find_collective
from ..engines.shared_memory.choice import way_at, ways
from ..programs.compile import WORK, Memory, Programs
from ..proved import programs_of
from .caches import PLACES, Floats, Setting, Touches
from .walk import CallGraph

ACCESSES = ("read", "write")
TERMS: tuple[str, ...] = (
    "call",  # seconds to enter a call and to leave it
    "instruction",  # to find arrays and begin
    "look",  # at one peer's progress
    "news",  # from a peer's publication until it is seen: α
    "switch",  # of a core from one rank to another, where ranks outnumber cores
    "fold",  # seconds per byte and additional operand: γ
    "fetch",  # by the kernel, out of another process: per call
    "fetched byte",  # what a byte of it costs besides being read and written
    "crowded byte",  # for every other rank that fetches from the same process at once, from small pages
    "first byte",  # of the first page that an instruction finds in a peer's cache: nothing has been read ahead yet
    "contended byte",  # in a peer's cache, for every other rank that reads it at once
    *(f"{what}, {place}" for what in ACCESSES for place in PLACES),  # seconds per byte: β
)
_CALL, _INSTRUCTION, _LOOK, _NEWS, _SWITCH, _FOLD, _FETCH, _FETCHED, _CROWDED, _FIRST, _CONTENDED, _ACCESS = range(12)

_WALKED = 6  # segments that are followed; further ones repeat the last two
_LINE = 64
_PAGE = 4096.0
_HUGE_PAGES_FROM = 1 << 22  # bytes of an array; NumPy asks for them from here on


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
        way = way_at(self.size, ways(self.collective, self.ranks))
        return "readable" if setting.fetches and way.fetches else "private"


def predict(items: Sequence[Item], setting: Setting, terms: Floats) -> Floats:
    """Seconds per call of each item, for calls that follow each other without a pause."""
    return amounts(items, paths(items, setting, terms), setting) @ terms


def paths(items: Sequence[Item], setting: Setting, terms: Floats) -> list[Floats]:
    """The longest path of each item with these terms: how often it passes each row (`_Walk.path`)."""
    return [_walk_of(item, item.memory(setting)).path(item.size, setting, terms) for item in items]


def amounts(items: Sequence[Item], along: Sequence[Floats], setting: Setting) -> Floats:
    """How much of each term lies on the given paths: one row per item, one column per term."""
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


def cut(programs: Programs, size: int, segment: int = 0) -> tuple[int, float]:
    """How many segments the engine cuts chunks into, and the bytes of each. `segment`: see `choice.Way`."""
    longest = max(1.0, size / programs.schedule.chunks)
    slots = int(programs.work_slots.max(initial=0))
    if not slots:
        return 1, longest
    slot = max(_native.WINDOW_BYTES // slots // _LINE * _LINE, _LINE)
    together = segment or _native.segment_bytes(slots, programs.one_area)
    wanted = max(together, _LINE * slots) // slots // _LINE * _LINE
    count = max(1, int(np.ceil(longest / min(slot, max(wanted, _LINE)))))
    return count, longest / count


# One program --------------------------------------------------------------------------------------------------------


class _Walk:
    """The programs of all ranks, prepared so that they can be followed for any size."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.ranks = programs.schedule.ranks
        self.rank = programs.rank
        self.chunks = programs.schedule.chunks
        self.carries = programs.schedule.promise.carries_data
        self.rooted = programs.schedule.root is not None
        self._graphs: dict[tuple[int, int, bool], CallGraph] = {}
        self._rows: dict[int, tuple[Setting, Floats]] = {}

    def path(self, size: int, setting: Setting, terms: Floats) -> Floats:
        """The longest path of one call in the steady state: how often it passes each row of `rows`."""
        segments, bytes = cut(self.programs, size)
        rows = self.rows(size, setting)
        calls = 5 if segments == 1 else 3 if segments <= _WALKED else 1
        slots = int(self.programs.work_slots.max(initial=0))
        small = self.rooted and segments == 1 and slots * bytes <= _native.SMALL_BYTES
        graph = self._graph(calls, min(segments, _WALKED), small)
        timed = graph.run((rows @ terms).tolist(), float(terms[_NEWS]), float(terms[_SWITCH]), setting.cores)

        def until(nodes: Sequence[int]) -> Floats:
            steps, news, switches = timed.path(nodes)
            found: Floats = np.bincount(steps, minlength=len(rows)).astype(float)
            found[-2:] = news, switches
            return found

        whole = until(graph.call_ends[-1])
        if calls > 1:
            earlier = calls - 3
            return (whole - until(graph.call_ends[earlier])) / (calls - 1 - earlier)
        period = (until(graph.segment_ends[_WALKED - 1]) - until(graph.segment_ends[_WALKED - 3])) / 2
        return whole + (segments - _WALKED) * period

    def rows(self, size: int, setting: Setting) -> Floats:
        """The terms of every instruction for one segment; then of entering, agreeing, leaving, news and a switch."""
        if self._rows.get(size, (None,))[0] == setting:
            return self._rows[size][1]
        segments, bytes = cut(self.programs, size)
        rows = self._no_rows()
        at = slice(0, len(self.rank))
        rows[at, _INSTRUCTION] = 1.0
        rows[at, _LOOK] = np.diff(self.programs.waits.starts)
        if self.carries:
            rows += self._of_fetching(size, bytes) + self._of_touching(size, bytes, segments, setting)
        comes, agrees, leaves = len(self.rank) + np.arange(3)
        rows[comes, _CALL] = 1.0
        rows[[comes, agrees], _LOOK] = self.ranks - 1
        rows[leaves, _LOOK] = self._awaited_at_the_end
        rows[-2, _NEWS] = rows[-1, _SWITCH] = 1.0
        self._rows[size] = (setting, rows)
        return rows

    def _no_rows(self) -> Floats:
        return np.zeros((len(self.rank) + 5, len(TERMS)))

    def _of_touching(self, size: int, bytes: float, segments: int, setting: Setting) -> Floats:
        touches, rows, many = self._touches, self._no_rows(), len(self.rank)
        shares = touches.shares(size / self.chunks, bytes, segments, setting)
        first = touches.row * len(TERMS) + _ACCESS + touches.writes * len(PLACES)
        columns = np.concatenate([first + number for number in range(len(PLACES))])
        rows += np.bincount(columns, np.concatenate(shares) * bytes, rows.size).reshape(rows.shape)
        peers = shares[PLACES.index("peer's cache")]
        # Several streams start in parallel.
        rows[:many, _FIRST] = np.minimum(np.bincount(touches.row, peers, many), 1.0) * min(bytes, _PAGE)
        rows[:many, _CONTENDED] = np.bincount(touches.row, peers * touches.readers, many) * bytes
        return rows

    def _of_fetching(self, size: int, bytes: float) -> Floats:
        """The terms of the kernel's fetches out of other processes, and of folding data, fetched or not."""
        rows, many = self._no_rows(), len(self.rank)
        operands = np.diff(self.programs.sources.starts)
        row, crowd, chunks = self._fetches
        fetches = np.bincount(row, minlength=many)
        rows[:many, _FOLD] = np.maximum(operands - 1, 0) * bytes
        rows[:many, _FETCH] = fetches * np.where(operands > 1, np.ceil(bytes * fetches / _native.FETCHED_BYTES), 1.0)
        rows[:many, _FETCHED] = fetches * bytes
        small = chunks * size / self.chunks < _HUGE_PAGES_FROM
        rows[:many, _CROWDED] = np.bincount(row, crowd * small, many) * bytes
        return rows

    @cached_property
    def _awaited_at_the_end(self) -> float:
        return float(np.diff(self.programs.leave.starts).mean())

    @cached_property
    def _touches(self) -> Touches:
        return Touches(self.programs)

    @cached_property
    def _fetches(self) -> tuple[NDArray[np.int64], ...]:
        """For every fetch: its row, how many other ranks fetch from that process at once, how many chunks in all.

        "At once" means in the same step, at the same position among the rank's fetches of that step.
        """
        sources = self.programs.sources
        far = (sources.rank != self.rank[sources.row]) & (sources.value < WORK * self.programs.width)
        far &= self.programs.memory == "readable"
        row, process, slot = (part[far].tolist() for part in (sources.row, sources.rank, sources.value))
        number: Counter[tuple[int, int]] = Counter()
        keys = []
        for at, peer in zip(row, process, strict=True):
            turn = (int(self.rank[at]), int(self.programs.step[at]))
            keys.append((turn[1], number[turn], peer))
            number[turn] += 1
        at_once = Counter(keys)
        chunks = Counter(peer for peer, _ in set(zip(process, slot, strict=True)))
        return (
            np.array(row, int),
            np.array([at_once[key] - 1 for key in keys]),
            np.array([chunks[peer] for peer in process]),
        )

    def _graph(self, calls: int, segments: int, ahead: bool) -> CallGraph:
        key = calls, segments, ahead
        if key not in self._graphs:
            self._graphs[key] = CallGraph(self.programs, *key)
        return self._graphs[key]
