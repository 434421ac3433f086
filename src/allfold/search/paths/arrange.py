"""Paths over pairs of neighbours for what goes from one rank to another, and when everything makes its hops.

Paths follow flows, or are the shortest. Their hops are arranged in one of two ways: everything makes its t-th hop in step
t, or round by round, with no link ever busy for longer than one round and whatever has the longest way before it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ..exact import hops
from ..found import Task
from ..neighbours import Neighbours

Path = list[int]
"""The pairs of neighbours that something crosses, in order."""
What = tuple[int, int, int]
"""Its source, its destination, and the number of the chunk."""
Paths = dict[What, Path]


Far = Mapping[int, NDArray[np.int64]]
"""By the rank where paths start: how many hops away every rank is."""


def far_from(among: Neighbours, starts: NDArray[np.int64]) -> Far:
    return dict(zip(starts.tolist(), hops(among, starts), strict=True))


def along_flows(among: Neighbours, flows: Mapping[int, NDArray[np.float64]], far: Far, chunks: int) -> Paths:
    """A path for every chunk, backwards from its end over the pair with the most of the flow left.

    `flows` are by the rank where they start.
    """
    into, source = _pairs_into(among), among.source.tolist()
    paths: Paths = {}
    for start, flow in flows.items():
        left, away = flow.tolist(), far[start].tolist()
        for end in sorted(range(among.ranks), key=lambda end: -away[end]):
            for chunk in range(chunks if end != start else 0):
                path: Path = []
                rank, seen = end, {end}
                while rank != start:
                    options = [pair for pair in into[rank] if source[pair] not in seen]
                    if not options:  # a dead end: the shortest way instead
                        path, rank = _shortest_path(source, into, away, end), start
                        break
                    # Where the flow is used up, the nearest.
                    pair = max(options, key=lambda pair: (left[pair] > 1e-6, left[pair], -away[source[pair]]))
                    if left[pair] <= 1e-6:
                        pair = min(options, key=lambda pair: away[source[pair]])
                    path.append(pair)
                    rank = source[pair]
                    seen.add(rank)
                for pair in path:
                    left[pair] -= 1 / chunks
                paths[start, end, chunk] = path[::-1]
    return paths


def _pairs_into(among: Neighbours) -> list[list[int]]:
    into: list[list[int]] = [[] for _ in range(among.ranks)]
    for pair, end in enumerate(among.destination.tolist()):
        into[end].append(pair)
    return into


def _shortest_path(source: list[int], into: list[list[int]], away: list[int], end: int) -> Path:
    """From the end backwards."""
    path: Path = []
    while away[end]:
        pair = next(pair for pair in into[end] if away[source[pair]] == away[end] - 1)
        path.append(pair)
        end = source[pair]
    return path


def shortest(among: Neighbours, far: Far, chunks: int, task: Task | None = None) -> Paths | None:
    """Shortest paths, each hop over the pair whose links are busy least; None if time ran out."""
    into, source = _pairs_into(among), among.source.tolist()
    routes, cost = among.routes, among.times.tolist()
    busy = [0.0] * len(cost)
    away = {start: row.tolist() for start, row in far.items()}
    paths: Paths = {}
    for apart in range(1, among.ranks):  # in turns, so that no rank takes the best paths before the others
        if task is not None and not task.left:
            return None
        for start, hops_to in away.items():
            end = (start + apart) % among.ranks
            for chunk in range(chunks):
                path: Path = []
                rank = end
                while rank != start:
                    nearer = [pair for pair in into[rank] if hops_to[source[pair]] == hops_to[rank] - 1]
                    pair = min(nearer, key=lambda pair: max([busy[link] for link in routes[pair]], default=0.0))
                    for link in routes[pair]:
                        busy[link] += cost[link]
                    path.append(pair)
                    rank = source[pair]
                paths[start, end, chunk] = path[::-1]
    return paths


def balanced(among: Neighbours, paths: Paths, rounds: float, task: Task) -> Paths:
    """The same with paths over busy links replaced, until no link is busy for more than `rounds`, or no way is better.

    Whole chunks along flows leave some links with more to carry than the flows have there.
    """
    routes, cost = among.routes, among.times.tolist()
    source, destination = among.source.tolist(), among.destination.tolist()
    leaving: list[list[int]] = [[] for _ in range(among.ranks)]
    for pair, start in enumerate(source):
        leaving[start].append(pair)
    found, load = dict(paths), np.zeros(len(cost))
    users: list[dict[What, None]] = [{} for _ in cost]

    def count(what: What, path: Path, by: int) -> None:
        for link in (link for pair in path for link in routes[pair]):
            load[link] += by
            if by > 0:
                users[link][what] = None
            else:
                users[link].pop(what, None)

    def best_way(start: int, end: int) -> tuple[float, Path]:
        """The path whose busiest link has the least load; among those, the shortest."""
        ahead: list[tuple[float, int, int, int]] = [(0.0, 0, start, -1)]
        came: dict[int, int] = {}
        while ahead:
            busiest, length, rank, over = heappop(ahead)
            if rank in came:
                continue
            came[rank] = over
            if rank == end:
                path: Path = []
                while rank != start:
                    path.append(came[rank])
                    rank = source[came[rank]]
                return busiest, path[::-1]
            for pair in leaving[rank]:
                if destination[pair] not in came:
                    there = max([(load[link] + 1) * cost[link] for link in routes[pair]], default=0.0)
                    # What is not too busy is all the same.
                    busy = max(busiest, there if there > rounds * (1 + 1e-9) else 0.0)
                    heappush(ahead, (busy, length + 1, destination[pair], pair))
        return float("inf"), []

    for what, path in found.items():
        count(what, path, 1)
    for _ in range(2 * len(found)):
        times = load * cost
        worst = int(times.argmax())
        if times[worst] <= rounds * (1 + 1e-9) or not task.left:
            break
        for what in list(users[worst])[:_TRIED]:
            count(what, found[what], -1)
            busiest, path = best_way(*what[:2])
            better = busiest < times[worst] * (1 - 1e-9)
            found[what] = path if better else found[what]
            count(what, found[what], 1)
            if better:
                break
        else:
            break
    return found


_TRIED = 8  # of all that crosses the busiest link, before it is given up


Step = list[tuple[What, int]]
"""Moves, each with the pair that it crosses."""


def hop_by_hop(paths: Paths) -> list[Step]:
    longest = max(len(path) for path in paths.values())
    return [[(what, path[hop]) for what, path in paths.items() if hop < len(path)] for hop in range(longest)]


def round_by_round(
    among: Neighbours, paths: Paths, per_round: NDArray[np.integer], task: Task, pace: float = 0.0
) -> list[Step] | None:
    """Arrange the hops so that every link carries at most `per_round` chunks per round; None if time ran out.

    The chunks of a rank are due one after the other: with a `pace` of 1, evenly over the whole time; with 0, all at
    once, so that long ways alone decide what goes first.
    """
    routes = among.routes
    capacity = per_round.tolist()
    crossing = np.bincount([link for path in paths.values() for pair in path for link in routes[pair]])
    in_all = float((crossing / per_round[: len(crossing)]).max(initial=0.0)) * pace
    chunks = 1 + max(number for _, _, number in paths)
    # By pair: what waits for it, the most urgent first, by when it is due at its end less the hops that it has to go.
    waiting: dict[int, list[tuple[float, int, What]]] = {}

    def wait(what: What, turn: int) -> None:
        path = paths[what]
        due = in_all * what[2] / chunks - (len(path) - done[what])
        heappush(waiting.setdefault(path[done[what]], []), (due, turn, what))

    done = dict.fromkeys(paths, 0)
    for turn, what in enumerate(paths):
        wait(what, turn)
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
            if done[what] < len(paths[what]):
                wait(what, turn)
        steps.append(step)
    return steps
