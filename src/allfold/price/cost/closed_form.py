"""What an algorithm declares in `@algorithm`: its costs for any number of ranks, without a schedule.

Tests check that the declared values equal the counted ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...collectives import find_collective
from ...errors import UsageError
from ...patterns import Everybody, Patterns
from ...registry import Algorithm, algorithms, find_algorithm


@dataclass(frozen=True)
class Form:
    """One algorithm for one number of ranks, in the terms of `Counts`. None: the algorithm does not declare it."""

    steps: int | None = None
    rounds: int | None = None
    messages: int | None = None
    bytes: float | None = None
    busiest_port_bytes: Fraction | float | None = None
    busiest_port_messages: int | None = None


def closed_form(collective: str, algorithm: str, ranks: int) -> Form | None:
    """The closed form of an algorithm (with root 0 and its default groups), or None where it has none."""
    if ranks < 1:
        raise UsageError(f"{ranks} ranks: expected at least 1")
    if algorithm not in algorithms(collective):
        return None
    chosen = find_algorithm(collective, algorithm)
    if chosen.steps is None and chosen.port is None and chosen.patterns is None:
        return None
    if ranks == 1:
        return Form(0, 0, 0, 0, 0, 0)
    patterns = patterns_of(chosen, ranks)
    form = Form() if patterns is None else _count(patterns, ranks)
    steps, port = (None if formula is None else formula(ranks) for formula in (chosen.steps, chosen.port))
    return replace(
        form,
        steps=form.steps if steps is None else int(steps),
        busiest_port_bytes=form.busiest_port_bytes if port is None else port,
    )


def patterns_of(algorithm: Algorithm, ranks: int, root: int | None = None, **parameters: Any) -> Patterns | None:
    """The patterns that an algorithm declares for these parameters, or None where it declares none."""
    if algorithm.patterns is None:
        return None
    if ranks == 1:
        return []
    arguments = (ranks, root or 0) if find_collective(algorithm.collective).rooted else (ranks,)
    return algorithm.patterns(*arguments, **parameters)


def _count(patterns: Patterns, ranks: int) -> Form:
    steps = rounds = messages = 0
    through, carried = np.zeros((2, ranks), np.int64), np.zeros((2, ranks))  # messages and bytes, out and in, by rank
    for one in patterns:
        steps += one.steps
        if isinstance(one, Everybody):
            rounds += one.steps * -(-(ranks - 1) // one.steps)
            messages += ranks * (ranks - 1)
            through += ranks - 1
            carried += (ranks - 1) * one.share
            continue
        sides = one.source, one.destination
        now = np.stack([np.bincount(side, minlength=ranks) for side in sides])
        rounds += one.steps if one.apart else one.times * int(now.max())
        messages += one.times * len(one.source)
        through += one.times * now
        carried += one.times * np.stack([np.bincount(side, one.share, ranks) for side in sides])
    return Form(steps, rounds, messages, float(carried[0].sum()), float(carried.max()), int(through.max()))
