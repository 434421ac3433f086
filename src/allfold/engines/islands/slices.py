"""Gather, scatter, all_gather and reduce_scatter across islands, when the caller names no algorithm.

Few bytes are carried across by one leader per island (`hierarchical`); with more, every rank crosses with its own slice
(`two_level`). Slices of an island go in one message, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Flat
from .job import Job
from .levels import as_bytes, compare_all, inside, speakers_of
from .wire import folding

if TYPE_CHECKING:
    from .engine import Islands


def gather(engine: Islands, job: Job, across: str) -> None:
    """Each leader sends the root the slices of its island in one message."""
    source, root, tag = job.input, job.call.root, job.tag()
    assert source is not None
    speakers, own = speakers_of(engine, root)
    slab, slabs, receives, sends = None, [], [], []
    if engine.rank == root:
        assert job.output is not None
        whole = job.output.reshape(engine.size, source.size)
        slabs = [_together(whole, island) for island in engine.islands]
        slab = slabs[speakers.index(root)]
        for speaker, part in zip(speakers, slabs, strict=True):
            if speaker != root and source.size:
                receives.append(engine.links.receive(speaker, as_bytes(part), tag))
    elif engine.rank == own:
        slab = engine.scratch("slab", len(engine.local) * source.nbytes).view(source.dtype)
    inside(engine, job, "gather", source, None if slab is None else slab.reshape(-1), None, engine.local[own])
    if slab is not None and engine.rank != root and source.size:
        sends.append(engine.links.send(root, as_bytes(slab), tag))
    compare_all(engine, job)
    for transfer in receives + sends:
        transfer.wait(job.left())
    if slabs:
        _lay(whole, engine.islands, slabs)


def scatter(engine: Islands, job: Job, across: str) -> None:
    """The root sends each leader the slices of its island in one message."""
    output, root, tag = job.output, job.call.root, job.tag()
    assert output is not None
    speakers, own = speakers_of(engine, root)
    slab, sends, receives = None, [], []
    if engine.rank == root:
        assert job.input is not None
        whole = job.input.reshape(engine.size, output.size)
        for island, speaker in zip(engine.islands, speakers, strict=True):
            part = _together(whole, island)
            if speaker == root:
                slab = part
            elif output.size:
                sends.append((engine.links.send(speaker, as_bytes(part), tag), part))
    elif engine.rank == own:
        slab = engine.scratch("slab", len(engine.local) * output.nbytes).view(output.dtype)
        if output.size:
            receives.append(engine.links.receive(root, as_bytes(slab), tag))
    compare_all(engine, job)
    for receive in receives:
        receive.wait(job.left())
    inside(engine, job, "scatter", None if slab is None else slab.reshape(-1), output, None, engine.local[own])
    for send, _ in sends:
        send.wait(job.left())


def all_gather_by_leaders(engine: Islands, job: Job, across: str) -> None:
    """Each leader sends each other one the slices of its island."""
    source, output, tag = job.input, job.output, job.tag()
    assert source is not None and output is not None
    rows = output.reshape(engine.size, source.size)
    slab, slabs, transfers = None, [], []
    if engine.rank == engine.island_ranks[0]:
        slabs = [_together(rows, island) for island in engine.islands]
        slab = slabs[engine.islands.index(engine.island_ranks)]
        for island, part in zip(engine.islands, slabs, strict=True):
            if part is not slab and source.size:
                transfers.append(engine.links.receive(island[0], as_bytes(part), tag))
    inside(engine, job, "gather", source, None if slab is None else slab.reshape(-1))
    for island in engine.islands if slab is not None and source.size else ():
        if island is not engine.island_ranks:
            assert slab is not None
            transfers.append(engine.links.send(island[0], as_bytes(slab), tag))
    engine.compare(job)
    for transfer in transfers:
        transfer.wait(job.left())
    if slabs:
        _lay(rows, engine.islands, slabs)
    inside(engine, job, "broadcast", None, output)


def all_gather(engine: Islands, job: Job, across: str) -> None:
    source, output = job.input, job.output
    assert source is not None and output is not None
    carried = _carried(engine)
    here = engine.island_ranks.index(engine.rank)
    block, deep = source.size, max(map(len, carried))
    rows = output.reshape(engine.size, block)
    tag = job.tag()
    own = np.empty((deep, block), source.dtype) if len(carried) > 1 else None
    receives = []
    for at, rank in enumerate(carried[here]):
        place = rows[rank] if own is None else own[at]
        if rank == engine.rank:
            place[...] = source
        elif block:
            receives.append(engine.links.receive(rank, as_bytes(place), tag))
    sends = [
        engine.links.send(_carrier(island, engine.islands, engine.rank), as_bytes(source), tag)
        for island in engine.islands
        if island is not engine.island_ranks and block
    ]
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    if own is not None:
        slab = engine.scratch("slab", len(carried) * own.nbytes).view(source.dtype).reshape(len(carried), deep, block)
        inside(engine, job, "all_gather", own.reshape(-1), slab.reshape(-1))
        for number, ranks in enumerate(carried):
            for at, rank in enumerate(ranks):
                rows[rank] = slab[number, at]
    for send in sends:
        send.wait(job.left())


def reduce_scatter(engine: Islands, job: Job, across: str) -> None:
    op, source, output = job.call.op, job.input, job.output
    assert op is not None and source is not None and output is not None
    block, carried = output.size, _carried(engine)
    deep = max(map(len, carried))
    rows = source.reshape(engine.size, block)
    here = engine.island_ranks.index(engine.rank)
    if len(carried) == 1:
        partial = rows[carried[0]]
    else:
        # What each rank of the island gets: the slices that it carries, its own first.
        slab = engine.scratch("slab", len(carried) * deep * output.nbytes).view(source.dtype)
        slab = slab.reshape(len(carried), deep, block)
        for number, ranks in enumerate(carried):
            for at, rank in enumerate(ranks):
                slab[number, at] = rows[rank]
            slab[number, len(ranks) :] = 0
        partial = np.empty((deep, block), source.dtype)
        inside(engine, job, "reduce_scatter", slab.reshape(-1), partial.reshape(-1), op)
    tag = job.tag()
    sends = [
        (engine.links.send(rank, as_bytes(partial[at]), tag), partial)
        for at, rank in enumerate(carried[here])
        if rank != engine.rank and block
    ]
    parts: list[Flat] = []
    receives = []
    for island in engine.islands:
        part = partial[0] if island is engine.island_ranks else np.empty(block, source.dtype)
        parts.append(part)
        if island is not engine.island_ranks and block:
            receives.append(engine.links.receive(_carrier(island, engine.islands, engine.rank), as_bytes(part), tag))
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    folding(op, job.dtype, engine.size)(parts, output, True)
    for send, _ in sends:
        send.wait(job.left())


def reduce_scatter_by_leaders(engine: Islands, job: Job, across: str) -> None:
    """Each leader sends each other one what its island has of the other's slices."""
    op, source, output, tag = job.call.op, job.input, job.output, job.tag()
    assert op is not None and source is not None and output is not None
    mine = engine.island_ranks
    if len(mine) > 1:
        partial = engine.scratch("slab", source.nbytes).view(source.dtype)
        partial[...] = source
        inside(engine, job, "reduce", None, partial, op, 0)
    else:
        partial = source
    slab, parts, sends, receives = None, [], [], []
    if engine.rank == mine[0]:
        rows = partial.reshape(engine.size, output.size)
        slab = np.empty((len(mine), output.size), source.dtype)
        for island in engine.islands:
            own = _together(rows, mine) if island is mine else np.empty_like(slab)
            parts.append(own.reshape(-1))
            if island is not mine and output.size:
                receives.append(engine.links.receive(island[0], as_bytes(own), tag))
                there = _together(rows, island)
                sends.append((engine.links.send(island[0], as_bytes(there), tag), there))
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    if slab is not None:
        folding(op, job.dtype, engine.size)(parts, slab.reshape(-1), True)
    for send, _ in sends:
        send.wait(job.left())
    inside(engine, job, "scatter", None if slab is None else slab.reshape(-1), output)


