"""From a schedule to programs: what each rank does, and for whom it waits.

A program is a row of instructions. One instruction waits until named peers have come far enough in their programs,
folds its sources (one source: a copy) into its destinations, and then counts as done: a rank's progress is the number
of instructions it has done, and that one number is all that its peers look at.

Compiling takes three decisions: where each value lives (`versions`), which instruction of whom makes it (here), and who
waits for whom (`waits`). `check` proves of the result that it cannot deadlock and that no two unordered accesses touch
the same memory, knowing nothing of how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..schedule import Schedule
from ..symbolic import order_of
from .rows import Ints, Lists, lists_of, starts_of
from .versions import INPUT, OUTPUT, WORK, Memory, Places, Versions, join, place
from .waits import find_waits

__all__ = ["INPUT", "OUTPUT", "WORK", "Lists", "Memory", "Programs", "compile"]


@dataclass(frozen=True)
class Programs:
    """The programs of all ranks. Instruction i of rank r is row `starts[r] + i` of every table.

    A slot is `space · width + index`; in the spaces INPUT and OUTPUT the index is the chunk. `length_of` names the
    chunk whose length the instruction handles (what travels keeps its length wherever it lies). `complete` marks
    instructions whose result holds every rank's contribution: there an average divides.
    """

    schedule: Schedule
    memory: Memory
    width: int
    starts: Ints
    step: Ints
    length_of: Ints
    complete: NDArray[np.bool_]
    sources: Lists
    destinations: Lists
    waits: Lists
    reuse: Lists
    """Waits for the use before last of the same work slots: there are two work areas, used by segments in turn."""
    one_area: bool
    """All segments use the same work area, which then stays in the cache: the waits prove its slots free in time."""
    leave: Lists
    """For every rank: how far its peers must be before it may return. Until then they use its arrays."""
    work_slots: Ints
    announce: NDArray[np.bool_]
    """Somebody waits for this instruction, so it is published as soon as it is done. (The last one of a call is
    published with the end of the call, if nothing is waited for between the two.)"""
    silent: NDArray[np.bool_]
    """For every rank: in a call of one segment, it need not publish its end. It has heard from everyone in this call.
    What it has published tells everyone that it is in this call, and so that it has ended the call before. That it has
    ended this one they hear from it in the next call, and nobody needs to know earlier."""

    @property
    def length(self) -> Ints:
        """By rank: how many instructions it has."""
        length: Ints = self.starts[1:] - self.starts[:-1]
        return length

    @property
    def rank(self) -> Ints:
        return np.arange(self.schedule.ranks).repeat(self.length)

    def describe(self, rank: int) -> str:
        """One rank's program, one line per instruction."""
        spaces = ("in", "out", "work")

        def slot(owner: int, value: int) -> str:
            space, index = divmod(value, self.width) if value < WORK * self.width else (WORK, value - WORK * self.width)
            return f"{owner}.{spaces[space]}[{index}]"

        lines = []
        for row in range(self.starts[rank], self.starts[rank + 1]):
            waits = ", ".join(f"{peer}≥{count}" for peer, count in self.waits.of(row))
            sources = " ⊕ ".join(slot(*source) for source in self.sources.of(row))
            destinations = ", ".join(slot(*destination) for destination in self.destinations.of(row))
            wait = f"wait {waits}; " if waits else ""
            lines.append(f"{row - self.starts[rank]}: {wait}{destinations} ← {sources}")
        return "\n".join(lines)


def compile(
    schedule: Schedule,
    memory: Memory = "shared",
    versions: Versions | None = None,
    most_handed: int = _native.MOST_HANDED,
) -> Programs:
    """The programs of a schedule that is known to be right: `verify` it first. Pass `versions` if you have them.

    `most_handed`: into the work areas of how many peers a rank writes what it has reduced, at most; with more of them,
    they read it. Which is faster depends on the processor.
    """
    versions = versions or Versions(schedule)
    places = place(versions, memory, most_handed)
    return _assemble(versions, places, memory)


