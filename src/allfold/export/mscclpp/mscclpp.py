"""MSCCL++ execution plans: JSON that MSCCL++'s executor runs on GPUs.

Ranks put chunks into each other's memory and signal. A rank has one sequence of operations (its line): in every step it
puts what it sends, signals the receivers, waits for the ranks that send to it, and folds what arrived. Nobody waits for
room, so there is no deadlock. A put goes directly where the data belongs if the sender knows that this place is no
longer used, and otherwise into a scratch slot of its own. Every call begins with a signal from receivers to senders,
because a slot may still be in use by the previous call.

The executor takes 64 operations per thread block. A longer line is cut into several thread blocks, and semaphores make
each begin where the one before ends. The limits are those of `execution_common.hpp`, the checks those of
`execution_plan.cc`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ...proof import verify
from ...schedules import Schedule
from ..buffers import Place, RankMemory
from ..equivalence import check_equivalent
from ..folds import ChunkFold, folds_of
from .plan import COLLECTIVES, MOST_OPERANDS, MOST_OPERATIONS, MOST_PEERS, check_plan, read

__all__ = ["read", "write"]


def write(schedule: Schedule) -> str:
    """The plan as JSON, read back and proved. Raises `UsageError` where the executor cannot run it."""
    if schedule.collective not in COLLECTIVES.values():
        raise UsageError(f"MSCCL++ plans are for {', '.join(COLLECTIVES.values())}, not for {schedule.collective}")
    verify(schedule, programs=False)
    ranks = [_RankPlan(schedule, rank) for rank in range(schedule.ranks)]
    for step, folds in enumerate(folds_of(schedule)):
        _take_step(ranks, folds, step)
    plan = {
        "name": schedule.algorithm,
        "collective": next(word for word, ours in COLLECTIVES.items() if ours == schedule.collective),
        "protocol": "Simple",
        "inplace": not schedule.promise.exchanges,
        "reuse_resources": False,
        "gpus": [rank.gpu() for rank in ranks],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }
    try:
        check_plan(plan)
    except UsageError as error:
        reason = str(error).partition(": ")[2]
        raise UsageError(f"{schedule.title} cannot be written as an MSCCL++ plan: {reason}") from None
    text = json.dumps(plan, indent=1) + "\n"
    check_equivalent(schedule, read(text))
    return text


@dataclass
class _PlanOperation:
    """An operation of the line; peers and places are not yet resolved to indices."""

    name: str
    peers: list[int] = field(default_factory=list)
    sources: list[Place] = field(default_factory=list)
    local: list[Place] = field(default_factory=list)
    remote: list[tuple[int, Place]] = field(default_factory=list)


def _take_step(ranks: list[_RankPlan], folds: list[ChunkFold], step: int) -> None:
    written = {(fold.rank, fold.chunk) for fold in folds}
    read = {operand for fold in folds for operand in fold.operands}
    landed: dict[tuple[int, int, int, int], Place] = {}
    signals: dict[int, set[int]] = defaultdict(set)
    waits: dict[int, set[int]] = defaultdict(set)
    for fold in folds:
        receiver = ranks[fold.rank]
        for source, chunk in fold.operands:
            if source == fold.rank:
                continue
            place = None
            if len(fold.operands) == 1 and (fold.rank, fold.chunk) not in read:
                place = receiver.free_home(fold.chunk, ranks[source].known.get(fold.rank, -1))
            landed[source, chunk, fold.rank, fold.chunk] = place or receiver.slot()
            target = landed[source, chunk, fold.rank, fold.chunk]
            ranks[source].put(chunk, fold.rank, target, step)
            signals[source].add(fold.rank)
            waits[fold.rank].add(source)
    for rank, peers in signals.items():
        ranks[rank].signal(sorted(peers))
    heard = {rank: [dict(ranks[peer].known) for peer in peers] for rank, peers in waits.items()}
    for rank, peers in waits.items():
        ranks[rank].wait(sorted(peers))
    for fold in folds:
        for source, chunk in fold.operands:
            if source == fold.rank and chunk != fold.chunk and (source, chunk) in written:
                ranks[source].save(chunk)
    for fold in folds:
        operands = [landed.get((*operand, fold.rank, fold.chunk)) for operand in fold.operands]
        ranks[fold.rank].fold(fold, operands, step)
    for rank, peers in waits.items():
        for known, peer in zip(heard[rank], peers, strict=True):
            # A rank that has signalled in this step has read what it sent, and has folded what arrived in earlier
            # steps.
            ranks[rank].hear({**known, peer: 2 * step + 1})
    for one in ranks:
        one.settle()


class _RankPlan(RankMemory):
    """The line of one rank, under construction."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        super().__init__(schedule, rank)
        self.line: list[_PlanOperation] = []
        self.known: dict[int, int] = {}
        """By peer: how far it certainly is; 2·step after its puts, one more when all is sent."""
        self._touched: dict[int, int] = {}  # by chunk: when its home was last used
        self._sends: set[int] = set()
        self._receives: set[int] = set()

    def free_home(self, chunk: int, known: int) -> Place | None:
        """The home of a chunk, if a sender that knows we have come this far may write there."""
        return self.home(chunk) if self._touched.get(chunk, -1) <= known else None

    def put(self, chunk: int, peer: int, target: Place, step: int) -> None:
        self._sends.add(peer)
        self._touched[chunk] = 2 * step + 1
        last = self.line[-1] if self.line and self.line[-1].name == "put" else None
        source = self.at[chunk]
        # One operation may have several destinations, but its sources are in one buffer.
        if last is None or last.sources[0][0] != source[0] or len(last.sources) == MOST_PEERS:
            last = _PlanOperation("put")
            self.line.append(last)
        last.sources.append(source)
        last.remote.append((peer, target))

    def signal(self, peers: list[int]) -> None:
        self._sync()
        for first in range(0, len(peers), MOST_PEERS):
            self.line.append(_PlanOperation("signal", peers[first : first + MOST_PEERS]))

    def wait(self, peers: list[int]) -> None:
        self._receives |= {*peers}
        for first in range(0, len(peers), MOST_PEERS):
            self.line.append(_PlanOperation("wait", peers[first : first + MOST_PEERS]))
        self._sync()

    def save(self, chunk: int) -> None:
        """Save what a chunk holds for another chunk of this rank, because it is replaced in the same step."""
        if chunk not in self.saved:
            self.saved[chunk] = self.slot()
            self._local("copy", [self.at[chunk]], self.saved[chunk])

    def fold(self, fold: ChunkFold, landed: list[Place | None], step: int) -> None:
        places = []
        for (_, chunk), place in zip(fold.operands, landed, strict=True):
            places.append(place or (self.saved.get(chunk) if chunk != fold.chunk else None) or self.at[chunk])
            if place is None:
                self._touched[chunk] = 2 * step + 2
        home = self.home(fold.chunk)
        self._touched[fold.chunk] = 2 * step + 2
        self.arriving[fold.chunk] = home
        if len(places) == 1:
            if landed[0] is not None and fold.operands[0][0] != self.rank:
                self.arriving[fold.chunk] = landed[0]  # it can be forwarded from where it lies
            else:
                self._local("copy", places, home)
            return
        # Left to right, a few operands at a time; the partial sum must not overwrite an operand that is still needed.
        total = places[0]
        while len(places) > 1:
            part = [total, *places[1:MOST_OPERANDS]]
            places = [total, *places[MOST_OPERANDS:]]
            total = home if len(places) == 1 else self.slot()
            places[0] = total
            self._local("re", part, total)

    def _local(self, name: str, sources: list[Place], into: Place) -> None:
        touched: set[Place] = set()
        for one in reversed(self.line):
            if one.name == "nop":
                break
            touched |= {*one.sources, *one.local}
        if touched & {into, *sources}:
            self._sync()
        self.line.append(_PlanOperation(name, sources=sources, local=[into]))

    def _sync(self) -> None:
        if self.line and self.line[-1].name != "nop":
            self.line.append(_PlanOperation("nop"))

    def hear(self, known: dict[int, int]) -> None:
        for peer, far in known.items():
            self.known[peer] = max(self.known.get(peer, -1), far)

    def settle(self) -> None:
        if self.arriving:
            self._sync()
        super().settle()

    # The finished line -----------------------------------------------------------------------------------------------

    def gpu(self) -> dict[str, Any]:
        for chunk in self.promised:
            if self.at[chunk] != (home := self.home(chunk)):
                self._local("copy", [self.at[chunk]], home)
        opening = []
        for name, peers in (("signal", sorted(self._receives)), ("wait", sorted(self._sends))):
            for first in range(0, len(peers), MOST_PEERS):
                opening.append(_PlanOperation(name, peers[first : first + MOST_PEERS]))
        opening += [_PlanOperation("nop")] if self._sends else []
        line = opening + self.line
        peers = sorted(self._receives | self._sends)
        remote: list[tuple[int, str]] = []
        blocks = _cut(line)
        inputs, outputs = self.buffers.sizes()
        return {
            "id": self.rank,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": self.scratch,
            "threadblocks": [_block(number, len(blocks), part, peers, remote) for number, part in enumerate(blocks)],
            "channels": [{"channel_type": "memory", "connected_to": peers}] if peers else [],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": ["memory"]} for peer, buffer in remote
            ],
            "semaphores": [{"init_value": 0} for _ in blocks[1:]],
        }


