"""How the collectives go when the caller names no algorithm: inside the islands through shared memory, across by rails.

Which schedule that is, `Crossing.schedule` says; here it is carried out, in segments and with as few copies as possible.
Reductions fold in two levels, whatever their size: inside each island from its lowest rank up, then over the islands in
the order of their lowest ranks. So the size never changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from ...collectives import COLLECTIVES
from ...fabrics.fabric import FOREVER
from ...ops import OPS, Op
from ...programs.messages import MessagePrograms
from ...proved import message_programs_of
from ...registry import AnyAlgorithm
from ..arrays import Flat
from ..engine import Call
from .job import Job
from .wire import Run, folding

if TYPE_CHECKING:
    from .engine import Islands

_BROADCAST_BYTES = 4 << 20
_DEPTH = 2  # segments on the wire at once


def perform(engine: Islands, job: Job) -> None:
    """Run a call."""
    if job.prepared is None or engine.fronts is not None:
        job.describe()
    if job.prepared or (job.call.algorithm is None and job.call.collective == "all_reduce" and _is_small(engine, job)):
        return _small_all_reduce(engine, job)
    engine.agree(job)
    if engine.fronts is not None:
        engine.fronts.send(job.digest, job.text, job.left())
    if job.call.algorithm is not None:
        return follow(engine, job, job.call.algorithm)
    name, parameters = job.schedule()
    if "groups" not in parameters:
        return follow(engine, job, name)
    ways = {
        "all_reduce": _by_leaders if name == "hierarchical" else _by_shares,
        "reduce": _reduce,
        "broadcast": _broadcast,
        "gather": _gather,
        "scatter": _scatter,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "barrier": _barrier,
    }
    ways[job.call.collective](engine, job, parameters["across"])


def follow(engine: Islands, job: Job, algorithm: AnyAlgorithm) -> None:
    """Run a call by the schedule of an algorithm, as messages between all ranks."""
    promise = COLLECTIVES[job.call.collective]
    made = message_programs_of(promise.name, algorithm, engine.size, job.call.root if promise.rooted else None)
    run = _across(engine, job, made, range(engine.size), job.input, job.output, job.elements)
    run.start()
    engine.compare(job)
    run.finish()


def _barrier(engine: Islands, job: Job, across: str) -> None:
    engine.compare(job)  # the leaders' fronts are the signals across
    _inside(engine, job, "barrier", None, None)


# Reductions -----------------------------------------------------------------------------------------------------------


def _is_small(engine: Islands, job: Job) -> bool:
    assert job.output is not None and job.call.op is not None
    return job.output.nbytes <= engine.most_small and _in_order(engine, job.call.op)


def _small_all_reduce(engine: Islands, job: Job) -> None:
    """The same fold as `_by_leaders` in as few steps as possible: the data travel with what the call is.

    Inside the island its own engine compares the calls. It does not know of averages, which are sums there.
    """
    reduce, broadcast = job.prepared or _steps(engine, job)
    if len(engine.island_ranks) > 1:
        engine.inside(job, reduce)
    if engine.fronts is not None:
        _cross(engine, job)
    if len(engine.island_ranks) > 1:
        engine.inside(job, broadcast)


def _steps(engine: Islands, job: Job) -> tuple[Call, Call]:
    """What an island does before and after its leader crosses."""
    array, op = job.output, job.call.op
    assert op is not None
    if op.averages:
        engine.agree(job)
        op = OPS["sum"]
    calls = [Call(name, None, array, None, 0, None, FOREVER, job.dtype.name) for name in ("reduce", "broadcast")]
    return calls[0]._replace(op=op), calls[1]


def _cross(engine: Islands, job: Job) -> None:
    """Fold the leaders' arrays, in the order of the islands."""
    fronts, array = engine.fronts, job.output
    assert fronts is not None and array is not None
    fronts.send(job.digest, job.text, job.left(), _bytes(array))
    said = zip(fronts.peers, engine.compare(job, array.nbytes), strict=True)
    parts = [fronts.data(front, peer, array.nbytes, job.left()).view(array.dtype) for peer, front in said]
    fronts.sent(job.left())
    parts.insert(engine.islands.index(engine.island_ranks), array)
    folding(job.call.op, job.dtype, engine.size)(parts, array, True)


