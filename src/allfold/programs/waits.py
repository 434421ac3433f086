"""Waits between ranks, found from what is read and written where.

A read comes after the write of what it reads, a write after the reads of what it overwrites, two writes one after the
other. Within a rank the program's order ensures that; between ranks it takes a wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..symbolic import heads_of, in_order, order_of, sizes_of
from .happens_before import needed_waits, rounds_of
from .rows import Ints, Lists, starts_of
from .versions import WORK


def find_waits(
    sources: Lists, destinations: Lists, rank: Ints, step: Ints, starts: Ints, ranks: int, width: int, private: bool
) -> tuple[Lists, Lists, Lists, bool]:
    """The waits of every instruction; those for work slots that are reused; those before a rank may return; and whether
    one work area is enough, since the first kind of waits proves every slot free when the next segment needs it.
    """
    index = np.arange(len(rank)) - starts[rank]
    row = np.concatenate([sources.row, destinations.row])
    slots = (WORK + 2) * width
    place = np.concatenate([sources.rank * slots + sources.value, destinations.rank * slots + destinations.value])
    writes = np.repeat([False, True], [len(sources.rank), len(destinations.rank)])
    earlier, later = _native.conflicts(row, place, writes, step + 1, starts)  # steps begin at −1, with publishing
    waits = _waits(later, rank[earlier], index[earlier] + 1, rank[later], len(rank))
    del earlier, later
    waits = _without_implied(_without_known(waits, rank), starts)

    # Work slots are reused two segments later; the first to write one must then know that the others are done with it.
    owner = place // slots
    works = place - owner * slots >= WORK * width
    in_work = works.nonzero()[0]
    nothing = np.zeros(0, np.int64)
    reuse, one_area = Lists(np.zeros(len(rank) + 1, np.int64), nothing, nothing), True
    if len(in_work):
        late = int(step.max()) + 2
        in_work = in_work[order_of((place[in_work] * late + step[row[in_work]] + 1) * 2 + writes[in_work])]
        user = row[in_work]
        writer = user[_first_writes(place[in_work], writes[in_work])]
        one_area = _are_free(waits, rank, starts, user, writer, ranks)
        if not one_area:
            reuse = _without_known(_waits(writer, rank[user], index[user] + 1, rank[writer], len(rank)), rank)

    # Where peers access each other's arrays, a rank must not return before its peers are done with its own.
    foreign = ((owner != rank[row]) & ~works & (not private)).nonzero()[0]
    leave = _waits(owner[foreign], rank[row[foreign]], index[row[foreign]] + 1, owner[foreign], ranks)
    return waits, reuse, leave, one_area


def _first_writes(place: Ints, writes: NDArray[np.bool_]) -> Ints:
    """For every access, in the order of places and of time, the position of the first write to the same slot."""
    heads = heads_of(place)
    group = np.repeat(np.arange(len(heads)), sizes_of(heads, len(place)).astype(np.intp))
    first = np.full(len(heads), len(place), np.int64)
    np.minimum.at(first, group[writes], np.flatnonzero(writes))
    return first[group]


def _are_free(waits: Lists, rank: Ints, starts: Ints, user: Ints, writer: Ints, ranks: int) -> bool:
    """True if the first writer of each work slot knows, one segment later, that the users of the slot are done with it.

    It knows this of a user if it waited, in the same segment, for that use or something later of that user. It also
    knows it if, in the next segment, it waits for that user at all before or when it writes: a rank that has begun a
    segment has ended the one before.
    """
    index = np.arange(len(rank)) - starts[rank]
    pair = rank[waits.row] * ranks + waits.rank
    known = np.zeros(ranks * ranks, np.int64)
    begun = np.full(ranks * ranks, len(rank))
    np.maximum.at(known, pair, waits.value)
    np.minimum.at(begun, pair, index[waits.row])
    pair = rank[writer] * ranks + rank[user]
    return bool(((rank[user] == rank[writer]) | (known[pair] > index[user]) | (begun[pair] <= index[writer])).all())


def _waits(rows: Ints, peer: Ints, count: Ints, own: Ints, total: int) -> Lists:
    """For every row and peer, the highest count that the row must wait for; `own` is the rank that waits."""
    foreign = peer != own
    rows, peer, count = rows[foreign], peer[foreign], count[foreign]
    peers, counts = int(peer.max(initial=0)) + 1, int(count.max(initial=0)) + 1
    key, count = np.divmod(in_order((rows * peers + peer) * counts + count), counts)
    last = np.append(key[1:] != key[:-1], True)[: len(key)]
    rows, peer = np.divmod(key[last], peers)
    return Lists(starts_of(rows, total), peer, count[last])


def _without_known(waits: Lists, rank: Ints) -> Lists:
    """Drop waits for what an earlier instruction of the same rank has already waited for."""
    row = waits.row
    peers = int(waits.rank.max(initial=0)) + 1
    pair = rank[row] * peers + waits.rank
    order = order_of(pair)  # rows stay in their order within each pair
    ceiling = int(waits.value.max(initial=0)) + 1
    floor = pair[order] * ceiling
    reached = np.maximum.accumulate(floor + waits.value[order])
    news = np.ones(len(order), bool)
    news[1:] = reached[1:] > np.maximum(reached[:-1], floor[1:])
    kept = np.zeros(len(order), bool)
    kept[order[news]] = True
    return _keep(waits, kept)


def _without_implied(waits: Lists, starts: Ints) -> Lists:
    """Drop the waits that other waits imply: in a ring, most of them, since progress also comes from the other side."""
    needed = needed_waits(starts, waits, rounds_of(starts, waits), horizon=4)
    return _keep(waits, needed)


def _keep(waits: Lists, kept: NDArray[np.bool_]) -> Lists:
    before = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    return Lists(before[waits.starts], waits.rank[kept], waits.value[kept])
