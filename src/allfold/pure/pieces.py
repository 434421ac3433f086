"""Rounds: when each piece crosses each edge of its tree, with a limit per link and round: as native/find/rounds.cpp."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .flow import TimeIsUp, TimeLimit

Ints = NDArray[np.int64]
Vertices = NDArray[np.int32]


def rounds_of(
    vertices: int,
    tree: Vertices,
    due: Vertices,
    parent: Vertices,
    offsets: Ints,
    links: Vertices,
    capacity: Ints,
    seconds: float,
) -> Vertices | None:
    """The round in which every piece comes to every vertex (−1 at its root): who must leave earliest goes first."""
    limit, parents = TimeLimit(seconds), parent.reshape(-1, vertices).tolist()
    root = [row.index(-1) for row in parents]
    children: list[list[list[int]]] = [[[] for _ in range(vertices)] for _ in parents]
    for above_of, below in zip(parents, children, strict=True):
        for vertex, above in enumerate(above_of):
            if above >= 0:
                below[above].append(vertex)
    height = [_heights(start, below) for start, below in zip(root, children, strict=True)]
    highest = max(map(max, height), default=0)
    trees, dues, bounds, links_of = tree.tolist(), due.tolist(), offsets.tolist(), links.tolist()
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(max(dues, default=0) + highest + 1)]
    arrived = [(piece, root[its]) for piece, its in enumerate(trees)]
    found = np.full((len(trees), vertices), -1, np.int32)
    now = still_open = 0
    while True:
        for piece, vertex in arrived:
            for child in children[trees[piece]][vertex]:
                waiting[dues[piece] + highest - height[trees[piece]][child]].append((piece, child))
                still_open += 1
        if not still_open:
            return found
        try:
            limit.check()
        except TimeIsUp:
            return None
        left: list[int] = capacity.tolist()
        arrived = []
        for place, row in enumerate(waiting):
            kept = []
            for piece, vertex in row:
                cell = trees[piece] * vertices + vertex
                route = links_of[bounds[cell] : bounds[cell + 1]]
                if all(left[link] > 0 for link in route):
                    for link in route:
                        left[link] -= 1
                    found[piece, vertex] = now
                    arrived.append((piece, vertex))
                else:
                    kept.append((piece, vertex))
            waiting[place] = kept
        if not arrived:
            return None  # a link of no capacity: nothing can move any more
        still_open -= len(arrived)
        now += 1


def _heights(root: int, children: list[list[int]]) -> list[int]:
    """The number of edges below every vertex of a tree, on the longest way down."""
    downwards, height = [root], [0] * len(children)
    for vertex in downwards:
        downwards += children[vertex]
    for vertex in reversed(downwards):
        height[vertex] = max((height[child] + 1 for child in children[vertex]), default=0)
    return height
