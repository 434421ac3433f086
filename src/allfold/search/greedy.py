"""Greedy: in every round, every rank takes the rarest chunks that it can get; several seeds, for thousands of ranks.

Every chunk starts at one rank and goes to all. In every round (a step of the schedule) a link carries as many chunks as
its bandwidth allows, and every rank takes as many of those that it misses as it can get from its neighbours, the ones
that fewest ranks have first. On meshes, tori and other networks where each rank's own cables are the limit this comes
to the least number of rounds; where a group of ranks shares the limit it does not. Reducing collectives are the same
schedule backwards, found on the network with all links reversed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import UsageError
from ..schedules import Schedule
from .found import Task
from .neighbours import Neighbours, neighbours_of
from .paths.all_to_all import MOST_RANKS, all_to_all
from .spreading import KNOWN, Rounds, phases, schedule_of

_MOST_MOVES = 2**25
_CHUNKS = (1, 2, 4, 8, 3, 6, 16, 12, 32)
"""Chunks per slice to try, the most useful first."""
_CHUNKS_OF_A_ROOT = (4, 16, 64, 256, 1)
"""Chunks to try where all start at one rank: the more there are, the sooner everybody has something to pass on."""
_SEEDS = 4
_PER_RANK = 24
"""Neighbours that a rank takes from, where everybody is a neighbour."""


def fits(task: Task) -> bool:
    if task.promise.exchanges:
        return task.ranks <= MOST_RANKS
    origins = task.ranks if task.root is None else 1
    return task.collective in KNOWN and origins * task.ranks <= _MOST_MOVES


def greedy(task: Task) -> Iterator[Schedule]:
    if task.promise.exchanges:
        yield from all_to_all(task)
        return
    if task.collective not in KNOWN:
        known = ", ".join([*KNOWN, "all_to_all"])
        raise UsageError(f"the greedy method finds {known}, not {task.collective}")
    if not fits(task):
        raise UsageError(f"{task.ranks} ranks are too many for the greedy method: more than {_MOST_MOVES:,} moves")
    if task.ranks == 1:
        yield schedule_of(task, "greedy", 1, [])
        return
    among = neighbours_of(task.topology, task.ranks)
    usual = _CHUNKS if task.root is None else _CHUNKS_OF_A_ROOT
    origins = task.ranks if task.root is None else 1
    most_moves = max(origins * task.ranks, min(_MOST_MOVES, task.most_moves))
    best: dict[int, int] = {}
    for seed in range(task.seed, task.seed + _SEEDS):
        for chunks in usual if task.chunks is None else (task.chunks,):
            if origins * task.ranks * chunks > most_moves:
                continue
            found = [_one(phase.among(among), phase.holders(task, chunks), task, seed) for phase in phases(task)]
            whole = [rounds for rounds in found if rounds is not None]
            if len(whole) < len(found):
                return
            rounds = sum(len(one.starts) - 1 for one in whole)
            if rounds >= best.get(chunks, rounds + 1):
                continue
            best[chunks] = rounds
            task.say(f"greedy: {chunks} chunks per rank in {rounds} rounds")
            yield schedule_of(task, "greedy", chunks, whole)


def _one(among: Neighbours, holder: NDArray[np.int32], task: Task, seed: int) -> Rounds | None:
    among = _thinned(among, seed)
    found = _native.spread(
        among.ranks,
        among.source,
        among.destination,
        among.offsets,
        among.links,
        among.capacity,
        holder,
        seed,
        task.left,
    )
    if found is None:
        return None
    starts, chunk, source, destination = (column[0] for column in found)
    return Rounds(starts, chunk, source, destination)


def _thinned(among: Neighbours, seed: int) -> Neighbours:
    """Neighbours at some random distances only, the same for all ranks, where all ranks are neighbours."""
    if len(among.source) <= _PER_RANK * among.ranks * 4:
        return among
    apart = (among.destination - among.source) % among.ranks
    random = np.random.default_rng(seed)
    near = np.concatenate([np.arange(1, 9), among.ranks - np.arange(1, 9)])
    chosen = np.concatenate([near, random.choice(among.ranks - 1, _PER_RANK, replace=False) + 1])
    return among.taken(np.isin(apart, chosen))