def _by_shares(engine: Islands, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    units = _units(engine)
    segment = max(1, engine.crossing.segment // job.dtype.itemsize // units) * units
    whole = array.size // units * units
    segments = [array[start : min(start + segment, whole)] for start in range(0, whole, segment)]
    shares = [_Share(engine, job, across, part, slot % (_DEPTH + 1)) for slot, part in enumerate(segments)]
    for number, share in enumerate(shares):
        share.begin()
        if number == 0:
            engine.compare(job)
        if number >= _DEPTH:
            shares[number - _DEPTH].end()
    for share in shares[-_DEPTH:]:
        share.end()
    if whole < array.size:
        _by_leaders(engine, job, "direct", array[whole:], compares=not shares)


def _by_leaders(engine: Islands, job: Job, across: str, rest: Flat | None = None, compares: bool = True) -> None:
    """The whole array, or the few elements that the shares leave."""
    array = job.output if rest is None else rest
    assert array is not None
    leaders = [island[0] for island in engine.islands]
    run = None
    if engine.rank in leaders:
        made = message_programs_of("all_reduce", across, len(leaders), None)
        run = _across(engine, job, made, leaders, None, array, array.size)
        run.post()
    _inside(engine, job, "reduce", None, array, job.call.op, 0)
    if run is not None:
        run.start()
        if compares:
            engine.compare(job)
        run.finish()
    _inside(engine, job, "broadcast", None, array, None, 0)


class _Share:
    """One segment of a large all_reduce: this rank's share of it crosses."""

    def __init__(self, engine: Islands, job: Job, across: str, part: Flat, slot: int) -> None:
        self.engine, self.job, self.part = engine, job, part
        self.made = message_programs_of("all_reduce", across, len(engine.islands), None)
        size = len(engine.island_ranks)
        bytes = part.nbytes // size
        self.own = engine.scratch(f"share {slot}", bytes).view(job.dtype.carrier) if size > 1 else part
        self.runs: list[Run] = []

    def begin(self) -> None:
        engine, groups = self.engine, self.engine.islands
        shares = lcm(*(len(group) for group in groups))
        mine = shares // len(engine.island_ranks)
        length = self.own.size // mine
        tags = [self.job.tag() for _ in range(shares)]
        for number in range(mine):
            share = engine.local[engine.rank] * mine + number
            owners = [group[share * len(group) // shares] for group in groups]
            part = self.own[number * length : (number + 1) * length]
            self.runs.append(_across(engine, self.job, self.made, owners, None, part, length, tags[share]))
        for run in self.runs:
            run.post()
        if self.own is not self.part:
            _inside(engine, self.job, "reduce_scatter", self.part, self.own, self.job.call.op)
        for run in self.runs:
            run.start()

    def end(self) -> None:
        for run in self.runs:
            run.finish()
        if self.own is not self.part:
            _inside(self.engine, self.job, "all_gather", self.own, self.part)


def _reduce(engine: Islands, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = _speakers(engine, job.call.root)
    made = message_programs_of("reduce", across, len(speakers), speakers.index(job.call.root))
    runs: list[Run] = []
    for number, part in enumerate(_segments(array, engine.crossing.segment)):
        if engine.rank == own:
            runs.append(_across(engine, job, made, speakers, None, part, part.size))
            runs[-1].post()
        _inside(engine, job, "reduce", None, part, job.call.op, engine.local[own])
        if runs:
            runs[-1].start()
        if number == 0:
            engine.compare(job)
        if runs and number >= _DEPTH:
            runs[number - _DEPTH].finish()
    for run in runs[-_DEPTH:]:
        run.finish()


def _reduce_scatter(engine: Islands, job: Job, across: str) -> None:
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
        _inside(engine, job, "reduce_scatter", slab.reshape(-1), partial.reshape(-1), op)
    tag = job.tag()
    sends = [
        (engine.links.send(rank, _bytes(partial[at]), tag), partial)
        for at, rank in enumerate(carried[here])
        if rank != engine.rank and block
    ]
    parts: list[Flat] = []
    receives = []
    for island in engine.islands:
        part = partial[0] if island is engine.island_ranks else np.empty(block, source.dtype)
        parts.append(part)
        if island is not engine.island_ranks and block:
            receives.append(engine.links.receive(_carrier(island, engine.islands, engine.rank), _bytes(part), tag))
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    folding(op, job.dtype, engine.size)(parts, output, True)
    for send, _ in sends:
        send.wait(job.left())


# Copies ---------------------------------------------------------------------------------------------------------------


def _broadcast(engine: Islands, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = _speakers(engine, job.call.root)
    made = message_programs_of("broadcast", across, len(speakers), speakers.index(job.call.root))
    parts = _segments(array, _BROADCAST_BYTES)
    runs = []
    if engine.rank == own:
        runs = [_across(engine, job, made, speakers, None, part, part.size) for part in parts]
        for run in runs:
            run.start()
    engine.compare(job)
    for number, part in enumerate(parts):
        if runs and engine.rank != job.call.root:
            runs[number].finish()
        _inside(engine, job, "broadcast", None, part, None, engine.local[own])
    for run in runs:
        run.finish()


def _gather(engine: Islands, job: Job, across: str) -> None:
    """Each leader sends the root the slices of its island in one message."""
    source, root, tag = job.input, job.call.root, job.tag()
    assert source is not None
    speakers, own = _speakers(engine, root)
    slab, slabs, receives, sends = None, [], [], []
    if engine.rank == root:
        assert job.output is not None
        whole = job.output.reshape(engine.size, source.size)
        # Where the slices of an island lie side by side, they come to their place at once.
        slabs = [whole[island[0] : island[-1] + 1] if _adjoin(island) else whole[island] for island in engine.islands]
        slab = slabs[speakers.index(root)]
        for speaker, part in zip(speakers, slabs, strict=True):
            if speaker != root and source.size:
                receives.append(engine.links.receive(speaker, _bytes(part), tag))
    elif engine.rank == own:
        slab = engine.scratch("slab", len(engine.local) * source.nbytes).view(source.dtype)
    _inside(engine, job, "gather", source, None if slab is None else slab.reshape(-1), None, engine.local[own])
    if slab is not None and engine.rank != root and source.size:
        sends.append(engine.links.send(root, _bytes(slab), tag))
    engine.compare(job)
    for transfer in receives + sends:
        transfer.wait(job.left())
    for island, part in zip(engine.islands, slabs, strict=bool(slabs)):
        if not _adjoin(island):
            whole[island] = part


def _scatter(engine: Islands, job: Job, across: str) -> None:
    """The root sends each leader the slices of its island in one message."""
    output, root, tag = job.output, job.call.root, job.tag()
    assert output is not None
    speakers, own = _speakers(engine, root)
    slab, sends, receives = None, [], []
    if engine.rank == root:
        assert job.input is not None
        whole = job.input.reshape(engine.size, output.size)
        for island, speaker in zip(engine.islands, speakers, strict=True):
            part = whole[island[0] : island[-1] + 1] if _adjoin(island) else whole[island]
            if speaker == root:
                slab = part
            elif output.size:
                sends.append((engine.links.send(speaker, _bytes(part), tag), part))
    elif engine.rank == own:
        slab = engine.scratch("slab", len(engine.local) * output.nbytes).view(output.dtype)
        if output.size:
            receives.append(engine.links.receive(root, _bytes(slab), tag))
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    _inside(engine, job, "scatter", None if slab is None else slab.reshape(-1), output, None, engine.local[own])
    for send, _ in sends:
        send.wait(job.left())


def _all_gather(engine: Islands, job: Job, across: str) -> None:
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
            receives.append(engine.links.receive(rank, _bytes(place), tag))
    sends = [
        engine.links.send(_carrier(island, engine.islands, engine.rank), _bytes(source), tag)
        for island in engine.islands
        if island is not engine.island_ranks and block
    ]
    engine.compare(job)
    for receive in receives:
        receive.wait(job.left())
    if own is not None:
        slab = engine.scratch("slab", len(carried) * own.nbytes).view(source.dtype).reshape(len(carried), deep, block)
        _inside(engine, job, "all_gather", own.reshape(-1), slab.reshape(-1))
        for number, ranks in enumerate(carried):
            for at, rank in enumerate(ranks):
                rows[rank] = slab[number, at]
    for send in sends:
        send.wait(job.left())


# ---


def _inside(
    engine: Islands,
    job: Job,
    collective: str,
    input: Flat | None,
    output: Flat | None,
    op: Op | None = None,
    root: int = 0,
) -> None:
    """A collective of this island. An average divides later, where the last contribution comes in.

    It has no limit of its own: whoever watches over the call ends it.
    """
    if len(engine.island_ranks) == 1:
        if input is not None and output is not None:
            output[...] = input
        return
    op = OPS["sum"] if op is not None and op.averages else op
    dtype = None if input is None and output is None else job.dtype.name
    engine.island.run(Call(collective, input, output, op, root, None, FOREVER, dtype), False)


def _across(
    engine: Islands,
    job: Job,
    made: MessagePrograms,
    ranks: Sequence[int],
    input: Flat | None,
    output: Flat | None,
    elements: int,
    tag: int | None = None,
) -> Run:
    """A message program of some of the ranks."""
    tag = job.tag() if tag is None else tag
    fold = folding(job.call.op, job.dtype, engine.size)
    number = list(ranks).index(engine.rank)
    return Run(
        made, number, ranks, engine.links, engine.memory, tag, input, output, elements, job.dtype, fold, job.left
    )


def _speakers(engine: Islands, root: int) -> tuple[list[int], int]:
    """The rank of each island that crosses in a rooted collective: the root, elsewhere the first; and that of this one."""
    speakers = [root if root in island else island[0] for island in engine.islands]
    return speakers, speakers[engine.islands.index(engine.island_ranks)]


def _segments(array: Flat, bytes: int) -> list[Flat]:
    """The parts of an array, of which one is on the wire while another is in shared memory."""
    segment = max(1, bytes // array.itemsize)
    return [array[start : start + segment] for start in range(0, max(1, array.size), segment)]


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


def _adjoin(island: Sequence[int]) -> bool:
    return island[-1] - island[0] == len(island) - 1


def _units(engine: Islands) -> int:
    return lcm(*(len(island) for island in engine.islands))


def _in_order(engine: Islands, op: Op) -> bool:
    """Whether folding island by island is allowed: an operation that is not commutative needs consecutive ranks."""
    return op.commutative or engine.in_rank_order


def _bytes(array: Flat) -> Flat:
    return array.reshape(-1).view(np.uint8)
