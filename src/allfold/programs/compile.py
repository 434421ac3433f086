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
from ..schedules import Schedule
from ..symbolic import order_of
from .rows import Ints, Lists, lists_of, starts_of
from .versions import INPUT, OUTPUT, WORK, Memory, VersionPlaces, Versions, join, place
from .waits import find_waits

__all__ = ["INPUT", "OUTPUT", "WORK", "Lists", "Memory", "Programs", "compile"]


@dataclass(frozen=True)
class Programs:
    """The programs of all ranks. Instruction i of rank r is row `starts[r] + i` of every table.

    A slot is `space · width + index`; in the spaces INPUT and OUTPUT the index is the chunk. `length_of` names the
    datum whose length the instruction handles (what travels keeps its length wherever it lies). `complete` marks
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
    """For every rank: in a call of one segment, it need not publish its end. It has waited for everyone in this call.
    What it has published shows everyone that it is in this call, and so has ended the call before. That it has ended
    this one shows in the next call, and nobody needs to know earlier."""

    @property
    def length(self) -> NDArray[np.intp]:
        """By rank: how many instructions it has."""
        length: NDArray[np.intp] = np.diff(self.starts).astype(np.intp)
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
    made, sources, destinations = _assemble(versions, place(versions, memory, most_handed), memory == "private")
    waits, reuse, leave, one_area = find_waits(
        sources, destinations, made.rank, made.step, made.starts, schedule.ranks, versions.width, memory == "private"
    )
    sources, destinations, work_slots = _pack_work(sources, destinations, schedule.ranks, versions.width)
    announce, silent = _publications(made.starts, waits, reuse, leave, memory == "private")
    reduces = (made.kind == _FOLD) & (versions.sizes[made.version] > 1) & schedule.promise.reduces
    return Programs(
        schedule=schedule,
        memory=memory,
        width=versions.width,
        starts=made.starts,
        step=made.step,
        length_of=versions.datum[made.version].astype(np.int64),
        complete=versions.complete[made.version] & reduces,
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


_PUBLISH, _FOLD, _BRING = 0, 1, 2


@dataclass(frozen=True)
class _Instructions:
    """The instructions of all ranks: publish what peers will read, fold, bring home (to the output array) what ended
    elsewhere. Each concerns one version.
    """

    kind: Ints
    version: Ints
    step: Ints
    rank: Ints
    starts: Ints


def _assemble(versions: Versions, places: VersionPlaces, private: bool) -> tuple[_Instructions, Lists, Lists]:
    """The instructions, their sources and their destinations."""
    made = _instructions(versions, places, private)
    row_of = np.full(versions.total, -1, np.int64)  # the instruction that makes a version
    folds = (made.kind == _FOLD).nonzero()[0]
    row_of[made.version[folds]] = folds
    return made, _sources(versions, places, made, row_of), _destinations(versions, places, made, row_of)


def _instructions(versions: Versions, places: VersionPlaces, private: bool) -> _Instructions:
    schedule = versions.schedule
    home = OUTPUT * versions.width + versions.chunk
    publish = np.zeros(0, np.int64)
    settled = (places.local == home) | (places.shared == home)
    if private:
        old = slice(0, versions.initial)
        publish = ((places.shared[old] != places.local[old]) & versions.read_by_peers[old]).nonzero()[0]
        settled[publish[versions.final[publish] & (places.local[publish] != home[publish])]] = True
    fold = (
        versions.initial
        + ((places.producer[versions.initial :] == np.arange(versions.initial, versions.total)).nonzero()[0])
    )
    bring = (versions.final & ~settled).nonzero()[0]
    del home, settled
    kind = np.repeat([_PUBLISH, _FOLD, _BRING], [len(publish), len(fold), len(bring)])
    version = np.concatenate([publish, fold, bring])
    step = versions.step[version]
    step[: len(publish)] = -1
    # What is there from the start is brought home while peers get ready.
    step[len(publish) + len(fold) :] = np.where(bring < versions.initial, -1, schedule.steps)
    rank = versions.rank[version]

    # The order within a program: by step. Ranks begin with different peers, so that they do not all crowd one.
    peer = versions.chunk[version]
    peer[kind == _FOLD] = versions.rank[versions.operand[versions.begin[fold]]]
    peer = (peer - rank) % schedule.ranks
    order = order_of((((rank * (schedule.steps + 2) + step + 1) * 3) + kind) * schedule.ranks + peer)
    rank = rank[order]
    return _Instructions(kind[order], version[order], step[order], rank, starts_of(rank, schedule.ranks))


def _sources(versions: Versions, places: VersionPlaces, made: _Instructions, row_of: Ints) -> Lists:
    """A rank reads its own operand from its own copy, a peer's from where peers may read it."""
    row = row_of[versions.reader]
    read = (row >= 0).nonzero()[0]
    row, operand = row[read], versions.operand[read]
    del read
    owner = versions.rank[operand]
    slot = places.local[operand]
    slot = np.where((owner == made.rank[row]) & (slot >= 0), slot, places.shared[operand])
    local = (made.kind != _FOLD).nonzero()[0]
    return lists_of(
        np.concatenate([row, local]),
        np.concatenate([owner, made.rank[local]]),
        np.concatenate([slot, places.local[made.version[local]]]),
        len(made.version),
    )


