"""Scatter and gather: a path from the root for every chunk, at the rate of the tightest cut.

What the root has for others are different bytes, and nothing is copied on the way. So flows from the root to all ranks are
all there is to find, and what leaves the root's side of the tightest cut is what limits them. On networks of moderate
size the flows come from a linear program, otherwise paths are the shortest. Every chunk gets a path along the flows. They
are arranged hop by hop or round by round, in rounds of several lengths, and smaller chunks are tried for as long as they
pay. A gather is a scatter on the network with all links reversed, and runs backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from ...errors import UsageError
from ...schedules import Move, Schedule, build, copy
from ..found import Task
from ..neighbours import Neighbours, neighbours_of
from ..rounds import lengths_of, per_round
from .arrange import Far, Paths, Step, along_flows, balanced, far_from, hop_by_hop, round_by_round, shortest
from .flows import Flows, flows_of

MOST_RANKS = 1024
_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
_FINEST = 12
_PACES = (1.0, 0.5, 0.0)
_WORTH, _PATIENCE = 0.995, 5  # smaller chunks must be cheaper by this factor, or the next ones


def scattered(task: Task) -> Iterator[Schedule]:
    assert task.root is not None
    if task.ranks > MOST_RANKS:
        raise UsageError(f"{task.collective} supports at most {MOST_RANKS} ranks, not {task.ranks}")
    if task.ranks == 1:
        yield _schedule(task, neighbours_of(task.topology, 1), 1, [])
        return
    flows = task.flows or flows_of(task)
    if flows is None:
        among = neighbours_of(task.topology, task.ranks)
        among = among.reversed() if task.promise.ends.root_only else among
    else:
        among = flows.among
    far = far_from(among, np.array([task.root]))
    best, in_vain = float("inf"), 0
    for chunks in _numbers(flows) if task.chunks is None else (task.chunks,):
        # The first takes next to no time, and is better than nothing when time has run out.
        if chunks > 1 and (not task.left or int(far[task.root].sum()) * chunks > task.most_moves):
            return
        task.say(f"{task.collective}: {chunks} chunks per rank")
        before = best
        for paths in _ways(task, among, flows, far, chunks):
            for steps in _arranged(task, among, paths):
                yield _schedule(task, among, chunks, steps)
                best = min(best, task.prices[-1] if task.prices else best)
        in_vain = in_vain + 1 if best > before * _WORTH else 0
        if in_vain == _PATIENCE:
            return


def _numbers(flows: Flows | None) -> list[int]:
    """Of chunks per rank: small ones, and those with which the flows may be met exactly."""
    whole = 1 if flows is None else Fraction(flows.rounds).limit_denominator(_FINEST).denominator
    return sorted({*_CHUNKS, *(whole * many for many in (1, 2, 4))})


def _ways(task: Task, among: Neighbours, flows: Flows | None, far: Far, chunks: int) -> Iterator[Paths]:
    assert task.root is not None
    if (chunks == 1 or flows is None) and (paths := shortest(among, far, chunks)) is not None:
        yield paths
    if flows is not None:
        paths = along_flows(among, {task.root: flows.by_pair[0]}, far, chunks)
        yield balanced(among, paths, flows.rounds * chunks, task)


def _arranged(task: Task, among: Neighbours, paths: Paths) -> Iterator[list[Step]]:
    yield hop_by_hop(paths)
    crossing = np.zeros(len(among.bandwidth))
    for path in paths.values():
        for pair in path:
            crossing[among.routes[pair]] += 1
    deepest = max(len(path) for path in paths.values())
    for length, pace in product(lengths_of(among.bandwidth), _PACES):
        capacity = per_round(among.bandwidth, crossing, deepest, length)
        rounds = round_by_round(among, paths, capacity, task, pace)
        if rounds is None:
            return
        yield rounds


def _schedule(task: Task, among: Neighbours, chunks: int, steps: list[Step]) -> Schedule:
    back = task.promise.ends.root_only
    name = f"throughput_{task.topology.name}"
    moves = (_moves(among, chunks, step, back) for step in (reversed(steps) if back else steps))
    return build(task.collective, name, task.ranks, task.root, moves, task.ranks * chunks)


def _moves(among: Neighbours, chunks: int, step: Step, back: bool) -> list[Move]:
    chunk = np.array([end * chunks + number for (_, end, number), _ in step])
    pair = np.array([pair for _, pair in step])
    ends = among.source[pair], among.destination[pair]
    return [copy(chunk, *(ends[::-1] if back else ends))]
