"""The method for large buffers: spanning trees that use every link of the tightest cut all the time (ForestColl).

An all_gather spreads every rank's slice down trees, a reduce_scatter runs trees backwards, an all_reduce does one after
the other, or both at once (`overlap`). The rates between ranks meet the least time (`rates`), trees use the rates up
(`trees`), and chunks cross the edges of their trees step by step (`emit`). Which number of trees, which order of roots
and how many chunks are best is found by trying: first a few numbers, then other orders for the best of them, then smaller
chunks for the best of those. Scatter and gather have no trees but paths, see `scattered`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ...collectives import COLLECTIVES, Collective
from ...errors import UsageError
from ...price.cost.cuts import tightest_cut
from ...price.topology.network import Network
from ...schedules import Schedule
from ..found import Task
from ..paths.scattered import scattered
from ..rounds import lengths_of
from .emit import TimedMoves, by_depth, in_rounds, schedule_of
from .overlap import MOST_RANKS as MOST_OVERLAPPED
from .overlap import overlapped
from .rates import Rates, rates_of
from .trees import Forest, Number, forest_of, numbers_of, quick_forests

_MOST_MOVES = 250_000  # of a schedule in rounds; one step per depth may have more
_SMALL = 16  # ranks up to which more is tried: rounds of several lengths, and even smaller chunks
_LARGE, _LARGEST = 64, 256  # ranks: beyond the first, trees are first packed quickly; beyond the second, only so
_ORDERS = 5
_FAR = 1.1  # times the bound
_PACES = (0.5, 0.0)
_WORTH, _PATIENCE = 0.995, 2  # smaller chunks must be cheaper by this factor, or the next ones


def fits(task: Task) -> bool:
    return bool(task.promise.trees) or _is_scattered(task.promise)


def throughput(task: Task) -> Iterator[Schedule]:
    if _is_scattered(task.promise):
        yield from scattered(task)
        return
    if not task.promise.trees:
        known = ", ".join(name for name, one in COLLECTIVES.items() if one.trees or _is_scattered(one))
        raise UsageError(f"the method throughput is for {known}, not for {task.collective}")
    name = f"throughput_{task.topology.name}"
    if task.ranks == 1:
        yield schedule_of(task, name, [])
        return
    overlaps, both_ways = _worth_overlapping(task), _is_symmetric(task.network)
    if overlaps and both_ways:
        yield from overlapped(task, name)
    searches = [_search(task, collects) for collects in task.promise.trees]
    for stages in zip(*searches, strict=False):
        yield schedule_of(task, name, list(stages))
    if overlaps and not both_ways:  # trees that go up and down then lose what links have more one way: last, if at all
        yield from overlapped(task, name)


def _is_scattered(promise: Collective) -> bool:
    """True for a scatter or a gather, which need paths rather than trees."""
    return promise.one_way and promise.rooted


def _worth_overlapping(task: Task) -> bool:
    """True for an all_reduce that cannot come near the bound if it first collects and then spreads."""
    if not task.promise.round_trip or task.ranks > MOST_OVERLAPPED:
        return False
    cuts = [tightest_cut(half, task.network) for half in ("reduce_scatter", "all_gather")]
    return sum(cut.time(task.size) for cut in cuts if cut is not None) > task.bound * _FAR


def _is_symmetric(network: Network) -> bool:
    """True if links are as fast one way as the other."""
    there, back = (
        sorted(zip(start.tolist(), end.tolist(), network.bandwidth.tolist(), strict=True))
        for start, end in ((network.tail, network.head), (network.head, network.tail))
    )
    return there == back


@dataclass(frozen=True, eq=False)
class _Way:
    """One way to make a stage, which can be varied."""

    rates: Rates
    number: Number
    forest: Forest
    parts: int
    pace: float
    length: int

    def moves(self, parts: int) -> int:
        return int(self.forest.times.sum()) * parts * (self.rates.ranks - 1)

    def stage(self, task: Task) -> TimedMoves | None:
        return in_rounds(task, self.forest, self.parts, self.pace, self.length)


def _search(task: Task, collects: bool) -> Iterator[TimedMoves]:
    """Stages to try. After each, the price of the whole schedule is the last of the task's prices."""
    best: tuple[float, _Way] | None = None
    lengths, most_moves = lengths_of(task.whole.bandwidth), min(_MOST_MOVES, task.most_moves)
    lengths, patience = (lengths, _PATIENCE) if task.ranks <= _SMALL else (lengths[:1], 1)

    def better(way: _Way) -> None:
        nonlocal best
        if best is None or task.prices[-1] < best[0]:
            best = task.prices[-1], way

    for rates in rates_of(task, collects):
        if task.ranks > _LARGE:
            for quick in quick_forests(task, rates):
                task.say(f"packed {quick.per_root} trees per root, {quick.loss - 1:.1%} above the rates")
                yield by_depth(quick)
            if task.ranks > _LARGEST:
                continue
        for number in numbers_of(task, rates):
            task.say(f"packing trees, {number.per_root} per root")
            forest = forest_of(task, rates, number)
            if forest is None:
                continue
            yield by_depth(forest)
            for pace, length in product(_PACES, lengths):
                way = _Way(rates, number, forest, 4, pace, length)
                if way.moves(4) <= most_moves and (stage := way.stage(task)) is not None:
                    yield stage
                    better(way)
    if best is None:
        return
    way = best[1]
    task.say(f"packing {way.number.per_root} trees per root in other orders")
    for seed in range(1, _ORDERS):
        forest = forest_of(task, way.rates, way.number, task.seed * _ORDERS + seed)
        if forest is not None and (stage := (other := replace(way, forest=forest)).stage(task)) is not None:
            yield stage
            better(other)
    for ladder in ((2, 1), (8, 16, 32, 64, 128, 256, 512)):
        in_vain = 0
        for parts in ladder:
            best_price, way = best
            if way.moves(parts) > most_moves:
                break
            task.say(f"cutting what a tree carries into {parts}")
            for length in lengths:
                other = replace(way, parts=parts, length=length)
                if (stage := other.stage(task)) is None:
                    return
                yield stage
                better(other)
            in_vain = in_vain + 1 if best[0] > best_price * _WORTH else 0
            if in_vain == patience:
                break
