"""Every value that every chunk ever holds, and the slots where each of them lives.

A *slot* is a place for one chunk in one rank's memory: in its input array, in its output array (the same, where the
collective works in place), or in its work area. Every write to a chunk makes a new *version*, and each version gets its
slots here:

- a version that peers read must lie where they can read it: anywhere if the arrays are in shared memory, or if the
  kernel reads them out of the other process for us; otherwise in the work area, which is shared;
- where somebody still reads the old version in the same step (two ranks that exchange, a ring that rotates), the new
  one goes to another slot, so that the waits have no cycle;
- a reduced chunk that others copy next is written to their memory at once, tile by tile while it is in cache, if that
  does not burden one rank with the work of many: to their arrays where these are in shared memory, else to their work
  areas. It then lies where their own parts of it lay, in cache lines that the reducing rank has just read, and no rank
  has to take from another a line that it only writes. For many ranks that is not worth the writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..collectives import NOTHING
from ..schedules import Schedule
from ..symbolic import State
from .rows import Ints

Memory = Literal["shared", "readable", "private"]
"""The access that peers have to a rank's arrays: to read and write them, to read them, or none."""

INPUT, OUTPUT, WORK = 0, 1, 2  # the spaces that a slot can lie in; a slot is space · width + chunk


class Versions:
    """Every value that every cell ever holds, and who reads it. Row numbers are versions, the initial ones first."""

    def __init__(self, schedule: Schedule) -> None:
        self.state = state = State(schedule)  # run to its end below, so it says what every cell holds then
        self.schedule, self.width = schedule, state.width
        held = (state.datum != NOTHING).nonzero()[0]
        self.initial = len(held)
        datum, count = state.datum[held], state.count[held]
        steps = []
        while not state.done:
            steps.append(state.advance())
        made = [len(folds.target) for folds in steps]
        self.cell = join([held, *(folds.target for folds in steps)])
        self.sizes = join([np.zeros(len(held), np.int64), *(folds.starts[1:] - folds.starts[:-1] for folds in steps)])
        operands = join([folds.operands for folds in steps])
        del steps
        self.operand, self.previous, self.datum, count, current = _native.versions(
            np.array([0, *made]).cumsum(), self.cell, self.sizes, operands, datum, count, len(state.datum)
        )
        total = len(self.cell)
        self.step = np.arange(-1, schedule.steps).repeat([len(held), *made])
        self.reader = np.arange(total).repeat(self.sizes.astype(np.intp))
        self.complete = count == schedule.ranks
        self.complete[: self.initial] = False
        self.rank, self.chunk = np.divmod(self.cell, self.width)
        self.total = total
        ends = np.full((schedule.ranks, self.width), NOTHING, np.int64)
        promise = schedule.promise
        ends[:, : schedule.chunks] = promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
        self.wanted = ends.reshape(-1)  # the datum that each cell must hold at the end
        final = current[(self.wanted != NOTHING) & (current >= 0)]
        self.final = np.zeros(total, bool)
        self.final[final] = True
        # May a version lie in its rank's output array? Where the collective works in place, every rank's array is
        # workspace; otherwise it holds only what is wanted there. That the version fits, whatever the length of the
        # array, is a rule of the language (`symbolic`).
        self.home = (self.chunk < schedule.chunks) if promise.in_place else self.wanted[self.cell] != NOTHING
        remote = self.rank[self.reader] != self.rank[self.operand]
        self.read_by_peers = np.zeros(total, bool)
        self.read_by_peers[self.operand[remote]] = True
        # A hazard: while a version is replaced, somebody else reads it in the same step.
        following = np.full(total, -1, np.int64)
        replaces = (self.previous >= 0).nonzero()[0]
        following[self.previous[replaces]] = replaces
        heir = following[self.operand]
        same_step = (heir >= 0) & (heir != self.reader) & (self.step[heir] == self.step[self.reader])
        self.peer_hazard, self.own_hazard = np.zeros(total, bool), np.zeros(total, bool)
        self.peer_hazard[heir[same_step & remote]] = True
        self.own_hazard[heir[same_step & ~remote]] = True

    @property
    def begin(self) -> Ints:
        """By version: where its operands begin."""
        begin: Ints = np.cumsum(self.sizes) - self.sizes
        return begin


@dataclass
class VersionPlaces:
    """The slots of each version: the one that peers read, and the one that its own rank reads first; −1 for none."""

    shared: Ints
    local: Ints
    work: Ints
    """The slot in the work area that is free for it."""
    producer: Ints
    """The version whose instruction writes this one: not itself where a reduction is handed out at once."""


