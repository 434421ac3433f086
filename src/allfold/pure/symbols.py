"""The parts of the proof that go move by move and instruction by instruction: as native/proof/fold.cpp and follow.cpp."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .hashes import combined, rounded

Ints = NDArray[np.int64]

_MIXTURE, _REDUCTION, _TWICE = 1, 2, 3


def order(keys: Ints) -> Ints:
    """The positions of the keys in their order; equal ones keep theirs."""
    return keys.argsort(kind="stable")


def fold_symbols(
    target: Ints,
    starts: Ints,
    operands: Ints,
    datum: NDArray[np.int32],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    count: NDArray[np.int32],
    in_order: NDArray[np.bool_],
    expression: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    members: NDArray[np.uint64] | None,
    twice_is_wrong: bool,
    write: bool,
) -> tuple[int, int, int]:
    """Fold each run of operands from left to right, all runs at once. What is wrong, in which run, at which operand."""
    columns: list[NDArray[Any]] = [datum, first, last, count, in_order, expression, bits]
    if members is not None:
        columns.append(members)
    heads, sizes = starts[:-1], starts[1:] - starts[:-1]
    made = [column[operands[heads]] for column in columns]
    for depth in range(1, int(sizes.max(initial=1))):
        runs = (sizes > depth).nonzero()[0]
        operand = operands[heads[runs] + depth]
        mixed = datum[operand] != made[0][runs]
        if mixed.any():
            return _MIXTURE, int(runs[mixed.argmax()]), depth
        if members is None:
            return _REDUCTION, int(runs[0]), depth
        twice = (made[7][runs] & members[operand]).any(axis=1)
        if twice_is_wrong and twice.any():
            return _TWICE, int(runs[twice.argmax()]), depth
        made[4][runs] &= in_order[operand] & (made[2][runs] + 1 == first[operand])
        made[2][runs] = np.maximum(made[2][runs], last[operand])
        made[3][runs] += count[operand]
        made[5][runs] = combined(made[5][runs], expression[operand])
        made[6][runs] = combined(made[6][runs], bits[operand])
        made[7][runs] |= members[operand]
    several = sizes > 1
    made[6][several] = rounded(made[6][several])
    if write:
        for column, values in zip(columns, made, strict=True):
            column[target] = values
    return 0, -1, -1


def follow(
    when: Ints,
    source_starts: Ints,
    source_rank: Ints,
    source_slot: Ints,
    destination_starts: Ints,
    destination_rank: Ints,
    destination_slot: Ints,
    ranks: int,
    datum: NDArray[np.int32],
    bits: NDArray[np.uint64],
    count: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Run instructions in symbols, all of a round at once. By instruction: its datum, its parts, and if they differ."""
    slots = len(datum) // ranks if ranks else 0
    reads, writes = source_rank * slots + source_slot, destination_rank * slots + destination_slot
    held, parts, mixed = np.zeros(len(when), np.int32), np.zeros(len(when), np.int32), np.zeros(len(when), bool)
    by_round = order(when)
    bounds = np.flatnonzero(np.diff(when[by_round], prepend=-1, append=-1))
    for begin, end in pairwise(bounds.tolist()):
        rows = by_round[begin:end]
        heads, sizes = source_starts[rows], source_starts[rows + 1] - source_starts[rows]
        what, total, many = datum[reads[heads]], bits[reads[heads]], count[reads[heads]]
        for depth in range(1, int(sizes.max(initial=1))):
            more = (sizes > depth).nonzero()[0]
            other = reads[heads[more] + depth]
            mixed[rows[more]] |= datum[other] != what[more]
            total[more] = combined(total[more], bits[other])
            many[more] += count[other]
        folds = sizes > 1
        total[folds] = rounded(total[folds])
        held[rows], parts[rows] = what, many
        copies = (destination_starts[rows + 1] - destination_starts[rows]).astype(np.intp)
        maker = np.arange(len(rows)).repeat(copies)
        first = np.cumsum(copies) - copies
        place = writes[destination_starts[rows][maker] + np.arange(len(maker)) - first[maker]]
        datum[place], bits[place], count[place] = what[maker], total[maker], many[maker]
    return held, parts, mixed
