"""A run of MSCCL thread blocks: a possible order of all actions, or the reason why there is none.

Steps are split into chunks, as the runtime does with the largest buffers that it is allowed. A thread block continues
when its previous step is done, the step that it waits for is done, the message that it receives was sent, and its
connection has room for what it sends. If it can never continue, that is a deadlock. Two accesses to the same memory,
one of them a write, must be ordered by these waits (not counting those for room in a connection); if they are not, it
is a race.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ...errors import ScheduleError, UsageError
from ..happens_before import Happening, run_threads
from .xml import PROTOCOLS, RECEIVES, SENDS, XmlAlgorithm, XmlStep

_MOST_ACTIONS = 2**20


@dataclass(slots=True)
class Action:
    """One chunk of one step; `part` says which. `receives` and `sends` are message numbers; −1 stands for none."""

    rank: int
    block: int
    step: int
    type: str
    source: tuple[str, int]
    destination: tuple[str, int]
    part: tuple[int, int]
    receives: int
    sends: int

    @property
    def where(self) -> str:
        return f"gpu {self.rank} tb {self.block} step {self.step}"


@dataclass(frozen=True)
class Execution:
    """All actions, and how they happen."""

    actions: list[Action]
    happening: Happening


def execute(algorithm: XmlAlgorithm) -> Execution:
    """Run the thread blocks, or raise `ScheduleError` if they deadlock or messages do not match."""
    total = sum(step.count for gpu in algorithm.gpus for block in gpu.blocks for step in block.steps)
    if total > _MOST_ACTIONS:
        raise UsageError(
            f"{algorithm.name}: {total} chunks in all steps are too many to follow; at most {_MOST_ACTIONS} are"
        )
    actions: list[Action] = []
    thread: list[int] = []
    position: list[int] = []
    done_by: dict[tuple[int, int, int], int] = {}  # the last action of a step
    pending: list[tuple[int, tuple[int, int, int]]] = []
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    owner: dict[tuple[str, int, int, int], int] = {}
    extra: dict[int, list[int]] = defaultdict(list)
    threads = 0
    for rank, gpu in enumerate(algorithm.gpus):
        for number, block in enumerate(gpu.blocks):

            def claim(side: str, peer: int, ends: tuple[int, int, int], rank: int = rank, number: int = number) -> None:
                """One thread block has an end of a connection."""
                if owner.setdefault((side, *ends), number) != number:
                    raise ScheduleError(
                        f"{algorithm.name}: gpu {rank} has two thread blocks, {owner[side, *ends]} and {number}, of which "
                        f"each {side} gpu {peer} on channel {ends[2]}",
                        rank=rank,
                    )

            carried: list[tuple[int, int, int]] = []  # waits of steps that only wait, for the next step to take over
            place = 0
            for where, step in enumerate(block.steps):
                if step.waits is not None:
                    carried.append((rank, *step.waits))
                if step.type == "nop" or step.count == 0:
                    continue
                _check_places(algorithm, rank, number, where, step)
                receiving, sending = step.type in RECEIVES, step.type in SENDS
                if receiving:
                    claim("receives from", block.receive, (block.receive, rank, block.channel))
                if sending:
                    claim("sends to", block.send, (rank, block.send, block.channel))
                for part in range(step.count):
                    action = len(actions)
                    receives = sends = -1
                    if receiving:
                        received[block.receive, rank, block.channel].append(action)
                        receives = action
                    if sending:
                        sent[rank, block.send, block.channel].append(action)
                        sends = action
                    source = step.source[0], step.source[1] + part
                    destination = step.destination[0], step.destination[1] + part
                    actions.append(
                        Action(rank, number, where, step.type, source, destination, (part, step.count), receives, sends)
                    )
                    thread.append(threads)
                    position.append(place)
                    place += 1
                    if part == 0:
                        pending += [(action, target) for target in carried]
                        carried = []
                done_by[rank, number, where] = len(actions) - 1
            threads += 1
    for action, (rank, number, where) in pending:
        extra[action].append(_awaited(algorithm, actions[action], done_by, rank, number, where))
    return _run(algorithm, actions, thread, position, extra, _match(algorithm, actions, sent, received))


def _check_places(algorithm: XmlAlgorithm, rank: int, number: int, where: int, step: XmlStep) -> None:
    gpu = algorithm.gpus[rank]
    for (buffer, offset), used in (
        (step.source, step.type not in ("r", "rcs")),
        (step.destination, step.type not in ("s", "rrs")),
    ):
        # Files from msccl-tools give in-place algorithms no output chunks, and mean those of the input.
        most = max(gpu.input_chunks, gpu.output_chunks) if buffer != "s" else gpu.scratch_chunks
        if used and not 0 <= offset <= most - step.count:
            raise UsageError(
                f"{algorithm.name}: gpu {rank} tb {number} step {where} names chunk {offset + step.count - 1} of buffer "
                f"{buffer}, which has {most}"
            )


def _awaited(
    algorithm: XmlAlgorithm,
    waiting: Action,
    done_by: dict[tuple[int, int, int], int],
    rank: int,
    number: int,
    where: int,
) -> int:
    """The action after which a thread block's flag shows that it has reached the awaited step."""
    blocks = algorithm.gpus[rank].blocks
    if number < len(blocks):
        for later in range(where, len(blocks[number].steps)):
            step = blocks[number].steps[later]
            if step.awaited and (rank, number, later) in done_by:
                return done_by[rank, number, later]
    raise ScheduleError(
        f"{algorithm.name}: {waiting.where} waits for step {where} of thread block {number}, which never says that it is "
        f"done (hasdep)",
        rank=rank,
    )