def _cut(line: list[_PlanOperation]) -> list[list[_PlanOperation]]:
    """The line in parts that leave room for semaphores at both ends, each with an operation that waits for them."""
    room = MOST_OPERATIONS - 4
    return [line[first : first + room] for first in range(0, max(1, len(line)), room)]


def _block(
    number: int, blocks: int, line: list[_PlanOperation], peers: list[int], remote: list[tuple[int, str]]
) -> dict[str, Any]:
    channels = sorted({peers.index(peer) for one in line for peer in one.peers})
    wanted = sorted({(peer, place[0]) for one in line for peer, place in one.remote})
    for target in wanted:
        if target not in remote:
            remote.append(target)
    buffers = [remote.index(target) for target in wanted]
    operations: list[dict[str, Any]] = []
    if number:
        operations += [{"name": "sem_acquire", "semaphore_ids": [number - 1]}, {"name": "nop"}]
    for one in line:
        written: dict[str, Any] = {"name": one.name}
        if one.sources:
            written["src_buff"] = [{"type": buffer, "index": index, "size": 1} for buffer, index in one.sources]
        if one.local:
            written["dst_buff"] = [{"type": buffer, "index": index, "size": 1} for buffer, index in one.local]
        if one.remote:
            written["dst_buff"] = [
                {"buffer_id": wanted.index((peer, buffer)), "index": index, "size": 1}
                for peer, (buffer, index) in one.remote
            ]
        if one.peers:
            written["channel_ids"] = [channels.index(peers.index(peer)) for peer in one.peers]
        if one.peers or one.remote:
            written["channel_type"] = "memory"
        if one.name == "re":
            written["reduce_op"] = "sum"
        operations.append(written)
    if number < blocks - 1:
        operations += [{"name": "nop"}, {"name": "sem_release", "semaphore_ids": [number]}]
    return {
        "id": number,
        "ops": operations,
        "channels": [{"channel_type": "memory", "channel_ids": channels}] if channels else [],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": buffers}] if buffers else [],
    }