# ---


def _carrier(island: Sequence[int], islands: Sequence[Sequence[int]], rank: int) -> int:
    """The rank of an island that carries, for its island, what concerns a rank of another one."""
    at = next(group.index(rank) for group in islands if rank in group)
    return island[at % len(island)]


def _carried(engine: Islands) -> list[list[int]]:
    """By rank of this island: the ranks that it carries for, itself first."""
    carried = {rank: [rank] for rank in engine.island_ranks}
    for island in engine.islands:
        for rank in island if island is not engine.island_ranks else ():
            carried[_carrier(engine.island_ranks, engine.islands, rank)].append(rank)
    return list(carried.values())


def _together(rows: Flat, island: Sequence[int]) -> Flat:
    """The slices of an island in one piece of memory: as they lie, if they lie side by side, else copied."""
    return rows[island[0] : island[-1] + 1] if _adjoin(island) else rows[list(island)]


def _lay(rows: Flat, islands: Sequence[Sequence[int]], slabs: Sequence[Flat]) -> None:
    """Put slices where they belong that came in one piece and not there."""
    for island, slab in zip(islands, slabs, strict=True):
        if not _adjoin(island):
            rows[list(island)] = slab


def _adjoin(island: Sequence[int]) -> bool:
    return island[-1] - island[0] == len(island) - 1
