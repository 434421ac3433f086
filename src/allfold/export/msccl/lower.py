"""From a schedule to MSCCL thread blocks.

Every connection between two ranks has a thread block at each end. The operations of a rank are listed in the order of
the schedule's steps; within a step, sends come before receives. Every thread block takes its part of that list in
order. Operations of two thread blocks that touch the same memory are ordered by a dependency. All dependencies point
backwards in one list, and both ends of a connection have their messages in the same order. So there is no deadlock, as
long as a connection has room for what is sent before it is received in the same step.

Where a rank forwards at once what it receives, both connections share a thread block and the two steps become one. Like
NCCL's own ring, that needs room for two messages in a connection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import UsageError
from ...schedules import Schedule
from ..buffers import Place, RankMemory
from ..folds import Cell, ChunkFold, folds_of
from .xml import COLLECTIVES, MOST_COUNT, XmlAlgorithm, XmlBlock, XmlGpu, XmlStep

Ends = tuple[int, int, int]
"""The peer that a thread block sends to, the one that it receives from, and its channel; −1 is no peer."""

_LOCAL: Ends = (-1, -1, 0)


@dataclass(slots=True)
class _Operation:
    """An operation that becomes a step. `reads` and `writes` say what it touches, with in-place aliases resolved."""

    kind: str
    block: Ends
    source: Place = ("i", 0)
    destination: Place = ("o", 0)
    reads: tuple[object, ...] = ()
    writes: tuple[object, ...] = ()
    count: int = 1
    needs: set[int] = field(default_factory=set)
    step: int = 0


def lower(schedule: Schedule, fused: bool = True, aside: bool = False, share: int | None = None) -> XmlAlgorithm:
    """The thread blocks of a schedule that is known to be right.

    Without `fused`, no thread block both receives and sends. With `aside`, data that arrives for a chunk that is sent
    in the same step goes to scratch first, so that no receive waits for a send: then no room is needed in the
    connections. The first channel carries the first `share` messages between two ranks, the next channel those that
    follow, and so on.
    """
    if schedule.collective not in COLLECTIVES.values():
        raise UsageError(f"MSCCL XML has no {schedule.collective}; it has {', '.join(COLLECTIVES.values())}")
    ranks = [_Rank(schedule, rank, aside, share) for rank in range(schedule.ranks)]
    for step, folds in enumerate(folds_of(schedule)):
        runs = _runs(folds, ranks)
        for run in runs:
            for source, chunk in _in_order(run[0]):
                if source != run[0].rank:
                    ranks[source].send(chunk, run[0].rank, step, len(run))
        written = {(rank, chunk) for rank, chunk, _ in folds}
        for rank, chunk, operands in folds:
            for operand in operands:
                if operand[0] == rank and operand[1] != chunk and operand in written:
                    ranks[rank].save(operand[1], step)
        for run in runs:
            ranks[run[0].rank].fold(run, step)
        for one in ranks:
            one.settle()
    for one in ranks:
        one.finish()
    promise = schedule.promise
    one_rank = promise.sliced and promise.rooted  # here the count is one slice, not the whole buffer
    return XmlAlgorithm(
        name=schedule.algorithm,
        collective=schedule.collective,
        protocol="Simple",
        channels=max(one.channels for one in ranks),
        chunks_per_loop=schedule.chunks // schedule.ranks if one_rank else schedule.chunks,
        in_place=not promise.exchanges,
        out_of_place=True,
        gpus=tuple(one.gpu(fused) for one in ranks),
    )


def _in_order(fold: ChunkFold) -> list[Cell]:
    """The operands in the order used here: a ⊕ b and b ⊕ a give the same bits, so own content may come first."""
    own = (fold.rank, fold.chunk)
    operands = list(fold.operands)
    if len(operands) > 1 and operands[1] == own:
        operands[:2] = operands[1], operands[0]
    return operands


def _runs(folds: list[ChunkFold], ranks: list[_Rank]) -> list[list[ChunkFold]]:
    """The folds, grouped where one message can serve several: adjacent on both sides, from one rank, of the same form.

    Chunks that are sent in the same step are not grouped: each has to be sent before it is replaced, one after the
    other.
    """
    sent = {operand for fold in folds for operand in fold.operands if operand[0] != fold.rank}
    runs: list[list[ChunkFold]] = []
    open_runs: dict[tuple[int, int, int], list[ChunkFold]] = {}
    for fold in folds:
        remote = [operand for operand in fold.operands if operand[0] != fold.rank]
        own = (fold.rank, fold.chunk)
        alike = len(remote) == 1 and {*fold.operands} <= {remote[0], own} and own not in sent
        key = (fold.rank, remote[0][0] if remote else -1, len(fold.operands))
        run = open_runs.get(key) if alike else None
        if run is not None and len(run) < MOST_COUNT and _follows(run[-1], fold, ranks):
            run.append(fold)
            continue
        runs.append([fold])
        if alike:
            open_runs[key] = runs[-1]
    return runs


def _follows(first: ChunkFold, second: ChunkFold, ranks: list[_Rank]) -> bool:
    """Do all chunks of the second come right after those of the first?"""
    here = ranks[first.rank]
    pairs = [(here.home(first.chunk), here.home(second.chunk))]
    for one, two in zip(_in_order(first), _in_order(second), strict=True):
        if one[0] != two[0] or two[1] != one[1] + 1:
            return False
        pairs.append((ranks[one[0]].at[one[1]], ranks[two[0]].at[two[1]]))
    return all(place[0] == behind[0] and behind[1] == place[1] + 1 for place, behind in pairs)


class _Rank(RankMemory):
    """The operations of one rank, under construction."""

    def __init__(self, schedule: Schedule, rank: int, aside: bool, share: int | None) -> None:
        super().__init__(schedule, rank)
        self.aside, self.share = aside, share
        self.channels = 1
        self._messages: dict[tuple[int, int], int] = {}
        self.operations: list[_Operation] = []
        self._free: list[Place] = []
        self._used: list[Place] = []
        self._sent: set[int] = set()
        self._writer: dict[object, int] = {}
        self._readers: dict[object, list[int]] = defaultdict(list)

    def _temporary(self) -> Place:
        self._used.append(self._free.pop() if self._free else self.slot())
        return self._used[-1]

    def _ends(self, send: int, receive: int) -> Ends:
        """The thread block for the next message over a connection."""
        if not self.share:
            return send, receive, 0
        number = self._messages.get((send, receive), 0)
        self._messages[send, receive] = number + 1
        channel = number // self.share
        if channel >= self.channels:
            self.channels = channel + 1
        return send, receive, channel

    # What happens ----------------------------------------------------------------------------------------------------

    def send(self, chunk: int, peer: int, step: int, count: int = 1) -> None:
        chunks = (chunk,) if count == 1 else tuple(range(chunk, chunk + count))
        self._do(_Operation("s", self._ends(peer, -1), self.at[chunk], reads=chunks, count=count, step=step))
        self._sent.update(chunks)

    def save(self, chunk: int, step: int) -> None:
        """Save what a chunk holds for another chunk of this rank, because it is replaced in the same step."""
        if chunk not in self.saved:
            self.saved[chunk] = self._temporary()
            saved = self.saved[chunk]
            self._do(_Operation("cpy", _LOCAL, self.at[chunk], saved, (chunk,), (saved,), step=step))

    def _receive_run(self, run: Sequence[ChunkFold], step: int) -> None:
        """Several folds at once, all of one operand from another rank, alone or with the chunk's own content. Their places
        are adjacent; the numbers of scratch chunks need not be."""
        fold, chunks, count = run[0], tuple(one.chunk for one in run), len(run)
        homes = [self.home(chunk) for chunk in chunks]
        (peer,) = {source for source, _ in fold.operands} - {self.rank}
        source, reads = (homes[0], ()) if len(fold.operands) == 1 else (self.at[fold.chunk], chunks)
        kind = "r" if len(fold.operands) == 1 else "rrc"
        self._do(_Operation(kind, self._ends(-1, peer), source, homes[0], reads, chunks, count, step=step))
        self.arriving.update(zip(chunks, homes, strict=True))

    def fold(self, run: Sequence[ChunkFold], step: int) -> None:
        if len(run) > 1:
            self._receive_run(run, step)
            return
        (fold,) = run
        home, own = self.home(fold.chunk), (self.rank, fold.chunk)
        operands = _in_order(fold)
        total: Place | None = None  # where the sum so far lies, and whether it may be written to
        held: object = None
        block: Ends = _LOCAL
        aside = self.aside and fold.chunk in self._sent
        for position, operand in enumerate(operands):
            last = position == len(operands) - 1
            local = operand[0] == self.rank
            here: Place = ("i", 0)
            what: object = operand[1]
            if local:
                here = self.at[operand[1]]
                if operand != own and operand[1] in self.saved:
                    here = what = self.saved[operand[1]]
            if not local:
                block = self._ends(-1, operand[0])
            if total is None:
                if last and local:
                    self._do(_Operation("cpy", block, here, home, (what,), (fold.chunk,), step=step))
                elif last and aside:
                    laid = self._lay_aside(block, step)
                    self._do(_Operation("cpy", _LOCAL, laid, home, (laid,), (fold.chunk,), step=step))
                elif last:
                    self._do(_Operation("r", block, home, home, (), (fold.chunk,), step=step))
                elif operand == own:
                    total, held = here, fold.chunk
                else:
                    total = self._temporary()
                    held = total
                    if local:
                        self._do(_Operation("cpy", block, here, total, (what,), (held,), step=step))
                    else:
                        self._do(_Operation("r", block, total, total, (), (held,), step=step))
                continue
            if local and held != fold.chunk:
                self._do(_Operation("re", block, here, total, (what, held), (held,), step=step))
                if last:
                    self._do(_Operation("cpy", block, total, home, (held,), (fold.chunk,), step=step))
                continue
            into, kept = (home, fold.chunk) if last or held == fold.chunk else (total, held)
            if not local and aside and kept == fold.chunk:
                here = what = self._lay_aside(block, step)
                local, block = True, _LOCAL  # the receiving thread block continues
            if not local:
                self._do(_Operation("rrc", block, total, into, (held,), (kept,), step=step))
            else:
                if total != into:
                    self._do(_Operation("cpy", block, total, into, (held,), (kept,), step=step))
                self._do(_Operation("re", block, here, into, (what, kept), (kept,), step=step))
            total, held = into, kept
        self.arriving[fold.chunk] = home

    def _lay_aside(self, block: Ends, step: int) -> Place:
        place = self._temporary()
        self._do(_Operation("r", block, place, place, (), (place,), step=step))
        return place

    def settle(self) -> None:
        super().settle()
        self._free += self._used
        self._used.clear()
        self._sent.clear()

    def finish(self) -> None:
        for chunk in self.promised:
            if chunk in self.at and self.at[chunk][0] == "i":
                self._do(_Operation("cpy", _LOCAL, self.at[chunk], self.home(chunk), (chunk,), (chunk,), step=-1))

    def _do(self, operation: _Operation) -> None:
        number = len(self.operations)
        for memory in (*operation.reads, *operation.writes):
            if memory in self._writer:
                operation.needs.add(self._writer[memory])
        for memory in operation.writes:
            operation.needs.update(self._readers.get(memory, ()))
        for memory in operation.reads:
            self._readers[memory].append(number)
        for memory in operation.writes:
            self._writer[memory] = number
            self._readers.pop(memory, None)
        self.operations.append(operation)

    # Thread blocks ---------------------------------------------------------------------------------------------------

    def gpu(self, fused: bool) -> XmlGpu:
        shared = self._shared_blocks() if fused else {}
        names = [shared.get(operation.block, operation.block) for operation in self.operations]
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        steps: list[list[XmlStep]] = [[] for _ in number]
        place: list[tuple[int, int]] = []  # by operation: its thread block, and its step there
        known: list[dict[int, int]] = []  # by operation: how far each thread block certainly is when it is done
        so_far: list[dict[int, int]] = [{} for _ in number]
        last: list[int] = [-1] * len(number)  # by thread block: its last operation
        for position, operation in enumerate(self.operations):
            block = number[names[position]]
            before = last[block]
            if (
                operation.kind == "s"
                and before >= 0
                and operation.needs <= {before}
                and steps[block][-1].type in ("r", "rrc")
                and self.operations[before].writes == operation.reads
            ):
                steps[block][-1].type = {"r": "rcs", "rrc": "rrcs"}[steps[block][-1].type]
                place.append(place[before])
                known.append(known[before])
                last[block] = position
                continue
            knows = dict(so_far[block])
            waits = []
            for need in sorted(operation.needs, reverse=True):
                other, done = place[need]
                if other != block and knows.get(other, -1) < done:
                    waits.append((other, done))
                    for third, far in known[need].items():
                        knows[third] = max(knows.get(third, -1), far)
            for other, done in waits:
                steps[other][done].awaited = True
            for wait in waits[:-1]:
                steps[block].append(XmlStep("nop", ("i", 0), ("o", 0), 0, wait))
            steps[block].append(
                XmlStep(
                    operation.kind,
                    operation.source,
                    operation.destination,
                    operation.count,
                    waits[-1] if waits else None,
                )
            )
            place.append((block, len(steps[block]) - 1))
            knows[block] = len(steps[block]) - 1
            known.append(knows)
            so_far[block] = knows
            last[block] = position
        blocks = (XmlBlock(*name, tuple(list_)) for name, list_ in zip(number, steps, strict=True))
        return XmlGpu(*self.buffers.sizes(), self.scratch, tuple(blocks))

    def _shared_blocks(self) -> dict[Ends, Ends]:
        """The connections that share a thread block: pairs where a receive is forwarded at once, the most useful first."""
        busiest: Counter[Ends] = Counter()
        in_step: dict[Ends, tuple[int, int]] = {}  # the last step of each, and its chunks so far; steps only grow
        for one in self.operations:
            step, many = in_step.get(one.block, (one.step, 0))
            many = one.count + (many if step == one.step else 0)
            in_step[one.block] = one.step, many
            busiest[one.block] = max(busiest[one.block], many)
        useful: Counter[Ends] = Counter()
        for operation in self.operations:
            if operation.kind == "s" and len(operation.needs) == 1:
                maker = self.operations[next(iter(operation.needs))]
                channel = operation.block[2]
                if maker.kind in ("r", "rrc") and maker.step == operation.step - 1 and maker.block[2] == channel:
                    useful[operation.block[0], maker.block[1], channel] += 1
        shared: dict[Ends, Ends] = {}
        for (send, receive, channel), _ in useful.most_common():
            ends = [(send, -1, channel), (-1, receive, channel)]
            # With several chunks per step, one thread block would send them all before it receives any.
            if not any(end in shared or busiest[end] > 1 for end in ends):
                shared.update(dict.fromkeys(ends, (send, receive, channel)))
        return shared