def _destinations(versions: Versions, places: VersionPlaces, made: _Instructions, row_of: Ints) -> Lists:
    """The place where peers read it, the place where its own rank wants it, and those to which it is handed out."""
    row, owner, target = [], [], []

    def write(rows: Ints, versions_made: Ints | slice, slots: Ints) -> None:
        row.append(rows)
        owner.append(versions.rank[versions_made])
        target.append(slots)

    folded = slice(versions.initial, versions.total)
    shared, local = places.shared[folded], places.local[folded]
    at = row_of[places.producer[folded]]
    write(at, folded, np.where(shared >= 0, shared, local))
    both = (shared >= 0) & (local != shared)
    both &= places.producer[folded] == np.arange(versions.initial, versions.total)
    write(at[both], versions.initial + both.nonzero()[0], local[both])
    home = OUTPUT * versions.width + versions.chunk
    published = (made.kind == _PUBLISH).nonzero()[0]
    version = made.version[published]
    write(published, version, places.shared[version])
    early = versions.final[version] & (places.local[version] != home[version])
    write(published[early], version[early], home[version[early]])
    brought = (made.kind == _BRING).nonzero()[0]
    write(brought, made.version[brought], home[made.version[brought]])
    return lists_of(join(row), join(owner), join(target), len(made.version))


def _publications(
    starts: Ints, waits: Lists, reuse: Lists, leave: Lists, private: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The instructions that are published when they are done, and the ranks that need not publish their end."""
    ranks = len(starts) - 1
    announce, in_call = np.zeros(starts[-1], bool), np.zeros(starts[-1], bool)
    for lists in (waits, leave, reuse):
        announce[starts[lists.rank] + lists.value - 1] = True
        if lists is not reuse:  # which only later segments wait for
            in_call[starts[lists.rank] + lists.value - 1] = True
    length = np.diff(starts).astype(np.intp)
    owner = np.arange(ranks).repeat(length)
    has_leave = leave.sizes > 0
    is_last = np.zeros(len(owner), bool)
    is_last[starts[1:][length > 0] - 1] = True
    spoken = np.zeros(ranks, bool)
    spoken[owner[announce & (~is_last | has_leave[owner])]] = True
    awaited = np.zeros(ranks, bool)
    awaited[owner[in_call & is_last]] = True
    # Where peers access arrays, everybody has waited for everybody before the first instruction.
    heard = np.full(ranks, not private)
    if private:
        hears = np.zeros((ranks, ranks), bool)  # not np.unique, which imports numpy.ma: 20 ms in every rank
        hears[owner[waits.row], waits.rank] = True
        hears[leave.row, leave.rank] = True
        heard = hears.sum(1) == ranks - 1
    return announce, spoken & heard & ~awaited


def _pack_work(sources: Lists, destinations: Lists, ranks: int, width: int) -> tuple[Lists, Lists, Ints]:
    """Number the used work slots from 0, rank by rank; returns also the number that each rank needs."""
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
