"""Several channels: a ring or a tree once per network card of a host, each over other ranks, at the same time.

A ring through hosts of eight GPUs leaves each host by one network card, and seven are idle. NCCL therefore uses several:
every channel has a part of the buffer and the same algorithm, but its ring enters a host at another rank. Either all hosts
are passed in the same order, or every other one backwards, so that a channel leaves a host by the card with the number
of that by which it enters the next (a rail). Half of the channels may run the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..registry import algorithms, schedule
from ..schedules import Move, Schedule, build, copy, reduce
from .found import Task

_BASES = ("ring", "tree", "double_tree", "chain", "halving_doubling")
MOST_RANKS = 256

Order = NDArray[np.int64]
"""The rank that takes the place of each rank of the algorithm."""


def per_host(task: Task) -> int:
    """Ranks of a host, if all hosts have as many and their ranks follow each other; 1 otherwise."""
    host = task.topology.host[: task.ranks]
    sizes = np.unique(host, return_counts=True)[1]
    alike = (np.diff(host) >= 0).all() and (sizes == sizes[0]).all()
    return int(sizes[0]) if alike and len(sizes) > 1 else 1


def fits(task: Task) -> bool:
    return task.ranks <= MOST_RANKS and per_host(task) > 1 and not task.promise.has_order


def channels(task: Task) -> Iterator[Schedule]:
    """Every algorithm over channels of every kind; only what can be proved in time."""
    if task.promise.has_order:
        raise UsageError(f"the method of channels changes the order of the ranks, which matters to {task.collective}")
    many = per_host(task)
    for base in (name for name in _BASES if name in algorithms(task.collective, task.ranks, task.root)):
        if not task.left:
            return
        one = schedule(task.collective, base, task.ranks, task.root)
        for rails in (True, False):
            for both_ways in (True, False):
                if one.moves * many * (2 if both_ways else 1) > task.most_moves or not task.left:
                    continue
                task.say(f"channels: {many} of {base}")
                orders = [_order(task, channel, many, rails) for channel in range(many)]
                orders += [_fixed(order[::-1], task.root) for order in orders] if both_ways else []
                yield over_channels(one, orders, f"{base}_channels_{task.topology.name}")


def _order(task: Task, channel: int, many: int, rails: bool) -> Order:
    host, place = np.divmod(np.arange(task.ranks), many)
    backwards = (host % 2 == 1) & rails
    inside = np.where(backwards, channel - 1 - place, channel + place) % many
    return _fixed(host * many + inside, task.root)


def _fixed(order: Order, root: int | None) -> Order:
    """The same circle of ranks, turned so that the root keeps its place."""
    return order if root is None else np.roll(order, root - int(np.flatnonzero(order == root)[0]))


def over_channels(one: Schedule, orders: list[Order], name: str) -> Schedule:
    """The schedule once per order, all at the same time, each with its own part of every chunk."""
    slices = one.promise.slices(one.ranks)
    parts, many = one.chunks // slices, len(orders)
    in_all = one.chunks * many

    def numbers(chunk: NDArray[np.int64], channel: int) -> NDArray[np.int64]:
        piece, part = np.divmod(chunk, parts)
        of_rank = orders[channel][piece % one.ranks] if slices > 1 else piece
        scratch = in_all + channel * one.scratch + chunk - one.chunks
        return np.where(chunk < one.chunks, (of_rank * many + channel) * parts + part, scratch)

    def steps() -> Iterator[list[Move]]:
        table = {key: column.astype(np.int64) for key, column in one.columns.items()}
        for start, end in pairwise(one.starts.tolist()):
            step = []
            for channel, order in enumerate(orders):
                for move, reduces in ((reduce, 1), (copy, 0)):
                    at = start + np.flatnonzero(table["reduces"][start:end] == reduces)
                    ends = order[table["source"][at]], order[table["destination"][at]]
                    chunk, into = numbers(table["chunk"][at], channel), numbers(table["into"][at], channel)
                    step += [move(chunk, *ends, into)] if len(at) else []
            yield step

    return build(one.collective, name, one.ranks, one.root, steps(), in_all)
