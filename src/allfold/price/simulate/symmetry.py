"""Symmetry: ranks that need not be simulated, because the same happens on others.

Most large schedules look the same from every rank: shift all ranks of a ring by one, and the chunks with them, and it is
the same ring. If the network looks the same too, everything happens at rank r + k as it does at rank r, and k ranks
give the times of all. Links that the shift maps to each other become one; if several copies cross the same link (the
bus of a host that holds all of them), each gets that fraction of its bandwidth. Nothing is approximated: with a shift
of k = P everything is simulated, and the times are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...schedules import Schedule
from ..topology.topology import Topology
from .dependencies import Moves
from .fairness import Floats, Ints


@dataclass(frozen=True)
class Shift:
    """Ranks 0 to `ranks` − 1 stand for all; chunk c of rank r corresponds to chunk c + `turn` of rank r + `ranks`."""

    ranks: int
    turn: int


@dataclass(frozen=True)
class PairRoutes:
    """The routes of the pairs of ranks that communicate, over renumbered links.

    Row i of `routes` holds the links of pair i, padded at the end with the last link, which limits nobody.
    """

    routes: Ints
    share: Floats | None
    """In the same shape: how much of a message crosses each link; None if no message is split."""
    lengths: Ints
    bandwidth: Floats
    """Per link, for the part that is simulated."""
    limit: Floats
    """Per pair: the bandwidth it would get alone."""
    latency: Floats


def find_shift(schedule: Schedule, topology: Topology) -> Shift:
    """The smallest shift of the ranks that changes nothing; P if there is none."""
    ranks = schedule.ranks
    pairs = np.unique(schedule.columns["source"].astype(np.int64) * ranks + schedule.columns["destination"])
    moves = Moves.of(schedule)
    least: Shift | None = None
    for many in (k for k in range(1, ranks) if ranks % k == 0):
        turns = [0, *([many * schedule.chunks // ranks] if schedule.chunks % ranks == 0 else [])]
        if least is None or many % least.ranks:
            least = next((Shift(many, turn) for turn in turns if _keeps(moves, schedule, Shift(many, turn))), None)
        if least is not None and _orbits(topology, pairs, ranks, many) is not None:
            return Shift(many, least.turn * (many // least.ranks))
    return Shift(ranks, 0)


def reduce_moves(schedule: Schedule, shift: Shift) -> tuple[Moves, Ints]:
    """The moves that the first ranks send, as if there were no others; and their positions in the schedule.

    What they write to another rank is written to the one of the first ranks that stands for it.
    """
    moves = Moves.of(schedule)
    if shift.ranks == schedule.ranks:
        return moves, np.arange(schedule.moves)
    kept = np.flatnonzero(moves.source < shift.ranks)
    width = schedule.chunks + schedule.scratch
    copy, destination = np.divmod(moves.destination[kept], shift.ranks)
    into = moves.writes[kept] % width
    into = np.where(into < schedule.chunks, (into - copy * shift.turn) % schedule.chunks, into)
    columns = {name: column[kept] for name, column in vars(moves).items() if name != "steps"}
    return replace(moves, **{**columns, "writes": destination * width + into}), kept


def stand_in(message: Ints, ranks: int, shift: Shift) -> Ints:
    """The simulated message that stands for this one; messages are numbered as in `Moves`."""
    source = message // ranks % ranks
    return shifted(message, ranks, source % shift.ranks - source)


def shifted(message: Ints, ranks: int, by: Ints) -> Ints:
    """The message that corresponds to this one, shifted by a number of ranks."""
    rest, destination = np.divmod(message, ranks)
    step, source = np.divmod(rest, ranks)
    return (step * ranks + (source + by) % ranks) * ranks + (destination + by) % ranks


def network(topology: Topology, ranks: int, pairs: Ints, shift: Shift, bandwidth: Floats) -> PairRoutes:
    """The part of the topology that `pairs` (source · ranks + destination) use."""
    everybody = pairs
    if shift.ranks < ranks:
        copies = np.arange(0, ranks, shift.ranks)[:, None]
        everybody = ((pairs // ranks + copies) % ranks * ranks + (pairs % ranks + copies) % ranks).ravel()
    orbit = _orbits(topology, everybody, ranks, shift.ranks)
    assert orbit is not None, "the shift was found on this topology"
    source, destination = pairs // ranks, pairs % ranks
    routes = topology.routes(source, destination)
    lengths = np.diff(routes.offsets)
    used, number = np.unique(orbit[routes.links], return_inverse=True)
    table = np.full((len(pairs), max(1, int(lengths.max(initial=0)))), len(used), np.int64)
    there = np.arange(table.shape[1]) < lengths[:, None]
    table[there] = number
    share = None
    if routes.share is not None:
        share = np.ones(table.shape)
        share[there] = routes.share
    # How many copies of what is simulated share the links of one orbit.
    crowd = (ranks // shift.ranks) / np.bincount(orbit[orbit >= 0].astype(np.intp), minlength=len(orbit))[used]
    limit, latency = np.full(len(pairs), np.inf), np.zeros(len(pairs))
    travels = lengths > 0
    if travels.any():
        between = topology.routes(source[travels], destination[travels])
        limit[travels], latency[travels] = between.slowest(bandwidth), between.latency(topology.latency)
    return PairRoutes(
        routes=table,
        share=share,
        lengths=lengths,
        bandwidth=bandwidth[used] / crowd,
        limit=limit,
        latency=latency,
    )


def _keeps(moves: Moves, schedule: Schedule, shift: Shift) -> bool:
    """Is the schedule the same with all ranks and chunks shifted? If not, most differ in the first step already."""
    ranks, width = schedule.ranks, schedule.chunks + schedule.scratch
    cells = ranks * width
    if cells**2 >= 2**62:
        return False

    def shifted(cell: Ints) -> Ints:
        rank, chunk = np.divmod(cell, width)
        chunk = np.where(chunk < schedule.chunks, (chunk + shift.turn) % schedule.chunks, chunk)
        return (rank + shift.ranks) % ranks * width + chunk

    for begin, end in pairwise(schedule.starts.tolist()):
        reads, writes, reduces = moves.reads[begin:end], moves.writes[begin:end], moves.reduces[begin:end]
        here = np.sort((reads * cells + writes) * 2 + reduces)
        if not np.array_equal(here, np.sort((shifted(reads) * cells + shifted(writes)) * 2 + reduces)):
            return False
    return True


def _orbits(topology: Topology, pairs: Ints, ranks: int, shift: int) -> Ints | None:
    """For every link the first of the links that the shift maps it to; −1 if none of `pairs` uses it.

    None where the shift changes the network: routes of different length, links of different speed, or two links that
    become one.
    """
    source, destination = pairs // ranks, pairs % ranks
    here = topology.routes(source, destination)
    orbit = np.full(len(topology.bandwidth), -1, np.int64)
    used = np.unique(here.links).astype(np.int64)
    orbit[used] = used
    if shift == ranks:
        return orbit
    there = topology.routes((source + shift) % ranks, (destination + shift) % ranks)
    if not np.array_equal(here.offsets, there.offsets) or not _same_shares(here.share, there.share):
        return None
    image = np.full(len(orbit), -1, np.int64)
    image[here.links] = there.links
    figures = (topology.bandwidth, topology.latency, topology.links.table)
    alike = all((table[used] == table[image[used]]).all() for table in figures)
    if not alike or not np.array_equal(image[here.links], there.links) or len(np.unique(image[used])) < len(used):
        return None
    if (orbit[image[used]] < 0).any():
        return None
    at = used
    for _ in range(ranks // shift - 1):
        at = image[at]
        orbit[used] = np.minimum(orbit[used], at)
    return orbit


def _same_shares(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
