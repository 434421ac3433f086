"""The folds that the moves of a step make, and the values that folds read: as native/proof/step.cpp and versions.cpp.

A cell is a chunk of a rank: rank · width + chunk.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Column = NDArray[np.int32]

_TAKES_NOTHING, _TWO_WRITES, _REDUCES_INTO_NOTHING = 1, 2, 3


def folds_of(
    reduces: Column,
    chunk: Column,
    source: Column,
    destination: Column,
    into: Column,
    ranks: int,
    width: int,
    chunks: int,
    part: int,
    datum: Column,
    first: Column,
    written: Ints,
    number: int,
) -> tuple[int, int, bool, Ints, Ints, Ints, Ints]:
    """The fault (0: none) and its place, whether a copy goes to a chunk that may be shorter, and the folds: target,
    starts, operands, move. The copies come first, in the order of the moves, then the reductions, by target.
    """
    nothing = np.zeros(0, np.int64)
    read, target = source * np.int64(width) + chunk, destination * np.int64(width) + into
    adds = reduces != 0
    empty = (datum[read] < 0).nonzero()[0]
    sensible = int(empty[0]) if len(empty) else len(read)
    written[target[:sensible]] = np.where(adds[:sensible], number + 1, number)
    if sensible < len(read):
        return _TAKES_NOTHING, sensible, False, nothing, nothing, nothing, nothing
    copies, reductions = (~adds).nonzero()[0], adds.nonzero()[0]
    copied, reduced = target[copies], target[reductions]
    if len(np.unique(copied)) < len(copied) or np.isin(copied, reduced).any():
        return _TWO_WRITES, -1, False, nothing, nothing, nothing, nothing
    place = into[copies]
    elsewhere = bool(((place < chunks) & ((datum[read[copies]] - place) % part != 0)).any())
    starts = np.arange(len(copies) + 1)
    own = np.unique(reduced)
    lacking = own[datum[own] < 0]
    if len(lacking):
        return _REDUCES_INTO_NOTHING, int(lacking[0]), elsewhere, copied, starts, read[copies], copies
    # What is in a cell is among its operands; all of them by the lowest rank that has contributed.
    operands, goal = np.append(read[reductions], own), np.append(reduced, own)
    move = np.append(reductions, np.full(len(own), -1))
    ordered = (goal * ranks + first[operands]).argsort(kind="stable")
    heads = np.searchsorted(goal[ordered], own)
    last = np.maximum.reduceat(move[ordered], heads) if len(own) else nothing
    return (
        0,
        -1,
        elsewhere,
        np.append(copied, own),
        np.append(starts, len(copies) + np.append(heads[1:], len(operands))[: len(own)]),
        np.append(read[copies], operands[ordered]),
        np.append(copies, last),
    )


def versions(
    steps: Ints, cell: Ints, sizes: Ints, operands: Ints, datum: Column, count: Column, cells: int
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Every value that every cell ever holds: the versions that are read; by version the one that it replaces, or −1,
    its datum, and its number of contributions; by cell its last version, or −1.
    """
    initial, total = len(datum), len(cell)
    operand = np.zeros(len(operands), np.int64)
    previous, current = np.full(total, -1, np.int64), np.full(cells, -1, np.int64)
    all_datum, all_count = np.zeros(total, np.int64), np.zeros(total, np.int64)
    all_datum[:initial], all_count[:initial] = datum, count
    current[cell[:initial]] = np.arange(initial)
    bounds = np.append(0, sizes.cumsum()).astype(np.intp)
    for begin, end in pairwise((initial + steps).tolist()):
        if begin == end:
            continue
        reads, heads = slice(bounds[begin], bounds[end]), bounds[begin:end] - bounds[begin]
        operand[reads] = current[operands[reads]]
        all_count[begin:end] = np.add.reduceat(all_count[operand[reads]], heads)
        all_datum[begin:end] = all_datum[operand[reads][heads]]
        previous[begin:end] = current[cell[begin:end]]
        current[cell[begin:end]] = np.arange(begin, end)
    return operand, previous, all_datum, all_count, current
