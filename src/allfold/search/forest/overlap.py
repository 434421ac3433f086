"""An all_reduce that collects some chunks while it spreads others: up a spanning tree, and down the same.

A chunk crosses every edge of its tree twice, once each way, whichever rank is the root. So what is wanted are spanning
trees that share the links evenly. They are built one after the other, each over the edges that are busy least so far,
which comes close to the best there is (greedy tree packing, Thorup 2007). All moves of all chunks share the rounds:
whatever is ready and has the longest way before it goes first, over links that have room.

Pairs of ranks that have a link one way only are not used. Where such links matter, where steps are what costs, and where
two stages one after the other keep all links busy anyway, those are better.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...schedules import Move, Schedule, build, copy, reduce
from ..found import Task
from ..neighbours import Neighbours, neighbours_of
from ..rounds import lengths_of, per_round

MOST_RANKS = 64
_TREES = (4, 8, 16, 32, 64, 128, 256, 512)
_MOST_MOVES = 30_000  # more take long to arrange
_WORTH, _PATIENCE = 0.995, 2  # more trees must be cheaper by this factor, or the next ones

Parents = NDArray[np.int64]
"""Of the ranks of one tree; −1 at its root."""


def overlapped(task: Task, name: str) -> Iterator[Schedule]:
    """Schedules with more and more trees, one chunk each, for as long as they pay."""
    packing = _Packing(neighbours_of(task.topology, task.ranks))
    trees: list[Parents] = []
    best, in_vain = float("inf"), 0
    for many in _TREES if task.chunks is None else (task.ranks * task.chunks,):
        if many * 2 * (task.ranks - 1) > min(_MOST_MOVES, task.most_moves):
            return
        while len(trees) < many and task.left:
            tree = packing.next_tree()
            if tree is None:
                return  # some rank has no link both ways
            trees.append(tree)
        if len(trees) < many:
            return
        task.say(f"collecting and spreading at once, {many} trees")
        before = best
        moves = _Moves(task, trees)
        for length in lengths_of(task.whole.bandwidth)[:2]:
            steps = moves.arranged(length)
            if steps is None:
                return
            yield build("all_reduce", name, task.ranks, None, steps, many)
            best = min(best, task.prices[-1] if task.prices else best)
        in_vain = in_vain + 1 if best > before * _WORTH else 0
        if in_vain == _PATIENCE:
            return


class _Packing:
    """The load of the links with the trees so far, if every tree carries one chunk."""

    def __init__(self, among: Neighbours) -> None:
        self.ranks = among.ranks
        code = among.source.astype(np.int64) * among.ranks + among.destination
        back = among.destination.astype(np.int64) * among.ranks + among.source
        order = np.argsort(code)
        place = np.searchsorted(code[order], back).clip(max=len(code) - 1)
        both = code[order][place] == back
        self.source, self.destination = among.source[both].astype(np.int64), among.destination[both].astype(np.int64)
        there = np.flatnonzero(both).tolist()
        crossed = [among.routes[pair] + among.routes[int(order[place[pair]])] for pair in there]
        # The links that a pair crosses, both ways; the last link is none, and never busy.
        self.links = np.full((len(there), max(map(len, crossed), default=0) + 1), len(among.names))
        for row, links in enumerate(crossed):
            self.links[row, : len(links)] = links
        self.cost = np.append(among.times, 0.0)
        self.load = np.zeros(len(self.cost))

    def next_tree(self) -> Parents | None:
        """A spanning tree that grows over the pair which is busy least, of equal ones that nearest to the root."""
        parent, depth = np.full(self.ranks, -1), np.zeros(self.ranks, np.int64)
        reached = np.arange(self.ranks) == 0
        while not reached.all():
            open_pairs = np.flatnonzero(reached[self.source] & ~reached[self.destination])
            if not len(open_pairs):
                return None
            busy = ((self.load[self.links[open_pairs]] + 1) * self.cost[self.links[open_pairs]]).max(axis=1)
            chosen = open_pairs[np.lexsort((depth[self.source[open_pairs]], np.round(busy, 9)))[0]]
            rank, above = self.destination[chosen], self.source[chosen]
            parent[rank], depth[rank], reached[rank] = above, depth[above] + 1, True
            np.add.at(self.load, self.links[chosen], 1)
        return _hung_from_its_centre(parent)


def _hung_from_its_centre(parent: Parents) -> Parents:
    """The same tree with the root where it is least deep."""
    beside: list[list[int]] = [[] for _ in parent]
    for rank, above in enumerate(parent.tolist()):
        if above >= 0:
            beside[rank].append(above)
            beside[above].append(rank)

    def walk(start: int) -> tuple[list[int], Parents]:
        """Ranks in the order of their distance, and from where each was reached."""
        order, came = [start], np.full(len(parent), -1)
        for rank in order:
            for other in beside[rank]:
                if other != came[rank]:
                    came[other] = rank
                    order.append(other)
        return order, came

    one_end = walk(0)[0][-1]
    order, came = walk(one_end)
    path = [order[-1]]
    while path[-1] != one_end:
        path.append(int(came[path[-1]]))
    return walk(path[len(path) // 2])[1]


class _Moves:
    """The moves of trees: what each crosses, what waits for it, and how far it is to the end.

    Of tree t, move 2·ranks·t + v goes up from rank v, and move 2·ranks·t + ranks + v comes down to it.
    """

    def __init__(self, task: Task, trees: list[Parents]) -> None:
        self.task, ranks = task, task.ranks
        self.source: list[int] = []
        self.destination: list[int] = []
        self.to_go: list[int] = []
        self.waits: list[int] = []
        self.then: list[list[int]] = []
        for first, parent in zip(range(0, 2 * ranks * len(trees), 2 * ranks), trees, strict=True):
            children: list[list[int]] = [[] for _ in range(ranks)]
            for rank, above in enumerate(parent.tolist()):
                if above >= 0:
                    children[above].append(rank)
            order = [int(np.flatnonzero(parent < 0)[0])]
            depth = [0] * ranks
            for rank in order:
                for child in children[rank]:
                    depth[child] = depth[rank] + 1
                    order.append(child)
            height = [0] * ranks
            for rank in reversed(order[1:]):
                height[parent[rank]] = max(height[parent[rank]], height[rank] + 1)
            root = order[0]
            begins = [first + ranks + child for child in children[root]]
            for rank in range(ranks):  # up: after all children have
                self.source.append(rank)
                self.destination.append(int(parent[rank]))
                self.to_go.append(depth[rank] + height[root])
                self.waits.append(len(children[rank]))
                self.then.append(
                    [] if rank == root else begins if parent[rank] == root else [first + int(parent[rank])]
                )
            for rank in range(ranks):  # down: after the parent has it; at the root, after all have come up to it
                self.source.append(int(parent[rank]))
                self.destination.append(rank)
                self.to_go.append(height[rank] + 1)
                self.waits.append(len(children[root]) if parent[rank] == root else 1)
                self.then.append([first + ranks + child for child in children[rank]] if rank != root else [])
        self.is_move = (np.asarray(self.source) >= 0) & (np.asarray(self.destination) >= 0)

    def arranged(self, length: int) -> list[list[Move]] | None:
        """The steps; None if time ran out."""
        task, bandwidth = self.task, self.task.whole.bandwidth
        moves = np.flatnonzero(self.is_move)
        found = task.whole.routes(np.asarray(self.source)[moves], np.asarray(self.destination)[moves])
        limited = np.isfinite(bandwidth)
        routes: list[list[int]] = [[] for _ in self.source]
        for move, links in zip(moves.tolist(), np.split(found.links, found.offsets[1:-1]), strict=True):
            routes[move] = [link for link in links.tolist() if limited[link]]
        crossing = np.bincount(found.links, minlength=len(bandwidth)).astype(float)
        capacity = per_round(bandwidth, crossing, max(self.to_go), length)
        # Trees are due one after the other, evenly over the whole time.
        in_all = float((crossing / capacity).max())
        size = 2 * task.ranks
        trees = len(self.source) // size
        urgency = [move // size / trees * in_all - self.to_go[move] for move in range(len(self.source))]
        waits = list(self.waits)
        ready = [move for move in moves.tolist() if not waits[move]]
        steps: list[list[Move]] = []
        while ready:
            if not task.left:
                return None
            ready.sort(key=urgency.__getitem__)
            room, step, left = capacity.tolist(), [], []
            for move in ready:
                if all(room[link] for link in routes[move]):
                    for link in routes[move]:
                        room[link] -= 1
                    step.append(move)
                else:
                    left.append(move)
            for then in (then for move in step for then in self.then[move]):
                waits[then] -= 1
                if not waits[then]:
                    left.append(then)
            ready = left
            steps.append(self._as_moves(np.asarray(step)))
        return steps

    def _as_moves(self, step: NDArray[np.int64]) -> list[Move]:
        size = 2 * self.task.ranks
        source, destination = np.asarray(self.source)[step], np.asarray(self.destination)[step]
        rises = step % size < self.task.ranks
        return [
            move(step[at] // size, source[at], destination[at])
            for move, at in ((reduce, rises), (copy, ~rises))
            if at.any()
        ]
