"""all_reduce, reduce, broadcast and barrier across islands, when the caller names no algorithm.

Reductions fold in two levels, whatever their size: inside each island from its lowest rank up, then over the islands in
the order of their lowest ranks. So the size never changes a bit of the result.
"""

from __future__ import annotations

from math import lcm

from ....fabrics.fabric import FOREVER
from ....ops import OPS
from ....proved import message_programs_of
from ...buffer import Flat
from ...engine import Call
from ..job import Job
from ..wire import Run
from .levels import Levels, as_bytes

_BROADCAST_BYTES = 4 << 20
_DEPTH = 2  # segments on the wire at once


def barrier(levels: Levels, job: Job, across: str) -> None:
    levels.compare_all(job)  # what the leaders tell each other are the signals across


# Reductions -----------------------------------------------------------------------------------------------------------


def is_small_all_reduce(levels: Levels, job: Job) -> bool:
    call = job.call
    if call.collective != "all_reduce" or call.algorithm is not None:
        return False
    assert job.output is not None and call.op is not None
    # Folding island by island is allowed for an operation that is not commutative only where ranks are consecutive.
    return job.output.nbytes <= levels.most_small and (call.op.commutative or levels.is_in_order)


def small_all_reduce(levels: Levels, job: Job) -> None:
    """The same fold as `by_leaders` in as few steps as possible: the data travel with what the call is.

    Inside the island its own engine compares the calls. It does not know of averages, which are sums there.
    """
    reduce, broadcast = job.prepared or _steps(levels, job)
    if len(levels.mine) > 1:
        levels.agreement.run_first(job, reduce)
    if levels.agreement.fronts is not None:
        _cross(levels, job)
    if len(levels.mine) > 1:
        levels.agreement.run_first(job, broadcast)


def _steps(levels: Levels, job: Job) -> tuple[Call, Call]:
    """What an island does before and after its leader crosses."""
    array, op = job.output, job.call.op
    assert op is not None
    if op.averages:
        levels.agreement.agree(job)
        op = OPS["sum"]
    broadcast = Call("broadcast", output=array, timeout=FOREVER, dtype=job.dtype.name)
    return broadcast._replace(collective="reduce", op=op), broadcast


def _cross(levels: Levels, job: Job) -> None:
    """Fold the leaders' arrays, in the order of the islands."""
    fronts, array = levels.agreement.fronts, job.output
    assert fronts is not None and array is not None
    levels.agreement.send(job, as_bytes(array))
    said = zip(fronts.peers, levels.agreement.compare(job, array.nbytes), strict=True)
    parts = [fronts.data(front, peer, array.nbytes, job.left()).view(array.dtype) for peer, front in said]
    fronts.sent(job.left())
    parts.insert(levels.islands.index(levels.mine), array)
    levels.folding(job)(parts, array, True)


def by_shares(levels: Levels, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    units = lcm(*map(len, levels.islands))
    segment = max(1, levels.crossing.segment // job.dtype.itemsize // units) * units
    whole = array.size // units * units
    segments = [array[start : min(start + segment, whole)] for start in range(0, whole, segment)]
    shares = [_Share(levels, job, across, part, slot % (_DEPTH + 1)) for slot, part in enumerate(segments)]
    for number, share in enumerate(shares):
        share.begin()
        if number == 0:
            levels.compare(job)
        if number >= _DEPTH:
            shares[number - _DEPTH].end()
    for share in shares[-_DEPTH:]:
        share.end()
    if whole < array.size:
        by_leaders(levels, job, "direct", array[whole:], compares=not shares)


def by_leaders(levels: Levels, job: Job, across: str, rest: Flat | None = None, compares: bool = True) -> None:
    """The whole array, or the few elements that the shares leave."""
    array = job.output if rest is None else rest
    assert array is not None
    leaders = levels.roster.leaders
    run = None
    if levels.rank in leaders:
        made = message_programs_of("all_reduce", across, len(leaders), None)
        run = levels.across(job, made, leaders, None, array, array.size)
        run.post()
    levels.inside(job, "reduce", None, array, job.call.op, 0)
    if run is not None:
        run.start()
        if compares:
            levels.compare(job)
        run.finish()
    levels.inside(job, "broadcast", None, array, None, 0)


class _Share:
    """One segment of a large all_reduce: this rank's share of it crosses."""

    def __init__(self, levels: Levels, job: Job, across: str, part: Flat, slot: int) -> None:
        self.levels, self.job, self.part = levels, job, part
        self.made = message_programs_of("all_reduce", across, len(levels.islands), None)
        size = len(levels.mine)
        bytes = part.nbytes // size
        self.own = levels.scratch(f"share {slot}", bytes).view(job.dtype.carrier) if size > 1 else part
        self.runs: list[Run] = []

    def begin(self) -> None:
        levels, groups = self.levels, self.levels.islands
        shares = lcm(*map(len, groups))
        mine = shares // len(levels.mine)
        length = self.own.size // mine
        tags = [self.job.tag() for _ in range(shares)]
        for number in range(mine):
            share = levels.local[levels.rank] * mine + number
            owners = [group[share * len(group) // shares] for group in groups]
            part = self.own[number * length : (number + 1) * length]
            self.runs.append(levels.across(self.job, self.made, owners, None, part, length, tags[share]))
        for run in self.runs:
            run.post()
        if self.own is not self.part:
            levels.inside(self.job, "reduce_scatter", self.part, self.own, self.job.call.op)
        for run in self.runs:
            run.start()

    def end(self) -> None:
        for run in self.runs:
            run.finish()
        if self.own is not self.part:
            self.levels.inside(self.job, "all_gather", self.own, self.part)


def reduce(levels: Levels, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = levels.speakers_of(job.call.root)
    made = message_programs_of("reduce", across, len(speakers), speakers.index(job.call.root))
    runs: list[Run] = []
    for number, part in enumerate(_segments(array, levels.crossing.segment)):
        if levels.rank == own:
            runs.append(levels.across(job, made, speakers, None, part, part.size))
            runs[-1].post()
        levels.inside(job, "reduce", None, part, job.call.op, levels.local[own])
        if runs:
            runs[-1].start()
        if number == 0:
            levels.compare_all(job)
        if runs and number >= _DEPTH:
            runs[number - _DEPTH].finish()
    for run in runs[-_DEPTH:]:
        run.finish()


# Copies ---------------------------------------------------------------------------------------------------------------


def broadcast(levels: Levels, job: Job, across: str) -> None:
    array = job.output
    assert array is not None
    speakers, own = levels.speakers_of(job.call.root)
    made = message_programs_of("broadcast", across, len(speakers), speakers.index(job.call.root))
    parts = _segments(array, _BROADCAST_BYTES)
    runs = []
    if levels.rank == own:
        runs = [levels.across(job, made, speakers, None, part, part.size) for part in parts]
        for run in runs:
            run.start()
    levels.compare_all(job)
    for number, part in enumerate(parts):
        if runs and levels.rank != job.call.root:
            runs[number].finish()
        levels.inside(job, "broadcast", None, part, None, levels.local[own])
    for run in runs:
        run.finish()


def _segments(array: Flat, bytes: int) -> list[Flat]:
    """The parts of an array, of which one is on the wire while another is in shared memory."""
    segment = max(1, bytes // array.itemsize)
    return [array[start : start + segment] for start in range(0, max(1, array.size), segment)]
