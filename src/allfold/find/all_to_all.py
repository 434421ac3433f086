"""All-to-all: a path for everything that a rank has for another, then the moves along all paths, step by step.

On a small network the paths come from a linear program (`flows`): flows from every rank to all others that keep the
busiest link as little busy as possible. On larger ones every path is a shortest one, each step of it over the pair that
is busy least so far. Moves are then arranged in two ways, of which the cheaper is kept: everything makes its t-th hop in
step t, or round by round, with no link ever busy for longer than one round and whatever has the longest way before it
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..schedule import Move, Schedule, build, copy
from .exact import hops
from .flows import flows_of
from .found import Task
from .neighbours import Neighbours, neighbours_of

MOST_RANKS = 256
_MOST_HOPS = 2**22
_CHUNKS = (1, 2, 4)
_FINEST = 6  # chunks for every other rank

Path = list[int]
"""The pairs of neighbours that something crosses, in order."""
Paths = dict[tuple[int, int, int], Path]
"""By start, end, and number of the chunk."""


def all_to_all(task: Task) -> Iterator[Schedule]:
    if task.ranks > MOST_RANKS:
        raise UsageError(f"all_to_all is found for at most {MOST_RANKS} ranks, not for {task.ranks}")
    if task.ranks == 1:
        yield build("all_to_all", _name(task), 1, None, [], 1)
        return
    among = neighbours_of(task.topology, task.ranks)
    far = hops(among)
    yield from _arranged(task, among, _shortest(among, far, task.chunks or 1), task.chunks or 1)
    flows = task.flows or flows_of(task)
    if flows is None:
        return
    whole = Fraction(flows.rounds).limit_denominator(_FINEST).denominator  # chunks with which it may be met exactly
    for chunks in sorted({*_CHUNKS, whole}) if task.chunks is None else (task.chunks,):
        if not task.left or far.sum() * chunks > min(_MOST_HOPS, task.most_moves):
            return
        paths = _along_flows(flows.among, flows.by_pair, far, chunks)
        yield from _arranged(task, flows.among, paths, chunks)


def _arranged(task: Task, among: Neighbours, paths: Paths, chunks: int) -> Iterator[Schedule]:
    yield _schedule(task, among, chunks, _hop_by_hop(among, paths))
    rounds = _round_by_round(among, paths, task)
    if rounds is not None:
        yield _schedule(task, among, chunks, rounds)


def _along_flows(among: Neighbours, flows: Any, far: NDArray[np.int64], chunks: int) -> Paths:
    """A path for every chunk, backwards from its end over the pair with the most of the flow left."""
    into: list[list[int]] = [[] for _ in range(among.ranks)]
    for pair, end in enumerate(among.destination.tolist()):
        into[end].append(pair)
    source = among.source.tolist()
    paths: Paths = {}
    for start in range(among.ranks):
        left = flows[start].tolist()
        for end in sorted(range(among.ranks), key=lambda end: -int(far[start, end])):
            for chunk in range(chunks if end != start else 0):
                path: Path = []
                rank, seen = end, {end}
                while rank != start:
                    options = [pair for pair in into[rank] if source[pair] not in seen]
                    if not options:  # a dead end: the shortest way instead
                        path, rank = _shortest_path(among, into, far, start, end)[::-1], start
                        break
                    # Where the flow is used up, the nearest.
                    pair = max(options, key=lambda pair: (left[pair] > 1e-6, left[pair], -far[start, source[pair]]))
                    if left[pair] <= 1e-6:
                        pair = min(options, key=lambda pair: far[start, source[pair]])
                    path.append(pair)
                    rank = source[pair]
                    seen.add(rank)
                for pair in path:
                    left[pair] -= 1 / chunks
                paths[start, end, chunk] = path[::-1]
    return paths


def _shortest_path(among: Neighbours, into: list[list[int]], far: NDArray[np.int64], start: int, end: int) -> Path:
    path: Path = []
    while end != start:
        pair = next(pair for pair in into[end] if far[start, among.source[pair]] == far[start, end] - 1)
        path.insert(0, pair)
        end = int(among.source[pair])
    return path


def _shortest(among: Neighbours, far: NDArray[np.int64], chunks: int) -> Paths:
    """Shortest paths, each hop over the pair whose links are busy least."""
    leaving: list[list[int]] = [[] for _ in range(among.ranks)]
    for pair, start in enumerate(among.source.tolist()):
        leaving[start].append(pair)
    routes = [links.tolist() for links in np.split(among.links, among.offsets[1:-1])]
    busy = [0.0] * len(among.capacity)
    cost = (1 / among.capacity).tolist()
    after, away = among.destination.tolist(), far.tolist()
    paths: Paths = {}
    for apart in range(1, among.ranks):  # everybody's turn, so that nobody has taken all before the others come
        for start in range(among.ranks):
            end = (start + apart) % among.ranks
            for chunk in range(chunks):
                path: Path = []
                rank = start
                while rank != end:
                    nearer = [pair for pair in leaving[rank] if away[after[pair]][end] == away[rank][end] - 1]
                    pair = min(nearer, key=lambda pair: max([busy[link] for link in routes[pair]], default=0.0))
                    for link in routes[pair]:
                        busy[link] += cost[link]
                    path.append(pair)
                    rank = after[pair]
                paths[start, end, chunk] = path
    return paths


Step = list[tuple[tuple[int, int, int], int]]
"""What moves (its start, its end, its chunk) over which pair."""


def _hop_by_hop(among: Neighbours, paths: Paths) -> list[Step]:
    longest = max(len(path) for path in paths.values())
    return [[(what, path[hop]) for what, path in paths.items() if hop < len(path)] for hop in range(longest)]


def _round_by_round(among: Neighbours, paths: Paths, task: Task) -> list[Step] | None:
    routes = [links.tolist() for links in np.split(among.links, among.offsets[1:-1])]
    capacity = among.capacity.tolist()
    waiting: dict[int, list[tuple[int, int, tuple[int, int, int]]]] = {}
    for turn, (what, path) in enumerate(paths.items()):
        heappush(waiting.setdefault(path[0], []), (-len(path), turn, what))
    done = dict.fromkeys(paths, 0)
    steps: list[Step] = []
    while waiting:
        if not task.left:
            return None
        left = list(capacity)
        step: Step = []
        for pair in sorted(waiting, key=lambda pair: waiting[pair][0]):
            queue = waiting[pair]
            while queue and all(left[link] for link in routes[pair]):
                for link in routes[pair]:
                    left[link] -= 1
                step.append((heappop(queue)[2], pair))
        waiting = {pair: queue for pair, queue in waiting.items() if queue}
        # Only now: what arrives in a step goes on in a later one.
        for turn, (what, _) in enumerate(step):
            done[what] += 1
            path = paths[what]
            if done[what] < len(path):
                heappush(waiting.setdefault(path[done[what]], []), (done[what] - len(path), turn, what))
        steps.append(step)
    return steps


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