def place(versions: Versions, memory: Memory, most_handed: int) -> VersionPlaces:
    reached = memory != "private"
    width, in_place = versions.width, versions.schedule.promise.in_place
    home = OUTPUT * width + versions.chunk
    first, second = WORK * width + versions.chunk, (WORK + 1) * width + versions.chunk
    begin = home if in_place else INPUT * width + versions.chunk
    old = slice(0, versions.initial)
    places = VersionPlaces(
        shared=np.full(versions.total, -1, np.int64),
        local=np.full(versions.total, -1, np.int64),
        work=first.copy(),
        producer=np.arange(versions.total),
    )
    places.local[old] = begin[old]
    places.shared[old] = begin[old] if reached else np.where(versions.read_by_peers[old], first[old], -1)
    bounds = [versions.initial, versions.total]
    if versions.peer_hazard.any() or versions.own_hazard.any():  # then where a version lies depends on the one before
        bounds = versions.step.searchsorted(np.arange(versions.schedule.steps + 1)).tolist()
    for start, end in pairwise(bounds):
        here = slice(start, end)
        before = versions.previous[here]
        # The slots that must not be touched in this step: where peers, and where the rank itself, read the old version.
        busy = np.where(versions.peer_hazard[here], places.shared[before], -1)
        busy_own = np.where(versions.own_hazard[here], places.local[before], -1)
        home_free = versions.home[here] & (home[here] != busy) & (home[here] != busy_own)
        work = np.where((first[here] != busy) & (first[here] != busy_own), first[here], second[here])
        places.work[here] = work
        if reached:
            places.shared[here] = np.where(home_free, home[here], work)
            places.local[here] = places.shared[here]
        else:
            peers = versions.read_by_peers[here]
            at_home = home_free & (versions.final[here] | ~peers)
            places.local[here] = np.where(at_home, home[here], work)
            places.shared[here] = np.where(peers | ~at_home, work, -1)
    if memory == "shared":
        hand_out(versions, places, np.ones(versions.total, bool), versions.schedule.ranks)
    elif memory == "private":
        # Only if this changes nothing for later versions: there are none, or the version lies there anyway.
        hand_out(versions, places, versions.final | (places.shared == places.local), most_handed)
        handed = (places.producer != np.arange(versions.total)).nonzero()[0]
        places.shared[handed] = places.local[handed] = places.work[handed]
        _keep_to_itself(versions, places)
    return places


def hand_out(versions: Versions, places: VersionPlaces, may_be_given: NDArray[np.bool_], most: int) -> None:
    """Let the rank that reduces a chunk write it to the ranks that would copy it next, if they are not too many."""
    copies = ((versions.sizes == 1) & may_be_given).nonzero()[0]
    source = versions.operand[versions.begin[copies]]
    reduced = versions.sizes[source] > 1
    copies, source = copies[reduced], source[reduced]
    if not len(copies):
        return
    # Nobody may still need the old content of the destination: it was read before the reduction's step, or only by it.
    read_by = np.full(versions.total, -1, np.int64)
    read_by[versions.operand] = versions.reader  # readers are in the order of steps, and the last one remains
    read_at = np.where(read_by >= 0, versions.step[read_by], -2)
    at_last = versions.step[versions.reader] == read_at[versions.operand]
    reads = np.bincount(versions.operand[at_last].astype(np.intp), minlength=versions.total)
    old = versions.previous[copies]
    settled = (versions.step[old] < versions.step[source]) & (
        (read_at[old] < versions.step[source])
        | ((read_at[old] == versions.step[source]) & (reads[old] == 1) & (read_by[old] == source))
    )
    able = (old < 0) | settled
    copies, source = copies[able], source[able]
    step = versions.step[copies]
    for number in np.bincount(step.astype(np.intp)).nonzero()[0]:  # np.unique would import numpy.ma
        here = step == number
        pushes = np.bincount(versions.rank[source[here]].astype(np.intp)).max()
        pulls = np.bincount(versions.rank[copies[here]].astype(np.intp)).max()
        if pushes <= min(pulls, most):
            places.producer[copies[here]] = source[here]


def _keep_to_itself(versions: Versions, places: VersionPlaces) -> None:
    """A version that was handed to all its readers need not lie where they could read it."""
    reads = places.producer[versions.reader] == versions.reader
    reads &= versions.rank[versions.reader] != versions.rank[versions.operand]
    awaited = np.zeros(versions.total, bool)
    awaited[versions.operand[reads]] = True
    made = np.arange(versions.total) >= versions.initial
    places.shared[made & ~awaited & (places.local != places.shared)] = -1


def join(parts: Sequence[NDArray[np.integer]]) -> Ints:
    return np.concatenate(parts, dtype=np.int64) if parts else np.zeros(0, np.int64)
