"""The reference engine: a schedule on real data, step by step, in one process.

It is the oracle of every test and what a picture replays, so it is as plain as it can be: what is folded, and in which
order, comes from the symbolic execution of the schedule (`allfold.symbolic`); what a fold is, from `allfold.ops`; how a
buffer is divided, from `allfold.division`.

Arrays may have any shape. Where a collective has slices, the whole array is the slices one after the other along the
first axis; slices without axes (single numbers) make a whole array with one axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...collectives import NOTHING
from ...division import Division, Lengths
from ...dtypes import Array, Dtype, describe, find_dtype, narrow
from ...errors import ScheduleError, UsageError
from ...ops import Function, Op, check_average, check_supported, find_op
from ...schedules import Schedule
from ...symbolic import Folds, State, unkept
from ...wording import name_ranks
from ..buffer import refuse_masked

Inputs = Iterable[ArrayLike | None] | None
Shape = tuple[int, ...]


def replay(
    schedule: Schedule,
    inputs: Inputs = None,
    op: str | Op | Function = "sum",
    dtype: object = None,
    counts: object = None,
) -> list[Array | None]:
    """The results of all ranks; see `Replay`.

    >>> schedule = af.schedule("reduce_scatter", "ring", ranks=2)
    >>> af.replay(schedule, [np.array([1, 2]), np.array([10, 20])])
    [array([11]), array([22])]
    """
    return Replay(schedule, inputs, op, dtype, counts).outputs()


class Replay:
    """A schedule being replayed on the inputs of all ranks.

    `inputs` holds one array per rank: its buffer for all_reduce, reduce, scan, exscan and broadcast (which uses only
    the root's; the others may be None); its slice for gather and all_gather; the whole array for reduce_scatter,
    all_to_all and, at the root, scatter (None elsewhere); nothing at all for a barrier; between neighbours, the pieces
    that the rank has, one after the other. They are not modified.

    `dtype` is that of the inputs unless given. It must be given for bfloat16, whose data is passed as arrays of uint16.

    `counts`: the lengths of the slices, where they differ; arrays are flat then. One per rank, or for all_to_all one row
    per rank: what it sends to each rank.

    >>> replay = af.Replay(af.schedule("all_reduce", "ring", ranks=2), [np.array([1, 2]), np.array([10, 20])])
    >>> folds = replay.advance()
    >>> replay.step, replay.row(0)
    (1, [array([11]), array([2])])
    >>> replay.outputs()
    [array([11, 22]), array([11, 22])]
    """

    def __init__(
        self,
        schedule: Schedule,
        inputs: Inputs = None,
        op: str | Op | Function = "sum",
        dtype: object = None,
        counts: object = None,
    ) -> None:
        if not isinstance(schedule, Schedule):
            raise UsageError(f"replay: expected a schedule, made by allfold.schedule(...), not {schedule!r}")
        if inputs is not None and not isinstance(inputs, Iterable):
            raise UsageError(f"replay: expected one input per rank, not {inputs!r}")
        self.schedule = schedule
        self.op = find_op(op)
        self._state = State(schedule)
        self._counts = Lengths.of(schedule.promise, schedule.ranks, counts)
        self.dtype, self._shape, arrays = _take_inputs(schedule, inputs, dtype, self._counts)
        if schedule.promise.takes_op:
            check_supported(self.op, self.dtype)
            check_average(schedule.promise, self.op)
            if not self.op.commutative:
                _check_rank_order(schedule, self.op)
        self._cells = self._divide(arrays)

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return self._state.step

    @property
    def done(self) -> bool:
        """True once all steps have been taken."""
        return self._state.done

    def advance(self) -> Folds:
        """Take one step. Returns what was folded."""
        if self.done:
            raise UsageError(f"{self.schedule.title}: all {self.schedule.steps} steps have been taken")
        folds = self._state.advance()
        # A cell's array is never written to, only replaced by another: so a copy is the array itself, and everything is
        # read before anything is replaced.
        results = [self._fold(folds, i) for i in range(len(folds.target))]
        for target, result in zip(folds.target.tolist(), results, strict=True):
            self._cells[target] = result
        return folds

    def cell(self, rank: int, chunk: int) -> Array | None:
        """The current contents of a rank's chunk, None if empty. Data from another chunk keeps its own length."""
        array = self._cells[self._number(rank, chunk)]
        return None if array is None else array.copy()

    def row(self, rank: int) -> list[Array | None]:
        """The current contents of a rank's chunks, scratch chunks last."""
        return [self.cell(rank, chunk) for chunk in range(self._state.width)]

    def contributors(self, rank: int, chunk: int) -> list[int]:
        """The ranks whose contribution a chunk of a rank holds now."""
        self._number(rank, chunk)
        return self._state.contributors(rank, chunk)

    def outputs(self) -> list[Array | None]:
        """The result of every rank, None where it gets none. Takes the remaining steps."""
        while not self.done:
            self.advance()
        schedule = self.schedule
        if not schedule.promise.carries_data:
            return [None] * schedule.ranks
        self._check_end()
        wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)
        outputs: list[Array | None] = []
        for rank, row in enumerate(wanted):
            parts = [self._filled(self._number(rank, chunk)) for chunk in np.flatnonzero(row != NOTHING).tolist()]
            outputs.append(np.concatenate(parts).reshape(self._output_shape(rank)) if parts else None)
        return outputs

    # The data of a step, and where it begins and ends ----------------------------------------------------------------

    def _fold(self, folds: Folds, i: int) -> Array:
        operands = [self._filled(cell) for cell in folds.operands[folds.starts[i] : folds.starts[i + 1]].tolist()]
        if len(operands) == 1 or not self.schedule.promise.carries_data:
            return operands[0]
        # Where several operands make a complete result, it was not complete before: so it is divided here, and once.
        complete = self._state.count[folds.target[i]] == self.schedule.ranks
        return self.op.fold(operands, self.dtype, self.schedule.ranks if complete else 1)

    def _divide(self, arrays: list[Array | None]) -> list[Array | None]:
        schedule, width = self.schedule, self._state.width
        if schedule.promise.starts.in_pieces:
            return self._divide_pieces(arrays)
        elements = int(np.prod(_whole_shape(schedule, self._shape)))
        division = Division(schedule.ranks, schedule.chunks, elements, self._counts)
        part = schedule.chunks // schedule.promise.slices(schedule.ranks)
        cells: list[Array | None] = [None] * (schedule.ranks * width)
        for cell in np.flatnonzero(self._state.datum != NOTHING).tolist():
            rank, chunk = divmod(cell, width)
            array = arrays[rank]
            assert array is not None
            bounds = division.bounds(rank, of_output=False)
            before = bounds[rank * part] if schedule.promise.starts.sliced else 0
            cells[cell] = array[bounds[chunk] - before : bounds[chunk + 1] - before]
        return cells

    def _divide_pieces(self, arrays: list[Array | None]) -> list[Array | None]:
        """Each rank's array holds the chunks that it has, one after the other."""
        rows = (self._state.datum != NOTHING).reshape(self.schedule.ranks, -1)
        lengths = {}
        cells: list[Array | None] = [None] * rows.size
        for rank, (row, array) in enumerate(zip(rows, arrays, strict=True)):
            chunks = np.flatnonzero(row)
            assert array is not None
            if array.size % max(1, len(chunks)) or (array.size and not len(chunks)):
                what = f"rank {rank} has {len(chunks)} pieces, and {array.size} elements cannot be divided into them"
                raise UsageError(f"{self.schedule.promise.label}: {what}")
            for chunk, piece in zip(chunks, np.split(array, max(1, len(chunks))), strict=False):
                lengths[rank] = piece.size
                cells[rank * self._state.width + int(chunk)] = piece
        if len(set(lengths.values())) > 1:
            facts = ", ".join(f"{length} on rank {rank}" for rank, length in lengths.items())
            raise UsageError(
                f"{self.schedule.promise.label}: all pieces must be equally long; elements per piece: {facts}"
            )
        return cells

    def _output_shape(self, rank: int) -> Shape:
        shape = self._shape
        if self.schedule.promise.ends.in_pieces:
            return (-1,)
        if self._counts is not None:
            return (self._counts.of_arrays(self.schedule.promise, rank)[1],)
        if self.schedule.promise.ends.sliced:
            return (shape[0] // self.schedule.ranks, *shape[1:])
        return _whole_shape(self.schedule, shape)

    def _check_end(self) -> None:
        schedule, state = self.schedule, self._state
        results, wrong = unkept(state)
        if not wrong.any():
            return
        cell = int(results[wrong.argmax()])
        rank, chunk = divmod(cell, state.width)
        wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks)[rank, chunk]
        held, expected = state.name_of(state.datum[cell]), state.name_of(wanted)
        if schedule.promise.reduces:
            needed = schedule.promise.contributors(rank, schedule.ranks)
            everyone = len(needed) == schedule.ranks
            expected += f" of all {schedule.ranks} ranks" if everyone else f" of {name_ranks(needed)}"
            if state.datum[cell] != NOTHING:
                held += f" of {name_ranks(state.contributors(rank, chunk))}"
        message = (
            f"{schedule.title}: after the last step, rank {rank} chunk {chunk} holds {held}, expected {expected}; "
            f"allfold.verify says where that went wrong"
        )
        raise ScheduleError(message, rank=rank, chunk=chunk, step=state.step)

    def _filled(self, cell: int) -> Array:
        array = self._cells[cell]
        assert array is not None, "the symbolic execution refuses to read a chunk that holds nothing"
        return array

    def _number(self, rank: int, chunk: int) -> int:
        if not (0 <= rank < self.schedule.ranks and 0 <= chunk < self._state.width):
            limits = f"ranks are 0–{self.schedule.ranks - 1}, chunks 0–{self._state.width - 1}"
            raise UsageError(f"{self.schedule.title} has no chunk {chunk} of rank {rank}: {limits}")
        return rank * self._state.width + chunk


