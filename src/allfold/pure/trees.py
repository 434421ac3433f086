"""Spanning trees in a graph with whole-number capacities (Edmonds): as native/find/pack.cpp, which explains the order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .cuts import everybody_gets
from .flow import UNLIMITED, FlowGraph, TimeIsUp, TimeLimit

Ints = NDArray[np.int64]
Vertices = NDArray[np.int32]
_Tree = tuple[int, int, list[int]]  # the root, how many trees of this shape, and the parent of every vertex


def pack_trees(
    vertices: int,
    tail: Vertices,
    head: Vertices,
    capacity: Ints,
    wanted: Ints,
    order: Vertices,
    careful: bool,
    seconds: float,
) -> tuple[Vertices, Ints, Vertices] | None:
    """Roots, how many trees of each shape, and parents of all vertices; None if time ran out, no rows if none exist."""
    packer = _Packer(vertices, tail, head, capacity, wanted, TimeLimit(seconds))
    try:
        trees = packer.all(order.tolist(), careful)
    except TimeIsUp:
        return None
    root = np.array([[tree[0] for tree in trees]], np.int32)
    times = np.array([[tree[1] for tree in trees]], np.int64)
    return root, times, np.array([tree[2] for tree in trees], np.int32).reshape(-1, vertices)


@dataclass
class _Partial:
    times: int
    parent: list[int]
    members: list[int]  # in the order in which they came

    def copied(self, times: int) -> _Partial:
        return replace(self, times=times, parent=self.parent.copy(), members=self.members.copy())


class _Packer:
    def __init__(
        self, vertices: int, tail: Vertices, head: Vertices, capacity: Ints, wanted: Ints, limit: TimeLimit
    ) -> None:
        self.vertices, self.ends = vertices, (tail, head)
        self.tail, self.head, self.capacity = tail.tolist(), head.tolist(), capacity.tolist()
        self.wanted, self.limit = wanted.tolist(), limit
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]
        for edge, vertex in enumerate(self.tail):
            self.leaving[vertex].append(edge)
        self.left: list[int] = []  # capacity of every edge
        self.owed: list[int] = []  # trees that roots have not begun
        self.trees: list[_Tree] = []
        self.by_width = False

    def all(self, order: list[int], may_be_careful: bool) -> list[_Tree]:
        for manner in ("by level", "by width", "carefully"):
            careful = manner == "carefully"
            if careful and not (may_be_careful and self._enough(self.capacity, self.wanted)):
                break
            self.left, self.owed, self.trees = self.capacity.copy(), self.wanted.copy(), []
            self.by_width = manner == "by width"
            for root in order:
                if self.owed[root] and not (self._add_carefully(root) if careful else self._add_easily(root)):
                    break
                self.limit.check()
            else:
                return self.trees
        return []

    def _enough(self, left: list[int], owed: list[int]) -> bool:
        return everybody_gets(self.vertices, *self.ends, left, owed, self.limit)

    def _add_easily(self, root: int) -> bool:
        owed = times = self.owed[root]
        self.owed[root] = 0
        while owed:
            times = min(times, owed)
            if self._grow_by_width(root, times) if self.by_width else self._grow(root, times):
                owed -= times
            elif times == 1:
                return False
            else:
                times //= 2
        return True

    def _grow(self, root: int, times: int) -> bool:
        """A tree level by level: every vertex outside takes, of the edges from the level before, the widest."""
        left, parent, edge_of = self.left, [-1] * self.vertices, [-1] * self.vertices
        within, level = {root}, [root]
        while level:
            found: dict[int, None] = {}
            for tail in level:
                for edge in self.leaving[tail]:
                    head = self.head[edge]
                    if head in within or left[edge] < times:
                        continue
                    found[head] = None
                    if edge_of[head] < 0 or left[edge] > left[edge_of[head]]:
                        edge_of[head] = edge
            level = list(found)
            within.update(level)
            for head in level:
                parent[head] = self.tail[edge_of[head]]
        return len(within) == self.vertices and self._take(root, times, parent, [e for e in edge_of if e >= 0])

    def _grow_by_width(self, root: int, times: int) -> bool:
        """A tree over the widest edges, near the root where they are about equal."""
        parent, depth = [-1] * self.vertices, [-1] * self.vertices
        used: list[int] = []
        open_edges: list[tuple[int, int, int, int]] = []  # −width, depth, turn, edge
        turn = 0

        def reach(vertex: int, at: int) -> None:
            nonlocal turn
            depth[vertex] = at
            for edge in self.leaving[vertex]:
                if self.left[edge] >= times and depth[self.head[edge]] < 0:
                    turn += 1
                    heappush(open_edges, (-self.left[edge].bit_length(), at, turn, edge))

        reach(root, 0)
        while open_edges and len(used) + 1 < self.vertices:
            edge = heappop(open_edges)[3]
            head = self.head[edge]
            if depth[head] >= 0:
                continue
            parent[head] = self.tail[edge]
            used.append(edge)
            reach(head, depth[parent[head]] + 1)
        return len(used) + 1 == self.vertices and self._take(root, times, parent, used)

    def _take(self, root: int, times: int, parent: list[int], edges: list[int]) -> bool:
        for edge in edges:
            self.left[edge] -= times
        self.trees.append((root, times, parent))
        return True

    def _add_carefully(self, root: int) -> bool:
        before, owed, trees = self.left.copy(), self.owed[root], len(self.trees)
        if self._add_easily(root) and self._enough(self.left, self.owed):
            return True
        self.left, self.owed[root] = before, 0
        del self.trees[trees:]
        pending = [_Partial(owed, [-1] * self.vertices, [root])]
        while pending:
            tree = pending.pop()
            if not self._complete(tree, pending):
                return False
            self.trees.append((root, tree.times, tree.parent))
        return True

    def _complete(self, tree: _Partial, pending: list[_Partial]) -> bool:
        """Grow one tree to its end. Where an edge does for some of its copies only, the others wait in `pending`."""
        flows = FlowGraph(self.vertices)
        own = [flows.add(*edge) for edge in zip(self.tail, self.head, self.left, strict=True)]
        # What all other trees still need: it comes from where the edge under test begins.
        others = flows.add_vertex()
        feeds = [flows.add(vertex, others, 0) for vertex in range(self.vertices)]
        for vertex, owed in enumerate(self.owed):
            flows.add(others, vertex, owed)
        needed = sum(self.owed)

        def add_pending(one: _Partial) -> int:
            its = flows.add_vertex()
            flows.add(others, its, one.times)
            for member in one.members:
                flows.add(its, member, UNLIMITED)
            return one.times

        needed += sum(add_pending(one) for one in pending)
        for tail in tree.members:  # it grows meanwhile
            for edge in sorted(self.leaving[tail], key=lambda edge: -self.left[edge]):
                head, most = self.head[edge], min(self.left[edge], tree.times)
                if not most or head in tree.members:
                    continue
                self.limit.check()
                flows.set(feeds[tail], UNLIMITED)
                spare = flows.flow(tail, head, needed + most) - needed
                flows.set(feeds[tail], 0)
                if spare <= 0:
                    continue
                if spare < tree.times:
                    pending.append(tree.copied(tree.times - spare))
                    needed += add_pending(pending[-1])
                    tree.times = spare
                self.left[edge] -= spare
                flows.set(own[edge], self.left[edge])
                tree.parent[head] = tail
                tree.members.append(head)
        return len(tree.members) == self.vertices
