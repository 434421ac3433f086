"""How the collectives go when the caller names no algorithm: inside the islands through shared memory, across by rails.

Which schedule that is, `Crossing.schedule` says; here it is carried out, in segments and with as few copies as possible.
Reductions fold in two levels, whatever their size: inside each island from its lowest rank up, then over the islands in
the order of their lowest ranks. So the size never changes a bit of the result.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from ...collectives import COLLECTIVES
from ...fabrics.fabric import FOREVER
from ...ops import OPS, Op
from ...proved import message_programs_of
from ...registry import AnyAlgorithm
from ..arrays import Flat
from ..engine import Call
from . import slices
from .job import Job
from .levels import across_by, as_bytes, compare_all, inside, speakers_of
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
        engine.fronts.send(job.digest, job.packed, job.left())
    if job.named is not None:
        return follow(engine, job, job.named)
    name, parameters = job.schedule()
    if "groups" not in parameters:
        return follow(engine, job, name)
    ways = {
        "all_reduce": _by_leaders if name == "hierarchical" else _by_shares,
        "reduce": _reduce,
        "broadcast": _broadcast,
        "gather": slices.gather,
        "scatter": slices.scatter,
        "all_gather": slices.all_gather_by_leaders if name == "hierarchical" else slices.all_gather,
        "reduce_scatter": slices.reduce_scatter_by_leaders if name == "hierarchical" else slices.reduce_scatter,
        "barrier": _barrier,
    }
    ways[job.call.collective](engine, job, parameters["across"])


def follow(engine: Islands, job: Job, algorithm: AnyAlgorithm) -> None:
    """Run a call by the schedule of an algorithm, as messages between all ranks."""
    promise = COLLECTIVES[job.call.collective]
    made = message_programs_of(promise.name, algorithm, engine.size, job.call.root if promise.rooted else None)
    run = across_by(engine, job, made, range(engine.size), job.input, job.output, job.elements)
    run.start()
    engine.compare(job)
    run.finish()


def _barrier(engine: Islands, job: Job, across: str) -> None:
    compare_all(engine, job)  # what the leaders tell each other are the signals across


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
    broadcast = Call("broadcast", output=array, timeout=FOREVER, dtype=job.dtype.name)
    return broadcast._replace(collective="reduce", op=op), broadcast


def _cross(engine: Islands, job: Job) -> None:
    """Fold the leaders' arrays, in the order of the islands."""
    fronts, array = engine.fronts, job.output
    assert fronts is not None and array is not None
    fronts.send(job.digest, job.packed, job.left(), as_bytes(array))
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
        run = across_by(engine, job, made, leaders, None, array, array.size)
        run.post()
    inside(engine, job, "reduce", None, array, job.call.op, 0)
    if run is not None:
        run.start()
        if compares:
            engine.compare(job)
        run.finish()
    inside(engine, job, "broadcast", None, array, None, 0)


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
            self.runs.append(across_by(engine, self.job, self.made, owners, None, part, length, tags[share]))
        for run in self.runs:
            run.post()
        if self.own is not self.part:
            inside(engine, self.job, "reduce_scatter", self.part, self.own, self.job.call.op)
        for run in self.runs:
            run.start()

    def end(self) -> None:
        for run in self.runs:
            run.finish()
        if self.own is not self.part:
            inside(self.engine, self.job, "all_gather", self.own, self.part)


def _reduce(engine: Islands, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = speakers_of(engine, job.call.root)
    made = message_programs_of("reduce", across, len(speakers), speakers.index(job.call.root))
    runs: list[Run] = []
    for number, part in enumerate(_segments(array, engine.crossing.segment)):
        if engine.rank == own:
            runs.append(across_by(engine, job, made, speakers, None, part, part.size))
            runs[-1].post()
        inside(engine, job, "reduce", None, part, job.call.op, engine.local[own])
        if runs:
            runs[-1].start()
        if number == 0:
            compare_all(engine, job)
        if runs and number >= _DEPTH:
            runs[number - _DEPTH].finish()
    for run in runs[-_DEPTH:]:
        run.finish()


# Copies ---------------------------------------------------------------------------------------------------------------


def _broadcast(engine: Islands, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = speakers_of(engine, job.call.root)
    made = message_programs_of("broadcast", across, len(speakers), speakers.index(job.call.root))
    parts = _segments(array, _BROADCAST_BYTES)
    runs = []
    if engine.rank == own:
        runs = [across_by(engine, job, made, speakers, None, part, part.size) for part in parts]
        for run in runs:
            run.start()
    compare_all(engine, job)
    for number, part in enumerate(parts):
        if runs and engine.rank != job.call.root:
            runs[number].finish()
        inside(engine, job, "broadcast", None, part, None, engine.local[own])
    for run in runs:
        run.finish()


def _segments(array: Flat, bytes: int) -> list[Flat]:
    """The parts of an array, of which one is on the wire while another is in shared memory."""
    segment = max(1, bytes // array.itemsize)
    return [array[start : start + segment] for start in range(0, max(1, array.size), segment)]


def _units(engine: Islands) -> int:
    return lcm(*(len(island) for island in engine.islands))


def _in_order(engine: Islands, op: Op) -> bool:
    """Whether folding island by island is allowed: an operation that is not commutative needs consecutive ranks."""
    return op.commutative or engine.in_rank_order
