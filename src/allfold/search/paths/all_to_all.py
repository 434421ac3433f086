"""All-to-all: a path for everything that a rank has for another, then the moves along all paths, step by step.

On a small network the paths come from a linear program (`flows`): flows from every rank to all others that keep the
busiest link as little busy as possible. On larger ones every path is a shortest one, each step of it over the pair that
is busy least so far. Moves are then arranged in both ways that `paths` has, of which the cheaper is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ...errors import UsageError
from ...schedules import Move, Schedule, build, copy
from ..found import Task
from ..neighbours import Neighbours, neighbours_of
from .arrange import Paths, Step, along_flows, balanced, far_from, hop_by_hop, round_by_round, shortest
from .flows import flows_of

MOST_RANKS = 512
MOST_COMPLETE = 256  # ranks, where everybody is a neighbour of everybody
_MOST_HOPS = 2**22
_CHUNKS = (1, 2, 4)
_FINEST = 6  # chunks for every other rank


def all_to_all(task: Task) -> Iterator[Schedule]:
    if task.ranks > MOST_RANKS:
        raise UsageError(f"all_to_all supports at most {MOST_RANKS} ranks, not {task.ranks}")
    if task.ranks == 1:
        yield build("all_to_all", _name(task), 1, None, [], 1)
        return
    among = neighbours_of(task.topology, task.ranks)
    far = far_from(among, np.arange(task.ranks))
    least = sum(int(row.sum()) for row in far.values())
    if task.ranks > MOST_COMPLETE and len(among.source) == task.ranks * (task.ranks - 1):
        raise UsageError("all ranks are neighbours, so the built-in direct exchange is already the best")
    paths = shortest(among, far, task.chunks or 1, task if task.prices else None)
    if paths is None:
        return
    yield from _arranged(task, among, paths, task.chunks or 1)
    flows = task.flows or flows_of(task)
    if flows is None:
        return
    whole = Fraction(flows.rounds).limit_denominator(_FINEST).denominator  # chunks with which it may be met exactly
    for chunks in sorted({*_CHUNKS, whole}) if task.chunks is None else (task.chunks,):
        if not task.left or least * chunks > min(_MOST_HOPS, task.most_moves):
            return
        paths = along_flows(flows.among, dict(enumerate(flows.by_pair)), far, chunks)
        paths = balanced(flows.among, paths, flows.rounds * chunks, task)
        yield from _arranged(task, flows.among, paths, chunks)


def _arranged(task: Task, among: Neighbours, paths: Paths, chunks: int) -> Iterator[Schedule]:
    yield _schedule(task, among, chunks, hop_by_hop(paths))
    rounds = round_by_round(among, paths, among.capacity, task)
    if rounds is not None:
        yield _schedule(task, among, chunks, rounds)


def _schedule(task: Task, among: Neighbours, chunks: int, steps: list[Step]) -> Schedule:
    moves = _moves(among, task.ranks, chunks, steps)
    return build("all_to_all", _name(task), task.ranks, None, moves, task.ranks * chunks)


def _name(task: Task) -> str:
    return f"greedy_{task.topology.name}".replace(" ", "_")


def _moves(among: Neighbours, ranks: int, chunks: int, steps: list[Step]) -> Iterator[list[Move]]:
    """The moves; what passes through a rank, or comes before its place is free, lies in scratch chunks meanwhile."""
    source, destination = among.source.tolist(), among.destination.tolist()
    lies: dict[tuple[int, int, int], int] = {}  # where a rank has something that is not yet where it belongs
    free: list[list[int]] = [[] for _ in range(ranks)]
    used = [ranks * chunks] * ranks
    left = [[False] * (ranks * chunks) for _ in range(ranks)]  # whether what a rank started with in a chunk is gone

    def scratch(rank: int) -> int:
        if free[rank]:
            return free[rank].pop()
        used[rank] += 1
        return used[rank] - 1

    late = []
    for step in steps:
        freed = []
        for what, pair in step:
            start, end, chunk = what
            rank = source[pair]
            if rank == start:
                left[rank][end * chunks + chunk] = True
            else:
                freed.append((rank, lies[what]))
        moves = []
        for what, pair in step:
            start, end, chunk = what
            rank, next_rank = source[pair], destination[pair]
            here = end * chunks + chunk if rank == start else lies[what]
            place = start * chunks + chunk
            if next_rank == end and left[end][place]:
                there = place
            else:
                there = lies[what] = scratch(next_rank)
                if next_rank == end:
                    late.append((end, there, place))
            moves.append(copy(here, rank, next_rank, there))
        for rank, slot in freed:
            free[rank].append(slot)
        yield moves
    if late:
        yield [copy(here, rank, rank, there) for rank, here, there in late]
