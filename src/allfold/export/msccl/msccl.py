"""MSCCL XML, out and in: algorithms that the MSCCL runtimes run on GPUs, ours or from others.

`write` turns a schedule into thread blocks. It returns the file only after it was read back and proved to do the same.
`read` turns a file into a schedule: it runs the thread blocks (`order`), which finds deadlocks and races, and arranges
their moves in as few steps as the dependencies allow.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...collectives import NOTHING, find_collective
from ...errors import ScheduleError, UsageError
from ...proof import verify
from ...schedules import Schedule, step_of_moves
from ..equivalence import check_equivalent
from ..happens_before import Accesses
from ..timed import Cells, Place, TimedMove, assemble, laid_out
from .lower import lower
from .order import Action, Execution, execute
from .xml import MOST_STEPS, XmlAlgorithm, check_limits, parse

SHARES = (60, 30, 15)
"""Messages per channel between two ranks, if a single channel would make a thread block too long."""


def write(schedule: Schedule) -> str:
    """The schedule as MSCCL XML. Raises `UsageError` where the format cannot express it."""
    verify(schedule, programs=False)
    # If a thread block is too long, more channels give more thread blocks. Where one channel cannot do, it comes last:
    # if all are refused, it has the reason.
    shares = (None, *SHARES) if _may_fit(schedule) else (*SHARES, None)
    refused: dict[int | None, UsageError] = {}
    for share in shares:
        try:
            return _written(schedule, share)
        except UsageError as error:
            refused[share] = error
    raise refused[None]


def _may_fit(schedule: Schedule) -> bool:
    """True if one channel may do: a thread block takes at least one step of its own for each step with a message."""
    ranks = schedule.ranks
    source, destination = (schedule.columns[name].astype(np.int64) for name in ("source", "destination"))
    step = step_of_moves(schedule)
    travels = source != destination
    messages = np.unique(((source * ranks + destination) * max(1, schedule.steps) + step)[travels])
    return bool(np.bincount((messages // max(1, schedule.steps)).astype(np.intp)).max(initial=0) <= MOST_STEPS)


def _written(schedule: Schedule, share: int | None) -> str:
    # With fewer thread blocks and copies, connections need more room. The last form needs none.
    for fused in (True, False):
        with suppress(ScheduleError):
            return _proved(schedule, lower(schedule, fused, aside=False, share=share))
    return _proved(schedule, lower(schedule, fused=False, aside=True, share=share))


def _proved(schedule: Schedule, algorithm: XmlAlgorithm) -> str:
    check_limits(algorithm)
    text = algorithm.to_xml()
    again = parse(text)
    run = execute(again)
    for in_place in ([True] if again.in_place else []) + ([False] if again.out_of_place else []):
        check_equivalent(schedule, _schedule_of(run, again, schedule.root, in_place))
    return text


def read(source: str | Path, root: int | None = None, in_place: bool | None = None) -> Schedule:
    """The schedule of an MSCCL XML file, given by its path or its text.

    The file does not name the root of a rooted collective; unless given, it is derived from which rank uses which
    buffer. `in_place` says whether input and output are the same memory; by default they are, if the file allows it.
    """
    if isinstance(source, str) and source.lstrip().startswith("<"):
        return to_schedule(parse(source), root, in_place)
    try:
        content = Path(source).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return to_schedule(parse(content), root, in_place)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def to_schedule(algorithm: XmlAlgorithm, root: int | None = None, in_place: bool | None = None) -> Schedule:
    run = execute(algorithm)
    return _schedule_of(run, algorithm, root, algorithm.in_place if in_place is None else in_place)


def _schedule_of(run: Execution, algorithm: XmlAlgorithm, root: int | None, in_place: bool) -> Schedule:
    memory = _ChunkMemory(algorithm, root, in_place)
    _check_races(run, memory)
    moves = _moves(run, memory)
    steps, cells = laid_out(moves, memory.cells)
    steps.append(_home(memory, moves, cells))
    return assemble(
        algorithm.collective,
        algorithm.name,
        memory.ranks,
        memory.root,
        memory.chunks,
        ((step, cells) for step in steps),
    )


class _ChunkMemory:
    """Maps the buffers of a file to the chunks of a schedule."""

    def __init__(self, algorithm: XmlAlgorithm, root: int | None, in_place: bool) -> None:
        self.algorithm, self.in_place = algorithm, in_place
        self.ranks = len(algorithm.gpus)
        self.promise = find_collective(algorithm.collective)
        slices = self.promise.slices(self.ranks)
        loop = algorithm.chunks_per_loop
        self.chunks = loop * self.ranks if self.promise.sliced and self.promise.rooted else loop
        if self.chunks % slices:
            raise UsageError(f"{algorithm.name}: nchunksperloop={loop} does not divide among {self.ranks} GPUs")
        self.part = self.chunks // slices
        self._own = {  # the buffers that hold a rank's own slice only
            "i": self.promise.starts.sliced,
            "o": self.promise.ends.sliced,
        }
        self.root = self._find_root(root) if self.promise.rooted else None

    def _find_root(self, given: int | None) -> int:
        if given is not None:
            if not 0 <= given < self.ranks:
                raise UsageError(f"{self.algorithm.name}: root {given} is not one of {self.ranks} GPUs")
            return given
        source = self.promise.starts.root_only  # the root is the rank that has this buffer
        found = []
        for rank, gpu in enumerate(self.algorithm.gpus):
            steps = [step for block in gpu.blocks for step in block.steps if step.type != "nop"]
            if source and any(step.source[0] == "i" and step.type in ("s", "cpy") for step in steps):
                found.append(rank)
            if not source and any(
                step.destination[0] == "o" and step.type in ("r", "rrc", "cpy", "re") for step in steps
            ):
                found.append(rank)
        if len(found) != 1:
            raise UsageError(
                f"{self.algorithm.name}: which GPU is the root of this {self.algorithm.collective}? say root=…"
            )
        return found[0]

    def place(self, rank: int, location: tuple[str, int]) -> Place:
        buffer, offset = location
        if buffer == "s":
            return rank, "s", offset
        chunk = offset + rank * self.part if self._own[buffer] else offset
        if chunk >= self.chunks:
            raise UsageError(
                f"{self.algorithm.name}: gpu {rank} names chunk {offset} of buffer {buffer}, beyond the whole"
            )
        return rank, "o" if self.in_place else buffer, chunk

    def cells(self, moves: list[TimedMove]) -> Cells:
        """The chunk of its rank that stands for each place.

        Out of place, input and output are two places for one chunk. They share it unless the input is still used when
        the output is written; then the output lies in scratch, and is copied to its place at the end.
        """
        used: dict[Place, list[tuple[int, bool]]] = defaultdict(list)
        for move in moves:
            used[move.source].append((move.read, False))
            used[move.destination].append((move.written, True))
        cells: Cells = {}
        extra: dict[int, int] = defaultdict(int)
        for place in sorted(used):
            rank, space, index = place
            if space in ("i", "o"):
                twin = (rank, "i", index)
                if space == "i" or twin not in used:
                    cells[place] = index
                    continue
                written = min((time for time, writes in used[place] if writes), default=-1)
                if written < 0 or max(used[twin])[0] <= written:
                    cells[place] = index
                    continue
            cells[place] = self.chunks + extra[rank]
            extra[rank] += 1
        return cells


def _check_races(run: Execution, memory: _ChunkMemory) -> None:
    def race(first: int, second: int, place: Place) -> ScheduleError:
        rank, space, index = place
        what = f"chunk {index} of {'scratch' if space == 's' else 'the row'}"
        return ScheduleError(
            f"{memory.algorithm.name}: race: {run.actions[first].where} and {run.actions[second].where} both use {what} "
            f"of gpu {rank}, one of them writes, and nothing orders them",
            rank=rank,
            chunk=index,
        )

    accesses = Accesses(run.happening, race)
    for number in run.happening.order:
        accesses.take(number, *_touches(run.actions[number], memory))


def _touches(action: Action, memory: _ChunkMemory) -> tuple[list[Place], list[Place]]:
    source = [memory.place(action.rank, action.source)] if action.type not in ("r", "rcs") else []
    destination = [memory.place(action.rank, action.destination)] if action.type not in ("s", "rrs") else []
    return source + (destination if action.type == "re" else []), destination


def _moves(run: Execution, memory: _ChunkMemory) -> list[TimedMove]:
    """The moves, in the order in which they write. Each action has three instants: read, receive, send on."""
    touched: dict[Place, list[tuple[int, bool]]] = defaultdict(list)  # when each place is touched, and if only written
    if any(action.type == "rrs" for action in run.actions):
        for time, number in enumerate(run.happening.order):
            reads, writes = _touches(run.actions[number], memory)
            for place in {*reads, *writes}:
                touched[place].append((time, place not in reads))
    sent: dict[int, tuple[Place, int]] = {}  # by message: where its value lies, and when it is read
    moves = []
    for time, number in enumerate(run.happening.order):
        action = run.actions[number]
        now, rank, site = 3 * time, action.rank, action.where
        if action.type == "s":
            sent[number] = memory.place(rank, action.source), now
            continue
        source = memory.place(rank, action.source) if action.type not in ("r", "rcs") else (rank, "t", number)
        if action.type == "rrs":
            later = [only for when, only in touched[source] if when > time]
            promised = memory.promise.ends_with(memory.ranks, memory.root, memory.chunks)[rank]
            idle = source[1] == "s" or (source[1] == "i" and not memory.in_place) or promised[source[2]] == NOTHING
            # The sum is stored nowhere. If the operand is no longer needed, the sum can take its place.
            destination = source if (later[0] if later else idle) else (rank, "t", number)
        else:
            destination = memory.place(rank, action.destination)
        if action.type in ("rrs", "rrc", "rrcs", "cpy") and source != destination:
            moves.append(TimedMove(False, source, destination, now, now, site))
        if action.type == "re":
            moves.append(TimedMove(True, source, destination, now, now, site))
        if action.receives >= 0:
            value, read = sent[action.receives]
            moves.append(TimedMove(action.type[:2] == "rr", value, destination, read, now + 1, site))
        if action.sends >= 0:
            sent[number] = destination, now + 2
    return moves


def _home(memory: _ChunkMemory, moves: list[TimedMove], cells: Cells) -> list[TimedMove]:
    """Moves that bring results to their places at the end. Out of place, results must be in the output."""
    written = {move.destination for move in moves}
    promised = memory.promise.ends_with(memory.ranks, memory.root, memory.chunks)
    home = []
    for rank, chunk in zip(*np.nonzero(promised != NOTHING), strict=True):
        place = (int(rank), "o", int(chunk))
        if not memory.in_place and place not in written:
            raise ScheduleError(
                f"{memory.algorithm.name}: chunk {chunk} of gpu {rank}'s output is never written; it works in place only",
                rank=int(rank),
                chunk=int(chunk),
            )
        if cells.get(place, chunk) != chunk:
            target = (int(rank), "row", int(chunk))
            cells[target] = int(chunk)
            home.append(TimedMove(False, place, target, 0, 0, "output"))
    return home
