"""The steps of a schedule, with equal steps counted once: what an algorithm's cost depends on, and nothing more.

In a ring of 1,024 ranks every step sends the same messages, so its 2.1 million moves are two patterns of 1,024. What a
rank sends to another within one step is one message, however many chunks it holds.

A schedule of 65,536 ranks is too long to build, but its steps are of few kinds. So an algorithm can declare its
patterns (`@algorithm(…, patterns=…)`), with `copies` and `reductions` where moves have `copy` and `reduce`; otherwise
`fold` finds them in its schedule. Tests check that both are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .division import Division, Lengths
from .schedules import Schedule, step_of_moves
from .symbolic import State

Index = NDArray[np.int32]
Share = NDArray[np.float64]
Seats = NDArray[np.integer[Any]]

_NOBODY: Index = np.zeros(0, np.int32)
_NOTHING: Share = np.zeros(0, np.float64)


@dataclass(frozen=True, eq=False)
class Pattern:
    """The messages of `times` equal steps. Bytes are shares of S, the bytes of the whole buffer."""

    times: int
    source: Index
    destination: Index
    share: Share
    reduced: Share
    """The part of each message that is combined on arrival."""
    local_rank: Index = field(default_factory=lambda: _NOBODY)
    """The ranks that move or combine something within their own memory in this step."""
    local_share: Share = field(default_factory=lambda: _NOTHING)
    """The share of S that each of them moves or combines."""
    consecutive: bool = True
    """The steps follow each other, so that what arrives in one is sent on in the next."""
    apart: bool = False
    """Each message is a step of its own, one after the other: a chain."""
    crossing: Share | None = None
    """On a network whose switches fold: how much of each message crosses each link of its route, route after route."""

    @property
    def steps(self) -> int:
        return self.times * (len(self.source) if self.apart else 1)


@dataclass(frozen=True)
class Everybody:
    """Every rank sends `share` to every other; written as patterns, that would be P(P−1) messages.

    They are sent in one step, or spread over `steps` so that no port has more than ⌈(P−1)/steps⌉ messages in any step.
    """

    share: float
    reduced: float
    steps: int = 1


Patterns = Iterable[Pattern | Everybody]


def copies(source: Seats, destination: Seats, share: float | Share, times: int = 1) -> Pattern:
    """Messages that are copied on arrival, in each of `times` equal steps."""
    return replace(reductions(source, destination, share, times), reduced=np.zeros(source.shape))


def reductions(source: Seats, destination: Seats, share: float | Share, times: int = 1) -> Pattern:
    """Messages that are combined on arrival, in each of `times` equal steps."""
    shares = np.broadcast_to(np.asarray(share, np.float64), source.shape)
    return Pattern(times, source.astype(np.int32), destination.astype(np.int32), shares, shares)


Messages = Callable[..., Pattern]
"""`copies` or `reductions`."""


def local(rank: Seats, share: float) -> Pattern:
    """A step in which ranks only move or combine something within their own memory."""
    return Pattern(1, _NOBODY, _NOBODY, _NOTHING, _NOTHING, rank.astype(np.int32), np.full(rank.shape, share))


def fold(schedule: Schedule, lengths: Lengths | None = None) -> list[Pattern]:
    """The patterns of a schedule. The order of different steps is lost; no cost depends on it.

    `lengths`: those of the slices, where they differ.
    """
    return fold_together([schedule], [range(schedule.ranks)], schedule.ranks, lengths)


def fold_together(
    schedules: Sequence[Schedule], groups: Sequence[Sequence[int]], ranks: int, lengths: Lengths | None = None
) -> list[Pattern]:
    """The patterns of schedules that happen at once, step by step, each on its own group of all the ranks."""
    steps = max(schedule.steps for schedule in schedules)
    parts = [
        _messages(schedule, np.asarray(group, np.int64), ranks, lengths)
        for schedule, group in zip(schedules, groups, strict=True)
    ]
    message_step, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(message_step, kind="stable")
    message_step, rows = message_step[order], rows[order]
    starts = np.searchsorted(message_step, np.arange(steps + 1))
    equal: dict[bytes, list[int]] = {}
    for number in range(steps):
        equal.setdefault(rows[starts[number] : starts[number + 1]].tobytes(), []).append(number)
    patterns: list[Pattern] = []
    alone: list[Share] = []
    for numbers in equal.values():
        row = rows[starts[numbers[0]] : starts[numbers[0] + 1]]
        here, there = np.divmod(row[:, 0].astype(np.int64), ranks)
        if len(row) == 1 and here[0] != there[0]:
            alone += [row] * len(numbers)
            continue
        stays = here == there
        patterns.append(
            Pattern(
                times=len(numbers),
                source=here[~stays].astype(np.int32),
                destination=there[~stays].astype(np.int32),
                share=row[~stays, 1],
                reduced=row[~stays, 2],
                local_rank=here[stays].astype(np.int32),
                local_share=row[stays, 1],
                consecutive=numbers[-1] - numbers[0] == len(numbers) - 1,
            )
        )
    if alone:
        row = np.concatenate(alone)
        here, there = np.divmod(row[:, 0].astype(np.int64), ranks)
        ends = here.astype(np.int32), there.astype(np.int32)
        patterns.append(Pattern(1, *ends, row[:, 1], row[:, 2], apart=True))
    return patterns


def _messages(
    schedule: Schedule, group: NDArray[np.int64], ranks: int, lengths: Lengths | None
) -> tuple[NDArray[np.int64], Share]:
    """The step of every message; and its pair, its share of the buffer and how much of that is combined."""
    source, destination = (group[schedule.columns[name]] for name in ("source", "destination"))
    step = step_of_moves(schedule)
    reduces = schedule.columns["reduces"].astype(bool)
    key = (step * ranks + source) * ranks + destination
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    pairs = key[first] % (ranks * ranks)
    if lengths is not None and len(first):
        shares = shares_of_moves(schedule, lengths)[order]
        moved, combined = np.add.reduceat(shares, first), np.add.reduceat(shares * reduces[order], first)
        return key[first] // (ranks * ranks), np.stack([pairs, moved, combined], axis=1)
    moves = np.diff(np.append(first, len(key)))
    reducing = np.add.reduceat(reduces[order].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
    one = 1 / schedule.chunks if schedule.promise.carries_data else 0.0
    return key[first] // (ranks * ranks), np.stack([pairs, moves * one, reducing * one], axis=1)


def shares_of_moves(schedule: Schedule, lengths: Lengths) -> Share:
    """By move: its share of the buffer (of an all_to_all, of a rank's buffer on average)."""
    state, division = State(schedule), Division(schedule.ranks, schedule.chunks, 0, lengths)
    elements = np.zeros(schedule.moves)
    for start, end in pairwise(schedule.starts.tolist()):
        cells = schedule.columns["source"][start:end].astype(np.int64) * state.width
        data = state.datum[cells + schedule.columns["chunk"][start:end]]
        elements[start:end] = [division.length(datum) for datum in data.tolist()]
        state.advance()
    whole = float(lengths.table.sum()) / (schedule.ranks if lengths.exchanges else 1)
    return elements / whole if whole else elements
