"""What no all_reduce can beat on a small network, by a linear program.

Let z be how much of an element every pair of ranks sends, one way and in all. Whatever the algorithm:

- every set of ranks sends at least its part of the element to the rest;
- if ranks are divided into G groups, at least 2(G−1) messages pass between groups, because with fewer one-way messages
  G parties cannot all hear of all others. By Nash-Williams' theorem that is so for every division just if half of what
  pairs send both ways together holds a spanning tree: if some y, from one pair's end to the other, can bring
  something from rank 0 to every rank, with y both ways together at most half of z both ways together.

The least time in which links can carry such a z on the routes of the topology is a bound. The sets are too many to write
down; those that are violated are found by flows. Every program on the way is a bound, too, so the time may run out.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from .forest.rates import MOST_PAIRS
from .found import Task

_SCALE = 2**24
_CLOSE = 1e-6
_SECONDS = 2.0


def least_all_reduce(task: Task) -> float:
    """Seconds; 0 if the network is too large, or scipy is missing."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        return 0.0
    network, ranks = task.network, task.ranks
    if network.vertices == ranks:  # a message that passes a rank may as well stop there
        pairs = np.unique(np.stack([network.tail, network.head], axis=1).astype(np.int64), axis=0)
    else:
        everyone = np.arange(ranks)
        pairs = np.argwhere(everyone[:, None] != everyone)
    if ranks < 2 or len(pairs) > MOST_PAIRS:
        return 0.0
    source, destination = pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.int32)
    many = len(pairs)
    routes = task.topology.routes(source, destination)
    bandwidth = task.topology.bandwidth
    counts = np.bincount(routes.links * np.int64(many) + np.repeat(np.arange(many), routes.lengths))
    counts = np.resize(np.append(counts, np.zeros(len(bandwidth) * many - len(counts))), (len(bandwidth), many))
    used = (counts.sum(axis=1) > 0) & np.isfinite(bandwidth)
    if not used.any():
        return 0.0
    unit = float(bandwidth[used].max())
    # Variables: z of every pair, y of every pair and of its reverse (which need not have a link of its own), the time.
    ends, which = np.unique(np.sort(pairs, axis=1), axis=0, return_inverse=True)
    both = np.concatenate([ends, ends[:, ::-1]]).astype(np.int32)
    directions = len(both)
    halves = np.zeros((len(ends), many + directions + 1))
    halves[which.ravel(), np.arange(many)] = -0.5
    for half in (0, len(ends)):
        halves[np.arange(len(ends)), many + half + np.arange(len(ends))] = 1.0
    loads = np.hstack([counts[used], np.zeros((int(used.sum()), directions)), -bandwidth[used, None] / unit])
    cost = np.append(np.zeros(many + directions), 1.0)
    inside = [np.arange(ranks) == rank for rank in range(ranks)]
    cuts: dict[bytes, NDArray[np.float64]] = {}
    sides = {"z": (0, source, destination), "y": (many, both[:, 0].copy(), both[:, 1].copy())}

    def add(chosen: NDArray[np.bool_], variable: str) -> bool:
        first, start, end = sides[variable]
        row = np.zeros(many + directions + 1)
        row[first : first + len(start)] = -(chosen[start] & ~chosen[end]).astype(float)
        new = row.tobytes() not in cuts
        cuts[row.tobytes()] = row
        return new

    for one in inside:
        add(one, "z")
        add(~one, "z")
    add(inside[0], "y")
    best, end = 0.0, time.monotonic() + min(_SECONDS, task.left / 4)
    while True:
        above = np.vstack([loads, halves, *cuts.values()])
        least = np.append(np.zeros(len(loads) + len(halves)), -np.ones(len(cuts)))
        answer: Any = linprog(cost, above, least, options={"time_limit": max(0.1, end - time.monotonic())})
        if answer.status != 0:
            break
        best = float(answer.x[-1])
        sent, tree = answer.x[:many], answer.x[many : many + directions]
        found = [add(one, "z") for one in _short(ranks, source, destination, sent)]
        found += [add(~one, "z") for one in _short(ranks, destination, source, sent)]
        found += [add(one, "y") for one in _short(ranks, *sides["y"][1:], tree)]
        if not any(found) or time.monotonic() > end:
            break
    return best * (1 - _CLOSE) * task.size / unit


def _short(
    ranks: int, source: NDArray[np.int32], destination: NDArray[np.int32], amount: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Sets with rank 0 from which less than 1 leaves."""
    weight = np.zeros(ranks, np.int64)
    weight[0] = _SCALE
    capacity = np.round(np.maximum(amount, 0) * _SCALE).astype(np.int64)
    others = np.arange(1, ranks, dtype=np.int32)
    wanted = int(_SCALE * (1 - _CLOSE))
    found: Any = _native.cuts_below(ranks, source, destination, capacity, weight, others, wanted, float("inf"))
    return np.asarray(found, bool)