def _check_rank_order(schedule: Schedule, op: Op) -> None:
    state = State(schedule).run_to_end()
    wanted = schedule.promise.ends_with(schedule.ranks, schedule.root, schedule.chunks) != NOTHING
    kept = state.in_order.reshape(schedule.ranks, state.width)[:, : schedule.chunks]
    if (wanted & ~kept).any():
        rank, chunk = np.argwhere(wanted & ~kept)[0].tolist()
        raise UsageError(
            f"{schedule.collective}: {op.name} is not commutative, and {schedule.title} does not keep rank order (rank "
            f"{rank} chunk {chunk}); take an algorithm that does, or say commutative=True if the operation is"
        )


# The inputs ----------------------------------------------------------------------------------------------------------


def _whole_shape(schedule: Schedule, shape: Shape) -> Shape:
    if not schedule.promise.starts.sliced:
        return shape
    return (schedule.ranks * shape[0], *shape[1:]) if shape else (schedule.ranks,)


def _take_inputs(
    schedule: Schedule, inputs: Inputs, dtype: object, counts: Lengths | None
) -> tuple[Dtype, Shape, list[Array | None]]:
    """Flat read-only copies of the inputs, with their type and shape; or an error that says which rank passed what."""
    promise, ranks = schedule.promise, schedule.ranks
    given = list(inputs) if inputs is not None else [None] * ranks
    wanted = None if dtype is None else find_dtype(dtype)
    if not promise.carries_data:
        if any(one is not None for one in given):
            raise UsageError(f"{promise.name} takes no data, but got {len(given)} inputs")
        signal = np.zeros(0, np.uint8)
        return find_dtype("uint8"), (0,), [signal] * ranks
    if len(given) != ranks:
        raise UsageError(f"{promise.name}: {schedule.title} takes {ranks} inputs, one per rank, but got {len(given)}")

    only_root = promise.starts.root_only
    lacking = [rank for rank, one in enumerate(given) if one is None and (rank == schedule.root or not only_root)]
    if lacking:
        raise UsageError(f"{promise.name}: missing the input of {name_ranks(lacking)}")
    carried = [None if one is None else _carry(promise.name, rank, one, wanted) for rank, one in enumerate(given)]
    _check_same(promise.name, carried, counts is None and not promise.starts.in_pieces)
    kind, shape = next((one[0], one[1].shape) for one in carried if one is not None)
    if counts is not None:
        for rank, one in enumerate(carried):
            if one is not None:
                counts.check_array(promise, rank, True, one[1].size)
    elif (
        promise.sliced
        and not promise.starts.sliced
        and not promise.starts.in_pieces
        and (not shape or shape[0] % ranks)
    ):
        raise UsageError(
            f"{promise.name}: the first axis of {describe(kind, shape)} cannot be divided into {ranks} slices"
        )
    used = [None if only_root and rank != schedule.root else one for rank, one in enumerate(carried)]
    return kind, shape, [None if one is None else _frozen(one[1]) for one in used]