def _match(
    algorithm: XmlAlgorithm,
    actions: list[Action],
    sent: dict[tuple[int, int, int], list[int]],
    received: dict[tuple[int, int, int], list[int]],
) -> dict[tuple[int, int, int], tuple[list[int], list[int]]]:
    both = {}
    for key in sorted({*sent, *received}):
        source, destination, channel = key
        if len(sent[key]) != len(received[key]):
            raise ScheduleError(
                f"{algorithm.name}: gpu {source} sends {len(sent[key])} chunks to gpu {destination} on channel {channel}, "
                f"which receives {len(received[key])}",
                rank=destination,
            )
        for send, receive in zip(sent[key], received[key], strict=True):
            if actions[send].part != actions[receive].part:
                raise ScheduleError(
                    f"{algorithm.name}: {actions[send].where} sends {actions[send].part[1]} chunks, and "
                    f"{actions[receive].where} receives {actions[receive].part[1]}",
                    rank=destination,
                )
        both[key] = sent[key], received[key]
    return both


def _run(
    algorithm: XmlAlgorithm,
    actions: list[Action],
    thread: list[int],
    position: list[int],
    extra: dict[int, list[int]],
    matched: dict[tuple[int, int, int], tuple[list[int], list[int]]],
) -> Execution:
    room, together = PROTOCOLS[algorithm.protocol][0], algorithm.chunks_a_message
    needs: list[list[int]] = [[] for _ in actions]  # what happens before, and orders memory accesses
    space: list[list[int]] = [[] for _ in actions]  # what only makes room
    for action in range(1, len(actions)):
        if thread[action] == thread[action - 1]:
            needs[action].append(action - 1)
    for action, others in extra.items():
        needs[action] += others
    for sends, receives in matched.values():
        last_of: list[int] = []  # by message: the action that receives the last of it
        for send, receive in zip(sends, receives, strict=True):
            needs[receive].append(send)
            if actions[send].part[0] % together == 0:
                last_of.append(receive)
            last_of[-1] = receive
            if len(last_of) > room:
                space[send].append(last_of[-1 - room])
            actions[receive].receives = send  # a message is numbered at both ends by the action that sends it
    happening = run_threads(thread, position, needs, space)
    if happening.stuck >= 0:
        stuck, blocking = happening.stuck, happening.blocking
        why = "has no room to send until" if blocking in space[stuck] else "waits until"
        raise ScheduleError(
            f"{algorithm.name}: deadlock: {actions[stuck].where} ({actions[stuck].type}) {why} "
            f"{actions[blocking].where} ({actions[blocking].type}) is done, which never happens",
            rank=actions[stuck].rank,
        )
    return Execution(actions, happening)
