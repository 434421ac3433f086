"""The tightest cuts of a network, exactly: as native/find/cut.cpp, which explains the method (Dinkelbach's)."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flow import FlowGraph, TimeIsUp, TimeLimit

Ints = NDArray[np.int64]
Vertices = NDArray[np.int32]


def tightest_cut(
    vertices: int, tail: Vertices, head: Vertices, capacity: Ints, weight: Ints, sinks: Vertices, seconds: float
) -> tuple[int, int, Any] | None:
    """Of all sets that lack a sink, the one with the most weight per capacity that leaves it; None if time ran out."""
    limit, fed = TimeLimit(seconds), np.flatnonzero(weight).tolist()
    weights, capacities, in_all = weight.tolist(), capacity.tolist(), int(weight.sum())
    # The first guess: everybody but one, by the capacity that enters it.
    entering = np.zeros(vertices, np.int64)
    np.add.at(entering, head, capacity)
    best, inside = (0, 1), np.zeros(vertices, bool)
    for sink in sinks.tolist():
        guess = in_all - weights[sink], int(entering[sink])
        if guess[0] * best[1] > best[0] * guess[1]:
            best, inside = guess, np.arange(vertices) != sink
    flows = _graph(vertices + 1, tail, head, [0] * len(tail))
    feeds = [flows.add(vertices, vertex, 0) for vertex in fed]
    try:
        for sink in sinks.tolist():
            while best[1]:
                divisor = gcd(*best)
                p, q = best[0] // divisor, best[1] // divisor
                for edge, each in enumerate(capacities):
                    flows.set(edge, p * each)
                for edge, vertex in zip(feeds, fed, strict=True):
                    flows.set(edge, q * weights[vertex])
                if flows.flow(vertices, sink) >= q * in_all:
                    break
                inside = _inside(flows, vertices)
                leaves = inside[tail] & ~inside[head]
                best = int(weight[inside].sum()), int(capacity[leaves].sum())
            limit.check()
    except TimeIsUp:
        return None
    return best[0], best[1], inside.astype(np.uint8).reshape(1, -1)


def cuts_below(
    vertices: int,
    tail: Vertices,
    head: Vertices,
    capacity: Ints,
    weight: Ints,
    sinks: Vertices,
    wanted: int,
    seconds: float,
) -> NDArray[np.uint8] | None:
    """The minimum cuts, each once, of all sinks that get less than `wanted` of what the vertices feed in."""
    limit = TimeLimit(seconds)
    flows = _graph(vertices + 1, tail, head, capacity.tolist())
    for vertex in np.flatnonzero(weight).tolist():
        flows.add(vertices, vertex, int(weight[vertex]))
    found = set()
    try:
        for sink in sinks.tolist():
            if flows.flow(vertices, sink, wanted) < wanted:
                found.add(_inside(flows, vertices).tobytes())
            limit.check()
    except TimeIsUp:
        return None
    return np.frombuffer(b"".join(sorted(found)), np.uint8).reshape(-1, vertices).copy()


def can_pack(
    vertices: int, tail: Vertices, head: Vertices, capacity: Ints, wanted: Ints, seconds: float
) -> bool | None:
    """True if every vertex can get `wanted[r]` from every root r at the same time; None if time ran out."""
    try:
        return everybody_gets(vertices, tail, head, capacity.tolist(), wanted.tolist(), TimeLimit(seconds))
    except TimeIsUp:
        return None


def everybody_gets(
    vertices: int, tail: Vertices, head: Vertices, capacity: list[int], wanted: list[int], limit: TimeLimit
) -> bool:
    flows = _graph(vertices + 1, tail, head, capacity)
    for vertex in range(vertices):
        flows.add(vertices, vertex, wanted[vertex])
    for vertex in range(vertices):
        if flows.flow(vertices, vertex) < sum(wanted):
            return False
        limit.check()
    return True


def _graph(vertices: int, tail: Vertices, head: Vertices, capacity: list[int]) -> FlowGraph:
    flows = FlowGraph(vertices)
    for edge in zip(tail.tolist(), head.tolist(), capacity, strict=True):
        flows.add(*edge)
    return flows


def _inside(flows: FlowGraph, vertices: int) -> NDArray[np.bool_]:
    return np.fromiter((flows.inside(vertex) for vertex in range(vertices)), bool, vertices)
