"""One sentence about every step, and the phases that steps belong to.

An algorithm may declare its phases in `@algorithm`. Where it does not (a user's own, one that was found), they follow
from the schedule: steps in a row that all add, or all copy, are a phase, and the sentence says who sends to whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..registry import Phase
from ..schedules import Schedule
from ..wording import name_ranks

Groups = Sequence[Sequence[int]]
Numbers = NDArray[np.int64]


def phases_of(schedule: Schedule, declared: Sequence[Phase] = (), groups: Groups | None = None) -> list[dict[str, Any]]:
    """Phases as plain JSON: name, first step (an index), how many, and the sentence of each step."""
    spans = _declared(schedule, declared, groups) or _derived(schedule)
    return [
        {"name": name, "first": first, "steps": many, "sentences": sentences or _sentences(schedule, first, many)}
        for name, first, many, sentences in spans
    ]


_Span = tuple[str, int, int, list[str]]


def _declared(schedule: Schedule, declared: Sequence[Phase], groups: Groups | None) -> list[_Span]:
    """The declared phases; none if they do not add up to the steps, as with other algorithms inside than usual."""
    spans: list[_Span] = []
    first = 0
    for phase in declared:
        if phase.steps is None:
            many = schedule.steps - first
        elif groups is not None and "groups" in signature(phase.steps).parameters:
            many = phase.steps(schedule.ranks, groups=groups)
        else:
            many = phase.steps(schedule.ranks)
        if many < 0:
            return []
        if many > 0:
            spans.append((phase.name, first, many, [phase.sentence] * many if phase.sentence else []))
        first += many
    return spans if first == schedule.steps else []


def _derived(schedule: Schedule) -> list[_Span]:
    spans: list[_Span] = []
    for step in range(schedule.steps):
        name = _name(schedule, _columns(schedule, step)[0])
        if spans and spans[-1][0] == name:
            name, first, many, _ = spans.pop()
            spans.append((name, first, many + 1, []))
        else:
            spans.append((name, step, 1, []))
    return spans


def _name(schedule: Schedule, reduces: NDArray[np.bool_]) -> str:
    if not schedule.promise.carries_data:
        return "signal"
    if reduces.all():
        return "add up"
    if reduces.any():
        return "add and pass on"
    promise = schedule.promise
    if promise.exchanges:
        return "exchange"
    if promise.ends.root_only and not promise.reduces:
        return "collect"
    return "hand out" if promise.reduces or promise.rooted else "pass on"


def _columns(schedule: Schedule, step: int) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
    part = slice(schedule.starts[step], schedule.starts[step + 1])
    reduces = schedule.columns["reduces"][part] != 0
    source, destination = (schedule.columns[side][part].astype(np.int64) for side in ("source", "destination"))
    return reduces, source, destination


def _sentences(schedule: Schedule, first: int, many: int) -> list[str]:
    return [sentence_of(schedule, step) for step in range(first, first + many)]


def sentence_of(schedule: Schedule, step: int) -> str:
    """`Every rank sends to the rank to its right, which adds what comes.`"""
    reduces, source, destination = _columns(schedule, step)
    travels = source != destination
    if not travels.any():
        return "Ranks combine or copy chunks of their own; nothing is sent."
    pairs = np.unique(np.stack([source[travels], destination[travels]], axis=1), axis=0)
    who = _who(pairs, schedule.ranks)
    arriving = reduces[travels]
    if not schedule.promise.carries_data:
        return f"{who}: a signal, without data."
    keeps = (
        "adds what comes"
        if arriving.all()
        else "keeps what comes"
        if not arriving.any()
        else "adds some of it and keeps the rest"
    )
    return f"{who}; the receiver {keeps}."


def _who(pairs: Numbers, ranks: int) -> str:
    senders, receivers = np.unique(pairs[:, 0]), np.unique(pairs[:, 1])
    one_each = len(pairs) == len(senders) == len(receivers)
    apart = np.unique((pairs[:, 1] - pairs[:, 0]) % ranks)
    if len(pairs) == ranks * (ranks - 1) and ranks > 2:
        return "Every rank sends to every other rank"
    if len(pairs) == 1:
        return f"Rank {senders[0]} sends to rank {receivers[0]}"
    if len(receivers) == 1:
        return f"{_named(senders)} send to rank {receivers[0]}"
    if len(senders) == 1:
        return f"Rank {senders[0]} sends to {_named(receivers).lower()}"
    back = {(int(b), int(a)) for a, b in pairs}
    if one_each and all((int(a), int(b)) in back for a, b in pairs):
        gaps = np.unique(np.abs(pairs[:, 1] - pairs[:, 0]))
        far = f" {gaps[0]} apart" if len(gaps) == 1 else ""
        return f"{'All' if len(pairs) == ranks else 'Some'} ranks exchange in pairs{far}"
    if one_each and len(pairs) == ranks and len(apart) == 1:
        distance = int(apart[0])
        if distance in (1, ranks - 1) and ranks > 2:
            return f"Every rank sends to the rank to its {'right' if distance == 1 else 'left'}"
        return f"Every rank sends to the rank {distance} further on"
    examples = ", ".join(f"{a} → {b}" for a, b in pairs[:3].tolist())
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return f"{len(senders)} ranks send to {len(receivers)}: {examples}{more}"


def _named(ranks: Numbers) -> str:
    words = name_ranks(ranks.tolist())
    return words[0].upper() + words[1:]
