"""Gather, scatter, all_gather and reduce_scatter across islands, when the caller names no algorithm.

Few bytes are carried across by one leader per island (`hierarchical`); with more, every rank crosses with its own slice
(`two_level`). Slices of an island go in one message, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...buffer import Flat
from ..job import Job
from .levels import Levels, as_bytes


def gather(levels: Levels, job: Job, across: str) -> None:
    """Each leader sends the root the slices of its island in one message."""
    source, root, tag = job.input, job.call.root, job.tag()
    assert source is not None
    speakers, own = levels.speakers_of(root)
    slab, slabs, receives, sends = None, [], [], []
    if levels.rank == root:
        assert job.output is not None
        whole = job.output.reshape(levels.size, source.size)
        slabs = [_together(whole, island) for island in levels.islands]
        slab = slabs[speakers.index(root)]
        for speaker, part in zip(speakers, slabs, strict=True):
            if speaker != root and source.size:
                receives.append(levels.links.receive(speaker, as_bytes(part), tag))
    elif levels.rank == own:
        slab = levels.scratch("slab", len(levels.local) * source.nbytes).view(source.dtype)
    levels.inside(job, "gather", source, None if slab is None else slab.reshape(-1), None, levels.local[own])
    if slab is not None and levels.rank != root and source.size:
        sends.append(levels.links.send(root, as_bytes(slab), tag))
    levels.compare_all(job)
    for transfer in receives + sends:
        transfer.wait(job.left())
    if slabs:
        _lay(whole, levels.islands, slabs)


def scatter(levels: Levels, job: Job, across: str) -> None:
    """The root sends each leader the slices of its island in one message."""
    output, root, tag = job.output, job.call.root, job.tag()
    assert output is not None
    speakers, own = levels.speakers_of(root)
    slab, sends, receives = None, [], []
    if levels.rank == root:
        assert job.input is not None
        whole = job.input.reshape(levels.size, output.size)
        for island, speaker in zip(levels.islands, speakers, strict=True):
            part = _together(whole, island)
            if speaker == root:
                slab = part
            elif output.size:
                sends.append((levels.links.send(speaker, as_bytes(part), tag), part))
    elif levels.rank == own:
        slab = levels.scratch("slab", len(levels.local) * output.nbytes).view(output.dtype)
        if output.size:
            receives.append(levels.links.receive(root, as_bytes(slab), tag))
    levels.compare_all(job)
    for receive in receives:
        receive.wait(job.left())
    levels.inside(job, "scatter", None if slab is None else slab.reshape(-1), output, None, levels.local[own])
    for send, _ in sends:
        send.wait(job.left())


def all_gather_by_leaders(levels: Levels, job: Job, across: str) -> None:
    """Each leader sends each other one the slices of its island."""
    source, output, tag = job.input, job.output, job.tag()
    assert source is not None and output is not None
    rows = output.reshape(levels.size, source.size)
    slab, slabs, transfers = None, [], []
    if levels.rank == levels.mine[0]:
        slabs = [_together(rows, island) for island in levels.islands]
        slab = slabs[levels.islands.index(levels.mine)]
        for island, part in zip(levels.islands, slabs, strict=True):
            if part is not slab and source.size:
                transfers.append(levels.links.receive(island[0], as_bytes(part), tag))
    levels.inside(job, "gather", source, None if slab is None else slab.reshape(-1))
    for island in levels.islands if slab is not None and source.size else ():
        if island is not levels.mine:
            assert slab is not None
            transfers.append(levels.links.send(island[0], as_bytes(slab), tag))
    levels.compare(job)
    for transfer in transfers:
        transfer.wait(job.left())
    if slabs:
        _lay(rows, levels.islands, slabs)
    levels.inside(job, "broadcast", None, output)


def all_gather(levels: Levels, job: Job, across: str) -> None:
    source, output = job.input, job.output
    assert source is not None and output is not None
    carried = _carried(levels)
    here = levels.mine.index(levels.rank)
    block, deep = source.size, max(map(len, carried))
    rows = output.reshape(levels.size, block)
    tag = job.tag()
    own = np.empty((deep, block), source.dtype) if len(carried) > 1 else None
    receives = []
    for at, rank in enumerate(carried[here]):
        place = rows[rank] if own is None else own[at]
        if rank == levels.rank:
            place[...] = source
        elif block:
            receives.append(levels.links.receive(rank, as_bytes(place), tag))
    sends = [
        levels.links.send(_carrier(island, levels.islands, levels.rank), as_bytes(source), tag)
        for island in levels.islands
        if island is not levels.mine and block
    ]
    levels.compare(job)
    for receive in receives:
        receive.wait(job.left())
    if own is not None:
        slab = levels.scratch("slab", len(carried) * own.nbytes).view(source.dtype).reshape(len(carried), deep, block)
        levels.inside(job, "all_gather", own.reshape(-1), slab.reshape(-1))
        for number, ranks in enumerate(carried):
            for at, rank in enumerate(ranks):
                rows[rank] = slab[number, at]
    for send in sends:
        send.wait(job.left())


def reduce_scatter(levels: Levels, job: Job, across: str) -> None:
    op, source, output = job.call.op, job.input, job.output
    assert op is not None and source is not None and output is not None
    block, carried = output.size, _carried(levels)
    deep = max(map(len, carried))
    rows = source.reshape(levels.size, block)
    here = levels.mine.index(levels.rank)
    if len(carried) == 1:
        partial = rows[carried[0]]
    else:
        # What each rank of the island gets: the slices that it carries, its own first.
        slab = levels.scratch("slab", len(carried) * deep * output.nbytes).view(source.dtype)
        slab = slab.reshape(len(carried), deep, block)
        for number, ranks in enumerate(carried):
            for at, rank in enumerate(ranks):
                slab[number, at] = rows[rank]
            slab[number, len(ranks) :] = 0
        partial = np.empty((deep, block), source.dtype)
        levels.inside(job, "reduce_scatter", slab.reshape(-1), partial.reshape(-1), op)
    tag = job.tag()
    sends = [
        (levels.links.send(rank, as_bytes(partial[at]), tag), partial)
        for at, rank in enumerate(carried[here])
        if rank != levels.rank and block
    ]
    parts: list[Flat] = []
    receives = []
    for island in levels.islands:
        part = partial[0] if island is levels.mine else np.empty(block, source.dtype)
        parts.append(part)
        if island is not levels.mine and block:
            receives.append(levels.links.receive(_carrier(island, levels.islands, levels.rank), as_bytes(part), tag))
    levels.compare(job)
    for receive in receives:
        receive.wait(job.left())
    levels.folding(job)(parts, output, True)
    for send, _ in sends:
        send.wait(job.left())


def reduce_scatter_by_leaders(levels: Levels, job: Job, across: str) -> None:
    """Each leader sends each other one what its island has of the other's slices."""
    op, source, output, tag = job.call.op, job.input, job.output, job.tag()
    assert op is not None and source is not None and output is not None
    mine = levels.mine
    if len(mine) > 1:
        partial = levels.scratch("slab", source.nbytes).view(source.dtype)
        partial[...] = source
        levels.inside(job, "reduce", None, partial, op, 0)
    else:
        partial = source
    slab, parts, sends, receives = None, [], [], []
    if levels.rank == mine[0]:
        rows = partial.reshape(levels.size, output.size)
        slab = np.empty((len(mine), output.size), source.dtype)
        for island in levels.islands:
            own = _together(rows, mine) if island is mine else np.empty_like(slab)
            parts.append(own.reshape(-1))
            if island is not mine and output.size:
                receives.append(levels.links.receive(island[0], as_bytes(own), tag))
                there = _together(rows, island)
                sends.append((levels.links.send(island[0], as_bytes(there), tag), there))
    levels.compare(job)
    for receive in receives:
        receive.wait(job.left())
    if slab is not None:
        levels.folding(job)(parts, slab.reshape(-1), True)
    for send, _ in sends:
        send.wait(job.left())
    levels.inside(job, "scatter", None if slab is None else slab.reshape(-1), output)


# ---


def _carrier(island: Sequence[int], islands: Sequence[Sequence[int]], rank: int) -> int:
    """The rank of an island that carries, for its island, what concerns a rank of another one."""
    at = next(group.index(rank) for group in islands if rank in group)
    return island[at % len(island)]


def _carried(levels: Levels) -> list[list[int]]:
    """By rank of this island: the ranks that it carries for, itself first."""
    carried = {rank: [rank] for rank in levels.mine}
    for island in levels.islands:
        for rank in island if island is not levels.mine else ():
            carried[_carrier(levels.mine, levels.islands, rank)].append(rank)
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