def _assemble(versions: Versions, places: Places, memory: Memory) -> Programs:
    schedule, width = versions.schedule, versions.width
    number = np.arange(versions.total)
    home = OUTPUT * width + versions.chunk
    private = memory == "private"

    # Instructions: publish what peers will read, fold, bring home (to the output array) what ended elsewhere. Rows are
    # versions.
    publish = number[: versions.initial][(places.shared != places.local)[: versions.initial] & private]
    publish = publish[versions.read_by_peers[publish]]
    early_home = versions.final[publish] & (places.local[publish] != home[publish])
    fold = number[(number >= versions.initial) & (places.producer == number)]
    settled = (places.local == home) | (places.shared == home)
    settled[publish[early_home]] = True
    bring = number[versions.final & ~settled]
    kind = np.repeat([0, 1, 2], [len(publish), len(fold), len(bring)])
    version = np.concatenate([publish, fold, bring])
    # What is there from the start is brought home while peers get ready.
    last = np.where(version < versions.initial, -1, schedule.steps)
    step = np.where(kind == 0, -1, np.where(kind == 2, last, versions.step[version]))
    rank = versions.rank[version]

    # The order within a program: by step. Ranks begin with different peers, so that they do not all crowd one.
    peer = versions.chunk[version]
    peer[kind == 1] = versions.rank[versions.operand[versions.begin[fold]]]
    peer = (peer - rank) % schedule.ranks
    order = order_of((((rank * (schedule.steps + 2) + step + 1) * 3) + kind) * schedule.ranks + peer)
    del peer
    kind, version, step, rank = kind[order], version[order], step[order], rank[order]
    starts = starts_of(rank, schedule.ranks)
    row_of = np.full(versions.total, -1, np.int64)  # the instruction that makes a version
    folds = (kind == 1).nonzero()[0]
    row_of[version[folds]] = folds

    # Sources: a rank reads its own operand from its own copy, a peer's from where peers may read it.
    made = row_of[versions.reader]
    read = (made >= 0).nonzero()[0]
    operand = versions.operand[read]
    own = versions.rank[operand] == rank[made[read]]
    slot = np.where(own & (places.local[operand] >= 0), places.local[operand], places.shared[operand])
    local = (kind != 1).nonzero()[0]
    local_slot = places.local[version[local]]
    sources = lists_of(
        np.concatenate([made[read], local]),
        np.concatenate([versions.rank[operand], rank[local]]),
        np.concatenate([slot, local_slot]),
        len(version),
    )

    # Destinations: where peers read it, where its own rank wants it, and where it is handed out to.
    row, owner, target = [], [], []

    def write(rows: Ints, made: Ints, slots: Ints) -> None:
        row.append(rows)
        owner.append(versions.rank[made])
        target.append(slots)

    folded = number[versions.initial :]
    at = row_of[places.producer[folded]]
    write(at, folded, np.where(places.shared[folded] >= 0, places.shared[folded], places.local[folded]))
    both = (places.shared[folded] >= 0) & (places.local[folded] != places.shared[folded])
    both &= places.producer[folded] == folded
    write(at[both], folded[both], places.local[folded[both]])
    published = (kind == 0).nonzero()[0]
    write(published, version[published], places.shared[version[published]])
    early = published[
        versions.final[version[published]] & (places.local[version[published]] != home[version[published]])
    ]
    write(early, version[early], home[version[early]])
    brought = (kind == 2).nonzero()[0]
    write(brought, version[brought], home[version[brought]])
    destinations = lists_of(join(row), join(owner), join(target), len(version))

    waits, reuse, leave, one_area = find_waits(
        sources, destinations, rank, step, starts, schedule.ranks, width, private
    )
    sources, destinations, work_slots = _pack_work(sources, destinations, schedule.ranks, width)
    announce, silent = _publications(starts, waits, reuse, leave, private)
    datum = versions.datum[version].astype(np.int64)
    return Programs(
        schedule=schedule,
        memory=memory,
        width=width,
        starts=starts,
        step=step,
        length_of=datum % schedule.chunks,
        complete=versions.complete[version] & (kind == 1) & (versions.sizes[version] > 1) & schedule.promise.reduces,
        sources=sources,
        destinations=destinations,
        waits=waits,
        reuse=reuse,
        one_area=one_area,
        leave=leave,
        work_slots=work_slots,
        announce=announce,
        silent=silent,
    )


def _publications(
    starts: Ints, waits: Lists, reuse: Lists, leave: Lists, private: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which instructions are published when they are done, and which ranks need not publish their end."""
    ranks = len(starts) - 1
    announce, in_call = np.zeros(starts[-1], bool), np.zeros(starts[-1], bool)
    for lists in (waits, leave, reuse):
        announce[starts[lists.rank] + lists.value - 1] = True
        if lists is not reuse:  # which only later segments wait for
            in_call[starts[lists.rank] + lists.value - 1] = True
    length = starts[1:] - starts[:-1]
    owner = np.arange(ranks).repeat(length)
    has_leave = leave.sizes > 0
    is_last = np.zeros(len(owner), bool)
    is_last[starts[1:][length > 0] - 1] = True
    spoken = np.zeros(ranks, bool)
    spoken[owner[announce & (~is_last | has_leave[owner])]] = True
    awaited = np.zeros(ranks, bool)
    awaited[owner[in_call & is_last]] = True
    # Where peers access arrays, everybody has heard from everybody before the first instruction.
    heard = np.full(ranks, not private)
    if private:
        pairs = np.unique(np.concatenate([owner[waits.row] * ranks + waits.rank, leave.row * ranks + leave.rank]))
        heard = np.bincount(pairs // ranks, minlength=ranks) == ranks - 1
    return announce, spoken & heard & ~awaited


def _pack_work(sources: Lists, destinations: Lists, ranks: int, width: int) -> tuple[Lists, Lists, Ints]:
    """Number the work slots that are used from 0, rank by rank, and say how many each rank needs."""
    floor, span = WORK * width, 2 * width
    works = [(lists.value >= floor).nonzero()[0] for lists in (sources, destinations)]
    if not any(map(len, works)):
        return sources, destinations, np.zeros(ranks, np.int64)
    used = np.zeros(ranks * span, bool)
    for lists, work in zip((sources, destinations), works, strict=True):
        used[lists.rank[work] * span + lists.value[work] - floor] = True
    packed = np.cumsum(used.reshape(ranks, span), axis=1)

    def pack(lists: Lists, work: Ints) -> Lists:
        value = lists.value.copy()
        value[work] = floor + packed[lists.rank[work], value[work] - floor] - 1
        return Lists(lists.starts, lists.rank, value)

    return pack(sources, works[0]), pack(destinations, works[1]), packed[:, -1].copy()
