"""Trees that use the rates between ranks up: k per root, each for a k-th of what the root has to spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ... import _native
from ..found import Task
from .rates import Rates

MOST_TREES = 64  # per root that are tried
_LARGE = 256  # ranks; beyond, testing whether trees exist takes longer than trying
_WITH_FEW_PRIMES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""For all_reduce: the chunks of both of its stages are cut until they are equal, into as many as a common multiple."""
_ROUNDING = 1e-6
_FEW = 16
_MOST_FILLED = 200_000
_QUICK = (1, 2, 4, 8, 16, 32)
_FACTORS = (1.0, 1.005, 1.01, 1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.4)


@dataclass(frozen=True, eq=False)
class Forest:
    """Tree i hangs from `root[i]` and stands for `times[i]` trees; `parent[i, rank]` is −1 at its root."""

    rates: Rates
    per_root: int
    root: NDArray[np.int32]
    times: NDArray[np.int64]
    parent: NDArray[np.int32]
    loss: float
    """The factor by which this few trees per root slow it down: 1 is not at all."""

    @cached_property
    def depth(self) -> NDArray[np.int32]:
        """The number of edges between every rank and the root, by tree."""
        depth = np.where(self.parent < 0, 0, -1).astype(np.int32)
        level, rows = 0, np.arange(len(self.root))[:, None]
        while (depth < 0).any():
            above = depth[rows, np.maximum(self.parent, 0)] == level
            depth[above & (depth < 0)] = level + 1
            level += 1
        return depth


@dataclass(frozen=True, eq=False)
class Number:
    """A number of trees per root, the capacities to pack them in, and the factor by which so few slow it down."""

    per_root: int
    loss: float
    capacity: NDArray[np.int64]


def forest_of(task: Task, rates: Rates, number: Number, seed: int = 0, careful: bool = True) -> Forest | None:
    """The trees, packed root by root in an order that the seed decides.

    None if time ran out, if rounding left none, or if it was not `careful`, which takes long, and got stuck.
    """
    order = np.flatnonzero(rates.weight).astype(np.int32)
    if seed:
        order = np.random.default_rng(seed).permutation(order)
    graph = rates.source, rates.destination, number.capacity
    packed = _native.pack_trees(rates.ranks, *graph, rates.weight * number.per_root, order, careful, task.left)
    if packed is None or not packed[0].size:
        return None
    return Forest(rates, number.per_root, packed[0][0], packed[1][0], packed[2], number.loss)


def quick_forests(task: Task, rates: Rates) -> Iterator[Forest]:
    """For large networks: trees that are packed without a test, in rates that are a little too high until it works."""
    for many in _QUICK if task.chunks is None else (task.chunks,):
        for factor in _FACTORS:
            if not task.left:
                return
            number = Number(many, factor, _filled(task, rates, many, factor))
            forest = forest_of(task, rates, number, careful=False)
            if forest is not None:
                yield forest
                break


def _filled(task: Task, rates: Rates, many: int, factor: float) -> NDArray[np.int64]:
    """The rates rounded down; then, where all links of a pair's route have room for it, up again, the largest rest first."""
    wished = rates.rate * many * factor
    capacity = np.floor(wished + _ROUNDING).astype(np.int64)
    rest = wished - capacity
    ends = (rates.destination, rates.source) if rates.collects else (rates.source, rates.destination)
    routes = task.whole.routes(*ends)
    bandwidth = task.whole.bandwidth
    load = np.bincount(routes.links, np.repeat(capacity, routes.lengths), len(bandwidth))
    room = (rates.time * bandwidth * many * factor - load).tolist()
    shuffled = np.random.default_rng(task.seed).permutation(len(rest))
    order = shuffled[np.argsort(-np.round(rest[shuffled], 6), kind="stable")]
    order = order[rest[order] > _ROUNDING][:_MOST_FILLED]
    links, offsets = routes.links.tolist(), routes.offsets.tolist()
    for pair in order.tolist():
        route = links[offsets[pair] : offsets[pair + 1]]
        if all(room[link] >= 1 - _ROUNDING for link in route):
            capacity[pair] += 1
            for link in route:
                room[link] -= 1
    return capacity


def numbers_of(task: Task, rates: Rates) -> list[Number]:
    """Numbers of trees per root with what they lose and the capacities to pack them in; the best few."""
    if task.chunks is not None:
        numbers = [task.chunks]
    elif rates.ranks > _LARGE:
        numbers = [1, 2, 3, 4]
    else:
        numbers = list(range(1, MOST_TREES + 1))
    found: list[Number] = []
    for many in numbers:
        wished = rates.rate * many
        whole = np.round(wished)
        if (np.abs(wished - whole) < _ROUNDING * many).all():
            found.append(Number(many, 1.0, whole.astype(np.int64)))
            break
        usual = many in _WITH_FEW_PRIMES if task.promise.round_trip else many <= 16 or many % 4 == 0
        if rates.ranks <= _LARGE and (usual or task.chunks is not None):
            least = _least(task, rates, many)
            found += [] if least is None else [least]
        if not task.left:
            break
    if not found:  # nothing is whole: the smallest number, with every rate rounded up
        found.append(Number(1, 1.0, np.ceil(rates.rate - _ROUNDING).astype(np.int64)))
    # More trees must be worth it: they are more chunks, and deeper. Besides the best, half as many or fewer may do.
    found.sort(key=lambda one: one.loss * (1 + 0.0005 * one.per_root))
    fewer = [one for one in found if one.per_root * 2 <= found[0].per_root]
    exact = [one for one in found[1:] if one.loss == 1 and one.per_root <= _FEW]
    return [found[0], *exact, *fewer[:1]]


def _least(task: Task, rates: Rates, many: int) -> Number | None:
    """The least factor for the rates so that, rounded down, they still carry `many` trees per root.

    None above 4, or if time ran out.
    """

    def capacity(factor: float) -> NDArray[np.int64]:
        return np.floor(rates.rate * many * factor + _ROUNDING).astype(np.int64)

    def enough(factor: float) -> bool:
        graph = rates.source, rates.destination, capacity(factor)
        return bool(_native.can_pack(rates.ranks, *graph, rates.weight * many, task.left))

    low, high = 1.0, 1.0
    while not enough(high):
        low, high = high, high * 1.1
        if high > 4 or not task.left:
            return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Number(many, high, capacity(high))
