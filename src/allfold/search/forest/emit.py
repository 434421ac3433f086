"""From trees to a schedule: in which step every chunk crosses every edge of its tree.

One step per depth is the fewest steps; it is fast where a rank has one port, and segments then keep all depths busy at
once. Where ranks have several links, a step waits for the slowest of them. There rounds are better: in a round every
link carries as many chunks as it can while the others carry theirs, and which chunks these are is decided greedily, the
one with the longest way still to go first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ... import _native
from ...schedules import Move, Schedule, build, copy, reduce
from ..found import Task
from ..rounds import per_round
from .trees import Forest

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TimedMoves:
    """Moves of chunks by their step. All of them copy, or all of them reduce."""

    step: Index
    chunk: Index
    source: Index
    destination: Index
    steps: int
    chunks: int
    reduces: bool

    def refined(self, chunks: int) -> TimedMoves:
        """The same with every chunk cut into equal parts, which travel together."""
        parts = chunks // self.chunks
        if parts == 1:
            return self
        step, source, destination = (np.repeat(side, parts) for side in (self.step, self.source, self.destination))
        chunk = (self.chunk[:, None] * parts + np.arange(parts)).ravel()
        return TimedMoves(step, chunk, source, destination, self.steps, chunks, self.reduces)


def schedule_of(task: Task, name: str, stages: list[TimedMoves]) -> Schedule:
    """The stages one after the other, as a schedule."""
    chunks = lcm(*(stage.chunks for stage in stages))

    def steps() -> list[list[Move]]:
        listed: list[list[Move]] = []
        for stage in (one.refined(chunks) for one in stages):
            order = np.argsort(stage.step, kind="stable")
            bounds = np.searchsorted(stage.step[order], np.arange(stage.steps + 1))
            move = reduce if stage.reduces else copy
            for start, end in pairwise(bounds.tolist()):
                at = order[start:end]
                listed.append([move(stage.chunk[at], stage.source[at], stage.destination[at])])
        return listed

    return build(task.collective, name, task.ranks, task.root, steps(), chunks)


def by_depth(forest: Forest) -> TimedMoves:
    """One step per depth of the trees; one chunk per tree."""
    tree = np.repeat(np.arange(len(forest.root)), forest.times.astype(np.intp))
    return _stage(forest, tree, forest.depth[tree] - 1)


def in_rounds(task: Task, forest: Forest, parts: int, pace: float, length: int) -> TimedMoves | None:
    """Rounds in which every link carries a whole number of chunks, `parts` per tree; None if time ran out.

    The slowest link carries at least `length` chunks per round, which is one of `lengths_of`.

    The chunks of a tree are due one after the other: with a `pace` of 1, evenly over the whole time; with 0, all at
    once, so that long ways alone decide what goes first.
    """
    topology, ranks = task.whole, task.ranks
    many = (forest.times * parts).astype(np.intp)
    tree = np.repeat(np.arange(len(forest.root)), many)
    child = np.tile(np.arange(ranks), len(forest.root))
    parent = forest.parent.ravel()
    has = parent >= 0
    ends = (child[has], parent[has]) if forest.rates.collects else (parent[has], child[has])
    routes = topology.routes(*ends)
    offsets = np.zeros(len(parent) + 1, np.int64)
    lengths = np.zeros(len(parent), np.int64)
    lengths[has] = routes.lengths
    np.cumsum(lengths, out=offsets[1:])
    used = np.unique(routes.links)
    crossing = np.bincount(routes.links, weights=np.repeat(np.repeat(many, ranks)[has], routes.lengths))[used].astype(
        float
    )
    capacity = np.zeros(len(topology.links), np.int64)
    capacity[used] = per_round(topology.bandwidth[used], crossing, int(forest.depth.max()), length)
    # Each of a tree's pieces is due when its share of the whole time has passed; all rounds together are the time that
    # the busiest link needs.
    in_all = float((crossing / capacity[used]).max())
    first = np.repeat(np.cumsum(many) - many, many)
    due = ((np.arange(len(tree)) - first + 1) / np.repeat(many, many) * in_all * pace).astype(np.int32)
    rounds = _native.rounds_of(ranks, tree.astype(np.int32), due, parent, offsets, routes.links, capacity, task.left)
    return None if rounds is None else _stage(forest, tree, rounds)


def _stage(forest: Forest, tree: Index, when: NDArray[np.int32]) -> TimedMoves:
    """The moves of all pieces: piece i goes down tree `tree[i]` and comes to rank r in step `when[i, r]`."""
    collects = forest.rates.collects
    piece, rank = np.nonzero(forest.parent[tree] >= 0)
    above = forest.parent[tree[piece], rank].astype(np.int64)
    # The pieces of a root are its slice, in order; trees of one root need not follow each other.
    order = np.argsort(forest.root[tree], kind="stable")
    chunk = np.empty(len(tree), np.int64)
    chunk[order] = np.arange(len(tree))
    step = when[piece, rank].astype(np.int64)
    steps = int(step.max()) + 1 if len(step) else 0
    if collects:
        return TimedMoves(steps - 1 - step, chunk[piece], rank, above, steps, len(tree), True)
    return TimedMoves(step, chunk[piece], above, rank, steps, len(tree), False)