def _carry(collective: str, rank: int, given: Any, wanted: Dtype | None) -> tuple[Dtype, Array]:
    """One input as an array of the carrying type. What has no dtype of its own (a list) takes the wanted one."""
    refuse_masked(collective, given)
    own = getattr(given, "dtype", None)
    if wanted is not None and own is None:
        try:
            return wanted, narrow(np.asarray(given, wanted.accumulates_in), wanted)
        except (ValueError, TypeError, OverflowError) as error:
            what = f"rank {rank}'s input cannot be converted to a {wanted} array"
            raise UsageError(f"{collective}: {what}: {error}") from None
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        hint = "; view it as uint16 and say dtype='bfloat16'" if str(own) == "torch.bfloat16" else ""
        what = f"rank {rank}'s input cannot be converted to an array"
        raise UsageError(f"{collective}: {what}: {error}{hint}") from None
    try:
        kind = find_dtype(array.dtype)
    except UsageError as error:
        raise UsageError(f"{collective}: rank {rank}: {error}") from None
    if kind.carrier != array.dtype:  # bfloat16, as other libraries have it
        array = array.view(kind.carrier)
    if wanted is None or kind == wanted:
        return kind, array
    if wanted.name == "bfloat16" and array.dtype == wanted.carrier:
        return wanted, array
    expected = "uint16 that carries bfloat16" if wanted.name == "bfloat16" else str(wanted)
    raise UsageError(f"{collective}: rank {rank}'s input is {describe(kind, array.shape)}, expected {expected}")


def _check_same(collective: str, given: list[tuple[Dtype, Array] | None], in_shape: bool) -> None:
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(given):
        if one is not None:
            groups.setdefault(describe(one[0], one[1].shape) if in_shape else str(one[0]), []).append(rank)
    if len(groups) > 1:
        facts = ", ".join(f"{what} on {name_ranks(ranks)}" for what, ranks in groups.items())
        raise UsageError(f"{collective}: the inputs differ: {facts}; all must have the same shape and type")


def _frozen(array: Array) -> Array:
    flat = np.array(array, order="C").reshape(-1)
    flat.setflags(write=False)
    return flat
