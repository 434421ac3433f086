"""Breadth-first broadcast: in step t every rank gets the slices of the ranks at distance t, as few steps as there are.

They come from the neighbours that are one step nearer to their ranks. Which share comes from which of them is chosen so
that the busiest link carries as little as possible, exactly for links that no other rank's chunks cross. (Zhao et al.,
arXiv 2202.03356.) On tori, hypercubes and other networks where every rank sees the same the result also moves as few
bytes as possible.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedules import Schedule
from .exact import hops
from .found import Task
from .neighbours import Neighbours, neighbours_of
from .spreading import Direction, Rounds, phases, schedule_of

_MOST_MOVES = 2**24
_CHUNKS = (1, 2, 4, 6, 12)
"""Chunks per slice to try: the more there are, the finer the shares."""


def breadth_first(task: Task) -> Iterator[Schedule]:
    among = neighbours_of(task.topology, task.ranks)
    for chunks in _CHUNKS if task.chunks is None else (task.chunks,):
        if not task.left or (task.ranks * task.ranks * chunks > min(_MOST_MOVES, task.most_moves) and chunks > 1):
            return
        task.say(f"breadth first: {chunks} chunks per rank")
        found = [spread(task, phase, among, chunks) for phase in phases(task)]
        whole = [rounds for rounds in found if rounds is not None]
        if len(whole) < len(found):
            return
        yield schedule_of(task, "breadth_first", chunks, whole)


def spread(task: Task, phase: Direction, neighbours: Neighbours, chunks: int) -> Rounds | None:
    """The moves, step by step: a step is as long as its busiest link needs. None if time ran out."""
    among = phase.among(neighbours)
    holder = phase.holders(task, 1)
    far = hops(among)[holder]  # by slice and rank
    incoming = np.argsort(among.destination, kind="stable")
    first = np.searchsorted(among.destination[incoming], np.arange(among.ranks + 1))
    cost = (1.0 / among.capacity).tolist()
    source = among.source.tolist()
    moves: list[tuple[int, int, int]] = []
    starts = [0]
    for step in range(1, int(far.max(initial=0)) + 1):
        load = [0.0] * len(cost)
        for rank in range(among.ranks):
            wanted = np.flatnonzero(far[:, rank] == step)
            if not len(wanted):
                continue
            if not task.left:
                return None
            pairs = incoming[first[rank] : first[rank + 1]]
            has = far[wanted][:, among.source[pairs]] == step - 1
            options = [np.flatnonzero(row).tolist() for row in has]
            for which, chunk, part in _shares([among.routes[pair] for pair in pairs], cost, options, chunks, load):
                moves.append((int(wanted[which]) * chunks + chunk, source[pairs[part]], rank))
        starts.append(len(moves))
    table = np.asarray(moves, np.int32).reshape(-1, 3)
    return Rounds(np.asarray(starts, np.int64), table[:, 0], table[:, 1], table[:, 2])


def _shares(
    routes: list[list[int]], cost: list[float], options: list[list[int]], chunks: int, load: list[float]
) -> list[tuple[int, int, int]]:
    """Over which of the routes each chunk of each wanted slice comes; `options` are the routes that it can come over.

    First one after the other, over the route whose links are busy least. Then, while the busiest route can be relieved
    by moving one of its chunks to another route, and perhaps a chunk of that to a third, that is done. `load` is how long
    every link is busy, in rounds, and a chunk adds `cost` to it.
    """
    holds: list[list[list[int]]] = [[[] for _ in options] for _ in routes]

    def busy(route: int, more: int = 0) -> float:
        return max([load[link] + more * cost[link] for link in routes[route]], default=0.0)

    def put(route: int, wanted: int, chunk: int) -> None:
        holds[route][wanted].append(chunk)
        for link in routes[route]:
            load[link] += cost[link]

    def take(route: int, wanted: int) -> int:
        for link in routes[route]:
            load[link] -= cost[link]
        return holds[route][wanted].pop()

    for wanted in sorted(range(len(options)), key=lambda wanted: len(options[wanted])):
        for chunk in range(chunks):
            put(min(options[wanted], key=lambda route: busy(route, 1)), wanted, chunk)
    while True:
        most = max(range(len(routes)), key=busy)
        limit = busy(most) - 1e-9
        # Breadth first over routes: where could one of its chunks go, and from there, until one is not too busy.
        before: dict[int, tuple[int, int]] = {most: (-1, -1)}
        ahead, end = [most], -1
        for route in ahead:
            for wanted, there in enumerate(options):
                if not holds[route][wanted]:
                    continue
                for other in there:
                    if other not in before:
                        before[other] = (route, wanted)
                        ahead.append(other)
                        if busy(other, 1) < limit:
                            end = other
                            break
                if end >= 0:
                    break
            if end >= 0:
                break
        if end < 0:
            break
        while end != most:
            route, wanted = before[end]
            put(end, wanted, take(route, wanted))
            end = route
    return [
        (wanted, chunk, route) for route, its in enumerate(holds) for wanted, mine in enumerate(its) for chunk in mine
    ]
