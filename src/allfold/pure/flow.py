"""Maximum flows in whole numbers (Dinic), on a graph whose capacities change: as native/find/flow.cpp."""

from __future__ import annotations

from time import monotonic

UNLIMITED = 2**61


class TimeIsUp(Exception):
    """Long work ends here: it had a limit."""


class TimeLimit:
    """Asked now and then during long work."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def check(self) -> None:
        if monotonic() > self._end:
            raise TimeIsUp


class FlowGraph:
    """Edge e is the arc 2e forwards and the arc 2e + 1 backwards."""

    def __init__(self, vertices: int) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(vertices)]  # by vertex: those that leave it
        self._head: list[int] = []
        self._capacity: list[int] = []
        self._level: list[int] = []

    def add_vertex(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def add(self, tail: int, head: int, capacity: int) -> int:
        """The number of the edge."""
        self._arcs[tail].append(len(self._head))
        self._arcs[head].append(len(self._head) + 1)
        self._head += head, tail
        self._capacity += capacity, 0
        return len(self._head) // 2 - 1

    def set(self, edge: int, capacity: int) -> None:
        self._capacity[2 * edge] = capacity

    def flow(self, source: int, sink: int, enough: int = UNLIMITED) -> int:
        """The largest flow from source to sink, or `enough` if it is larger."""
        left, total = self._capacity.copy(), 0
        while total < enough and self._spread(source, sink, left):
            total += self._push(source, sink, enough - total, left)
        return total

    def inside(self, vertex: int) -> bool:
        """After a flow that did not reach `enough`: whether a vertex is on the source's side of the minimum cut."""
        return self._level[vertex] >= 0

    def _spread(self, source: int, sink: int, left: list[int]) -> bool:
        """Breadth first, over arcs that have something left: whether the sink was reached."""
        level = self._level = [-1] * len(self._arcs)
        level[source] = 0
        queue = [source]
        for vertex in queue:
            for arc in self._arcs[vertex]:
                head = self._head[arc]
                if left[arc] > 0 and level[head] < 0:
                    level[head] = level[vertex] + 1
                    if head == sink:
                        return True
                    queue.append(head)
        return False

    def _push(self, source: int, sink: int, most: int, left: list[int]) -> int:
        """Along paths on which the level rises, one after the other, until there is none or `most` has gone."""
        level, next_arc, pushed = self._level, [0] * len(self._arcs), 0
        path: list[int] = []  # arcs
        vertex = source
        while pushed < most:
            if vertex == sink:
                through = min(most - pushed, *(left[arc] for arc in path))
                for arc in path:
                    left[arc] -= through
                    left[arc ^ 1] += through
                pushed += through
                full = next((i for i, arc in enumerate(path) if not left[arc]), 0)  # go on from where it begins
                vertex = self._head[path[full] ^ 1]
                del path[full:]
                continue
            arcs = self._arcs[vertex]
            while next_arc[vertex] < len(arcs):
                arc = arcs[next_arc[vertex]]
                if left[arc] > 0 and level[self._head[arc]] == level[vertex] + 1:
                    path.append(arc)
                    vertex = self._head[arc]
                    break
                next_arc[vertex] += 1
            else:
                if not path:
                    break
                vertex = self._head[path.pop() ^ 1]
                next_arc[vertex] += 1
        return pushed
